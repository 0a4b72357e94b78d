"""Validate: bad input, an unfit machine or a store that does not carry end the run before anything starts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
from tasks.validate.checks import CHECKS, judge
from tasks.validate.collectors import collect_plan, own_requirements, request_of
from tasks.validate.facts import NodeFacts
from tasks.validate.models import WORST_FIRST, CheckResult, ValidationReport
from tasks.validate.recording import report_of
from tasks.validate.requirements import (
    Requirements,
    refuse_unknown_overrides,
    requirements_of,
    with_plan,
)
from tasks.validate.store_checks import ROUND_TRIP, plan_problems
from tasks.validate.store_facts import StoreFacts
from tasks.validate.store_roundtrip import round_trip
from tasks.validate.summary import summary_lines

_STEPS = 4
_ANOTHER = "another check failed before it"
_HELD_BY_A_RUN = ("host.memory", "gpu.idle", "net.ports", "disk.run_root")
"""Checks of what is still free, which a run that has started holds itself."""


def validate(
    profile: Profile,
    run: RunFolder,
    folder: Path,
    launcher: Launcher,
    progress: Progress,
    *,
    root: Path | None = None,
) -> ValidationReport:
    """Check every node of the plan, the input and the store. A failing check is in the report.

    Args:
        folder: The stage's folder.
        root: Folder whose disk is measured; None is the run's own root.

    Raises:
        UsageError: Prompts or target folder are unusable; the message names field and remedy.
    """
    need = requirements_of(profile, own_requirements())
    refuse_unknown_overrides(profile.hardware, CHECKS)
    nodes = _read_nodes(profile, run, root or run.path.parent, launcher, progress)
    results = judge(nodes, need)
    if _fails(results, need):
        return report_of(nodes, _without_round_trip(results, need, _ANOTHER))
    progress.update(done=1, total=_STEPS, unit="steps", note="prompts")
    prompts = load_prompts(profile)
    progress.update(done=2, total=_STEPS, unit="steps", note="target")
    target = check_target(profile, resolve_target(profile))
    need = with_plan(need, profile, target, prompts.counts)
    results = judge(nodes, need)
    if _fails(results, need):
        return report_of(nodes, _without_round_trip(results, need, _ANOTHER))
    progress.update(done=3, total=_STEPS, unit="steps", note="store round trip")
    if profile.hardware.store_roundtrip:
        nodes = _with_store(nodes, round_trip(profile, target, run, folder, launcher))
        results = judge(nodes, need)
    progress.update(done=_STEPS, total=_STEPS, unit="steps", note=f"{len(results)} checks")
    return report_of(nodes, results, _input_facts(prompts, target))


def check_machines(
    profile: Profile, run: RunFolder, launcher: Launcher, progress: Progress
) -> ValidationReport:
    """Check the nodes of a plan again while a run has them; what the run holds is left alone."""
    need = requirements_of(profile, own_requirements())
    nodes = _read_nodes(profile, run, run.path.parent, launcher, progress)
    results = _skipping(judge(nodes, need), _HELD_BY_A_RUN, "the run holds it itself")
    return report_of(nodes, _without_round_trip(results, need, "the run holds its store"))


def judge_recorded(profile: Profile, nodes: Sequence[NodeFacts]) -> ValidationReport:
    """Judge recorded facts against a profile; nothing of this machine is read.

    What needs the target's own files is skipped, unless `hardware.target` gives its sizes.
    """
    need = requirements_of(profile, own_requirements())
    refuse_unknown_overrides(profile.hardware, CHECKS)
    results = judge(nodes, need)
    if any(node.store.ran for node in nodes):
        return report_of(nodes, results)
    if _fails(results, need):
        return report_of(nodes, _without_round_trip(results, need, _ANOTHER))
    return report_of(nodes, tuple(_not_recorded(one) for one in results))


def _not_recorded(result: CheckResult) -> CheckResult:
    """A failing round trip tells how records are judged without one."""
    if result.id != ROUND_TRIP or result.status not in ("fail", "warn"):
        return result
    remedy = (
        "the records hold no round trip: record it with `doctor --record` where the nodes are, or judge "
        "without it (`--set hardware.store_roundtrip=false`)"
    )
    return result.model_copy(update={"remedy": remedy})


def _read_nodes(
    profile: Profile, run: RunFolder, root: Path, launcher: Launcher, progress: Progress
) -> tuple[NodeFacts, ...]:
    """Facts of every node that the launcher knows."""

    def say(note: str) -> None:
        progress.update(done=0, total=_STEPS, unit="steps", note=note)

    nodes = launcher.nodes(profile)
    say("reading the machine" if len(nodes) == 1 else f"reading {len(nodes)} nodes")
    requests = [request_of(profile, node, root, run.path) for node in nodes]
    return collect_plan(nodes, requests, profile.hardware.retry.fabric_s, say)


def _with_store(nodes: Sequence[NodeFacts], store: StoreFacts) -> tuple[NodeFacts, ...]:
    """The round trip's facts belong to the first serving node: its segment holds the samples."""
    holder = next((node for node in nodes if "serve" in node.roles), nodes[0])
    return tuple(node.model_copy(update={"store": store}) if node is holder else node for node in nodes)


def raise_if_failed(report: ValidationReport) -> None:
    """Turn failing checks into one error that lists each with its remedy.

    Raises:
        UnmetRequirement: Every failing check can be met at once by the user (exit code of bad input).
        HardwareError: At least one cannot.
    """
    failed = [line for line in summary_lines(report.checks) if line.status == "fail"]
    if not failed:
        return
    subjects = {result.subject for result in report.checks if result.scope == "node"}
    words = "check fails" if len(failed) == 1 else "checks fail"
    place = f"on {len(subjects)} nodes" if len(subjects) > 1 else "on this machine"
    lines = [f"{len(failed)} {words} {place}:"]
    for line in failed:
        lines += line.told()
    ids = list(dict.fromkeys(line.name for line in failed))
    known = all(id in CHECKS and CHECKS[id].user_input for id in ids)
    kind = UnmetRequirement if known else HardwareError
    raise kind("\n".join(lines), where="validate: " + ", ".join(ids))


def _fails(results: Iterable[CheckResult], need: Requirements) -> bool:
    """Something fails already, other than a round trip that has not run."""
    return any(
        result.status == "fail" and (result.id != ROUND_TRIP or plan_problems(need)) for result in results
    )


def _without_round_trip(
    results: tuple[CheckResult, ...], need: Requirements, why: str
) -> tuple[CheckResult, ...]:
    """The round trip was not run, and why; what its plan rules found stays."""
    return results if plan_problems(need) else _skipping(results, (ROUND_TRIP,), why)


def _skipping(results: Iterable[CheckResult], ids: Sequence[str], why: str) -> tuple[CheckResult, ...]:
    """The same results, of which those called `ids` were not run."""
    skipped = {"status": "skip", "observed": "not run", "message": why, "remedy": ""}
    found = [one.model_copy(update=skipped) if one.id in ids else one for one in results]
    return tuple(sorted(found, key=lambda result: WORST_FIRST.index(result.status)))


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
