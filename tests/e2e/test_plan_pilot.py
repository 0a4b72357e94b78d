"""A plan by a pilot's rates against real runs: `make verify PART=plan`. The laptop profile, smaller."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.verify("plan"), pytest.mark.timeout(7200)]
Record = Callable[[str, object], None]
WHOLE = {
    "prompts.train_per_domain": 14,
    "prompts.evaluate_per_domain": 7,
    "stream.max_new_tokens": 32,
    "stream.concurrency": 4,
    "train.epochs": 2,
    # Smaller packs, so that a pilot of a seventh has more than a handful of steps.
    "train.batch_tokens": 192,
    "train.anchors": 54,
    "evaluate.replay_max_new_tokens": 32,
    "evaluate.live.per_domain": 2,
    "evaluate.live.max_new_tokens": 12,
    "evaluate.live.arms": "[plain, draft]",
    "evaluate.live.again_per_domain": 0,
}
SHARE = 0.15
TOLERANCE = 0.25


def words(**changes: int) -> list[str]:
    values = {**WHOLE, **{name.replace("__", "."): value for name, value in changes.items()}}
    return [word for name, value in values.items() for word in ("--set", f"{name}={value}")]


def planned(command: Callable[..., Any], root: Path, **changes: int) -> dict[str, Any]:
    done = command(root, "plan", "-p", "laptop", *words(**changes), "--json", timeout_s=900)
    assert done.code == 0, done.output[-2000:]
    plan: dict[str, Any] = json.loads(done.output)
    return plan


def test_a_plan_by_a_pilot_predicts_other_runs(
    tmp_path: Path,
    command: Callable[..., Any],
    left_running: Callable[[Any], list[str]],
    record_property: Record,
) -> None:
    """A pilot of 15 % predicts a run of twice the prompts and one of half the steps within 25 %"""
    root = tmp_path / "runs"
    pilot = command(root, "run", "-p", "laptop", *words(), "--pilot", "--share", str(SHARE), timeout_s=3000)
    assert pilot.code in (0, 1) and "rates     " in pilot.output, pilot.output[-4000:]
    assert "pilot: prompts.train_per_domain: 14 -> 2" in pilot.output
    rates = json.loads((root / "rates" / "laptop.json").read_text(encoding="utf-8"))
    whole = planned(command, root)
    assert rates["samples"] <= SHARE * whole["samples"], "the pilot was larger than it says"
    assert rates["steps"] <= SHARE * whole["steps"] + 2
    record_property("pilot_s", f"{pilot.summary['seconds']:.0f}")
    record_property("load", f"{os.getloadavg()[1]:.1f}")

    wrong = []
    for name, changes in (
        ("twice the prompts", {"prompts__train_per_domain": 28}),
        ("half the steps", {"train__max_steps": whole["steps"] // 2}),
    ):
        plan = planned(command, root, **changes)
        assert all(stage["seconds"]["value"] is not None for stage in plan["stages"])
        assert all(rates["runs"][0] in stage["seconds"]["where"] for stage in plan["stages"])
        run = command(root, "run", "-p", "laptop", *words(**changes), timeout_s=3000)
        assert run.code in (0, 1) and left_running(run) == [], run.output[-4000:]
        expected, took = plan["seconds"]["value"], run.summary["seconds"]
        record_property(name, f"{expected:.0f} s planned, {took:.0f} s taken ({expected / took - 1:+.0%})")
        for stage, row in zip(plan["stages"], run.summary["stages"], strict=True):
            figures = f"{stage['seconds']['value']:.0f} / {row['seconds']:.0f} s"
            record_property(f"{name}, {row['name']}, planned / taken", figures)
        record_property(f"{name}, load", f"{os.getloadavg()[1]:.1f}")
        if abs(expected / took - 1) > TOLERANCE:
            wrong.append(name)
    assert wrong == []
