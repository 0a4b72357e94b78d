"""What the target refuses before anything is started."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from profiles.schema import Profile
from tasks.errors import PortInUse, UsageError
from tasks.processes.launcher import LocalLauncher
from tasks.report.progress import SilentProgress
from tasks.run_folder import RunFolder, create_run
from tasks.serve import target as target_module
from tasks.serve.target import TargetServer
from tasks.serve.target_config import TargetConfig


@pytest.fixture
def run_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A target server for a checked folder of 30 layers, with its run."""
    config = TargetConfig(
        folder=tmp_path, architecture="X", hidden_size=8, num_hidden_layers=30, vocab_size=9,
        intermediate_size=8, num_attention_heads=2, num_key_value_heads=2, head_dim=4,
        tie_word_embeddings=True, max_position_embeddings=None, bos_token_id=None, eos_token_ids=(), raw={},
    )  # fmt: skip
    monkeypatch.setattr(target_module, "resolve_target", lambda profile: tmp_path)
    monkeypatch.setattr(target_module, "check_target", lambda profile, folder: config)

    def make(
        store: dict[str, Any] | None = None, max_model_len: int = 2048, **serve: Any
    ) -> tuple[TargetServer, RunFolder]:
        target = {"model": str(tmp_path), "aux_layer_ids": [2], "max_model_len": max_model_len}
        values = {"name": "t", "target": target, "serve": serve, "store": store or {}}
        profile = Profile.model_validate(values)
        run = create_run(tmp_path / "runs", "run-1", profile)
        return TargetServer(profile, run, LocalLauncher(), SilentProgress()), run

    return make


def test_port_of_another_program(run_of: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        server, run = run_of(port=other.getsockname()[1])
        with pytest.raises(PortInUse) as info:
            server.open()
        assert info.value.where == "serve.port"
    assert not list(run.services.iterdir()) and not list(run.logs.iterdir())


def test_argument_that_the_pipeline_sets(run_of: Any) -> None:
    server, run = run_of(extra_args=["--port", "1"])
    with pytest.raises(UsageError, match="--port"):
        server.open()
    assert not list(run.services.iterdir()) and not list(run.logs.iterdir())


def test_sample_that_no_segment_can_hold(run_of: Any) -> None:
    server, run = run_of(store={"segment_bytes": 16 * 2**20}, max_model_len=400_000)
    with pytest.raises(UsageError, match="cannot lie in the store: 399,999 tokens"):
        server.open()
    assert not list(run.services.iterdir()) and not list(run.logs.iterdir())


def test_store_host_of_another_machine(run_of: Any) -> None:
    server, run = run_of(store={"host": "192.0.2.1"})
    with pytest.raises(UsageError, match=r"cannot bind '192\.0\.2\.1' on this machine") as info:
        server.open()
    assert info.value.where == "store.host"
    assert not list(run.services.iterdir()) and not list(run.logs.iterdir())


def test_close_without_open(run_of: Any) -> None:
    server, _ = run_of()
    server.close()
    server.close()
