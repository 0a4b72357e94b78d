"""The capture client against a real store and a server that damages its first sample."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import PreTrainedTokenizerFast

from tasks.errors import ServiceError, StoreError
from tasks.stream.capture import key_pattern, run
from tasks.stream.claims import Claim
from tasks.stream.log import HiddenStateLog, index_digest
from tasks.stream.models import CaptureCounters, CaptureSummary
from tasks.stream.settings import CaptureFiles
from tasks.stream.store import StoreClient

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

ROOT = Path(__file__).parents[2]
FAKE = ROOT / "tests" / "fakes" / "extracting_server.py"
PROMPTS = 6


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        assert process.poll() is None, "the program ended"
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise AssertionError(f"nothing listens on {port}")


@contextmanager
def _program(argv: list[str], port: int, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as stream:
        process = subprocess.Popen(argv, stdout=stream, stderr=stream, cwd=ROOT)
    try:
        _wait_for(port, process)
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    program = shutil.which("mooncake_master", path=str(Path(sys.executable).parent))
    assert program, "mooncake_master is not beside this Python"
    port = _free_port()
    argv = [program, "-rpc_address=127.0.0.1", f"-rpc_port={port}", "-metrics_host=127.0.0.1"]
    argv.append(f"-metrics_port={_free_port()}")
    with _program(argv, port, tmp_path_factory.mktemp("master") / "log"):
        yield f"127.0.0.1:{port}"


@pytest.fixture(scope="module")
def port(master: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    port = _free_port()
    argv = [sys.executable, str(FAKE), "--port", str(port), "--master", master]
    with _program(argv, port, tmp_path_factory.mktemp("server") / "log"):
        yield port


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("tokenizer")
    words = ["user", "assistant", "one", "two", "three", "four", "five", "six"]
    model = Tokenizer(WordLevel({word: i for i, word in enumerate(words)}, unk_token="one"))
    model.pre_tokenizer = Whitespace()
    fast = PreTrainedTokenizerFast(tokenizer_object=model)
    fast.chat_template = (
        "{% for m in messages %}{{ m.role }} {{ m.content }} {% endfor %}"
        "{% if add_generation_prompt %}assistant{% endif %}"
    )
    fast.save_pretrained(folder)
    return str(folder)


def _config(
    folder: Path, tokenizer: str, port: int, master: str, fault: str, **changes: Any
) -> dict[str, Any]:
    files = CaptureFiles(folder)
    files.work.mkdir(parents=True, exist_ok=True)
    rows = []
    for i in range(PROMPTS):
        split = "evaluate" if i == PROMPTS - 1 else "train"
        words = " ".join(["one", "two", "three", "four", "five", "six"][: i + 1])
        messages = [{"role": "user", "content": words}]
        rows.append({"id": f"p-{i}", "domain": "qa", "split": split, "messages": messages})
    files.prompts.write_text("".join(json.dumps(row) + "\n" for row in rows))
    sampling = {"max_new_tokens": 5, "temperature": 0.0, "top_p": 1.0, "seed": 0}
    return {
        "run_id": f"run-{fault}",
        "url": f"http://127.0.0.1:{port}",
        "served_name": "t",
        "tokenizer": tokenizer,
        "trust_remote_code": False,
        "thinking": False,
        "max_model_len": 64,
        "max_bad_rows": 0.0,
        "layers": 3,
        "hidden_size": 8,
        "dtype": "float32",
        "sampling": dict.fromkeys(("train", "held_out", "evaluate"), sampling),
        "store_master": master,
        "store_host": "127.0.0.1",
        "store_protocol": "tcp",
        "store_device": "",
        "store_local_buffer_bytes": 32 << 20,
        "concurrency": 3,
        "in_flight_bytes": 1 << 20,
        "max_attempts": 3,
        "read_timeout_s": 60.0,
        "answer_timeout_s": 20.0,
        "back_off_s": 0.02,
        "sweep_quiet_s": 0.2,
        "claims": str(folder / "claims"),
        "folder": str(folder),
        "progress_file": str(folder / "progress.jsonl"),
        **changes,
    }


def _counters(folder: Path) -> CaptureCounters:
    return CaptureCounters.model_validate_json(CaptureFiles(folder).counters.read_text())


def _left(master: str, config: dict[str, Any]) -> int:
    with StoreClient(master) as store:
        return store.remove_matching(key_pattern(config["run_id"]))


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("none", None),
        ("not-finite", "not_finite"),
        ("damaged", "checksum"),
        ("writer-error", "store_full"),
        ("never-written", "read_timeout"),
        ("http-500", "server_error"),
        ("other-tokens", "token_ids"),
    ],
)
def test_bad_sample_is_counted_asked_again_and_kept_out(
    fault: str, reason: str | None, master: str, port: int, tokenizer: str, tmp_path: Path
) -> None:
    waits_s = 3.0 if fault == "never-written" else 60.0
    config = _config(tmp_path, tokenizer, port, master, fault, read_timeout_s=waits_s, max_attempts=9)
    run(config)
    counters = _counters(tmp_path)
    entries = HiddenStateLog(tmp_path / "log").entries()
    assert sorted(entry.i for entry in entries) == list(range(PROMPTS))
    if fault == "never-written":  # on a busy machine others may come too late as well
        assert set(counters.rejected) == {reason} and counters.lost == 0
    else:
        assert counters.rejected == ({reason: 1} if reason else {}) and counters.lost == 0
    assert counters.regenerated == sum(counters.rejected.values())
    assert counters.requests == PROMPTS + counters.regenerated
    assert _left(master, config) == 0
    for entry in entries:
        states, ids = HiddenStateLog(tmp_path / "log").load(entry)
        assert states.shape == (entry.tokens, 3, 8) and ids.shape == (entry.tokens,)


def test_sample_that_stays_bad_is_lost_and_named(
    master: str, port: int, tokenizer: str, tmp_path: Path
) -> None:
    config = _config(tmp_path, tokenizer, port, master, "writer-error", max_attempts=1)
    run(config)
    lost = [json.loads(line) for line in CaptureFiles(tmp_path).lost.read_text().splitlines()]
    assert [row["prompt_id"] for row in lost] == ["p-0"] and "no space" in lost[0]["reasons"][0]
    assert _counters(tmp_path).lost == 1
    run({**config, "max_attempts": 3})
    assert len(HiddenStateLog(tmp_path / "log").entries()) == PROMPTS
    assert _counters(tmp_path).lost == 0


def test_empty_answers_are_set_aside_not_lost_and_not_asked_again(
    master: str, port: int, tokenizer: str, tmp_path: Path
) -> None:
    config = _config(tmp_path, tokenizer, port, master, "empty")
    run(config)
    run(config)
    counters = _counters(tmp_path)
    assert counters.requests == PROMPTS and counters.lost == 0
    assert len(CaptureFiles(tmp_path).set_aside.read_text().splitlines()) == PROMPTS
    assert not HiddenStateLog(tmp_path / "log").entries() and _left(master, config) == 0


def test_server_that_is_gone_is_a_service_error(master: str, tokenizer: str, tmp_path: Path) -> None:
    config = _config(tmp_path, tokenizer, _free_port(), master, "none", server_wait_s=0.5)
    with pytest.raises(ServiceError, match="does not accept connections"):
        run(config)
    counters = _counters(tmp_path)
    assert counters.server_outages == 1 and counters.lost == 0, "the prompts are not to blame"
    assert counters.requests <= 2 * config["concurrency"]


def test_server_that_comes_back_costs_no_attempt(
    master: str, tokenizer: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    port = _free_port()
    config = _config(tmp_path, tokenizer, port, master, "none", server_wait_s=60.0, max_attempts=1)
    path = CaptureFiles(tmp_path).settings
    path.write_text(json.dumps(config))
    client = subprocess.Popen([sys.executable, "-m", "tasks.stream.capture", str(path)], cwd=ROOT)
    progress = tmp_path / "progress.jsonl"
    try:
        _until(lambda: progress.exists() and "is down" in progress.read_text(), client)
        argv = [sys.executable, str(FAKE), "--port", str(port), "--master", master]
        with _program(argv, port, tmp_path_factory.mktemp("late") / "log"):
            assert client.wait(90) == 0
    finally:
        client.kill()
        client.wait()
    counters = _counters(tmp_path)
    assert len(HiddenStateLog(tmp_path / "log").entries()) == PROMPTS
    assert counters.server_outages >= 1 and counters.lost == 0 and set(counters.rejected) <= {"server_down"}
    assert _left(master, config) == 0


def test_what_the_flow_sees_is_small_and_says_that_all_was_consumed(
    master: str, port: int, tokenizer: str, tmp_path: Path
) -> None:
    run(_config(tmp_path, tokenizer, port, master, "none"))
    files = CaptureFiles(tmp_path)
    summary = CaptureSummary.model_validate_json(files.summary.read_text())
    entries = HiddenStateLog(tmp_path / "log").entries()
    assert summary.consumed and summary.samples == PROMPTS == summary.prompts
    assert summary.digest == index_digest(entries) and summary.bytes == sum(one.bytes for one in entries)
    assert summary.counters.sources == {"generated": PROMPTS}
    assert 0 < summary.counters.peak_in_flight_bytes <= 1 << 20
    handed = files.summary.stat().st_size + (tmp_path / "progress.jsonl").stat().st_size
    assert handed < 8192, "the flow reads this much, however long the samples are"
    assert not list((tmp_path / "claims").iterdir())


def test_recorded_answers_are_read_not_generated(
    master: str, port: int, tokenizer: str, tmp_path: Path
) -> None:
    target = {"target_names": ["t"], "template_digest": "d", "answers": "recorded"}
    config = _config(tmp_path, tokenizer, port, master, "none", answers=target)
    logged = {
        "text": "two three four",
        "reasoning": None,
        "model": "t",
        "revision": None,
        "template_digest": "d",
        "thinking": False,
        "finish_reason": "stop",
    }
    prompts = CaptureFiles(tmp_path).prompts
    rows = [json.loads(line) for line in prompts.read_text().splitlines()]
    for row in rows[:3]:
        row["recorded"] = logged
    rows[3]["recorded"] = {**logged, "model": "another"}
    prompts.write_text("".join(json.dumps(row) + "\n" for row in rows))
    run(config)
    counters = _counters(tmp_path)
    entries = {entry.i: entry for entry in HiddenStateLog(tmp_path / "log").entries()}
    assert counters.recorded == {"kept": 3, "model": 1, "absent": 1}
    assert counters.sources == {"recorded": 3, "generated": 3}
    for i in range(3):
        assert entries[i].answer_ids == (3, 4, 5) and entries[i].trainable_tokens == 2
        ids = HiddenStateLog(tmp_path / "log").load(entries[i])[1].tolist()
        assert ids[entries[i].prompt_tokens :] == [3, 4], "only the answer's tokens are trainable"
    assert counters.target_generated_tokens == 3 * 1 + 3 * 5


def test_served_answers_are_generated_once_and_read_once(
    master: str, port: int, tokenizer: str, tmp_path: Path
) -> None:
    served = {"answers": "served", "answer_url": f"http://127.0.0.1:{port}/v1", "answer_model": "t"}
    config = _config(tmp_path, tokenizer, port, master, "writer-error", answers=served)
    run(config)
    counters = _counters(tmp_path)
    entries = HiddenStateLog(tmp_path / "log").entries()
    assert len(entries) == PROMPTS and counters.lost == 0
    assert counters.sources == {"generated": 1, "served": PROMPTS - 1}
    assert all(len(entry.answer_ids) == 5 for entry in entries)
    assert _left(master, config) == 0


def test_answers_of_another_model_stop_before_the_first_sample(
    master: str, port: int, tokenizer: str, tmp_path: Path
) -> None:
    """The second server's model has other weights: its greedy answers are not the target's."""
    other = _free_port()
    argv = [sys.executable, str(FAKE), "--port", str(other), "--master", master, "--vocab", "5"]
    argv += ["--served-model-name", "u"]
    served = {"answers": "served", "answer_url": f"http://127.0.0.1:{other}/v1", "answer_model": "u"}
    config = _config(tmp_path, tokenizer, port, master, "none", answers=served)
    with _program(argv, other, tmp_path / "other"):
        with pytest.raises(ServiceError, match="does not serve the target") as info:
            run(config)
        assert "'t' (root m, 4096 tokens)" in info.value.what
        assert "'u' (root m, 4096 tokens)" in info.value.what
        with pytest.raises(ServiceError, match="takes 4096 tokens"):
            run({**config, "max_model_len": 5000})
    assert not HiddenStateLog(tmp_path / "log").entries() and _counters(tmp_path).requests == 0
    assert _left(master, config) == 0


def _put(store: StoreClient, key: str) -> None:
    """Put a small object; the master may choose the segment of a server that another test has ended."""
    for attempt in range(20):
        try:
            store.put(key, b"x" * 1024)
            break
        except StoreError:
            assert attempt < 19
            store.remove(key)


def test_dead_capture_of_another_run_is_swept_and_a_live_one_is_not(
    master: str, port: int, tokenizer: str, tmp_path: Path
) -> None:
    config = _config(tmp_path, tokenizer, port, master, "none")
    folder = Path(config["claims"])
    folder.mkdir()
    (folder / "dead.json").write_text(json.dumps({"run_id": "dead", "store_master": master}))
    live = Claim(folder, "live", master)
    keys = ["cmpl-dead-1-0a1b2c3dx1-0-abc", "cmpl-live-1-0a1b2c3dx1-0-abc"]
    try:
        with StoreClient(master) as store:
            for key in keys:
                _put(store, key)
            run(config)
            assert [store.exists(key) for key in keys] == [False, True]
            store.remove(keys[1])
    finally:
        live.release(is_empty=True)
    assert _counters(tmp_path).swept_of_dead_runs == 1


def _until(condition: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 90
    while not condition():
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.05)


def test_terminated_client_clears_the_store_and_continues(
    master: str, port: int, tokenizer: str, tmp_path: Path
) -> None:
    config = _config(tmp_path, tokenizer, port, master, "never-written", read_timeout_s=60.0, concurrency=1)
    path = CaptureFiles(tmp_path).settings
    path.write_text(json.dumps({**config, "concurrency": PROMPTS}))
    child = subprocess.Popen([sys.executable, "-m", "tasks.stream.capture", str(path)], cwd=ROOT)
    index = tmp_path / "log" / "index.jsonl"
    deadline = time.monotonic() + 90
    while not index.exists() or index.read_text().count("\n") < PROMPTS - 1:
        assert time.monotonic() < deadline and child.poll() is None
        time.sleep(0.05)
    os.kill(child.pid, signal.SIGTERM)
    assert child.wait(30) == 128 + signal.SIGTERM
    assert _left(master, config) == 0
    before = HiddenStateLog(tmp_path / "log").entries()
    run({**config, "read_timeout_s": 3.0, "max_attempts": 9})
    assert HiddenStateLog(tmp_path / "log").entries()[: len(before)] == before
    assert len(HiddenStateLog(tmp_path / "log").entries()) == PROMPTS


def test_store_master_that_comes_back_costs_no_attempt(tokenizer: str, tmp_path: Path) -> None:
    program = shutil.which("mooncake_master", path=str(Path(sys.executable).parent))
    assert program
    rpc, server = _free_port(), _free_port()
    argv = [program, "-rpc_address=127.0.0.1", f"-rpc_port={rpc}", "-metrics_host=127.0.0.1"]
    argv.append(f"-metrics_port={_free_port()}")
    address = f"127.0.0.1:{rpc}"
    config = _config(
        tmp_path / "run",
        tokenizer,
        server,
        address,
        "never-written",
        read_timeout_s=3.0,
        concurrency=1,
        max_attempts=20,
    )
    path = CaptureFiles(tmp_path / "run").settings
    path.write_text(json.dumps(config))
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(_program(argv, rpc, tmp_path / "master"))
        fake = [sys.executable, str(FAKE), "--port", str(server), "--master", address]
        stack.enter_context(_program(fake, server, tmp_path / "server"))
        client = stack.enter_context(
            subprocess.Popen([sys.executable, "-m", "tasks.stream.capture", str(path)], cwd=ROOT)
        )
        stack.callback(client.kill)
        progress = tmp_path / "run" / "progress.jsonl"
        _until(lambda: progress.exists() and bool(progress.read_text()), client)
        time.sleep(1.0)  # the first prompt waits for its states
        first.kill()
        first.wait()
        _until(lambda: "master is down" in progress.read_text(), client)
        stack.enter_context(_program(argv, rpc, tmp_path / "master-2"))
        assert client.wait(120) == 0
    counters = _counters(tmp_path / "run")
    assert len(HiddenStateLog(tmp_path / "run" / "log").entries()) == PROMPTS
    assert counters.store_outages >= 1 and counters.lost == 0
