"""A pilot changes how much is done, and nothing that the speed of a part depends on."""

from __future__ import annotations

from typing import Any

import pytest

from profiles.load import load_profile, merge
from profiles.schema import Profile
from tasks.plan.pilot import changes, part_of, pilot_overrides
from tasks.plan.work import Work, assumed_work


def laptop(**parts: Any) -> Profile:
    return load_profile("laptop", parts).profile


def work(samples: int = 576) -> Work:
    return assumed_work(laptop(), samples)


def test_one_percent_of_the_laptop_is_a_few_prompts_of_each_domain() -> None:
    overrides = pilot_overrides(laptop(), work())
    pilot = Profile.model_validate(merge(laptop().model_dump(mode="json"), overrides))
    assert pilot.name == "laptop-pilot" and pilot.expected_minutes is None
    assert (pilot.prompts.train_per_domain, pilot.prompts.evaluate_per_domain) == (2, 1)
    assert pilot.evaluate.live.per_domain == 1
    assert pilot.publish.name == "smollm2-135m-dspark-pilot", "a pilot's draft must not become champion"
    kept = ("batch_tokens", "anchors", "draft", "optimizer", "epochs", "scale", "packs_per_step")
    assert all(getattr(pilot.train, name) == getattr(laptop().train, name) for name in kept)
    assert (pilot.stream.concurrency, pilot.stream.max_new_tokens) == (64, 64)


def test_a_share_of_many_prompts_and_of_a_limit_of_steps() -> None:
    many = laptop(prompts={"train_per_domain": None, "evaluate_per_domain": 100}, train={"max_steps": 900})
    overrides = pilot_overrides(many, work(90_000), 0.15)
    assert overrides["prompts"] == {"train_per_domain": 1500, "evaluate_per_domain": 15}
    assert overrides["train"]["max_steps"] == 135
    assert pilot_overrides(laptop(train={"max_steps": 5}), work())["train"]["max_steps"] == 5


def test_capture_and_training_do_not_overlap_and_nobody_is_asked() -> None:
    window = {"retention": "window", "window_bytes": 10**9}
    train = {"epochs": 1, "draft": {"vocab_size": None}}
    profile = laptop(stream=window, train=train, publish={"approval": {"required": True}})
    overrides = pilot_overrides(profile, work())
    pilot = Profile.model_validate(merge(profile.model_dump(mode="json"), overrides))
    assert not pilot.stream.overlaps and not pilot.publish.approval.required


def test_what_changes_is_said() -> None:
    lines = changes(laptop(), pilot_overrides(laptop(), work()))
    assert "prompts.train_per_domain: 64 -> 2" in lines and "train.log_every_steps: 10 -> 1" in lines
    assert not any("overlap" in line for line in lines), "it was off already"


@pytest.mark.parametrize(
    ("number", "share", "part"), [(199, 0.01, 1), (200, 0.01, 2), (3, 0.01, 1), (7, 1, 7)]
)
def test_a_part_is_never_larger_than_its_share(number: int, share: float, part: int) -> None:
    assert part_of(number, share) == part
