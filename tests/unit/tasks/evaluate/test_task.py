"""Which champion an evaluation compares with when its run goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from profiles.load import load_profile
from tasks.evaluate import task
from tasks.evaluate.models import EvaluationReport, Measurement, TauEstimate
from tasks.execute import RunContext
from tasks.report.progress import SilentProgress
from tasks.run_folder import create_run
from tasks.stage import fingerprint
from tasks.stages import EVALUATE

INPUTS = {"captures": "c", "draft": "d"}


@pytest.fixture
def ctx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunContext:
    """A run whose draft was evaluated without a champion and has become the champion since."""
    profile = load_profile("laptop").profile
    tau = TauEstimate(value=1.5, prompts=1, rounds=2, accepted=1)
    measured = Measurement(domains={"qa": tau}, macro=tau, pooled=tau)
    report = EvaluationReport(
        replay=measured, live=measured, common_replay_pooled=1.5, live_gap=0.0, lossless="identical",
        comparisons=(), arms=(), block_size=2, draft_sample_method="greedy",
        rejection_sample_method="standard",
    )  # fmt: skip
    run = create_run(tmp_path, "r", profile)
    run.remember(incumbent=[])
    folder = run.stage(EVALUATE)
    folder.clear()
    folder.complete(report, fingerprint(EVALUATE, profile, {**INPUTS, "incumbent": "none"}), {}, 1.0)
    monkeypatch.setattr(task, "resolve_incumbent", lambda *_: ("v0001", Path("v0001")))
    return RunContext(run, profile, None, SilentProgress(), None)  # type: ignore[arg-type]


def test_a_finished_evaluation_keeps_its_incumbent(ctx: RunContext) -> None:
    assert task._incumbent(ctx, INPUTS) is None


def test_another_draft_is_compared_with_the_champion_of_now(ctx: RunContext) -> None:
    assert task._incumbent(ctx, {**INPUTS, "draft": "other"}) == ("v0001", Path("v0001"))
    assert ctx.run.facts()["incumbent"] == ["v0001", "v0001"]
