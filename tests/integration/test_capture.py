"""Capture through the real target and store; every sample is compared with Transformers."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from profiles.load import load_profile
from profiles.schema import Profile
from tasks.errors import JobError
from tasks.processes.guard import close_registry
from tasks.processes.launcher import LocalLauncher
from tasks.report.progress import SilentProgress
from tasks.run_folder import RunFolder, create_run
from tasks.serve.models import TargetEndpoint, TargetIdentity
from tasks.serve.target import TargetServer
from tasks.serve.target_folder import resolve_target
from tasks.stream.capture import key_pattern
from tasks.stream.core import capture
from tasks.stream.log import INDEX, HiddenStateLog, read_index
from tasks.stream.models import CaptureManifest
from tasks.stream.store import StoreClient

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(900),
    pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed; run: make setup"),
]

THINGS = ["rain", "tea", "gold", "maps", "wine", "bread", "snow", "stars", "ships", "glass"]
NEW_TOKENS = 16


@dataclass
class Bench:
    profile: Profile
    run: RunFolder
    identity: TargetIdentity
    endpoint: TargetEndpoint
    watch: Callable[[], None]

    def capture(self, folder: Path) -> CaptureManifest:
        return capture(
            self.profile,
            self.run,
            folder,
            self.endpoint,
            self.identity,
            resolve_target(self.profile),
            LocalLauncher(),
            SilentProgress(),
            self.watch,
        )

    def left_in_store(self) -> int:
        with StoreClient(self.endpoint.store_master) as store:
            return store.remove_matching(key_pattern(self.run.run_id))


def _write_prompts(folder: Path) -> dict[str, tuple[str, ...]]:
    train = [{"prompt": f"Why do people like {thing}? Answer in one line."} for thing in THINGS]
    evaluate = [{"prompt": "Count from one to ten."}, {"prompt": "Name three colours of the rainbow."}]
    for name, rows in (("qa", train), ("qa-eval", evaluate)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {"train": (str(folder / "qa.jsonl"),), "evaluate": (str(folder / "qa-eval.jsonl"),)}


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    folder = tmp_path_factory.mktemp("capture")
    profile = load_profile(
        "laptop",
        {
            "store": {"segment_bytes": 64 * 2**20, "local_buffer_bytes": 32 * 2**20},
            "prompts": {**_write_prompts(folder), "train_per_domain": None, "evaluate_per_domain": None},
            "stream": {"in_flight_bytes": 8 * 2**20, "max_new_tokens": NEW_TOKENS, "concurrency": 4},
            "evaluate": {"replay_max_new_tokens": NEW_TOKENS},
        },
    ).profile
    run = create_run(folder / "runs", "run-1", profile)
    server = TargetServer(profile, run, LocalLauncher(), SilentProgress())
    try:
        identity, endpoint = server.open()
        yield Bench(profile, run, identity, endpoint, server.watch())
    finally:
        server.close()
        close_registry(run.services)


def _expected_states(model: torch.nn.Module, ids: torch.Tensor, layers: tuple[int, ...]) -> torch.Tensor:
    """`[T, L, H]` in the layout of the log; the last layer is taken before the final norm."""
    before_norm: list[torch.Tensor] = []
    hook = model.model.norm.register_forward_pre_hook(lambda _, inputs: before_norm.append(inputs[0][0]))
    with torch.no_grad():
        states = model(ids[None], output_hidden_states=True).hidden_states
    hook.remove()
    return torch.stack([*(states[layer][0] for layer in layers[:-1]), before_norm[0]], dim=1)


def test_every_sample_equals_the_target_and_nothing_stays_in_the_store(bench: Bench, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    captures = bench.capture(tmp_path / "03-stream")
    assert captures.samples == 12 and captures.counters.lost == 0 and captures.counters.regenerated == 0
    assert captures.counters.requests == 12 and captures.splits["evaluate"] == 2
    assert bench.left_in_store() == 0
    canary = captures.canary
    assert canary.checked and canary.answer_tokens >= 24 and canary.largest_gap < 0.01, (
        "by the engine's own states"
    )
    assert min(canary.layer_links) > 0.15 and len(canary.layer_links) == len(captures.layer_ids) - 1

    model = AutoModelForCausalLM.from_pretrained(resolve_target(bench.profile), dtype=torch.float32)
    log = HiddenStateLog(tmp_path / "03-stream" / captures.log)
    for entry in log.entries():
        states, ids = log.load(entry)
        assert (
            states.dtype == torch.float32 and entry.tokens == entry.prompt_tokens + len(entry.answer_ids) - 1
        )
        expected = _expected_states(model, ids, captures.layer_ids)
        error = (states - expected).flatten(0, 1).norm(dim=-1) / expected.flatten(0, 1).norm(dim=-1)
        assert float(error.max()) < 1e-3, (entry.prompt_id, float(error.max()))
        with torch.no_grad():
            greedy = model(ids[None]).logits[0, entry.prompt_tokens - 1 :].argmax(-1)
        assert tuple(greedy.tolist()) == entry.answer_ids


def test_finished_log_is_readable_by_upstreams_file_backend(bench: Bench, tmp_path: Path) -> None:
    from hs_connectors.transfer import FileTransfer

    captures = bench.capture(tmp_path / "03-stream")
    log = HiddenStateLog(tmp_path / "03-stream" / captures.log)
    entry = log.entries("train")[0]
    cached = FileTransfer(log.folder).get_cached(entry.i)
    assert cached is not None
    assert cached["token_ids"].tolist() == log.load(entry)[1].tolist()


def test_killed_client_continues_without_repeating_or_losing(bench: Bench, tmp_path: Path) -> None:
    folder = tmp_path / "03-stream"
    index = folder / "log" / INDEX
    seen: list[int] = []

    def kill_when_under_way() -> None:
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline:
            lines = index.read_text().count("\n") if index.exists() else 0
            if lines >= 2:
                pid = json.loads((bench.run.services / "capture.json").read_text())["pid"]
                os.kill(pid, signal.SIGKILL)
                seen.append(lines)
                return
            time.sleep(0.01)

    killer = threading.Thread(target=kill_when_under_way)
    killer.start()
    with pytest.raises(JobError, match="SIGKILL"):
        bench.capture(folder)
    killer.join()
    before = read_index(folder / "log")
    assert seen and 2 <= len(before) < 12

    captures = bench.capture(folder)
    entries = read_index(folder / "log")
    assert captures.samples == 12 and captures.counters.lost == 0
    assert sorted(entry.i for entry in entries) == list(range(12))
    assert entries[: len(before)] == before, "finished samples are kept as they are"
    assert bench.left_in_store() == 0


def test_resume_of_a_finished_capture_asks_nothing(bench: Bench, tmp_path: Path) -> None:
    first = bench.capture(tmp_path / "03-stream")
    again = bench.capture(tmp_path / "03-stream")
    assert again.digest == first.digest and again.counters.requests == first.counters.requests
