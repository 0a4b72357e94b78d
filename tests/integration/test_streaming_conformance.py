"""The fake target says what the real one says: both against the same record of a real conversation.

`make verify PART=streaming` holds the real server to the record; to renew it, set
RETRAIN_DSPARK_RENEW_GOLDEN=1 for that run.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from streaming_bench import KEY, SERVED, FakeTarget, Master
from vllm_conversation import Spoken, conversation, missing

from profiles.load import load_profile
from tasks.processes.guard import close_registry
from tasks.processes.launcher import LocalLauncher
from tasks.report.progress import SilentProgress
from tasks.run_folder import create_run
from tasks.serve.target import TargetServer

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]
RECORD = Path(__file__).parents[1] / "golden" / "vllm_conversation.json"
RENEW_ENV = "RETRAIN_DSPARK_RENEW_GOLDEN"
LENGTH, LAYERS, HIDDEN = 1024, 6, 576


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[Spoken]:
    master = Master(tmp_path)
    options = {"layers": LAYERS, "hidden": HIDDEN, "vocab": 1000, "max_model_len": LENGTH}
    target = FakeTarget(tmp_path, None, master, **options)
    yield Spoken(f"http://127.0.0.1:{target.port}", SERVED, KEY, master.address, LENGTH)
    target.kill()
    master.kill()


@pytest.fixture
def real(tmp_path: Path) -> Iterator[Spoken]:
    over = {"store": {"segment_bytes": 64 * 2**20, "local_buffer_bytes": 32 * 2**20}}
    profile = load_profile("laptop", {**over, "stream": {"in_flight_bytes": 16 * 2**20}}).profile
    run = create_run(tmp_path / "runs", "run-1", profile)
    server = TargetServer(profile, run, LocalLauncher(), SilentProgress())
    try:
        _, endpoint = server.open()
        assert endpoint.api_key
        yield Spoken(endpoint.url, endpoint.served_name, endpoint.api_key, endpoint.store_master, LENGTH)
    finally:
        server.close()
        close_registry(run.services)


def test_fake_target_says_what_was_recorded_of_the_real_one(fake: Spoken) -> None:
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    said = json.loads(json.dumps(conversation(fake)))
    assert missing(record, said) == []
    for name in ("generate", "prefill", "prompt only"):
        assert said[name]["manifest"] == record[name]["manifest"]


@pytest.mark.verify("streaming")
@pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed; run: make setup")
def test_real_target_says_what_was_recorded(real: Spoken) -> None:
    """The real target answers as recorded, and so as the fake: statuses, shapes, manifests, metrics"""
    said = json.loads(json.dumps(conversation(real)))
    if os.environ.get(RENEW_ENV):
        RECORD.write_text(json.dumps(said, indent=1) + "\n", encoding="utf-8")
    assert said == json.loads(RECORD.read_text(encoding="utf-8"))
