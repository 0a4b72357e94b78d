"""Checks of cores, memory and disk."""

from __future__ import annotations

from tasks.validate.facts import NodeFacts
from tasks.validate.registry import node_check
from tasks.validate.requirements import GIB, Requirements
from tasks.validate.verdicts import Verdict


def _gib(size_bytes: int | None) -> str:
    return "not observed" if size_bytes is None else f"{size_bytes / GIB:.1f} GiB"


def _at_least(observed: int | None, required: int, what: str) -> Verdict:
    """Compare two byte counts; not observed fails."""
    enough = observed is not None and observed >= required
    return Verdict(
        "pass" if enough else "fail",
        _gib(observed),
        f"at least {_gib(required)}",
        "" if enough else f"{what} is too small" if observed is not None else f"{what} could not be read",
    )


@node_check(
    "host.cores",
    rule="usable cores, by affinity and cgroup quota, reach `hardware.min_cores`",
    remedy="use a machine with more cores, lift the container's CPU limit, or lower `hardware.min_cores`",
)
def cores(facts: NodeFacts, need: Requirements) -> Verdict:
    have = facts.host.cores
    good = have is not None and have >= need.hardware.min_cores
    observed = "not observed" if have is None else f"{have:g}"
    return Verdict(
        "pass" if good else "fail",
        observed,
        f"at least {need.hardware.min_cores}",
        "" if good else "too few usable cores",
    )


@node_check(
    "host.memory",
    rule="available memory, by kernel and cgroup, reaches `hardware.min_memory_gib`",
    remedy="close other programs, lift the container's memory limit, or run a smaller override "
    "(`--set hardware.min_memory_gib=... --set serve.max_num_seqs=8 --set stream.concurrency=8`)",
)
def memory(facts: NodeFacts, need: Requirements) -> Verdict:
    verdict = _at_least(
        facts.host.memory_available_bytes, int(need.hardware.min_memory_gib * GIB), "available memory"
    )
    if verdict.status == "fail" and facts.host.memory_limited_by:
        return Verdict(
            "fail",
            verdict.observed,
            verdict.required,
            f"{verdict.message} (limited by {facts.host.memory_limited_by})",
        )
    return verdict


@node_check(
    "host.lscpu",
    rule="`lscpu` is on the path: vLLM calls it on CPU",
    remedy="install the distribution's package `util-linux`",
)
def lscpu(facts: NodeFacts, need: Requirements) -> Verdict:
    if need.hardware.mode != "none":
        return Verdict("skip", facts.host.lscpu or "absent", "only on CPU", "the target runs on GPUs")
    good = bool(facts.host.lscpu)
    return Verdict(
        "pass" if good else "fail",
        facts.host.lscpu or "absent",
        "present",
        "" if good else "vLLM cannot read the CPU's layout",
    )


@node_check(
    "disk.run_root",
    rule="free space under the run root reaches `hardware.min_disk_gib`",
    remedy="free space (`retrain-dspark clean`), or point RETRAIN_DSPARK_RUNS to a larger disk",
    user_input=True,
)
def disk_run_root(facts: NodeFacts, need: Requirements) -> Verdict:
    return _at_least(
        facts.disk.run_root_free_bytes,
        int(need.hardware.min_disk_gib * GIB),
        "free disk space under the run root",
    )


CACHE_BYTES = GIB
"""Room for a converted target: 269 MB for the laptop's, with its temporary copy."""


@node_check(
    "disk.cache",
    rule="1 GiB is free in the cache folder where a GGUF target is converted",
    remedy="free space, or point XDG_CACHE_HOME to a larger disk",
    user_input=True,
)
def disk_cache(facts: NodeFacts, need: Requirements) -> Verdict:
    if not need.gguf_source:
        return Verdict(
            "skip", _gib(facts.disk.cache_free_bytes), "only for GGUF targets", "nothing is converted"
        )
    return _at_least(facts.disk.cache_free_bytes, CACHE_BYTES, "free disk space of the cache")


@node_check(
    "disk.private",
    rule="the run folder is writable and closed to other users",
    remedy="make the folder yours and private: `chmod 700` on it, or choose another with RETRAIN_DSPARK_RUNS",
)
def private(facts: NodeFacts, need: Requirements) -> Verdict:
    mode, writable = facts.disk.run_folder_mode, facts.disk.run_folder_writable
    observed = (
        f"{'writable' if writable else 'not writable'}, mode {mode:03o}"
        if mode is not None
        else "not observed"
    )
    good = bool(writable) and mode is not None and mode & 0o077 == 0
    return Verdict(
        "pass" if good else "fail",
        observed,
        "writable, mode 700",
        ""
        if good
        else "prompts and answers in the run folder would be open to others"
        if writable
        else "the run folder cannot be written",
    )
