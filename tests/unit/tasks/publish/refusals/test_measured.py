"""Acceptance that nobody earned, and speeds that nobody may publish."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from drafts import evaluation, profile, validation
from folders import conditions, edit, material, package, with_arm

from tasks.errors import GateRefused
from tasks.evaluate.load.models import LoadPoint, LoadSweep
from tasks.evaluate.worth.models import Worth
from tasks.publish.refusals.measured import measured_refusals, speed_obstacle, speeds_in
from tasks.publish.refusals.models import Material
from tasks.publish.speculation_profile import read_speculation_profile

PREVIEW = validation().model_copy(update={"toolkit_channel": "preview"})
SWEEP = LoadSweep(
    points=(
        LoadPoint(
            arm="draft", concurrency=1, requests=16, failed=0, seconds=4.0, output_tokens=1000,
            output_tokens_per_s=250.0, tokens_per_s_per_user=251.5,
        ),
    )
)  # fmt: skip
FASTER = Worth(verdict="worth", sentence="WORTH IT up to concurrency 12: 1.9x [1.7, 2.1] at 1")


def found(material: Material) -> list[str]:
    return [f"{one.where}: {one.what}" for one in measured_refusals(material)]


def argv_with(*words: str) -> Any:
    arms = evaluation().arms
    return evaluation(arms=(arms[0], arms[1].model_copy(update={"argv": words})))


@pytest.mark.parametrize(
    ("measured", "words"),
    [
        (evaluation(rejection_sample_method="synthetic"), "acceptance was synthetic"),
        (with_arm(conditions(rejection_sample_method="synthetic")), "arm draft accepted without verifying"),
        (
            argv_with("--speculative-config", '{"synthetic_acceptance_length": 4}'),
            "with synthetic acceptance",
        ),
        (
            argv_with("--speculative-config.synthetic-acceptance-rates", "0.9"),
            "with synthetic acceptance",
        ),
    ],
)
def test_acceptance_without_verification(tmp_path: Path, measured: Any, words: str) -> None:
    lines = found(material(tmp_path, evaluation=measured))
    assert any(words in line for line in lines), lines


@pytest.mark.parametrize(
    "change",
    [
        lambda s: s["speculative_config"].update(rejection_sample_method="synthetic"),
        lambda s: s["speculative_config"].update(synthetic_acceptance_length=5),
        lambda s: s["arguments"].append("--synthetic-acceptance-rates=0.9"),
    ],
)
def test_users_are_not_told_to_fake_it(tmp_path: Path, change: Callable[[Any], Any]) -> None:
    bad = material(tmp_path)
    edit(bad.folder / "serve.json", change)
    assert len(found(bad)) == 1 and found(bad)[0].startswith("serve.json: it sets ")


def test_honest_methods_are_published(tmp_path: Path) -> None:
    for method in ("standard", "block"):
        good = material(tmp_path / method, evaluation=evaluation(rejection_sample_method=method))
        assert found(good) == []


def test_speeds_of_the_interpreter_and_of_a_preview() -> None:
    assert "interpreter" in speed_obstacle(evaluation(), validation())
    real = with_arm(conditions())
    assert speed_obstacle(real, validation()) == ""
    assert "developer preview" in speed_obstacle(real, PREVIEW)
    assert "developer preview" in speed_obstacle(
        with_arm(conditions(toolkit_channel="preview")), validation()
    )
    assert "interpreter" in speed_obstacle(with_arm(conditions(interpreter=True)), validation())


@pytest.mark.parametrize(
    ("measured", "checked"),
    [
        (evaluation(load=SWEEP, worth=FASTER, notes=("took 2.31 s at its start, 5 % slower",)), validation()),
        (with_arm(conditions(), load=SWEEP, worth=FASTER), PREVIEW),
    ],
)
def test_no_speed_is_written_where_none_may_be(tmp_path: Path, measured: Any, checked: Any) -> None:
    """The generator leaves them out, so that a draft measured on a laptop can be published at all."""
    (tmp_path / "out").mkdir()
    package(tmp_path, evaluation=measured, validation=checked).build(tmp_path / "out", "v0001")
    text = (tmp_path / "out" / "README.md").read_text()
    for figure in ("1.9x", "250", "251.5", "2.31", "| Seconds |", "slower"):
        assert figure not in text, figure
    told = read_speculation_profile(tmp_path / "out")
    assert told.speed is None and told.speed_is_withheld
    assert told.measured("replay") is not None  # acceptance is as good as anywhere


def test_a_speed_in_a_text_of_the_user_is_refused(tmp_path: Path) -> None:
    claims = profile(card={"limits": "Gives 2.4x more than 310 tokens per second."})
    (tmp_path / "out").mkdir()
    with pytest.raises(GateRefused, match=r"tells a speed \(2.4x, 310 tokens per second\)"):
        package(tmp_path, profile=claims).build(tmp_path / "out", "v0001")
    bad = dataclasses.replace(material(tmp_path / "m"), folder=tmp_path / "out")
    assert found(bad)[0].startswith("README.md: it tells a speed (2.4x, 310 tokens per second)")


def test_real_speeds_are_told(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    draft_dir = package(tmp_path).draft_dir
    measured = with_arm(conditions(draft=""), load=SWEEP, worth=FASTER)
    package(tmp_path, draft_dir=draft_dir, evaluation=measured).build(tmp_path / "out", "v0001")
    text = (tmp_path / "out" / "README.md").read_text()
    assert "1.9x" in text and "| draft | 1 | 250 | 251.50 | unknown |" in text and "Seconds" in text
    told = read_speculation_profile(tmp_path / "out")
    assert told.speed is not None and told.speed[0].output_tokens_per_s == 250.0
    bad = dataclasses.replace(material(tmp_path / "m"), folder=tmp_path / "out", validation=PREVIEW)
    assert {line.partition(":")[0] for line in found(bad)} == {"README.md", "speculation_profile.json"}


SPEEDS = ("435 tok/s", "1,024 tokens/s", "3.5x", "12 ms", "2.3 s at its start", "4 requests/s", "7 % faster")
NO_SPEEDS = (
    "1.07 steps",
    "K 4",
    "0x1f",
    "9 of 9 equal",
    "sha256:5e",
    "99%",
    "8 tokens",
    "1.07 tokens per step",
)


@pytest.mark.parametrize("text", SPEEDS)
def test_a_speed_is_known_by_its_unit(text: str) -> None:
    assert speeds_in(f"It is {text} or so.")


@pytest.mark.parametrize("text", NO_SPEEDS)
def test_other_figures_are_no_speeds(text: str) -> None:
    assert not speeds_in(f"It is {text} or so.")
