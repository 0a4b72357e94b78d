"""Decision inputs of a whole evaluation: domains, prompt lengths, memory, and what new prices change."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from load_sweeps import sweep

from profiles.load import load_profile
from profiles.schema import Profile
from tasks.evaluate.assemble import ReplayRow, by_domain, replay_measurement
from tasks.evaluate.load.models import LoadSweep
from tasks.evaluate.models import ArmReport, EvaluationReport, PromptComparison
from tasks.evaluate.worth.conclude import conclude
from tasks.evaluate.worth.domains import by_context, domain_gains
from tasks.evaluate.worth.gather import best_k, with_worth
from tasks.evaluate.worth.memory import CacheType, cache_type, draft_memory
from tasks.evaluate.worth.stages import gpus_of_node, stage_seconds
from tasks.measure.acceptance import PromptCounts
from tasks.measure.intervals import Bootstrap
from tasks.report.evaluation_view import memory_rows
from tasks.stage import fingerprint
from tasks.stages import EVALUATE

HOW = Bootstrap(300, 0.90, 0)
K3: dict[str, Any] = {
    "block_size": 8,
    "draft_vocab_size": 163_840,
    "aux_hidden_state_layer_ids": [24, 48, 72, 88, 92],
    "markov_rank": 256,
    "markov_head_type": "vanilla",
    "enable_confidence_head": True,
    "confidence_head_with_markov": True,
    "transformer_layer_config": {
        "vocab_size": 163_840,
        "hidden_size": 7168,
        "num_hidden_layers": 5,
        "num_attention_heads": 96,
        "num_key_value_heads": 16,
        "head_dim": 64,
        "intermediate_size": 14_336,
        "sliding_window": 2048,
        "layer_types": ["sliding_attention"] * 5,
    },
}


def rows(accepted: int) -> list[ReplayRow]:
    """Prompts of rising length in two domains; each walk has 20 rounds."""
    return [
        ReplayRow(
            f"{domain}-{i}", domain, tuple(range(40 * (i + 1))), (1, 2),
            {"64": {"rounds": 20, "accepted": accepted + i, "per_position": [accepted + i, 0]}},
        )
        for domain in ("qa", "rag")
        for i in range(6)
    ]  # fmt: skip


def report(load: LoadSweep | None = None) -> EvaluationReport:
    measured = replay_measurement(by_domain(rows(12), 64), HOW)
    arm = ArmReport(
        name="draft", argv=("vllm", "--tensor-parallel-size", "8"), engine="vllm", requests=12, failed=0,
        output_tokens=100, seconds=1.0, speed_is_meaningful=True,
    )  # fmt: skip
    return EvaluationReport(
        replay=measured, live=measured, common_replay_pooled=1.7, live_gap=0.0, lossless="identical",
        comparisons=(PromptComparison(prompt_id="qa-0", equal=True, tokens=2),), arms=(arm,), block_size=8,
        draft_sample_method="greedy", rejection_sample_method="standard", load=load,
    )  # fmt: skip


def profile(**changes: Any) -> Profile:
    return load_profile("laptop", {"evaluate": changes}).profile


def test_k3_drafts_memory_is_its_published_size() -> None:
    """4,744,900,481 parameters, half of them the target's embedding and head; window of 2,048 tokens."""
    found = draft_memory(K3, "bfloat16", 1_048_576, CacheType("fp8", "--kv-cache-dtype"))
    assert found.own_weights_bytes == 2 * 2_396_090_241
    assert found.shared_weights_bytes == 2 * 2_348_810_240
    assert found.kv_bytes_per_token == 10_240
    assert found.kv_bytes_per_request == 10_240 * 2048
    full = {**K3, "transformer_layer_config": {**K3["transformer_layer_config"], "layer_types": None}}
    full["transformer_layer_config"]["sliding_window"] = None
    assert draft_memory(full, "bfloat16", 4096).kv_bytes_per_request == 20_480 * 4096


@pytest.mark.parametrize(
    ("argv", "name", "source"),
    [
        (("vllm", "--seed", "0"), "auto", "the engine's default"),
        (("vllm", "--kv-cache-dtype", "fp8_e5m2"), "fp8_e5m2", "--kv-cache-dtype"),
        (("--kv-cache-dtype=fp8", "--speculative-config", '{"method": "dspark"}'), "fp8", "--kv-cache-dtype"),
        (
            ("--kv-cache-dtype", "fp8", "--speculative-config", '{"kv_cache_dtype": "bfloat16"}'),
            "bfloat16",
            "kv_cache_dtype of --speculative-config",
        ),
    ],
)
def test_the_type_of_the_cache_is_the_engines_setting(argv: tuple[str, ...], name: str, source: str) -> None:
    assert cache_type(argv) == CacheType(name, source)


