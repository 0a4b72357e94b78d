"""The plan of the laptop profile, from a target's config alone."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from profiles.schema import Profile
from tasks.errors import RetrainError, UsageError
from tasks.plan.core import build_plan, plan_lines
from tasks.plan.render import plan_text
from tasks.plan.sizes import bytes_per_token
from tasks.plan.wording import size_text
from tasks.prompts.load import load_prompts

ROOT = Path(__file__).parents[4]
SMOLLM2 = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 576, "num_hidden_layers": 30,
    "vocab_size": 49152, "intermediate_size": 1536, "num_attention_heads": 9, "num_key_value_heads": 3,
    "head_dim": 64, "tie_word_embeddings": True, "max_position_embeddings": 8192,
}  # fmt: skip


def laptop(folder: Path, **changes: Any) -> Profile:
    values = yaml.safe_load((ROOT / "profiles" / "laptop.yaml").read_text())
    values["target"] = {k: v for k, v in values["target"].items() if k != "source"} | {"model": str(folder)}
    for dotted, value in changes.items():
        section, _, field = dotted.partition("__")
        values[section] = {**values.get(section, {}), field: value}
    return Profile.model_validate(values)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(SMOLLM2))
    return tmp_path


def test_sizes_follow_from_profile_and_config(target: Path) -> None:
    profile = laptop(target)
    plan = build_plan(profile)
    assert plan.token_bytes == 6 * 576 * 4 + 8
    assert plan.samples == len(load_prompts(profile).prompts)
    assert plan.log_bytes == plan.samples * plan.sample_bytes
    assert (
        plan.draft_parameters - plan.trained_parameters
        == (49152 + (profile.train.draft.vocab_size or 0)) * 576
    )
    assert plan.in_flight_samples == profile.stream.in_flight_bytes // plan.sample_bytes
    assert plan.peak_memory_bytes < 12 * 2**30
    assert plan.expected_minutes == profile.expected_minutes
    assert sum(stage.minutes or 0 for stage in plan.stages) == pytest.approx(plan.expected_minutes, abs=0.4)


def test_processes_in_order_with_real_commands(target: Path) -> None:
    plan = build_plan(laptop(target))
    commands = {process.name: process.command for process in plan.processes}
    assert list(commands) == [
        "store-master",
        "target",
        "capture",
        "trainer",
        "replay",
        "arm-draft",
        "arm-ngram",
        "arm-plain",
    ]
    assert "extract_hidden_states" in commands["target"] and '"method": "dspark"' in commands["arm-draft"]
    assert "dspark" not in commands["arm-plain"]
    assert all(sys.executable not in command for command in commands.values())


def test_an_attached_target_is_not_started(target: Path) -> None:
    address = {"serve__url": "http://127.0.0.1:9", "store__master": "10.0.0.1:50051"}
    attached = laptop(target, serve__kind="attach", **address)
    plan = build_plan(attached)
    assert not {"target", "store-master"} & {process.name for process in plan.processes}
    assert plan.ports["target"] == "http://127.0.0.1:9"
    assert plan.ports["store master"] == "10.0.0.1:50051"


def test_steps_are_limited_and_may_be_none(target: Path) -> None:
    assert build_plan(laptop(target, train__max_steps=5)).steps == 5
    assert build_plan(laptop(target, train__max_steps=0)).steps == 0


def test_without_overlap_no_process_runs_beside_the_target(target: Path) -> None:
    plan = build_plan(laptop(target, stream__overlap=False))
    assert plan.overlap == () and "Training beside" not in plan_text(plan)


def test_overlap_is_shown_with_what_runs_at_once_and_when_the_target_ends(target: Path) -> None:
    alone, beside = (build_plan(laptop(target, stream__overlap=value)) for value in (False, True))
    shown = dict(beside.overlap)
    memory = {process.name: process.memory_bytes for process in beside.processes}
    together = [memory[name] for name in ("store-master", "target", "capture", "trainer")]
    assert shown["at once"].startswith("store-master, target, capture, trainer: about ")
    assert size_text(sum(together)) in shown["at once"]
    assert beside.peak_memory_bytes == max(sum(together), *memory.values()) > alone.peak_memory_bytes
    assert f"the last of {beside.samples:,} samples is in the log" in shown["target ends"]
    text = plan_text(beside)
    assert "Training beside the capture (stream.overlap)" in text and "target ends" in text


def test_a_window_bounds_the_disk_of_the_plan(target: Path) -> None:
    profile = laptop(target, train__epochs=1)
    window = {"retention": "window", "window_bytes": 700 * 10**6}
    stream = profile.stream.model_validate({**profile.stream.model_dump(), **window})
    plan = build_plan(profile.model_copy(update={"stream": stream}))
    log = plan.disk[0]
    assert plan.log_bytes > log.bytes == 700 * 10**6 and "window" in log.what
    assert size_text(plan.log_bytes) in log.what
    assert "never more than 700.0 MB on disk" in dict(plan.overlap)["hidden-state log"]


def test_an_attached_target_is_not_ended_by_the_plan(target: Path) -> None:
    address = {"serve__url": "http://127.0.0.1:9", "store__master": "10.0.0.1:50051"}
    plan = build_plan(laptop(target, serve__kind="attach", stream__overlap=True, **address))
    assert "not by this run" in dict(plan.overlap)["target ends"]


def test_a_sample_larger_than_the_budget_is_noted(target: Path) -> None:
    plan = build_plan(laptop(target, stream__in_flight_bytes=2**20))
    assert any("exceeds stream.in_flight_bytes" in risk.what for risk in plan.risks)


def test_bad_targets_are_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no target folder"):
        build_plan(laptop(tmp_path / "nowhere"))


def test_an_unconverted_wheel_is_not_converted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    profile = Profile.model_validate(yaml.safe_load((ROOT / "profiles" / "laptop.yaml").read_text()))
    with pytest.raises(RetrainError, match="not been converted") as info:
        build_plan(profile)
    assert "`make setup`" in info.value.hint and "\nsetup:" in (ROOT / "Makefile").read_text()
    assert not list(tmp_path.rglob("*.safetensors"))


def test_the_text_fits_a_terminal_and_says_the_total(target: Path) -> None:
    text = plan_text(build_plan(laptop(target)), width=90)
    assert max(map(len, text.splitlines())) <= 90
    assert f"about {laptop(target).expected_minutes:g} minutes" in text and "mooncake_master" in text
    assert "memory, disk and minutes are estimates" in text
    assert plan_lines(laptop(target))


def test_the_plan_says_what_became_of_the_rows(target: Path, tmp_path: Path) -> None:
    def turn(role: str, text: str) -> dict[str, str]:
        return {"role": role, "content": text}

    secret = "zanzibar"
    rows: list[Any] = [
        {"messages": [turn("user", f"{secret} tell me about number {i}"), turn("assistant", "no " * 40)]}
        for i in range(20)
    ]
    rows += [rows[3], {"messages": [turn("assistant", secret)]}]
    file = tmp_path / "mine.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    profile = laptop(target, prompts__train=[str(file)], prompts__train_per_domain=15)
    plan = build_plan(profile.model_copy(update={"prompts": _with(profile, max_bad_rows=0.1)}))
    assert plan.prompts.train.rows == 22 and plan.prompts.train.prompts == 15
    text = plan_text(plan)
    generated = (15 - plan.prompts.held_out) * profile.stream.max_new_tokens
    for line in (
        r"rows read +│ +22 │ +126",
        r"unusable row: roles +│ +1 │ +0",
        r"dropped: duplicate +│ +1 │ +0",
        r"dropped: above the limit of its domain +│ +5 │ +18",
        r"turns of a prompt: p50 / p90 / max +│ +1 / 1 / 1",
        r"alike across train and held-out +│ +0 pairs",
        r"with a recorded answer +│ +15",
        rf"trainable tokens, recorded +│ +about {plan.prompts.recorded_tokens}",
        rf"trainable tokens, generated +│ +at most {generated}",
        r"skipped mine.jsonl:22: it has no user turn",
    ):
        assert re.search(line, text), (line, text)
    assert secret not in text


def _with(profile: Profile, **fields: Any) -> Any:
    return profile.prompts.model_copy(update=fields)


@pytest.mark.parametrize(
    ("size", "text"), [(12, "12 B"), (13_832, "13.8 kB"), (2_500_000, "2.5 MB"), (7.5e9, "7.5 GB")]
)
def test_size_text(size: float, text: str) -> None:
    assert size_text(size) == text


def test_kimi_k3_bytes_per_token() -> None:
    assert bytes_per_token(7168, 5, "bfloat16") == 6 * 7168 * 2 + 8


def test_a_plan_needs_no_torch() -> None:
    code = "import sys, tasks.plan.core; raise SystemExit('torch' in sys.modules or 'vllm' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0
