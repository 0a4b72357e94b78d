"""Takes from a finished evaluation what the decision inputs need, and adds them to its report."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from profiles.evaluation import engine_of_arms
from profiles.schema import Profile
from tasks.evaluate.assemble import ReplayRow, by_domain
from tasks.evaluate.models import EvaluationReport
from tasks.evaluate.worth.conclude import conclude
from tasks.evaluate.worth.costs import gpus_of_argv
from tasks.evaluate.worth.domains import by_context, domain_gains
from tasks.evaluate.worth.memory import cache_type, draft_memory
from tasks.evaluate.worth.models import BestK, DraftMemory, Measured
from tasks.evaluate.worth.points import DRAFT
from tasks.evaluate.worth.stages import gpus_of_node, stage_seconds
from tasks.measure.intervals import Bootstrap
from tasks.serve.options import engine_arguments

log = logging.getLogger("retrain_dspark")


def with_worth(
    profile: Profile,
    report: EvaluationReport,
    *,
    rows: Sequence[ReplayRow],
    incumbent_rows: Sequence[ReplayRow] | None,
    draft_dir: Path | None,
    run_dir: Path,
    differences: Mapping[str, Sequence[str]] | None = None,
    draft_arm: str = DRAFT,
) -> EvaluationReport:
    """The report with its decision inputs.

    A measurement that took long is not lost to a fault in the sums about it: the fault is noted instead.

    Args:
        rows: Replay of the draft; none where servers that run already were measured.
        incumbent_rows: Replay of the incumbent on the same log, or None.
        draft_dir: Draft in Speculators format; None where its files are elsewhere.
        run_dir: Folder of the run, whose stages tell what was spent.
        differences: Arm -> conditions that differ from the plain arm's, each with both values.
        draft_arm: Arm that is decided about, where a user gave it another name.
    """
    try:
        found = gather(profile, report, rows, incumbent_rows, draft_dir, differences or {}, draft_arm)
        worth = conclude(report, found, profile, stage_seconds(run_dir), gpus_of_node(run_dir))
    except (ArithmeticError, LookupError, ValueError) as error:
        log.warning("the decision inputs could not be worked out: %s: %s", type(error).__name__, error)
        note = f"decision inputs could not be worked out: {type(error).__name__}: {error}"
        return report.model_copy(update={"notes": (*report.notes, note)})
    return report.model_copy(update={"worth": worth})


def gather(
    profile: Profile,
    report: EvaluationReport,
    rows: Sequence[ReplayRow],
    incumbent_rows: Sequence[ReplayRow] | None,
    draft_dir: Path | None,
    differences: Mapping[str, Sequence[str]],
    draft_arm: str = DRAFT,
) -> Measured:
    """Gains by domain and prompt length, load points, memory, recommended draft tokens."""
    settings = profile.evaluate
    how = Bootstrap(settings.bootstrap_samples, settings.confidence, settings.seed)
    length = settings.replay_max_new_tokens
    old = by_domain(incumbent_rows, length) if incumbent_rows is not None else None
    load = report.load
    points = load.points if load else ()
    return Measured(
        points=tuple(p.model_copy(update={"arm": DRAFT}) if p.arm == draft_arm else p for p in points),
        speed_is_meaningful=load.speed_is_meaningful if load else not settings.live.triton_interpreter,
        differences={arm: tuple(lines) for arm, lines in differences.items() if lines},
        domains=domain_gains(by_domain(rows, length), old, how),
        contexts=by_context([len(row.prompt_ids) for row in rows], [row.counts(length) for row in rows], how),
        memory=_memory(profile, draft_dir, _argv(profile, report)) if draft_dir is not None else None,
        best_k=best_k(getattr(report, "policy", None)),
        gpus_per_server=server_gpus(profile, report),
    )


def _argv(profile: Profile, report: EvaluationReport) -> tuple[str, ...]:
    """Command line of the draft's server; without one, the profile's own engine arguments."""
    started = next((arm.argv for arm in report.arms if arm.name == report.decided and arm.argv), ())
    options = engine_arguments(engine_of_arms(profile.evaluate.live, profile.serve))
    return started or (*options, *profile.serve.extra_args)


def _memory(profile: Profile, draft_dir: Path, argv: Sequence[str]) -> DraftMemory | None:
    """Memory of the draft; None, with a line in the log, where its configuration cannot be read."""
    path = draft_dir / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        live, context = profile.evaluate.live, profile.target.max_model_len
        return draft_memory(config, live.dtype, context, cache_type(argv))
    except (OSError, ValueError, KeyError) as error:
        log.warning("%s: the memory of the draft was not computed: %s", path, error)
        return None


def best_k(policy: Any) -> tuple[BestK, ...]:
    """Recommended draft tokens by concurrency, where a policy was worked out."""
    recommended = policy.recommendation if policy is not None else ()
    return tuple(BestK(concurrency=one.concurrency, tokens=one.num_speculative_tokens) for one in recommended)


def server_gpus(profile: Profile, report: EvaluationReport) -> int | None:
    """GPUs of one measured server: the profile's word, else its command line; 0 on a machine without.

    None for servers that run elsewhere: their command lines are not known.
    """
    if profile.evaluate.prices.gpus_per_server is not None:
        return profile.evaluate.prices.gpus_per_server
    started = next((gpus for arm in report.arms if (gpus := gpus_of_argv(arm.argv)) is not None), None)
    return 0 if started is not None and profile.hardware.mode == "none" else started
