"""speculation_profile.json: what a program reads back is what was measured."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from drafts import REVISION, tau
from folders import conditions, edit, material, package, with_arm

from tasks.errors import PublishError
from tasks.publish.refusals.profile_file import profile_file_refusals
from tasks.publish.speculation_build import acceptance
from tasks.publish.speculation_profile import FILE, FORMAT, read_speculation_profile


def test_it_says_what_was_measured_and_under_which_conditions(tmp_path: Path) -> None:
    told = conditions(
        temperature=0.5, seed=7, prefix_cache=False, hardware="8 x H200", engine_arguments=("--x",)
    )
    measured = with_arm(told)
    (tmp_path / "out").mkdir()
    package(tmp_path, evaluation=measured).build(tmp_path / "out", "v0001")
    found = read_speculation_profile(tmp_path / "out")
    assert (found.format, found.name, found.version, found.block_size) == (FORMAT, "tiny", "v0001", 8)
    assert (found.target.name, found.target.revision, found.lossless) == ("target", REVISION, "identical")
    replay, live = found.measured("replay"), found.measured("live")
    assert replay is not None and live is not None
    assert replay.domains["qa"] == acceptance(measured.replay.domains["qa"])
    assert replay.domains["qa"].per_position == (0.5, 0.25) and replay.setting.engine is None
    setting = live.setting
    assert (setting.engine, setting.dtype, setting.temperature) == ("vllm 0.32.0", "bfloat16", 0.5)
    assert (setting.concurrency, setting.prompts, setting.hardware) == (4, "0" * 64, "8 x H200")
    assert "--x" not in (tmp_path / "out" / FILE).read_text()


def test_what_was_not_measured_is_absent(tmp_path: Path) -> None:
    text = (material(tmp_path).folder / FILE).read_text()
    assert "null" not in text and "NaN" not in text
    assert acceptance(tau(None, None, rounds=0)) is None
    assert acceptance(tau(1.5).model_copy(update={"value": math.nan})) is None
    bounded = acceptance(tau(1.5, math.nan))
    assert bounded is not None and bounded.low is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda p: p.update(format=2), "format"),
        (lambda p: p.pop("measurements"), "measurements"),
        (lambda p: p["measurements"][0]["domains"]["qa"].update(tau=0.5), "measurements.0.domains.qa.tau"),
        (lambda p: p.pop("speed_absent"), "either `speed` or `speed_absent`"),
    ],
)
def test_a_file_that_cannot_be_true_is_refused(
    tmp_path: Path, change: Callable[[dict[str, Any]], object], words: str
) -> None:
    bad = material(tmp_path)
    edit(bad.folder / FILE, change)
    with pytest.raises(PublishError, match=words):
        read_speculation_profile(bad.folder)
    assert [one.where for one in profile_file_refusals(bad)] == [FILE]


def test_a_reader_of_today_reads_a_file_with_new_fields(tmp_path: Path) -> None:
    newer = material(tmp_path)
    edit(newer.folder / FILE, lambda p: p.update(later={"x": 1}))
    assert read_speculation_profile(newer.folder).name == "tiny"


def test_figures_of_another_evaluation_are_refused(tmp_path: Path) -> None:
    bad = material(tmp_path)
    edit(bad.folder / FILE, lambda p: p["measurements"][1]["domains"]["qa"].update(tau=2.5))
    assert [one.what for one in profile_file_refusals(bad)] == [
        "its live acceptance is not that of the evaluation"
    ]
    (bad.folder / FILE).unlink()
    again = dataclasses.replace(bad)
    assert [one.where for one in profile_file_refusals(again)] == [FILE]
    assert json.loads((bad.folder / "manifest.json").read_text())["files"][FILE]
