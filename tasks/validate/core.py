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
from tasks.validate.checks import CHECKS, run_checks
from tasks.validate.collectors import collect, own_requirements
from tasks.validate.facts import NodeFacts
from tasks.validate.models import CheckResult, Status, ValidationReport
from tasks.validate.requirements import requirements_of
from tasks.validate.store_roundtrip import round_trip

ROUND_TRIP = "store.roundtrip"
_ORDER: tuple[Status, ...] = ("skip", "pass", "warn", "fail")
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
    progress.update(done=0, total=_STEPS, unit="steps", note="reading the machine")
    facts = collect(profile, run.path)
    results = run_checks(facts, need)
    if any(result.status == "fail" and result.id != ROUND_TRIP for result in results):
        return _report(facts, _without_round_trip(results, "another check failed before it"))
    progress.update(done=1, total=_STEPS, unit="steps", note="prompts")
    prompts = load_prompts(profile)
    progress.update(done=2, total=_STEPS, unit="steps", note="target")
    target = check_target(profile, resolve_target(profile))
    progress.update(done=3, total=_STEPS, unit="steps", note="store round trip")
    if need.store_roundtrip:
        store = round_trip(profile, target, run, folder, launcher)
        facts = facts.model_copy(update={"store": store})
        results = run_checks(facts, need)
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
    words = "check fails" if len(failed) == 1 else "checks fail"
    lines = [f"{len(failed)} {words} on this machine:"]
    for result in failed:
        lines.append(f"  {result.id}: observed {result.observed}, required {result.required}")
        if result.message:
            lines.append(f"    {result.message}")
        if result.remedy:
            lines.append(f"    to do: {result.remedy}")
    known = all(result.id in CHECKS and CHECKS[result.id].user_input for result in failed)
    kind = UnmetRequirement if known else HardwareError
    raise kind("\n".join(lines), where="validate: " + ", ".join(result.id for result in failed))


def _without_round_trip(results: Iterable[CheckResult], why: str) -> tuple[CheckResult, ...]:
    skipped = {"status": "skip", "observed": "not run", "message": why, "remedy": ""}
    return tuple(
        result.model_copy(update=skipped) if result.id == ROUND_TRIP else result for result in results
    )


def _report(
    facts: NodeFacts, results: tuple[CheckResult, ...], inputs: dict[str, Any] | None = None
) -> ValidationReport:
    worst = max((result.status for result in results), key=_ORDER.index)
    recorded = facts.model_dump(mode="json")
    return ValidationReport(facts={**recorded, "inputs": inputs or {}}, checks=results, worst=worst)


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
