"""The check of the hidden-state store: the plan's own rules first, then what a real round trip saw."""

from __future__ import annotations

from collections.abc import Mapping

from tasks.validate.models import Status
from tasks.validate.registry import ALL, Nodes, group_check
from tasks.validate.requirements import Requirements
from tasks.validate.store_facts import StoreFacts
from tasks.validate.store_roundtrip_rules import local_buffer_shortfall, segment_shortfall
from tasks.validate.store_roundtrip_verdict import Problem, observed_text, problems, required_text
from tasks.validate.verdicts import Verdict, skip

ROUND_TRIP = "store.roundtrip"
FLOW_SAFETY = 2.0
"""Segments over rate x latency: the latency is an estimate."""


@group_check(
    ROUND_TRIP,
    rule="local buffers and segments hold what the run moves at once; objects of the run's sizes go from "
    "one process to another through a real Mooncake store, come back equal, fast enough for the plan, and "
    "over the network where the plan spans hosts",
    remedy="read `logs/store-*.log` of the run; check firewall rules, and memory",
)
def store_roundtrip(nodes: Nodes, need: Requirements) -> Mapping[str, Verdict]:
    if not need.hardware.store_roundtrip:
        return {ALL: skip("hardware.store_roundtrip is off", "not run", required_text(StoreFacts()))}
    store = next((node.store for node in nodes if node.store.ran), StoreFacts())
    found = _once([*plan_problems(need), *problems(store), *_against_plan(store, need)])
    remedy = "; ".join(dict.fromkeys(problem.remedy for problem in found))
    text = "; ".join(problem.what for problem in found)
    status: Status = "fail" if found else "pass"
    return {ALL: Verdict(status, observed_text(store), required_text(store), text, "store", remedy)}


def plan_problems(need: Requirements) -> list[Problem]:
    """Capacity rules that the profile breaks by itself, before anything is measured."""
    plan = need.plan
    if plan is None:
        return []
    texts = [
        (
            "local_buffer",
            local_buffer_shortfall(plan.local_buffer_bytes, plan.sizes.largest_bytes, plan.transfers),
        ),
        ("segment_full", segment_shortfall(plan.segment_bytes, plan.in_flight_bytes)),
    ]
    if plan.flow_bytes is not None:
        texts.append(
            ("segment_full", segment_shortfall(plan.segment_bytes, round(plan.flow_bytes), FLOW_SAFETY))
        )
    return [Problem(cause, text) for cause, text in texts if text]


def _against_plan(store: StoreFacts, need: Requirements) -> list[Problem]:
    """What a round trip of another plan would not notice: one host for two, or too low a rate."""
    if not store.ran or store.cause:
        return []
    found = []
    if need.hardware.roles.span_hosts and store.spans_hosts is False:
        found.append(Problem("not_crossed", "both ends ran on one host, and the plan spans hosts"))
    required = need.plan.required_gb_per_s if need.plan else None
    observed = store.observed_gb_per_s
    if required is not None and observed is not None and observed < required:
        found.append(
            Problem("too_slow", f"{observed:.2f} GB/s were measured, the plan needs {required:.2f} GB/s")
        )
    return found


def _once(found: list[Problem]) -> list[Problem]:
    """One problem a cause; a plan that is too small explains why the round trip did not run."""
    unique = {problem.cause_id: problem for problem in reversed(found)}
    kept = [problem for problem in dict.fromkeys(found) if unique[problem.cause_id] is problem]
    if any(problem.cause_id != "not_observed" for problem in kept):
        kept = [problem for problem in kept if problem.cause_id != "not_observed"]
    return kept
