"""Rendered files: each option once, the exact speculative options, and secrets by name only."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rendered import command_lines, documents

from profiles.load import builtin_names, load_profile
from profiles.text import DuplicateKey, parse_source
from tasks.errors import UsageError
from tasks.publish.serving_compose import compose
from tasks.publish.serving_kubernetes import kubernetes
from tasks.publish.serving_recipe import Place, Recipe, flag_words, flags_of
from tasks.publish.serving_slurm import slurm
from tasks.publish.serving_source import find_served, recipe_of

ROOT = Path(__file__).resolve().parents[4]
RENDERINGS: dict[str, Callable[[Recipe], str]] = {"compose": compose, "slurm": slurm, "k8s": kubernetes}
PUBLISHED = [name for name in builtin_names() if load_profile(name).profile.publish.incumbent]
CANARIES = {"VLLM_API_KEY": "canary-key-91a7", "HF_TOKEN": "hf_canary82b6"}


def recipe(profile: str = "kimi-k3-published", **changes: Any) -> Recipe:
    found = recipe_of(find_served(profile, weights=False), target=None)
    return replace(found, interface="ib0", **changes)


@pytest.mark.parametrize("rendering", RENDERINGS)
@pytest.mark.parametrize("profile", PUBLISHED)
def test_every_rendering_has_the_same_options_each_once(
    profile: str, rendering: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in CANARIES.items():
        monkeypatch.setenv(name, value)
    wanted = recipe(profile)
    text = RENDERINGS[rendering](wanted)
    lines = command_lines(rendering, text)
    assert len(lines) == min(wanted.nodes, 2)
    for rank, words in enumerate(lines):
        assert words[:3] == ["vllm", "serve", "moonshotai/Kimi-K3"]
        flags = flags_of(words[3:], rendering)
        config = parse_source(str(flags["speculative-config"]), "config").values
        assert config == wanted.speculative_config(wanted.draft.name)
        given = flags_of(flag_words(wanted.arguments), "recipe")
        assert {name: flags[name] for name in given} == given
        assert ("headless" in flags) == (rank > 0) and ("port" in flags) == (rank == 0)
        if wanted.nodes > 1:
            assert (flags["nnodes"], flags["node-rank"]) == (str(wanted.nodes), str(rank))
            assert flags["master-addr"] == "192.0.2.7"
    assert not [value for value in CANARIES.values() if value in text]
    assert all(name in text for name in CANARIES)


def test_the_published_recipe_word_for_word() -> None:
    """The command of the source; what is added is what several nodes need and the address."""
    (head, _) = command_lines("compose", compose(recipe()))
    published = [
        "--trust-remote-code", "--gpu-memory-utilization", "0.95", "--tensor-parallel-size", "16",
        "--nnodes", "2", "--node-rank", "0", "--master-addr", "192.0.2.7",
        "--load-format", "fastsafetensors", "--no-enable-flashinfer-autotune",
        "--max-model-len", "1048576", "--kv-cache-dtype", "fp8", "--enable-prefix-caching",
        "--attention-backend", "TOKENSPEED_MLA", "--prefix-match-unit", "128",
        "--reasoning-parser", "kimi_k3", "--language-model-only",
    ]  # fmt: skip
    flags = flags_of(head[3:], "")
    assert flags_of(published, "").items() <= flags.items()
    assert json.loads(str(flags["attention-config"])) == {
        "use_prefill_query_quantization": True,
        "mla_prefill_backend": "TOKENSPEED_MLA",
    }
    assert json.loads(str(flags["speculative-config"])) == {
        "model": "RedHatAI/Kimi-K3-speculator.dspark",
        "num_speculative_tokens": 8,
        "method": "dspark",
        "draft_sample_method": "probabilistic",
        "rejection_sample_method": "block",
    }
    added = set(flags) - set(flags_of(published, "")) - {"attention-config", "speculative-config"}
    assert added == {"served-model-name", "host", "port", "master-port"}
    environment = recipe().environment
    assert environment == {
        "VLLM_ALLREDUCE_USE_FLASHINFER": "1",
        "VLLM_ENGINE_READY_TIMEOUT_S": "3600",
        "VLLM_USE_V2_MODEL_RUNNER": "1",
        "VLLM_USE_RUST_FRONTEND": "1",
    }


def test_inferacts_draft_has_its_own_options() -> None:
    found = recipe("kimi-k3-inferact")
    assert found.speculative_config("d") == {
        "model": "d",
        "method": "dspark",
        "num_speculative_tokens": 7,
        "draft_sample_method": "probabilistic",
        "rejection_sample_method": "block",
        "attention_backend": "FLASHINFER_MLA",
    }
    assert found.arguments["max-model-len"] == "auto" and found.nodes == 1


def test_the_compose_file_of_the_repository_is_what_is_printed() -> None:
    text = compose(recipe_of(find_served("kimi-k3-published", weights=False), target=None))
    assert (ROOT / "docker" / "compose.serve.yaml").read_text(encoding="utf-8") == text


def test_a_compose_service_is_complete() -> None:
    (document,) = documents(compose(recipe("kimi-k3-inferact")))
    service = document["services"]["vllm"]
    assert service["ipc"] == "host" and service["ports"] == ["8000:8000"]
    assert "/health" in service["healthcheck"]["test"][-1]
    (gpus,) = service["deploy"]["resources"]["reservations"]["devices"]
    assert gpus == {"driver": "nvidia", "count": 8, "capabilities": ["gpu"]}
    assert service["environment"]["VLLM_API_KEY"].startswith("${VLLM_API_KEY:?")


def test_kubernetes_takes_secrets_from_a_secret_and_probes_the_head_only() -> None:
    workload, service = documents(kubernetes(recipe()))
    template = workload["spec"]["leaderWorkerTemplate"]
    leader = template["leaderTemplate"]["spec"]["containers"][0]
    worker = template["workerTemplate"]["spec"]["containers"][0]
    assert template["size"] == 2 and workload["kind"] == "LeaderWorkerSet"
    assert {"startupProbe", "readinessProbe", "livenessProbe"} <= set(
        leader
    ) and "livenessProbe" not in worker
    probe = leader["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] == 3600
    by_name = {one["name"]: one for one in leader["env"]}
    reference = {"name": "kimi-k3-dspark-serve", "key": "VLLM_API_KEY"}
    assert by_name["VLLM_API_KEY"]["valueFrom"] == {"secretKeyRef": reference}
    assert by_name["NCCL_SOCKET_IFNAME"]["value"] == by_name["GLOO_SOCKET_IFNAME"]["value"] == "ib0"
    assert leader["resources"]["limits"] == {"nvidia.com/gpu": 8}
    assert service["spec"]["selector"]["leaderworkerset.sigs.k8s.io/worker-index"] == "0"
    single, _ = documents(kubernetes(recipe("kimi-k3-inferact")))
    assert single["kind"] == "Deployment"
    assert single["spec"]["selector"]["matchLabels"] == single["spec"]["template"]["metadata"]["labels"]


def test_a_pod_is_not_asked_for_an_interface() -> None:
    with pytest.raises(UsageError, match="interface") as caught:
        kubernetes(replace(recipe(), interface=""))
    assert "deploy.interface" in str(caught.value)


@pytest.mark.parametrize("rendering", RENDERINGS)
def test_no_value_is_taken_for_a_variable_or_a_command(rendering: str) -> None:
    """Values of a profile may hold what a shell, compose or Kubernetes would replace."""
    nasty = "a $HOME ${PATH} $(id) `id` 'q' \"d\" \\ #x: {y}"
    found = recipe("kimi-k3-inferact", arguments={"chat-template": nasty})
    (words,) = command_lines(rendering, RENDERINGS[rendering](found))
    assert words[words.index("--chat-template") + 1] == nasty


def test_folders_of_this_machine_are_mounted_read_only() -> None:
    local = replace(
        recipe("kimi-k3-inferact"), target=Place("t", Path("/w/t")), draft=Place("d", Path("/w/d$1"))
    )
    (document,) = documents(compose(local))
    service = document["services"]["vllm"]
    assert [(one["source"], one["target"], one["read_only"]) for one in service["volumes"]] == [
        ("/w/t", "/target", True),
        ("/w/d$$1", "/draft", True),
    ]
    assert service["command"][0] == "/target" and "volumes" not in document
    workload, _ = documents(kubernetes(local))
    pod = workload["spec"]["template"]["spec"]
    assert {one["name"] for one in pod["volumes"]} == {"shm", "target", "draft"}
    assert "vllm serve /w/t " in slurm(local) and '"/w/d$1"' in slurm(local)


def test_a_flag_that_stands_twice_is_refused_in_every_form() -> None:
    """vLLM would take the last without a word."""
    for words in (
        ["--max-num-seqs", "8", "--max-num-seqs", "9"],
        ["--max-num-seqs", "8", "--max_num_seqs=9"],
        ["--enable-prefix-caching", "--no-enable-prefix-caching"],
    ):
        with pytest.raises(UsageError, match="stands there twice"):
            flags_of(words, "serve.json")
    with pytest.raises(UsageError, match="belongs to no flag"):
        flags_of(["stray"], "serve.json")
    with pytest.raises(DuplicateKey):
        documents("services:\n  a: 1\n  a: 2\n")
    flags = {"a": True, "b": False, "c": 1.5, "d": {"e": [1]}, "f": "x"}
    assert flags_of(flag_words(flags), "") == {"a": True, "b": False, "c": "1.5", "d": '{"e": [1]}', "f": "x"}


def test_no_flag_of_a_rendering_repeats() -> None:
    for profile in PUBLISHED:
        for words in command_lines("slurm", slurm(recipe(profile))):
            counted = Counter(word for word in words if word.startswith("--"))
            assert max(counted.values()) == 1
