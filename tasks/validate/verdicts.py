"""Verdicts and the few ways to build them, so that every check treats what was not observed alike."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from tasks.validate.facts import NodeFacts
from tasks.validate.gpu_facts import GpuFacts
from tasks.validate.models import WORST_FIRST, Status
from tasks.validate.requirements import Requirements

NOT_OBSERVED = "not observed"


@dataclass(frozen=True)
class Verdict:
    """What a check found, without its id and usual remedy."""

    status: Status
    observed: str
    required: str
    message: str = ""
    evidence: str = ""
    remedy: str = ""


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong with one GPU."""

    status: Status
    text: str


def skip(reason: str, observed: str = "not judged", required: str = "nothing") -> Verdict:
    """A check that does not apply; the reason is required."""
    return Verdict("skip", observed, required, reason)


def unobserved(what: str, required: str, facts: NodeFacts, path: str, status: Status = "fail") -> Verdict:
    """A required fact is missing; the collector's reason is given where there is one."""
    group = path.split(".")[0].split("[")[0]
    reason = facts.errors.get(path) or facts.errors.get(group)
    return Verdict(
        status, NOT_OBSERVED, required, f"{what} was not observed" + (f": {reason}" if reason else ""), path
    )


def worst_of(verdicts: Sequence[Verdict]) -> Verdict:
    """The worst verdict; among equals the first. A pass counts more than a skip."""
    return min(verdicts, key=lambda verdict: WORST_FIRST.index(verdict.status))


def from_faults(faults: Iterable[Fault], observed: str, required: str, evidence: str) -> Verdict:
    """A pass without faults, else their worst status and all their texts."""
    found = list(faults)
    if not found:
        return Verdict("pass", observed, required, "", evidence)
    status = min((fault.status for fault in found), key=WORST_FIRST.index)
    return Verdict(status, observed, required, "; ".join(fault.text for fault in found), evidence)


def no_gpu(facts: NodeFacts, need: Requirements) -> Verdict | None:
    """Why a check of GPUs does not apply to a node: none asked for, or none there. Else None."""
    if need.hardware.mode == "none":
        return skip("the profile runs without GPUs", observed="not asked")
    if facts.gpus is None:
        return skip("the GPUs were not observed; see gpu.count and driver.loaded", observed=NOT_OBSERVED)
    return None if facts.gpus else skip("no GPU enumerated; see gpu.count", observed="0 GPUs")


def per_gpu(
    facts: NodeFacts,
    need: Requirements,
    required: str,
    evidence: str,
    faults_of: Callable[[GpuFacts], Iterable[Fault]],
) -> Verdict:
    """One verdict for all GPUs of a node; every fault names its GPU.

    Args:
        evidence: Names of the facts that decide, below `gpus[i]`.
        faults_of: Faults of one GPU, without its name.
    """
    gate = no_gpu(facts, need)
    if gate is not None:
        return gate
    gpus = facts.gpus or ()
    found = [(gpu, fault) for gpu in gpus for fault in faults_of(gpu)]
    bad = len({gpu.index for gpu, _ in found})
    named = [Fault(fault.status, f"GPU{gpu.index}: {fault.text}") for gpu, fault in found]
    first = found[0][0].index if found else gpus[0].index
    observed = f"{bad} of {len(gpus)} GPUs not as required" if found else f"{len(gpus)} GPUs as required"
    return from_faults(named, observed, required, f"gpus[{first}].{evidence}")


def missing(facts: NodeFacts, gpu: GpuFacts, field: str, what: str) -> Iterable[Fault]:
    """A fault if a required fact of a GPU is neither observed nor declared *not supported*."""
    value: object = gpu
    for part in field.split("."):
        value = getattr(value, part)
    if value is None and facts.supported(f"gpus[{gpu.index}].{field}"):
        yield Fault("fail", f"{what} not observed")


def as_version(text: str | None) -> tuple[int, ...] | None:
    """`610.57.04` -> (610, 57, 4): versions are compared as numbers. None if it does not begin with one."""
    found = re.match(r"\d+(?:\.\d+)*", text or "")
    return tuple(int(part) for part in found.group().split(".")) if found else None


def at_least(observed: tuple[int, ...], least: str | None) -> bool:
    """Compare part by part; a missing part counts as zero, so 13.4 and 13.4.0 are equal."""
    wanted = as_version(least) or ()
    width = max(len(observed), len(wanted))
    return observed + (0,) * (width - len(observed)) >= wanted + (0,) * (width - len(wanted))
