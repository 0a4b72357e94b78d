"""Which arms there are, how each speculates, and why one is not available."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from profiles.load import ProfileProblem, load_profile
from tasks.evaluate.arm_plan import DraftFolder, PlannedArm, mtp_layers, plan_arms

NEW, OLD = Path("/drafts/new"), Path("/drafts/old")


def plan(
    tmp_path: Path, old: Path | None = OLD, reason: str = "none yet", **live: Any
) -> dict[str, PlannedArm]:
    profile = load_profile("laptop", {"evaluate": {"live": live}}).profile
    incumbent = DraftFolder(old) if old else None
    return {arm.name: arm for arm in plan_arms(profile, tmp_path, DraftFolder(NEW), incumbent, reason)}


def test_cheap_alternatives_are_arms_without_being_asked_for(tmp_path: Path) -> None:
    arms = plan(tmp_path)
    assert list(arms) == ["draft", "incumbent", "ngram", "suffix", "mtp", "plain"]
    assert [name for name, arm in arms.items() if arm.required] == ["draft", "plain"]
    assert arms["ngram"].speculation.config == {
        "method": "ngram",
        "num_speculative_tokens": 4,
        "prompt_lookup_min": 2,
        "prompt_lookup_max": 4,
    }
    assert arms["plain"].speculation.config is None


def test_plain_and_draft_are_measured_whatever_the_profile_names(tmp_path: Path) -> None:
    assert list(plan(tmp_path, arms=["ngram"])) == ["draft", "ngram", "plain"]


def test_the_targets_own_heads_are_an_arm_where_its_config_has_them(tmp_path: Path) -> None:
    assert "names no layers" in plan(tmp_path)["mtp"].unavailable
    (tmp_path / "config.json").write_text(json.dumps({"text_config": {"num_nextn_predict_layers": 2}}))
    arm = plan(tmp_path)["mtp"]
    assert arm.unavailable == ""
    assert arm.speculation.config == {"method": "mtp", "num_speculative_tokens": 2}
    (tmp_path / "config.json").write_text("{half")
    assert mtp_layers(tmp_path) == 0


def test_no_incumbent_is_said_with_its_reason(tmp_path: Path) -> None:
    assert plan(tmp_path, old=None, reason="it reads other layers")["incumbent"].unavailable == (
        "it reads other layers"
    )


def test_an_incumbent_drafts_blocks_of_its_own_size(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "config.json").write_text(json.dumps({"block_size": 7}))
    config = plan(tmp_path, old=tmp_path / "old")["incumbent"].speculation.config
    assert config is not None and config["num_speculative_tokens"] == 7


def test_an_own_arm_may_name_both_drafts(tmp_path: Path) -> None:
    own = {
        "block": {
            "speculative_config": {"method": "dspark", "model": "{draft}", "num_speculative_tokens": 2}
        },
        "before": {"speculative_config": {"method": "dspark", "model": "{incumbent}"}, "runner": "v2"},
        "medusa": {"speculative_config": {"method": "medusa", "model": "/heads"}},
    }
    arms = plan(tmp_path, own_arms=own)
    configs = {name: arms[name].speculation.config or {} for name in own}
    assert configs["block"]["model"] == str(NEW) and configs["before"]["model"] == str(OLD)
    assert configs["medusa"]["model"] == "/heads" and arms["medusa"].speculation.runner == "v1"
    assert arms["block"].draft == DraftFolder(NEW) and not arms["block"].required
    assert "none to measure" in plan(tmp_path, old=None, own_arms=own)["before"].unavailable


@pytest.mark.parametrize(
    ("live", "said"),
    [
        ({"arms": ["eagle"]}, "no arm is called eagle"),
        ({"own_arms": {"plain": {"speculative_config": {"method": "ngram"}}}}, "cannot be called plain"),
        ({"own_arms": {"My Arm": {"speculative_config": {"method": "ngram"}}}}, "cannot be called My Arm"),
        ({"own_arms": {"empty": {"speculative_config": {}}}}, "speculative_config"),
    ],
)
def test_arms_that_nobody_knows_are_refused(live: dict[str, Any], said: str) -> None:
    with pytest.raises(ProfileProblem, match=said):
        load_profile("laptop", {"evaluate": {"live": live}})
