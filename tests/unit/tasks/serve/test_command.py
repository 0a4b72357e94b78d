"""Command lines and environments, word for word."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from profiles.schema import Profile
from tasks.errors import UsageError
from tasks.serve.arms import (
    REQUEST_METRICS,
    Speculation,
    arm_argv,
    arm_environment,
    draft_speculation,
    knows_request_metrics,
    runner_for,
)
from tasks.serve.command import (
    layer_ids,
    master_argv,
    server_environment,
    target_argv,
    target_environment,
    transfer_config,
    transport_of,
)
from tasks.serve.cpu import TRITON_FOLDER, cpu_arguments, cpu_environment


def profile(**serve: Any) -> Profile:
    return Profile.model_validate(
        {
            "name": "t",
            "target": {"model": "/m", "aux_layer_ids": [2, 8], "max_model_len": 1024, "dtype": "float32"},
            "serve": {"served_name": "small", "kv_cache_gib": 2, "max_num_seqs": 32, **serve},
            "evaluate": {"live": {"triton_interpreter": True, "dtype": "float32"}},
        }
    )


def value(argv: tuple[str, ...], flag: str) -> str:
    return argv[argv.index(flag) + 1]


def test_target_command_line() -> None:
    p = profile(extra_args=("--disable-log-requests",))
    argv = target_argv(p, Path("/m"), layer_ids(p, 30), 1234, "127.0.0.1:99")
    words = [w for w in argv if not w.startswith("{")]
    assert words[: words.index("--enable-chunked-prefill")] == [
        sys.executable, "-m", "vllm.entrypoints.openai.api_server",
        "--model", "/m",
        "--served-model-name", "small",
        "--host", "127.0.0.1",
        "--port", "1234",
        "--dtype", "float32",
        "--max-model-len", "1024",
        "--max-num-seqs", "32",
        "--max-num-batched-tokens", "4096",
    ]  # fmt: skip
    assert value(argv, "--generation-config") == "vllm", "no penalty of generation_config.json"
    assert "--no-enable-prefix-caching" in words and "--enforce-eager" in words
    assert "--trust-remote-code" not in words and "--api-key" not in words
    assert words[-1] == "--disable-log-requests"
    assert json.loads(value(argv, "--speculative-config")) == {
        "method": "extract_hidden_states",
        "num_speculative_tokens": 1,
        "draft_model_config": {"hf_config": {"eagle_aux_hidden_state_layer_ids": [2, 8, 30]}},
    }
    assert value(argv, "--scheduler-cls") == "tasks.stream.scheduling.UndraftedScheduler"
    transfer = json.loads(value(argv, "--kv-transfer-config"))
    assert transfer["kv_connector"] == "RetrainConnector"
    assert transfer["kv_connector_module_path"] == "tasks.stream.connector"
    assert transfer["kv_connector_extra_config"]["mooncake"] == {
        "local_hostname": "127.0.0.1",
        "master_server_address": "127.0.0.1:99",
        "global_segment_size": 2**30,
        "local_buffer_size": 256 * 2**20,
        "protocol": "tcp",
        "device_name": "",
        "num_writer_threads": 2,
    }


@pytest.mark.parametrize("read_timeout_s", [6.2, 20.0, 60.0, 600.0])
def test_the_writer_gives_up_before_the_reader_does(read_timeout_s: float) -> None:
    p = Profile.model_validate({**profile().model_dump(), "stream": {"read_timeout_s": read_timeout_s}})
    waits_s = transfer_config(p, "127.0.0.1:9")["kv_connector_extra_config"]["put_timeout_s"]
    assert 1.0 <= waits_s < read_timeout_s - 5


def test_arms_differ_in_the_draft_only() -> None:
    plain = arm_argv(profile(), Path("/m"), 1)
    drafted = arm_argv(profile(), Path("/m"), 1, draft_speculation(profile(), Path("/d")))
    assert drafted[: len(plain)] == plain
    assert drafted[len(plain)] == "--speculative-config"
    assert drafted[len(plain) + 2 :] == (REQUEST_METRICS if knows_request_metrics() else ())
    assert json.loads(drafted[len(plain) + 1]) == {
        "method": "dspark",
        "model": "/d",
        "num_speculative_tokens": 8,
        "draft_sample_method": "greedy",
        "rejection_sample_method": "standard",
    }


def test_an_arm_of_another_method_differs_in_its_method_only() -> None:
    plain = arm_argv(profile(), Path("/m"), 1)
    how = Speculation({"method": "ngram", "num_speculative_tokens": 3}, "v1")
    other = arm_argv(profile(), Path("/m"), 1, how)
    assert other[: len(plain)] == plain
    assert json.loads(other[len(plain) + 1]) == {"method": "ngram", "num_speculative_tokens": 3}


@pytest.mark.parametrize(
    ("method", "interpreted", "runner"),
    [("dspark", True, "v2"), ("ngram", True, "v1"), ("ngram", False, "v2"), ("suffix", False, "v1")],
)
def test_the_runner_is_v2_as_far_as_the_method_supports_it(
    method: str, interpreted: bool, runner: str
) -> None:
    assert runner_for(method, interpreted) == runner


def test_the_v1_runner_is_not_interpreted() -> None:
    env = arm_environment(profile(), "v1")
    assert env["VLLM_USE_V2_MODEL_RUNNER"] == "0" and "TRITON_INTERPRET" not in env


def test_arm_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    env = arm_environment(profile())
    assert env["TRITON_INTERPRET"] == "1" and env["VLLM_USE_V2_MODEL_RUNNER"] == "1"
    assert env["PYTHONPATH"] == f"{TRITON_FOLDER}:/elsewhere"
    assert (TRITON_FOLDER / "sitecustomize.py").is_file()


def test_transport_of_the_profile_reaches_the_writer() -> None:
    store = {"interface": "lo", "host": "10.0.0.1", "protocol": "rdma", "gid_index": 3}
    p = Profile.model_validate({**profile().model_dump(), "store": store})
    transfer = transfer_config(p, "10.0.0.1:9", transport_of(p).address())
    mooncake = transfer["kv_connector_extra_config"]["mooncake"]
    assert mooncake["local_hostname"] == "127.0.0.1" and mooncake["protocol"] == "rdma"
    env = target_environment(p)
    assert env["MC_GID_INDEX"] == "3" and env["MC_TCP_BIND_ADDRESS"] == "127.0.0.1"
    assert not any(name.startswith("MC_") for name in target_environment(profile()))
    absent = Profile.model_validate({**profile().model_dump(), "store": {**store, "interface": "nix0"}})
    with pytest.raises(UsageError, match="nix0"):
        target_environment(absent)


def test_server_environment() -> None:
    env = server_environment(profile(environment={"A": "b"}))
    assert env["VLLM_CPU_KVCACHE_SPACE"] == "2" and env["A"] == "b"
    assert env["VLLM_HOST_IP"] == "127.0.0.1" and env["GLOO_SOCKET_IFNAME"] == "lo"
    assert "VLLM_HOST_IP" not in server_environment(profile(host="10.0.0.1"))
    assert "TRITON_INTERPRET" not in env and not any("KEY" in name for name in env)


@pytest.mark.parametrize(
    "word",
    [
        "--port", "--port=1", "--max_num_seqs", "--max-num-s", "--api-key", "--no-enable-chunked-prefill",
        "--enable-prefix-caching", "--trust-remote-code", "--config", "--speculative-config={}",
        "--generation-config=auto", "--override-generation-config={}",
    ],
)  # fmt: skip
def test_extra_arguments_may_not_repeat(word: str) -> None:
    p = profile(extra_args=(word, "x"))
    with pytest.raises(UsageError, match="set by the pipeline") as info:
        target_argv(p, Path("/m"), (2, 30), 1, "")
    assert info.value.where == "serve.extra_args"


def test_master_binds_both_servers_explicitly() -> None:
    argv = master_argv("127.0.0.1", 11, 12)
    assert argv[0].endswith("mooncake_master")
    assert {"-rpc_address=127.0.0.1", "-rpc_port=11", "-metrics_host=127.0.0.1", "-metrics_port=12"} <= set(
        argv
    )


def test_a_cpu_server_is_one_engine_process_unless_the_profile_spreads_the_model() -> None:
    """vLLM ignores `uni` on CPU without the variable, so both must be set or neither."""
    laptop = profile()
    spread = profile(engine={"tensor_parallel": 2})
    assert cpu_arguments(laptop)[-2:] == ("--distributed-executor-backend", "uni")
    assert cpu_environment(laptop)["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
    assert "--distributed-executor-backend" not in cpu_arguments(spread)
    assert "VLLM_ENABLE_V1_MULTIPROCESSING" not in cpu_environment(spread)
