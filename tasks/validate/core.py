"""Validate: bad input, an unfit machine or a store that does not carry end the run before anything starts."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from profiles.schema import Profile
from tasks.errors import HardwareError, UnmetRequirement
from tasks.processes.launcher import Launcher
from tasks.prompts.load import PromptSet, load_prompts
from tasks.report.progress import Progress
from tasks.run_folder import RunFolder
from tasks.serve.target_config import TargetConfig
from tasks.serve.target_folder import check_target, resolve_target
from tasks.validate.checks import CHECKS, judge, worst
from tasks.validate.collectors import collect, own_requirements
from tasks.validate.driver_checks import toolkit_channel
from tasks.validate.facts import NodeFacts
from tasks.validate.models import WORST_FIRST, CheckResult, ValidationReport
from tasks.validate.requirements import (
    Requirements,
    refuse_unknown_overrides,
    requirements_of,
    with_plan,
)
from tasks.validate.store_checks import ROUND_TRIP, plan_problems
from tasks.validate.store_roundtrip import round_trip

_STEPS = 4


def validate(
    profile: Profile, run: RunFolder, folder: Path, launcher: Launcher, progress: Progress
) -> ValidationReport:
    """Check machine, input and store. A failing check is in the report; it does not raise.

    Args:
        folder: The stage's folder.

    Raises:
        UsageError: Prompts or target folder are unusable; the message names field and remedy.
    """
    need = requirements_of(profile, own_requirements())
    refuse_unknown_overrides(profile.hardware, CHECKS)
    progress.update(done=0, total=_STEPS, unit="steps", note="reading the machine")
    facts = collect(profile, run.path)
    results = judge((facts,), need)
    if _fails(results, need):
        return _report(facts, _without_round_trip(results, need))
    progress.update(done=1, total=_STEPS, unit="steps", note="prompts")
    prompts = load_prompts(profile)
    progress.update(done=2, total=_STEPS, unit="steps", note="target")
    target = check_target(profile, resolve_target(profile))
    need = with_plan(need, profile, target, len(prompts.prompts))
    results = judge((facts,), need)
    if _fails(results, need):
        return _report(facts, _without_round_trip(results, need))
    progress.update(done=3, total=_STEPS, unit="steps", note="store round trip")
    if profile.hardware.store_roundtrip:
        store = round_trip(profile, target, run, folder, launcher)
        facts = facts.model_copy(update={"store": store})
        results = judge((facts,), need)
    progress.update(done=_STEPS, total=_STEPS, unit="steps", note=f"{len(results)} checks")
    return _report(facts, results, _input_facts(prompts, target))


def raise_if_failed(report: ValidationReport) -> None:
    """Turn failing checks into one error that lists each with its remedy.

    Raises:
        UnmetRequirement: Every failing check can be met at once by the user (exit code of bad input).
        HardwareError: At least one cannot.
    """
    failed = [result for result in report.checks if result.status == "fail"]
    if not failed:
        return
    subjects = {result.subject for result in report.checks if result.scope == "node"}
    words = "check fails" if len(failed) == 1 else "checks fail"
    place = f"on {len(subjects)} nodes" if len(subjects) > 1 else "on this machine"
    lines = [f"{len(failed)} {words} {place}:"]
    for result in failed:
        where = f" on {result.subject}" if len(subjects) > 1 and result.subject else ""
        lines.append(f"  {result.id}{where}: observed {result.observed}, required {result.required}")
        if result.message:
            lines.append(f"    {result.message}")
        if result.remedy:
            lines.append(f"    to do: {result.remedy}")
    known = all(result.id in CHECKS and CHECKS[result.id].user_input for result in failed)
    kind = UnmetRequirement if known else HardwareError
    raise kind("\n".join(lines), where="validate: " + ", ".join(result.id for result in failed))


def _fails(results: Iterable[CheckResult], need: Requirements) -> bool:
    """Something fails already, other than a round trip that has not run."""
    return any(
        result.status == "fail" and (result.id != ROUND_TRIP or plan_problems(need)) for result in results
    )


def _without_round_trip(results: tuple[CheckResult, ...], need: Requirements) -> tuple[CheckResult, ...]:
    """The round trip was not run because another check fails; what its plan rules found stays."""
    if plan_problems(need):
        return results
    why = "another check failed before it"
    skipped = {"status": "skip", "observed": "not run", "message": why, "remedy": ""}
    found = [one.model_copy(update=skipped) if one.id == ROUND_TRIP else one for one in results]
    return tuple(sorted(found, key=lambda result: WORST_FIRST.index(result.status)))


def _report(
    facts: NodeFacts, results: tuple[CheckResult, ...], inputs: dict[str, Any] | None = None
) -> ValidationReport:
    return ValidationReport(
        facts={**facts.model_dump(mode="json"), "inputs": inputs or {}},
        checks=results,
        worst=worst(results),
        toolkit_channel=toolkit_channel(facts.cuda.toolkit),
    )


def _input_facts(prompts: PromptSet, target: TargetConfig) -> dict[str, Any]:
    """What the checked input is; no text and no path of it."""
    splits: dict[str, int] = {}
    for prompt in prompts.prompts:
        splits[prompt.split] = splits.get(prompt.split, 0) + 1
    return {
        "prompts": splits,
        "prompt_rows_skipped": len(prompts.skipped),
        "prompts_digest": prompts.digest,
        "target_architecture": target.architecture,
        "target_hidden_size": target.hidden_size,
        "target_layers": target.num_hidden_layers,
        "target_vocab_size": target.vocab_size,
    }
