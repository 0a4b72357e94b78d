"""Every vLLM command line of every profile, through the installed engine's own argument parser."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from profiles.evaluation import engine_of_arms
from profiles.load import builtin_names, load_profile
from profiles.schema import Profile
from profiles.serving_rules import RULES
from profiles.serving_versions import NEEDS
from tasks.evaluate.arm_plan import ngram_config
from tasks.serve.arms import (
    TARGET_ALONE,
    Speculation,
    arm_argv,
    arm_environment,
    draft_speculation,
    runner_for,
)
from tasks.serve.command import engine_version, layer_ids, server_environment, target_argv
from tasks.serve.options import FIELD_OF_FLAG, nodes_of, runner_environment

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]
ROOT = Path(__file__).parents[2]
PARSER = ROOT / "tests" / "support" / "vllm_arguments.py"
HEAD = "192.0.2.1"
LAYERS = 93

ODD = ("invented", "odd values", "odd backend")
NOT_KNOWN: dict[str, dict[str, str]] = {"0.32.0": {}}
"""Engine -> flag or value that its parser does not know -> oldest vLLM that does. Held exactly: a missing row
and one that is not needed any more both fail. vLLM 0.32.0 knows everything that the profiles name."""


def speculations(profile: Profile) -> Iterator[tuple[str, Speculation]]:
    """Every arm that a profile can start, also those that a revision to pin still keeps back."""
    live = profile.evaluate.live
    yield "plain", TARGET_ALONE
    yield "draft", draft_speculation(profile, Path("/drafts/d"))
    others: dict[str, dict[str, Any]] = {
        "ngram": ngram_config(profile),
        "suffix": {"method": "suffix"},
        "mtp": {"method": "mtp", "num_speculative_tokens": 1},
    }
    for name, config in others.items():
        yield name, Speculation(config, runner_for(config["method"], live.triton_interpreter))
    for name, own in live.own_arms.items():
        yield name, Speculation(own.speculative_config, own.runner or "v2", own.tap_point)


def command_lines(profile: Profile) -> Iterator[dict[str, Any]]:
    """Capture and every arm, on every node."""
    master = f"{profile.store.host}:50051"
    layers = layer_ids(profile, LAYERS)
    engine = profile.serve.engine
    for node in nodes_of(engine, HEAD, 29501):
        argv = target_argv(profile, Path("/weights"), layers, 8000, master, node=node)
        environment = {**server_environment(profile), **runner_environment(engine.runner)}
        yield _line(f"{profile.name} capture {node.rank}", argv, environment)
    for name, how in speculations(profile):
        for node in nodes_of(engine_of_arms(profile.evaluate.live, profile.serve), HEAD):
            argv = arm_argv(profile, Path("/weights"), 8000, how, node)
            environment = arm_environment(profile, how.runner, how.tap_point)
            yield _line(f"{profile.name} {name} {node.rank}", argv, environment)


def _line(name: str, argv: tuple[str, ...], environment: dict[str, str]) -> dict[str, Any]:
    return {"name": name, "argv": list(argv[argv.index("-m") + 2 :]), "environment": environment}


OPTIONS = {
    "serve": {"host": "192.0.2.1"},
    "hardware": {"mode": "nvidia", "roles": {"serve": {"nodes": 2}, "train": {"nodes": 2}}},
    "store": {"host": "192.0.2.1"},
    "evaluate": {
        "live": {
            "adaptive_verification": True,
            "triton_interpreter": False,
            "engine": {
                "tensor_parallel": 4, "data_parallel": 2, "nodes": 2, "expert_parallel": True,
                "all2all_backend": "deepep_v2", "moe_backend": "deep_gemm_mega_moe",
                "gpu_memory_utilization": 0.9, "kv_cache_dtype": "fp8", "prefix_caching": True,
                "prefix_match_unit": 128, "cudagraph_mode": "FULL", "max_cudagraph_capture_size": 256,
                "flashinfer_autotune": True, "attention_backend": "FLASHINFER_MLA",
                "compilation_config": {"pass_config": {"fuse_allreduce_rms": False}},
                "load_format": "fastsafetensors",
                "tool_call_parser": "kimi_k3", "reasoning_parser": "kimi_k3",
                "disaggregation": {"connector": "NixlConnector", "role": "both"},
            },
        }
    },
}  # fmt: skip
"""Every option of an arm at once, as far as they go together."""
REST = {
    "hardware": {"mode": "nvidia"},
    "serve": {"engine": {"tensor_parallel": 2, "decode_context_parallel": 2, "language_model_only": True}},
    "evaluate": {
        "live": {
            "triton_interpreter": False,
            "engine": {
                "chunked_prefill": False, "lora": True, "pipeline_parallel": 2, "enforce_eager": True,
                "kv_offload": {"gib": 64, "backend": "native"},
            },
        }
    },
}  # fmt: skip
"""The rest of them."""


def all_lines() -> list[dict[str, Any]]:
    profiles = [load_profile(name).profile for name in builtin_names()]
    for number, more in enumerate((OPTIONS, REST)):
        profiles.append(load_profile("laptop", {**more, "name": f"every-option-{number}"}).profile)
    return [line for profile in profiles for line in command_lines(profile)]


@pytest.fixture(scope="module")
def judged() -> dict[str, list[str]]:
    lines = all_lines()
    wrong = {
        "argv": [*lines[0]["argv"], "--invented-flag", "--moe-backend", "no_such_kernel"],
        "environment": {"VLLM_NO_SUCH_VARIABLE": "1"},
    }
    odd = {
        "argv": [
            "--model", "/m", "--load-format", "no_such_format", "--reasoning-parser", "no_such_parser",
            "--speculative-config", '{"method": "dsparkle", "no_such_field": 1}',
        ],
        "environment": {},
    }  # fmt: skip
    backend = {"argv": ["--attention-config", '{"mla_prefill_backend": "NO_SUCH"}'], "environment": {}}
    odd_ones = {"invented": wrong, "odd values": odd, "odd backend": backend}
    done = subprocess.run(
        [sys.executable, str(PARSER)],
        input=json.dumps([*lines, *odd_ones.values()]),
        capture_output=True,
        text=True,
        timeout=500,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told = next(line for line in done.stdout.splitlines() if line.startswith("FAULTS "))
    names = [*(line["name"] for line in lines), *odd_ones]
    return dict(zip(names, json.loads(told.removeprefix("FAULTS ")), strict=True))


def test_the_parser_knows_every_command_line_of_every_profile(judged: dict[str, list[str]]) -> None:
    found = {fault for name, faults in judged.items() if name not in ODD for fault in faults}
    version = engine_version().split()[1].split("+")[0]
    assert version in NOT_KNOWN, f"add what vLLM {version} does not know to NOT_KNOWN: {sorted(found)}"
    assert found == set(NOT_KNOWN[version])
    kinds = {name.split()[1] for name in judged if name.startswith("gb300-kimi-k3 ")}
    assert kinds == {"capture", "plain", "draft", "ngram", "suffix", "mtp", "inferact"}
    assert {name.split()[2] for name in judged if name.startswith("gb300-kimi-k3 ")} == {"0", "1"}
    assert {name.split()[0] for name in judged} >= set(builtin_names())


def test_the_parser_would_say_so(judged: dict[str, list[str]]) -> None:
    """Else the test before this one could not fail."""
    assert judged["invented"][0] == "VLLM_NO_SUCH_VARIABLE"
    assert "no_such_kernel" in judged["invented"][1] or "--invented-flag" in judged["invented"][1]
    told = " ".join(judged["odd values"])
    for word in ("no_such_format", "no_such_parser", "dsparkle", "no_such_field"):
        assert word in told
    assert "NO_SUCH" in judged["odd backend"][0]


def test_every_option_is_in_some_command_line() -> None:
    """An option without a flag here would go to the parser untested."""
    words = {word for line in all_lines() for word in line["argv"]}
    words |= {word.replace("--no-", "--") for word in words if word.startswith("--no-")}
    flags = {flag for flag in FIELD_OF_FLAG if flag.startswith("--")}
    assert flags - words == set()


def test_every_rule_names_a_place_that_the_engine_has() -> None:
    from importlib.util import find_spec

    spec = find_spec("vllm")
    assert spec is not None and spec.submodule_search_locations
    package = Path(next(iter(spec.submodule_search_locations)))
    missing = []
    for rule in RULES:
        for source in rule.source.split("; "):
            if source.startswith("vllm/"):
                file, name = source.split(" ", 1)
                path = package / file.removeprefix("vllm/")
                if not path.is_file() or name not in path.read_text(encoding="utf-8"):
                    missing.append(source)
    assert missing == []


def test_the_documentation_lists_every_rule_and_every_version() -> None:
    text = (ROOT / "docs" / "profiles.md").read_text(encoding="utf-8")
    for rule in RULES:
        assert f"| {rule.name} | {rule.why} | {rule.source} |" in text, rule.name
    for need in NEEDS:
        assert f"| {need.what} | `{need.field}` | {need.at_least} | {need.source} |" in text, need.what
