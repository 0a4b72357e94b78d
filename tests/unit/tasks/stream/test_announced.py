"""What a server says of its target, and what a run makes of it."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from tasks.errors import ServiceError, UsageError
from tasks.stream.announced import Announced, announced_by, require_same_revision, require_same_tap

COMMIT = "0123456789abcdef0123456789abcdef01234567"
OTHER = "f" * 40


def config(model: str, revision: str | None = None, commit: str | None = None) -> Any:
    hf = SimpleNamespace(_commit_hash=commit)
    draft = SimpleNamespace(hf_config=SimpleNamespace(eagle_aux_hidden_state_layer_ids=[2, 8, 30]))
    return SimpleNamespace(
        model_config=SimpleNamespace(model=model, revision=revision, hf_config=hf),
        speculative_config=SimpleNamespace(draft_model_config=draft),
    )


@pytest.mark.parametrize(
    ("given", "revision"),
    [
        (config("/models/m"), None),
        (config("org/m", "main", COMMIT), COMMIT),
        (config(f"/cache/models--org--m/snapshots/{COMMIT}/"), COMMIT),
        (config("org/m", "v1"), "v1"),
    ],
)
def test_revision_is_the_commit_wherever_vllm_knows_it(given: Any, revision: str | None) -> None:
    assert announced_by(given) == Announced(given.model_config.model, revision, (2, 8, 30))


def test_key_part_differs_between_revisions_and_layers() -> None:
    one = Announced("org/m", COMMIT, (2, 8, 30))
    others = [replace(one, revision=OTHER), replace(one, layer_ids=(2, 9, 30)), replace(one, model="m")]
    assert len({one.key_part, *(other.key_part for other in others)}) == 4
    assert int(one.key_part, 16) >= 0 and len(one.key_part) == 8


def told(revision: str | None) -> dict[str, Any]:
    manifest: dict[str, Any] = {"metadata": {}}
    Announced("m", revision, (1,)).announce(manifest)
    return manifest


@pytest.mark.parametrize(
    ("served", "wanted"),
    [
        (COMMIT, COMMIT),
        (COMMIT, COMMIT[:7]),
        (None, COMMIT),
        (COMMIT, None),
        (COMMIT, "main"),
        ("v1", COMMIT),
    ],
)
def test_equal_or_unknown_commits_pass(served: str | None, wanted: str | None) -> None:
    require_same_revision(told(served), wanted)


def test_another_commit_is_refused_with_both() -> None:
    with pytest.raises(UsageError) as caught:
        require_same_revision(told(OTHER), COMMIT)
    assert (
        OTHER in caught.value.what and COMMIT in caught.value.what and caught.value.where == "target.revision"
    )


def test_a_manifest_of_another_connector_says_nothing() -> None:
    require_same_revision({"metadata": None}, COMMIT)


def kimi(**text: Any) -> Any:
    given = config("/models/k3")
    given.model_config.hf_text_config = SimpleNamespace(**text)
    return given


@pytest.mark.parametrize(
    ("variable", "tap_point"),
    [(None, "prefix_only"), ("", "prefix_only"), ("0", "prefix_only"), ("1", "attn_res_stream")],
)
def test_a_target_with_attention_residuals_says_where_it_is_tapped(
    variable: str | None, tap_point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if variable is None:
        monkeypatch.delenv("VLLM_KIMI_K3_AUX_ATTN_RES_STREAM", raising=False)
    else:
        monkeypatch.setenv("VLLM_KIMI_K3_AUX_ATTN_RES_STREAM", variable)
    assert announced_by(kimi(attn_res_block_size=4)).tap_point == tap_point
    assert announced_by(kimi(attn_res_block_size=None)).tap_point is None
    assert announced_by(kimi()).tap_point is None


def test_captures_of_another_tap_point_are_refused() -> None:
    manifest: dict[str, Any] = {"metadata": {}}
    Announced("m", None, (1,), "attn_res_stream").announce(manifest)
    require_same_tap(manifest, "attn_res_stream")
    with pytest.raises(
        ServiceError, match="at attn_res_stream, the profile needs them at prefix_only"
    ) as info:
        require_same_tap(manifest, "prefix_only")
    assert info.value.where == "target.tap_point"
    with pytest.raises(ServiceError, match="at an unknown point"):
        require_same_tap({"metadata": {}}, "prefix_only")
    require_same_tap({"metadata": {}}, None)
    require_same_tap({}, None)


def test_keys_differ_between_tap_points_and_stay_for_other_targets() -> None:
    one = Announced("org/m", COMMIT, (2, 8, 30))
    taps = [replace(one, tap_point=tap) for tap in ("prefix_only", "attn_res_stream")]
    assert len({one.key_part, *(tap.key_part for tap in taps)}) == 3
