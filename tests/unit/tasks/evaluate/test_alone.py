"""What `evaluate` makes of a profile, a draft and its options."""

from __future__ import annotations

from pathlib import Path

import pytest

from profiles.load import load_profile
from tasks.errors import UsageError
from tasks.evaluate.alone import Measuring, measuring, measuring_of, overrides_for
from tasks.evaluate.attach import ArmAddress

ARMS = (ArmAddress("plain", "http://a"), ArmAddress("draft", "http://b", "KEY"))


def test_the_draft_decides_layers_and_tokens_and_the_user_wins(draft_dir: Path) -> None:
    asked = measuring(str(draft_dir), (), None)
    own = {"evaluate": {"live": {"per_domain": 1}}, "train": {"draft": {"block_size": 2}}}
    values = overrides_for(
        "laptop", asked, target="/models/t", prompts=["/p.jsonl"], full=True, overrides=own
    )
    profile = load_profile("laptop", values).profile
    assert profile.target.aux_layer_ids == (1, 2) and profile.train.draft.block_size == 2
    assert (profile.target.model, profile.target.source.kind) == ("/models/t", "path")
    assert profile.prompts.train == () and profile.prompts.evaluate == ("/p.jsonl",)
    assert not profile.stream.overlaps and profile.train.init_from is None
    assert profile.evaluate.live.per_domain == 1 and profile.evaluate.load.concurrency == (1, 4)


def test_answers_come_from_the_target_whatever_the_profile_trains_on(draft_dir: Path) -> None:
    served = {"answers": "served", "answer_url": "http://a", "retention": "window", "window_bytes": 10**9}
    changes = {"stream": served, "train": {"epochs": 1, "draft": {"vocab_size": None}}}
    base = load_profile("laptop", changes).profile
    profile = load_profile(base, overrides_for(base, measuring(str(draft_dir), (), None))).profile
    assert (profile.stream.answers, profile.stream.retention) == ("generate", "all")


def test_without_full_the_laptop_measures_no_load(draft_dir: Path) -> None:
    values = overrides_for("laptop", measuring(str(draft_dir), (), None))
    profile = load_profile("laptop", values).profile
    assert profile.evaluate.load.concurrency == ()
    assert profile.prompts.evaluate == load_profile("laptop").profile.prompts.evaluate


def test_a_run_remembers_what_it_measures(draft_dir: Path) -> None:
    for asked in (measuring(str(draft_dir), (), None), Measuring(arms=ARMS)):
        assert measuring_of(asked.facts()) == asked


def test_a_draft_or_arms_are_needed_and_not_both(draft_dir: Path) -> None:
    with pytest.raises(UsageError, match="give a draft to serve, or arms"):
        measuring(None, (), None)
    with pytest.raises(UsageError, match="not both"):
        measuring(str(draft_dir), ARMS, None)
    with pytest.raises(UsageError, match="already have their target"):
        measuring(None, ARMS, "/models/t")