def test_a_type_of_unknown_size_leaves_the_cache_open() -> None:
    found = draft_memory(K3, "bfloat16", 4096, CacheType("nvfp4", "--kv-cache-dtype"))
    assert found.kv_bytes_per_token is None and found.kv_bytes_per_request is None
    assert found.cache_dtype == "nvfp4" and found.own_weights_bytes == 2 * 2_396_090_241
    (*_, row) = memory_rows(found)
    assert row == ("KV cache", "not computed: the size of the type nvfp4, by --kv-cache-dtype, is not known")


def test_the_memory_of_an_evaluation_follows_the_profile(tmp_path: Path) -> None:
    """The laptop serves float32; a profile that stores keys and values in 8 bits needs a quarter."""
    (tmp_path / "draft").mkdir()
    (tmp_path / "draft/config.json").write_text(json.dumps(K3))
    here: dict[str, Any] = {
        "rows": [],
        "incumbent_rows": None,
        "draft_dir": tmp_path / "draft",
        "run_dir": tmp_path,
    }
    wide = with_worth(profile(), report(), **here).worth
    narrow = load_profile("laptop", {"serve": {"engine": {"kv_cache_dtype": "fp8"}}}).profile
    arm = report().arms[0].model_copy(update={"argv": ()})
    small = with_worth(narrow, report().model_copy(update={"arms": (arm,)}), **here).worth
    assert wide is not None and wide.measured.memory is not None
    assert small is not None and small.measured.memory is not None
    assert wide.measured.memory.kv_bytes_per_token == 4 * 10_240
    assert (wide.measured.memory.cache_asked, wide.measured.memory.cache_dtype) == ("auto", "float32")
    assert small.measured.memory.kv_bytes_per_token == 10_240 and small.measured.memory.cache_dtype == "fp8"
    assert ("Type of the KV cache", "float32 (auto), by the engine's default") in memory_rows(
        wide.measured.memory
    )


def test_a_pruned_head_is_the_drafts_own() -> None:
    pruned = {**K3, "draft_vocab_size": 32_000}
    assert draft_memory(pruned, "bfloat16", 4096).shared_weights_bytes == 2 * 163_840 * 7168


def test_gains_of_a_domain_are_paired() -> None:
    new, old = by_domain(rows(12), 64), by_domain(rows(10), 64)
    qa, _ = domain_gains(new, old, HOW)
    assert (qa.domain, qa.prompts) == ("qa", 6)
    assert qa.over_incumbent.value == pytest.approx(0.1)
    assert qa.over_incumbent.low == pytest.approx(0.1), "equal differences leave nothing to chance"
    assert qa.over_none.value == pytest.approx((qa.tau.value or 0) - 1)
    assert (qa.tau.low or 0) < (qa.tau.value or 0) < (qa.tau.high or 0)
    (alone, _) = domain_gains(new, None, HOW)
    assert alone.over_incumbent.value is None


def test_prompt_lengths_are_put_into_doubling_ranges() -> None:
    counts = [PromptCounts(10, accepted) for accepted in (10, 8, 6, 4)]
    found = by_context([10, 63, 64, 300], counts, HOW)
    assert [(one.at_least, one.below, one.prompts) for one in found] == [
        (0, 64, 2),
        (64, 128, 1),
        (256, 512, 1),
    ]
    assert found[0].tau.value == pytest.approx(1.9) and found[0].best == pytest.approx(2.0)
    silent = by_context([10], [PromptCounts(0, 0)], HOW)
    assert silent[0].tau.value is None and silent[0].median is None


def evaluated(tmp_path: Path, load: LoadSweep | None = None, **changes: Any) -> EvaluationReport:
    (tmp_path / "draft").mkdir(exist_ok=True)
    (tmp_path / "draft/config.json").write_text(json.dumps(K3))
    for name, seconds in (("02-serve", 1800), ("03-stream", 3600), ("04-train", 7200)):
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / "manifest.json").write_text(json.dumps({"seconds": seconds}))
    return with_worth(
        profile(**changes), report(load), rows=rows(12), incumbent_rows=None, draft_dir=tmp_path / "draft",
        run_dir=tmp_path,
    )  # fmt: skip


def test_an_evaluation_without_load_speaks_of_acceptance_alone(tmp_path: Path) -> None:
    worth = evaluated(tmp_path).worth
    assert worth is not None and worth.verdict == "acceptance_only"
    assert worth.curves == () and worth.capacity == ()
    assert worth.spent is not None and worth.spent.gpus == 0
    assert worth.spent.stages == {"serve": 0.5, "stream": 1.0, "train": 2.0}
    assert worth.measured.memory is not None and worth.measured.contexts[0].prompts == 2
    assert worth.break_even is not None and "serving_gpu_hour" in worth.break_even.why_not


