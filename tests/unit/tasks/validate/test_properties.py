"""What holds for all facts: a missing one never helps, order does not matter, versions are numbers."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from typing import Any

import pytest
from gb300_facts import fleet, needs, patched
from gb300_scenarios import SCENARIOS
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.validate.checks import judge
from tasks.validate.facts import NodeFacts
from tasks.validate.models import CheckResult
from tasks.validate.verdicts import as_version, at_least

CORROBORATING = {"gpus_on_pci", "gpu_peers", "master_reachable", "path", "nvlink_p2p", "cc_enabled"}
"""Facts that not every collector can observe: seen, they can fail a check; unseen, other facts decide."""
NOT_FACTS = {"schema_version", "node_id", "role", "collected_at", "collector", "sources", "not_supported"}
Path = tuple[str | int, ...]


def leaves(value: Any, path: Path = ()) -> Iterator[Path]:
    """Path of every observed value, groups and lists included."""
    if path and value is not None:
        yield path
    if isinstance(value, dict):
        for key, inner in value.items():
            if path or key not in NOT_FACTS | {"errors"}:
                yield from leaves(inner, (*path, key))
    elif isinstance(value, list | tuple):
        for number, inner in enumerate(value):
            yield from leaves(inner, (*path, number))


def without(facts: NodeFacts, path: Path) -> NodeFacts | None:
    """The facts without one value; None where the schema does not allow it to be missing."""
    dumped = copy.deepcopy(facts.model_dump(mode="json"))
    holder = dumped
    for part in path[:-1]:
        holder = holder[part]
    if isinstance(holder, list):
        return None  # an element that is missing is another observation, not a missing one
    if path[0] in ("versions", "programs", "libraries") and len(path) == 2:
        del holder[path[-1]]
    else:
        holder[path[-1]] = None
    try:
        return NodeFacts.model_validate(dumped)
    except ValueError:
        return None


def states(results: tuple[CheckResult, ...]) -> dict[tuple[str, str], str]:
    return {(result.id, result.subject): result.status for result in results}


def broken(number: int) -> tuple[tuple[NodeFacts, ...], dict[str, Any]]:
    _, on, patches, overrides, _ = SCENARIOS[number]
    return patched(fleet(), on, *patches), overrides


@pytest.mark.parametrize("number", range(len(SCENARIOS)), ids=[s[0] for s in SCENARIOS])
def test_a_removed_fact_never_turns_a_failure_into_a_pass(number: int) -> None:
    """A sample of all facts of each scenario; the seed is fixed, each run takes the same."""
    nodes, overrides = broken(number)
    need = needs(overrides)
    before = states(judge(nodes, need))
    failed = {key for key, state in before.items() if state == "fail"}
    chosen = random.Random(number)
    for place, node in enumerate(nodes):
        paths = [path for path in leaves(node.model_dump(mode="json")) if not CORROBORATING & set(path)]
        for path in chosen.sample(paths, 15):
            less = without(node, path)
            if less is None:
                continue
            after = states(judge((*nodes[:place], less, *nodes[place + 1 :]), need))
            assert {key for key in failed if after.get(key) == "pass"} == set(), f"without {path}"


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_removed_fact_never_makes_a_broken_plan_pass(data: st.DataObject) -> None:
    number = data.draw(st.integers(0, len(SCENARIOS) - 1))
    nodes, overrides = broken(number)
    place = data.draw(st.integers(0, len(nodes) - 1))
    paths = [p for p in leaves(nodes[place].model_dump(mode="json")) if not CORROBORATING & set(p)]
    less = without(nodes[place], data.draw(st.sampled_from(paths)))
    if less is None:
        return
    need = needs(overrides)
    before, after = (states(judge(one, need)) for one in (nodes, (*nodes[:place], less, *nodes[place + 1 :])))
    assert [key for key, state in before.items() if state == "fail" and after.get(key) == "pass"] == []


@pytest.mark.parametrize(
    "path",
    [
        ("os", "machine"), ("os", "page_size_bytes"), ("driver", "loaded"), ("driver", "kmd_version"),
        ("driver", "umd_version"), ("driver", "module_flavour"), ("cuda", "driver_api"), ("gpus",),
        ("gpus_attached",), ("gpus", 0, "name"), ("gpus", 1, "compute_capability"),
        ("gpus", 1, "memory_total_mib"), ("gpus", 2, "memory_used_mib"), ("gpus", 2, "processes"),
        ("gpus", 0, "mig_current"), ("gpus", 0, "mig_pending"), ("gpus", 0, "compute_mode"),
        ("gpus", 3, "ecc_current"), ("gpus", 3, "ecc_pending"), ("gpus", 3, "ecc_uncorr_volatile_dram"),
        ("gpus", 3, "ecc_uncorr_volatile_sram"), ("gpus", 3, "sram_threshold_exceeded"),
        ("gpus", 3, "remap_pending"), ("gpus", 3, "remap_failure"), ("gpus", 3, "channel_repair_pending"),
        ("gpus", 3, "unrepairable"), ("gpus", 0, "recovery_action"), ("gpus", 0, "clock_event_reasons"),
        ("gpus", 0, "slowdown_margin_c"), ("gpus", 0, "nvlinks"), ("gpus", 0, "nvlinks", 5, "state"),
        ("gpus", 0, "nvlinks", 5, "speed_mb_s"), ("gpus", 0, "nvlinks", 5, "remote"),
        ("gpus", 0, "fabric", "state"), ("gpus", 0, "fabric", "status"), ("gpus", 0, "fabric", "clique_id"),
        ("gpus", 0, "fabric", "cluster_uuid"), ("gpus", 0, "fabric", "health_summary"),
        ("gpus", 0, "fabric", "health_mask"), ("imex", "channels"), ("imex", "daemon_version"),
        ("imex", "domain_state"), ("imex", "ready_nodes"), ("net", "data_ip"), ("net", "resolved_ip"),
        ("host", "xids"), ("host", "cores"), ("host", "memory_available_bytes"),
        ("store", "observed_gb_per_s"), ("store", "crossed_bytes"), ("store", "spans_hosts"),
        ("versions", "speculators"), ("libraries", "libnuma.so.1"), ("programs", "mooncake_master"),
    ],
    ids=lambda path: ".".join(str(part) for part in path),
)  # fmt: skip
def test_a_required_fact_that_is_missing_fails_a_check(path: Path) -> None:
    nodes = fleet()
    less = without(nodes[0], path)
    assert less is not None
    failed = [r for r in judge((less, *nodes[1:]), needs()) if r.status == "fail"]
    assert failed, f"nobody notices that {path} is missing"
    assert all(result.subject in ("serve-0", "serve", "plan") for result in failed)


@settings(max_examples=12, deadline=None)
@given(order=st.permutations(range(3)), number=st.integers(0, len(SCENARIOS) - 1))
def test_the_order_of_the_nodes_does_not_change_the_report(order: list[int], number: int) -> None:
    nodes, overrides = broken(number)
    need = needs(overrides)
    assert judge([nodes[place] for place in order], need) == judge(nodes, need)


def test_the_report_has_the_worst_first() -> None:
    nodes, overrides = broken(16)
    order = [result.status for result in judge(nodes, needs(overrides))]
    assert order == sorted(order, key=["fail", "warn", "pass", "skip"].index)


@given(
    st.lists(st.integers(0, 999), min_size=1, max_size=4),
    st.lists(st.integers(0, 999), min_size=1, max_size=4),
)
def test_versions_compare_as_numbers(a: list[int], b: list[int]) -> None:
    left, right = ".".join(map(str, a)), ".".join(map(str, b))
    found = as_version(left)
    assert found == tuple(a)
    width = max(len(a), len(b))
    padded = [[*parts, *[0] * (width - len(parts))] for parts in (a, b)]
    assert at_least(found, right) is (padded[0] >= padded[1])


def test_versions_that_text_or_floats_would_get_wrong() -> None:
    assert as_version("610.57.04") == (610, 57, 4)
    assert at_least((610, 57, 4), "610.9.1") and not at_least((610, 9, 1), "610.57.04")
    assert at_least((13, 10), "13.9") and at_least((13, 4), "13.4.0")
    assert as_version("6.14.0-1012-nvidia-64k") == (6, 14, 0)
    assert as_version("unknown") is None and as_version(None) is None
