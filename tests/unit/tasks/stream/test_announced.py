"""What a server says of its target, and what a run makes of it."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from tasks.errors import UsageError
from tasks.stream.announced import Announced, announced_by, require_same_revision

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
