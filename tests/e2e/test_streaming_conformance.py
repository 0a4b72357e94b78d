"""The fake target beside the real one: the same requests, answers of the same form."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from conforming_fake import LENGTH, conforming_fake
from vllm_conversation import Spoken, conversation, missing

from profiles.load import load_profile
from tasks.processes.guard import close_registry
from tasks.processes.launcher import LocalLauncher
from tasks.report.progress import SilentProgress
from tasks.run_folder import create_run
from tasks.serve.target import TargetServer

pytestmark = [
    pytest.mark.verify("streaming"),
    pytest.mark.timeout(1800),
    pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed; run: make setup"),
]
EXACT = ("without key", "with another key", "refused", "counted", "did not ask")
EXTRACTIONS = ("generate", "prefill", "prompt only")


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Spoken]:
    folder = tmp_path_factory.mktemp("real")
    over = {"store": {"segment_bytes": 64 * 2**20, "local_buffer_bytes": 32 * 2**20}}
    profile = load_profile("laptop", {**over, "stream": {"in_flight_bytes": 16 * 2**20}}).profile
    run = create_run(folder / "runs", "run-1", profile)
    server = TargetServer(profile, run, LocalLauncher(), SilentProgress())
    try:
        _, endpoint = server.open()
        assert endpoint.api_key
        yield Spoken(endpoint.url, endpoint.served_name, endpoint.api_key, endpoint.store_master, LENGTH)
    finally:
        server.close()
        close_registry(run.services)


def test_fake_and_real_target_say_the_same(real: Spoken, tmp_path: Path) -> None:
    """Fake and real target give the same statuses, shapes, manifests and metrics for the same requests"""
    with conforming_fake(tmp_path) as fake:
        pretended = conversation(fake)
    said: dict[str, Any] = conversation(real)
    assert {name: pretended[name] for name in EXACT} == {name: said[name] for name in EXACT}
    assert missing(said["models"], pretended["models"]) == []
    assert missing(said["version"], pretended["version"]) == []
    for name in EXTRACTIONS:
        assert missing(said[name]["answer"], pretended[name]["answer"]) == []
        for part in ("id", "tokens", "usage", "manifest", "stored"):
            assert pretended[name][part] == said[name][part], (name, part)
