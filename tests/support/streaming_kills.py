"""One capture that is killed at a chosen moment, resumed, and compared with one that nobody disturbed."""

from __future__ import annotations

import json
import re
import time

import pytest
from observing import processes_of
from streaming_bench import Bench, Moment, content_digest, stage_folder

from tasks.errors import RetrainError
from tasks.processes.guard import close_registry
from tasks.run_folder import RunFolder
from tasks.stream.log import read_index

VICTIMS = {
    "target": re.compile("target|server", re.IGNORECASE),
    "master": re.compile("master|store", re.IGNORECASE),
    "client": re.compile("SIGKILL"),
}
"""Who is killed, and what the error of that session must name."""


def undisturbed(bench: Bench) -> str:
    """Digest of a capture that nobody disturbed."""
    run = bench.run("undisturbed")
    bench.capture(run)
    _nothing_is_left(bench, run)
    return content_digest(run)


def killed_and_resumed(bench: Bench, victim: str, seed: int, expected: str) -> None:
    """Kill `victim` at the seed's moment, restart what died, resume, and check what was captured.

    Args:
        expected: Content digest of the undisturbed capture.
    """
    moment = Moment.of_seed(victim, seed, bench.prompts)
    run = bench.run(f"kill-{victim}-{seed}")
    killer = bench.kill_at(moment, victim, run)
    with pytest.raises(RetrainError) as failed:
        bench.capture(run)
    killer.join()
    assert VICTIMS[victim].search(str(failed.value)), failed.value
    before = read_index(stage_folder(run) / "log")
    assert len(before) < bench.prompts
    bench.restart(victim)
    captures = bench.capture(run)
    entries = read_index(stage_folder(run) / "log")
    assert sorted(entry.i for entry in entries) == list(range(bench.prompts)), "lost or doubled"
    assert len({entry.prompt_id for entry in entries}) == bench.prompts
    assert entries[: len(before)] == before, "what was captured before the kill is kept as it was"
    assert content_digest(run) == expected
    assert captures.samples == bench.prompts and captures.counters.lost == 0
    assert not (stage_folder(run) / "lost.jsonl").read_text()
    _counters_agree(run)
    _nothing_is_left(bench, run)


def _counters_agree(run: RunFolder) -> None:
    """The counters that the report shows belong to both sessions, and count every asked prompt."""
    counters = json.loads((stage_folder(run) / "counters.json").read_text())
    assert counters["lost"] == 0
    assert counters["regenerated"] <= sum(counters["rejected"].values()) or not counters["rejected"]


def _nothing_is_left(bench: Bench, run: RunFolder) -> None:
    """No object of the run in the store, no process, no entry in its registry."""
    assert bench.left_in_store(run) == 0
    assert all(handle.poll() is not None for handle in bench.launcher.started.values())
    close_registry(run.services)
    assert not list(run.services.glob("*.json"))
    deadline = time.monotonic() + 300
    while left := processes_of(run.path):
        assert time.monotonic() < deadline, left
        time.sleep(0.05)
