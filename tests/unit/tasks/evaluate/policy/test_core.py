"""From a slots file and costs to a recommendation and two files."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from profiles.evaluation import Evaluate, Policy
from tasks.evaluate.models import EvaluationReport, Measurement, TauEstimate
from tasks.evaluate.policy.core import CALIBRATION_FILE, COSTS_FILE, policy_of, with_policy
from tasks.evaluate.policy.costs import cost_table
from tasks.evaluate.policy.models import CostTable, PolicyReport
from tasks.evaluate.policy.options import by_batch_size, command_line, options

SETTINGS = Evaluate(
    bootstrap_samples=200, policy=Policy(passes=2, thresholds=(0.5,), concurrencies=(1, 4, 16))
)
BASE = {"method": "dspark", "model": "somewhere", "draft_sample_method": "greedy"}


def costs(per_token_s: float, free: int = 8, meaningful: bool = True) -> CostTable:
    """10 ms up to `free` tokens, then more for each."""
    sizes = (1, free, 2 * free, 128)
    seconds = [0.010 + max(0, size - free) * per_token_s for size in sizes]
    found = cost_table(
        [(size, 1 / one) for size, one in zip(sizes, seconds, strict=True)], meaningful=meaningful
    )
    assert found is not None
    return found


@pytest.fixture
def policy(invent: Callable[..., Any], tmp_path: Path) -> Callable[..., PolicyReport]:
    """Policy of an invented draft; options of `invent` by name."""

    def run(table: CostTable | None, **how: Any) -> PolicyReport:
        path = invent(**how).path
        return policy_of(path, table, SETTINGS, tmp_path / "out", base=BASE, draft="d1", captures="c1")

    return run


def test_free_verification_takes_every_draft_token(policy: Callable[..., PolicyReport]) -> None:
    found = policy(costs(0.0))
    assert [one.num_speculative_tokens for one in found.recommendation] == [4, 4, 4]
    for one in found.recommendation:
        assert one.expected_speedup == pytest.approx(one.expected_tau)
        assert one.vllm_options == {
            "method": "dspark", "draft_sample_method": "greedy", "num_speculative_tokens": 4
        }  # fmt: skip
        low, high = one.expected_speedup_low, one.expected_speedup_high
        assert low is not None and high is not None and low < one.expected_tau < high
    assert found.schedule_options == {}


def test_a_busy_machine_wants_fewer_and_none_in_the_end(policy: Callable[..., PolicyReport]) -> None:
    found = policy(costs(0.004), low=0.2, high=0.5)
    tokens = [one.num_speculative_tokens for one in found.recommendation]
    assert tokens == sorted(tokens, reverse=True) and tokens[0] > 0 and tokens[-1] == 0
    last = found.recommendation[-1]
    assert last.expected_speedup == pytest.approx(1.0) and last.vllm_options == {} and last.command_line == ""
    ranges = found.schedule_options["num_speculative_tokens_per_batch_size"]
    assert ranges[0][0] == 1 and ranges[-1] == [5, 16, 0]
    assert any("data parallelism" in note for note in found.notes)


def test_a_head_with_insight_makes_adapting_worth_it(policy: Callable[..., PolicyReport]) -> None:
    """Chances near 0 or 1, and the head knows which: under load only the sure tokens are verified."""
    found = policy(costs(0.00025, free=16), low=0.01, high=0.99, positions=3, prompts=60)
    busy = found.recommendation[-1]
    assert busy.adaptive_verification_helps is True
    assert busy.adaptive_gain is not None and busy.adaptive_gain.low > 0
    assert busy.vllm_options["enable_adaptive_verification"] is True
    assert busy.vllm_options["num_speculative_tokens"] == 3
    assert any("CUDA graphs" in note for note in found.notes)


def test_a_head_without_insight_is_not_recommended(policy: Callable[..., PolicyReport]) -> None:
    found = policy(costs(0.002), logits=lambda chance, random: random.normal(size=chance.shape))
    assert all(one.adaptive_verification_helps is not True for one in found.recommendation)
    assert all("enable_adaptive_verification" not in one.vllm_options for one in found.recommendation)


def test_doing_nothing_in_both_ways_is_undecided(policy: Callable[..., PolicyReport]) -> None:
    """Where no draft token pays, neither way verifies any, and there is no difference to judge."""
    found = policy(costs(0.02), low=0.2, high=0.5)
    busy = found.recommendation[-1]
    assert busy.num_speculative_tokens == 0 and busy.adaptive_gain is not None
    assert busy.adaptive_gain.value == 0 and busy.adaptive_verification_helps is None


def test_costs_without_meaning_decide_nothing(policy: Callable[..., PolicyReport]) -> None:
    found = policy(costs(0.00025, free=16, meaningful=False), low=0.01, high=0.99, positions=3, prompts=60)
    assert [one.adaptive_verification_helps for one in found.recommendation] == [None] * 3
    assert any("mean nothing" in note for note in found.notes)


def test_few_prompts_decide_nothing(policy: Callable[..., PolicyReport]) -> None:
    found = policy(costs(0.00025, free=16), low=0.01, high=0.99, positions=3, prompts=3, tokens=200)
    assert [one.adaptive_verification_helps for one in found.recommendation] == [None] * 3
    assert any("3 prompts are too few" in note for note in found.notes)


def test_batches_that_were_not_measured_are_marked(policy: Callable[..., PolicyReport]) -> None:
    small = cost_table([(1, 100.0), (6, 100.0)])
    found = policy(small)
    assert [one.extrapolated for one in found.recommendation] == [False, True, True]
    assert any("at concurrency 4, 16 costs are extrapolated" in note for note in found.notes)


def test_without_a_head_only_fixed_numbers_are_played(policy: Callable[..., PolicyReport]) -> None:
    found = policy(costs(0.001), logits=None)
    assert found.calibration is None and "no confidence head" in found.notes[0]
    assert {one.policy for load in found.simulation for one in load.policies} == {"fixed"}
    assert all(one.adaptive_verification_helps is None for one in found.recommendation)


def test_without_costs_there_is_calibration_and_no_advice(
    policy: Callable[..., PolicyReport], tmp_path: Path
) -> None:
    found = policy(None)
    assert found.calibration is not None and found.recommendation == () and found.costs is None
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [CALIBRATION_FILE]


@pytest.mark.parametrize(
    "odd",
    [
        {"prompts": 1, "tokens": 2},
        {"low": 0.0, "high": 0.0, "logits": lambda chance, random: np.zeros(chance.shape)},
        {"low": 1.0, "high": 1.0, "logits": lambda chance, random: np.zeros(chance.shape)},
        {"positions": 1},
    ],
    ids=["one block", "all wrong", "all right", "one position"],
)
def test_odd_replays_give_a_report_without_nan(
    odd: dict[str, Any], policy: Callable[..., PolicyReport]
) -> None:
    found = policy(costs(0.001), **odd)
    assert PolicyReport.model_validate_json(found.model_dump_json()) == found
    assert "NaN" not in json.dumps(found.model_dump()) and len(found.recommendation) == 3


def test_the_files_hold_what_others_need(policy: Callable[..., PolicyReport], tmp_path: Path) -> None:
    found = policy(costs(0.001))
    calibration = json.loads((tmp_path / "out" / CALIBRATION_FILE).read_text())
    assert (calibration["draft"], calibration["captures"]) == ("d1", "c1")
    assert [one["position"] for one in calibration["temperatures"]] == [1, 2, 3, 4]
    assert calibration["report"]["positions"][0]["cumulative_before"]["ece"] > 0
    table = json.loads((tmp_path / "out" / COSTS_FILE).read_text())
    assert table["verify"][0] == {"tokens": 1, "seconds": 0.01, "steps_per_s": 100.0}
    assert CostTable.model_validate(table) == found.costs


def test_a_file_of_an_earlier_measurement_does_not_stay(
    policy: Callable[..., PolicyReport], tmp_path: Path
) -> None:
    policy(costs(0.001))
    policy(None, logits=None)
    assert list((tmp_path / "out").iterdir()) == []


def test_a_report_gets_its_policy_where_replay_wrote_slots(
    invent: Callable[..., Any], tmp_path: Path
) -> None:
    nothing = TauEstimate(value=None, prompts=0, rounds=0, accepted=0)
    measured = Measurement(domains={}, macro=nothing, pooled=nothing)
    report = EvaluationReport(
        replay=measured, live=measured, common_replay_pooled=None, live_gap=None, lossless="identical",
        comparisons=(), arms=(), block_size=4, draft_sample_method="greedy",
        rejection_sample_method="standard",
    )  # fmt: skip
    assert with_policy(report, tmp_path / "none.slots.safetensors", SETTINGS, tmp_path) is report
    found = with_policy(report, invent().path, SETTINGS, tmp_path, draft="d2").policy
    assert found is not None and found.calibration is not None and found.calibration.draft == "d2"
    assert "no load was measured" in found.notes[0]
    assert (tmp_path / CALIBRATION_FILE).exists()


def test_the_options_are_fields_of_the_installed_engine() -> None:
    engine = find_spec("vllm")
    assert engine is not None and engine.origin is not None
    source = (Path(engine.origin).parent / "config" / "speculative.py").read_text(encoding="utf-8")
    (config,) = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ClassDef) and node.name == "SpeculativeConfig"
    ]
    fields = {
        node.target.id
        for node in config.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    assert set(options(BASE, 4, adaptive=True)) <= fields
    assert set(by_batch_size(BASE, {1: 4, 8: 2})) <= fields


def test_the_command_line_is_one_argument_of_vllm() -> None:
    import shlex

    words = shlex.split(command_line(options(BASE, 4, adaptive=True)))
    assert words[0] == "--speculative-config" and len(words) == 2
    assert json.loads(words[1]) == {
        "method": "dspark", "model": "DRAFT", "draft_sample_method": "greedy",
        "num_speculative_tokens": 4, "enable_adaptive_verification": True,
    }  # fmt: skip


def test_batch_ranges_cover_every_size_once() -> None:
    found = by_batch_size(BASE, {1: 7, 4: 7, 8: 3, 16: 0})
    assert found["num_speculative_tokens_per_batch_size"] == [[1, 4, 7], [5, 8, 3], [9, 16, 0]]
    assert found["num_speculative_tokens"] == 7
    assert by_batch_size(BASE, {1: 4, 8: 4}) == {}
