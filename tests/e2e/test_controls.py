"""Results that must come out as they do if the measurement means anything: `make verify PART=controls`.

They start from the run that the demo kept, and make it first if there is none.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from tasks.processes.ports import free_port
from tasks.run_folder import RUNS_ENV, RunFolder
from tasks.serve.target_folder import resolve_target
from tasks.stage import MANIFEST, sha256_file
from tasks.stages import STREAM, vouched_files
from tasks.stream.log import HiddenStateLog, IndexEntry, LogWriter, index_digest
from tasks.stream.models import CaptureManifest

pytestmark = [pytest.mark.verify("controls"), pytest.mark.timeout(4500)]
Record = Callable[[str, object], None]
RESUME_S = 1500
READY_S = 600
UNCHECKED = Path(__file__).parents[1] / "support" / "unchecked"
PROGRAM = Path(sys.executable).parent / "retrain-dspark"
# Live is no part of these controls; the stages still run all of theirs.
LITTLE_LIVE = ("--set", "evaluate.live.per_domain=1", "--set", "evaluate.live.max_new_tokens=16")
REMOVED = ("markov_head.markov_w1.weight", "layers.1.mlp.down_proj.weight", "d2t")


def _link(source: str, target: str) -> None:
    """Captures are never written again, so the copy shares them; anything else is copied."""
    if source.endswith(".safetensors") and "/log/" in source:
        try:
            os.link(source, target)
            return
        except OSError:
            pass
    shutil.copy2(source, target)


@pytest.fixture
def copied(demo_run: RunFolder, tmp_path: Path) -> RunFolder:
    """The full run in a run root of its own, without what was published."""
    root = tmp_path / "runs"
    root.mkdir(mode=0o700)
    shutil.copytree(demo_run.path, root / demo_run.run_id, copy_function=_link)
    return RunFolder(root / demo_run.run_id)


@pytest.fixture
def published(demo_run: RunFolder, tmp_path: Path) -> Path:
    """A copy of the folder that the full run published, or of the one it held."""
    summary = json.loads((demo_run.path / "summary.json").read_text(encoding="utf-8"))
    return Path(shutil.copytree(summary["publication"]["location"], tmp_path / "draft"))


def tau(run: RunFolder) -> float:
    summary = json.loads((run.path / "summary.json").read_text(encoding="utf-8"))
    return float(summary["evaluation"]["tau_macro"])


def statuses(done: Any) -> dict[str, str]:
    return {stage["name"]: stage["status"] for stage in done.summary["stages"]}


def test_an_untrained_draft_is_held(
    copied: RunFolder, command: Callable[..., Any], record_property: Record
) -> None:
    """Training for 0 steps ends held, with macro tau from 1.0 to 1.1."""
    words = ("resume", copied.run_id, "--set", "train.max_steps=0", *LITTLE_LIVE)
    done = command(copied.path.parent, *words, timeout_s=RESUME_S)
    assert statuses(done)["stream"] == "reused", done.output[-4000:]
    assert statuses(done)["train"] == "completed", done.output[-4000:]
    record_property("tau_macro", f"{tau(done.run):.3f}")
    assert done.summary["draft"]["steps"] == 0
    assert 1.0 <= tau(done.run) <= 1.1
    assert done.summary["status"] == "held"
    assert done.code == 1


@pytest.mark.parametrize(("what", "share"), [("whole states", 0.5), ("auxiliary layers", 0.6)])
def test_shuffled_states_teach_little(
    demo_run: RunFolder,
    copied: RunFolder,
    command: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    record_property: Record,
    what: str,
    share: float,
) -> None:
    """Training on captures whose states were shuffled between samples loses half of tau - 1.

    The trainer refuses such captures, so its check is taken out. Whole states take the labels with them,
    which come from the last layer. Where only the auxiliary layers move, which are what the draft reads, each
    token keeps its right label: what follows from tokens alone can still be learned, and 40 % must be lost.
    """
    shuffle_captures(copied, whole=what == "whole states", by_token=True)
    monkeypatch.setenv("PYTHONPATH", str(UNCHECKED))
    done = command(copied.path.parent, "resume", copied.run_id, *LITTLE_LIVE, timeout_s=RESUME_S)
    assert statuses(done)["stream"] == "reused", done.output[-4000:]
    assert statuses(done)["train"] == "completed", done.output[-4000:]
    honest, shuffled = tau(demo_run), tau(done.run)
    record_property("tau_macro", f"{shuffled:.3f}")
    record_property("without_shuffling", f"{honest:.3f}")
    assert shuffled - 1 <= share * (honest - 1)


@pytest.mark.parametrize("by_token", [True, False], ids=["by token", "by sample"])
@pytest.mark.parametrize(
    ("whole", "words"),
    [(True, "explains the answers of only"), (False, "do not go with the layers after them")],
    ids=["whole states", "auxiliary layers"],
)
def test_shuffled_states_are_refused(
    copied: RunFolder, command: Callable[..., Any], whole: bool, words: str, by_token: bool
) -> None:
    """A trainer does not begin on captures whose states were shuffled between samples, and says which."""
    shuffle_captures(copied, whole=whole, by_token=by_token)
    done = command(copied.path.parent, "resume", copied.run_id, *LITTLE_LIVE, timeout_s=RESUME_S)
    assert done.code == 1 and "Traceback" not in done.output
    assert words in " ".join(done.output.split()), done.output[-4000:]


def shuffle_captures(run: RunFolder, *, whole: bool, by_token: bool) -> None:
    """Give the training samples states of other samples; evaluation's stay. Hashes are new.

    Args:
        whole: Move the last layer too, not only the auxiliary ones.
        by_token: Each token gets the states of a token of any sample; else a sample gets all of another's.
    """
    stage = run.stage(STREAM)
    manifest = json.loads((stage.path / MANIFEST).read_text(encoding="utf-8"))
    result = CaptureManifest.model_validate(manifest["result"])
    log = HiddenStateLog(stage.path / result.log)
    entries = log.entries()
    mixed = _mixed_states(log, [entry for entry in entries if entry.split != "evaluate"], by_token)
    writer = LogWriter(stage.path / "shuffled")
    for entry in entries:
        states, ids = log.load(entry)
        if (others := mixed.pop(entry.i, None)) is not None:
            moved = states.shape[1] if whole else states.shape[1] - 1
            states[:, :moved] = others[:, :moved]
        kept = {name: getattr(entry, name) for name in ("i", "prompt_id", "domain", "split")}
        kept |= {name: getattr(entry, name) for name in ("prompt_tokens", "answer_ids", "finish_reason")}
        writer.append(**kept, hidden_states=states, token_ids=ids)
    writer.finish()
    writer.close()
    shutil.rmtree(log.folder)
    (stage.path / "shuffled").rename(log.folder)
    changed = result.model_copy(update={"digest": index_digest(log.entries())})
    stage.complete(changed, manifest["fingerprint"], vouched_files(STREAM, stage.path), 0.0)
    assert changed.digest != result.digest


def _mixed_states(log: HiddenStateLog, entries: list[IndexEntry], by_token: bool) -> dict[int, torch.Tensor]:
    """Number of a sample -> states `[T, L, H]`: of the next in a random circle, or rows of any sample."""
    if not by_token:
        order = random.Random(0).sample(entries, len(entries))
        return {entry.i: _stretched(log, order[place - 1], entry) for place, entry in enumerate(order)}
    rows = torch.cat([log.load(entry)[0] for entry in entries])
    rows = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))]
    parts = rows.split([entry.tokens for entry in entries])
    return {entry.i: part for entry, part in zip(entries, parts, strict=True)}


def _stretched(log: HiddenStateLog, donor: IndexEntry, entry: IndexEntry) -> torch.Tensor:
    """States of `donor`, repeated or cut to the length of `entry`."""
    states, _ = log.load(donor)
    return states.repeat(-(-entry.tokens // donor.tokens), 1, 1)[: entry.tokens]


@pytest.mark.parametrize("known", ["as it was", "as if nothing had happened"])
@pytest.mark.parametrize("name", REMOVED)
@pytest.mark.parametrize("how", ["serve.sh", "retrain-dspark serve"])
def test_a_draft_without_a_tensor_is_refused(
    demo_run: RunFolder, published: Path, how: str, name: str, known: str
) -> None:
    """A published draft that lost a tensor refuses to load, whether or not its manifest knows the tensor."""
    remove_tensor(published, name)
    if known != "as it was":
        forget(published, name)
    target = str(resolve_target(demo_run.profile()))
    by_script = ("bash", str(published / "serve.sh"), target)
    by_command = (str(PROGRAM), "serve", str(published))
    done = subprocess.run(
        by_script if how == "serve.sh" else by_command,
        env={**os.environ, "PYTHON": sys.executable, "PORT": "1", RUNS_ENV: str(demo_run.path.parent)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode not in (0, 126, 127)
    assert f"tensor {name} is missing" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def remove_tensor(folder: Path, name: str) -> None:
    from safetensors.torch import load_file, save_file

    path = folder / "model.safetensors"
    tensors = load_file(path)
    del tensors[name]
    save_file(tensors, path)


def forget(folder: Path, name: str) -> None:
    """Make the manifest agree with the damaged file."""
    manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    del manifest["tensors"][name]
    manifest["files"]["model.safetensors"] = sha256_file(folder / "model.safetensors")
    (folder / MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")


@pytest.fixture
def served(demo_run: RunFolder, published: Path, tmp_path: Path) -> Iterator[str]:
    """Address of the published draft, served by `retrain-dspark serve`."""
    port, log = free_port("127.0.0.1"), tmp_path / "serve.log"
    with open(log, "wb") as output:
        process = subprocess.Popen(
            (str(PROGRAM), "serve", str(published), "--port", str(port)),
            env={**os.environ, RUNS_ENV: str(demo_run.path.parent)},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        url = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + READY_S
        while not _answers(url):
            assert process.poll() is None, log.read_text(errors="replace")[-4000:]
            assert time.monotonic() < deadline, log.read_text(errors="replace")[-4000:]
            time.sleep(1)
        yield url
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=2).status_code == 200
    except httpx.HTTPError:
        return False


def test_the_published_draft_serves(demo_run: RunFolder, served: str, record_property: Record) -> None:
    """The published draft loads in vLLM by its own script, drafts, and answers."""
    asked = {
        "model": demo_run.profile().serve.served_name,
        "messages": [{"role": "user", "content": "Name three colours."}],
        "max_tokens": 24,
        "temperature": 0,
    }
    answer = httpx.post(f"{served}/v1/chat/completions", json=asked, timeout=300)
    answer.raise_for_status()
    assert answer.json()["choices"][0]["message"]["content"].strip()
    lines = httpx.get(f"{served}/metrics", timeout=30).text.splitlines()
    counters = {
        line.split("{")[0]: float(line.split()[-1])
        for line in lines
        if line.startswith("vllm:spec_decode_num_")
    }
    assert counters["vllm:spec_decode_num_drafts_total"] > 0
    assert counters["vllm:spec_decode_num_draft_tokens_total"] > 0
    for name in ("drafts", "accepted_tokens"):
        record_property(name, int(counters[f"vllm:spec_decode_num_{name}_total"]))