def test_an_evaluation_with_load_is_decided(tmp_path: Path) -> None:
    worth = evaluated(tmp_path, sweep()).worth
    assert worth is not None and worth.verdict == "worth"
    assert worth.sentence.startswith("WORTH IT up to concurrency ")
    assert worth.curves[0].noise is not None and "No load point" not in " ".join(worth.known)
    assert len(worth.fronts["draft"]) == 6 and len(worth.capacity) == 2


def test_interpreter_speeds_are_computed_and_do_not_decide(tmp_path: Path) -> None:
    worth = evaluated(tmp_path, sweep(speed_is_meaningful=False)).worth
    assert worth is not None and worth.verdict == "acceptance_only"
    assert worth.curves[0].crossover is not None
    assert "mean nothing" in worth.sentence + " ".join(worth.known)


def test_a_point_that_was_left_out_is_named(tmp_path: Path) -> None:
    load = sweep(repeats=1)
    bad = load.points[-1].model_copy(update={"timed_out": True, "seconds": 900.0})
    worth = evaluated(tmp_path, load.model_copy(update={"points": (*load.points[:-1], bad)})).worth
    assert worth is not None
    assert "Left out: draft at 32, timed out after 900 s." in worth.known
    assert "Concurrency 32 was measured for one arm only." in worth.known
    assert any(line.startswith("No load point was measured twice") for line in worth.known)


def test_prices_and_targets_change_the_answer_and_not_the_measurement(tmp_path: Path) -> None:
    first = evaluated(tmp_path, sweep())
    assert first.worth is not None
    changed = {"slo": {"tokens_per_s_per_user": 100}, "prices": {"serving_gpu_hour": 2.5}}
    again = conclude(first, first.worth.measured, profile(**changed), {})
    assert "profile's targets" not in first.worth.sentence and "profile's targets" in again.sentence
    assert again.objectives and not first.worth.objectives
    inputs = {"draft": "d"}
    assert fingerprint(EVALUATE, profile(), inputs) == fingerprint(EVALUATE, profile(**changed), inputs)


def test_a_draft_without_a_readable_configuration_keeps_the_rest(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        found = with_worth(
            profile(), report(), rows=rows(12), incumbent_rows=None, draft_dir=tmp_path, run_dir=tmp_path
        )
    assert found.worth is not None and found.worth.measured.memory is None
    assert "memory of the draft was not computed" in caplog.text


def test_a_fault_in_the_sums_does_not_lose_the_evaluation(tmp_path: Path) -> None:
    found = with_worth(
        profile(), report(), rows=[], incumbent_rows=rows(12)[:3], draft_dir=tmp_path, run_dir=tmp_path
    )
    assert found.replay == report().replay
    odd = rows(12)
    odd[0] = replace(odd[0], walks={})
    broken = with_worth(
        profile(), report(), rows=odd, incumbent_rows=None, draft_dir=tmp_path, run_dir=tmp_path
    )
    assert broken.worth is None and "decision inputs could not be worked out" in broken.notes[-1]


def test_servers_that_run_already_are_decided_by_their_live_acceptance(tmp_path: Path) -> None:
    load = sweep({"plain": None, "mine": 2.9})
    elsewhere = report(load).model_copy(
        update={
            "replay": replay_measurement({}, HOW),
            "arms": tuple(arm.model_copy(update={"argv": ()}) for arm in report().arms),
        }
    )
    found = with_worth(
        profile(), elsewhere, rows=(), incumbent_rows=None, draft_dir=None, run_dir=tmp_path, draft_arm="mine"
    ).worth
    assert found is not None and found.verdict == "worth" and found.measured.memory is None
    assert found.measured.gpus_per_server is None and "gpus_per_server" in found.capacity[1].why_not


def test_stages_of_a_run_folder(tmp_path: Path) -> None:
    assert stage_seconds(tmp_path) == {} and gpus_of_node(tmp_path) is None
    folder = tmp_path / "01-validate"
    folder.mkdir()
    (folder / "manifest.json").write_text("{")
    assert stage_seconds(tmp_path) == {} and gpus_of_node(tmp_path) is None
    nodes = [{"gpus": [{}, {}]}, {"gpus": [{}, {}, {}, {}]}, {"gpus": None}]
    (folder / "manifest.json").write_text(json.dumps({"seconds": 4.0, "result": {"nodes": nodes}}))
    assert stage_seconds(tmp_path) == {"validate": 4.0} and gpus_of_node(tmp_path) == 4


def test_without_a_policy_no_number_of_tokens_is_recommended() -> None:
    assert best_k(None) == ()
