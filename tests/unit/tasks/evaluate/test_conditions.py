"""Results of different conditions refuse to be compared."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from profiles.load import load_profile
from tasks.errors import StageInputError
from tasks.evaluate.arm_conditions import conditions_of, machine_of
from tasks.evaluate.arm_plan import DraftFolder, PlannedArm, plan_arms
from tasks.evaluate.arm_record import LivePrompt
from tasks.evaluate.conditions import Conditions, differences, require_comparable
from tasks.run_folder import RunFolder, create_run

PROMPTS = [LivePrompt(prompt_id="a", domain="qa", token_ids=(1, 2))]


def plan(tmp_path: Path, live: dict[str, object] | None = None) -> dict[str, PlannedArm]:
    profile = load_profile("laptop", {"evaluate": {"live": live or {}}}).profile
    drafts = (DraftFolder(tmp_path / name, {"model.safetensors": name}) for name in ("new", "old"))
    return {arm.name: arm for arm in plan_arms(profile, tmp_path, next(drafts), next(drafts), "")}


def conditions(
    arm: PlannedArm, run: RunFolder, live: dict[str, object] | None = None, prompts: int = 1
) -> Conditions:
    profile = load_profile("laptop", {"evaluate": {"live": live or {}}}).profile
    return conditions_of(
        profile, arm, target="t", prompts=PROMPTS * prompts, engine="vllm 1", machine=machine_of(run)
    )


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return create_run(tmp_path / "runs", "r", load_profile("laptop").profile)


def test_arms_of_one_evaluation_differ_in_what_they_draft_with_only(tmp_path: Path, run: RunFolder) -> None:
    arms = plan(tmp_path)
    draft, plain = conditions(arms["draft"], run), conditions(arms["plain"], run)
    assert differences(draft, plain) == ()
    require_comparable(draft, plain, "the speed-up")
    assert differences(draft, plain, besides=()) != ()
    assert (draft.method, draft.num_speculative_tokens, plain.method) == ("dspark", 4, "none")
    assert draft.draft != conditions(arms["incumbent"], run).draft


def test_another_runner_is_another_condition(tmp_path: Path, run: RunFolder) -> None:
    arms = plan(tmp_path)
    ngram, plain = conditions(arms["ngram"], run), conditions(arms["plain"], run)
    assert differences(ngram, plain)[0] == "runner: v1 / v2"
    with pytest.raises(StageInputError, match="the speed-up would compare different conditions: runner"):
        require_comparable(ngram, plain, "the speed-up")
    on_gpus = plan(tmp_path, {"triton_interpreter": False})
    assert on_gpus["ngram"].speculation.runner == "v2" and on_gpus["suffix"].speculation.runner == "v1"


@pytest.mark.parametrize(
    ("live", "field"),
    [
        ({"concurrency": 16}, "concurrency: 16 / 4"),
        ({"max_new_tokens": 99}, "max_new_tokens: 99 / 16"),
        ({"dtype": "bfloat16"}, "dtype: bfloat16 / float32"),
    ],
)
def test_settings_that_change_results_are_named(
    tmp_path: Path, run: RunFolder, live: dict[str, object], field: str
) -> None:
    arm = plan(tmp_path)["draft"]
    assert differences(conditions(arm, run, live), conditions(arm, run)) == (field,)


def test_other_prompts_are_another_condition(tmp_path: Path, run: RunFolder) -> None:
    arm = plan(tmp_path)["draft"]
    (found,) = differences(conditions(arm, run, prompts=2), conditions(arm, run))
    assert found.startswith("prompts: ")


def test_the_machine_is_what_the_validate_stage_found(tmp_path: Path, run: RunFolder) -> None:
    assert "cores" in machine_of(run).hardware and machine_of(run).toolkit_channel == "unknown"
    gpus = {"gpus": [{"name": "NVIDIA GB300"}] * 4}
    report = {"result": {"nodes": [gpus, gpus], "toolkit_channel": "preview"}}
    (run.path / "01-validate").mkdir()
    (run.path / "01-validate" / "manifest.json").write_text(json.dumps(report))
    found = machine_of(run)
    assert (found.hardware, found.toolkit_channel) == ("8 x NVIDIA GB300", "preview")
