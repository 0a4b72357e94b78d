"""The laptop profile as it is: `make verify PART=demo`. The run is kept for the controls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = [pytest.mark.verify("demo"), pytest.mark.timeout(2700)]
Record = Callable[[str, object], None]
MAX_MINUTES = 15
MAX_BYTES = 12 * 2**30


def test_full_run_ends_with_a_decision_within_its_time(demo: Any, record_property: Record) -> None:
    """The full laptop run ends with a decision within 15 minutes."""
    minutes = demo.seconds / 60
    record_property("minutes", f"{minutes:.1f}")
    for stage in demo.summary["stages"]:
        record_property(f"{stage['name']}_s", f"{stage['seconds']:.0f}")
    assert demo.summary["status"] in ("completed", "held"), demo.output[-4000:]
    assert demo.code == (0 if demo.summary["decision"]["promote"] else 1)
    record_property("decision", "promote" if demo.summary["decision"]["promote"] else "hold")
    assert minutes <= MAX_MINUTES


def test_process_tree_stays_under_its_memory(demo: Any, record_property: Record) -> None:
    """The run's processes together stay under 12 GiB."""
    record_property("peak_gib", f"{demo.watched.peak_bytes / 2**30:.1f}")
    assert 0 < demo.watched.peak_bytes < MAX_BYTES


def test_the_draft_is_accepted_on_prompts_it_never_saw(demo: Any, record_property: Record) -> None:
    """Macro tau is at least 1.4, its lower bound above 1.1 in 7 of 9 domains."""
    evaluation = demo.stage_result("05-evaluate")
    macro, domains = evaluation["replay"]["macro"], evaluation["replay"]["domains"]
    record_property("tau_macro", f"{macro['value']:.3f} [{macro['low']:.3f}, {macro['high']:.3f}]")
    for name, domain in domains.items():
        record_property(name, f"{domain['value']:.2f} (low {domain['low']:.2f}, {domain['prompts']} prompts)")
    assert demo.run.profile().evaluate.confidence == 0.9
    assert len(domains) == 9
    assert min(domain["prompts"] for domain in domains.values()) >= 12
    assert macro["value"] >= 1.4
    assert sum(domain["low"] > 1.1 for domain in domains.values()) >= 7


def test_live_agrees_with_replay(demo: Any, record_property: Record) -> None:
    """The engine accepts what replay says, within 1 % on the common prompts."""
    evaluation = demo.stage_result("05-evaluate")
    record_property("live_gap", f"{evaluation['live_gap']:.5f}")
    record_property("tau_live", f"{evaluation['live']['pooled']['value']:.3f}")
    record_property("common_prompts", evaluation["common_prompts"])
    assert evaluation["live_valid"]
    assert evaluation["common_prompts"] >= 9 * 4
    assert evaluation["live_gap"] <= 0.01


def test_output_with_the_draft_is_that_without_it(demo: Any, record_property: Record) -> None:
    """Token for token the same answers at temperature 0."""
    evaluation = demo.stage_result("05-evaluate")
    equal = [comparison["equal"] for comparison in evaluation["comparisons"]]
    record_property("lossless", f"{evaluation['lossless']} ({sum(equal)} of {len(equal)})")
    assert evaluation["lossless"] == "identical"
    assert len(equal) >= 9 * 4


def test_no_sample_was_lost_and_nothing_is_left(
    demo: Any, left_running: Callable[[Any], list[str]], record_property: Record
) -> None:
    """No sample is lost; no process and no port is left."""
    for name in ("samples", "tokens", "lost", "regenerated"):
        record_property(name, demo.summary["capture"][name])
    assert demo.summary["capture"]["lost"] == 0
    assert left_running(demo) == []
