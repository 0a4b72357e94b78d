"""A published draft served on the real engine as a user does it: `make verify PART=publish`."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from profiles.schema import Profile
from tasks.processes.ports import free_port
from tasks.publish.serving_ask import Asked, ask, served_name
from tasks.run_folder import RUNS_ENV, RunFolder
from tasks.serve.vllm_http import Server

pytestmark = [pytest.mark.verify("publish"), pytest.mark.timeout(1800)]
Record = Callable[[str, object], None]
QUESTION = "Write a short list of three fruits."
KEY = "a-key-of-the-test"
PROGRAM = Path(sys.executable).parent / "retrain-dspark"
READY_S = 900


@pytest.fixture
def folder(demo_run: RunFolder) -> Path:
    """The folder that the full run published, or the one it held."""
    summary = json.loads((demo_run.path / "summary.json").read_text(encoding="utf-8"))
    return Path(summary["publication"]["location"])


@contextmanager
def served(demo_run: RunFolder, tmp_path: Path, *words: str) -> Iterator[str]:
    """`retrain-dspark serve ...` until it is healthy; gives its address, and ends it."""
    port = free_port("127.0.0.1")
    environment = {**os.environ, RUNS_ENV: str(demo_run.path.parent), "VLLM_API_KEY": KEY}
    with open(tmp_path / "server.log", "wb") as log:
        process = subprocess.Popen(
            (str(PROGRAM), "serve", *words, "--port", str(port)),
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + READY_S
        while not Server(url, "").is_healthy():
            text = (tmp_path / "server.log").read_text(errors="replace")
            assert process.poll() is None, text[-4000:]
            assert time.monotonic() < deadline, text[-4000:]
            time.sleep(0.5)
        yield url
    finally:
        os.killpg(process.pid, signal.SIGINT)
        process.wait(60)


def asked_by_command(demo_run: RunFolder, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, RUNS_ENV: str(demo_run.path.parent), "VLLM_API_KEY": KEY}
    return subprocess.run(
        (str(PROGRAM), "ask", QUESTION, *words, "--max-tokens", "48"),
        env=environment,
        capture_output=True,
        text=True,
        timeout=READY_S,
    )


def figures(text: str) -> tuple[int, int, float]:
    """Rounds, accepted draft tokens and tau that `ask` shows."""
    found = re.search(r"(\d+) rounds, (\d+) of \d+ draft tokens accepted, tau ([\d.]+)", text)
    assert found is not None, text
    return int(found[1]), int(found[2]), float(found[3])


def test_serve_script_answers_ask(
    demo_run: RunFolder, folder: Path, tmp_path: Path, record_property: Record
) -> None:
    """The published `serve.sh` serves on the real engine; chunks of its stream are its rounds"""
    with served(demo_run, tmp_path, str(folder)) as url:
        done = asked_by_command(demo_run, "--url", url)
        server = Server(url, served_name(Server(url, "", KEY), None), KEY)
        answers = [ask(server, Asked(f"{QUESTION} {number}", 40)) for number in range(3)]
    assert done.returncode == 0, done.stderr
    rounds, accepted, tau = figures(done.stdout)
    assert "agreed: the stream's chunks and the counters" in done.stdout, done.stdout
    assert tau == pytest.approx(1 + accepted / rounds, abs=0.01) and done.stdout.count("⟨") > 0
    assert not [answer.rounds.doubt for answer in answers if answer.rounds.doubt]
    record_property("rounds", rounds)
    record_property("accepted", accepted)
    record_property("tau", tau)


def test_ask_serves_a_run_and_ends_its_server(demo_run: RunFolder, record_property: Record) -> None:
    """`ask QUESTION RUN` starts the run's draft; the server's own list, its stream and its counters agree"""
    done = asked_by_command(demo_run, demo_run.run_id)
    assert done.returncode == 0, done.stderr[-4000:]
    rounds, _, tau = figures(done.stdout)
    assert "agreed: the response's list, the stream's chunks and the counters" in done.stdout
    record_property("rounds", rounds)
    record_property("tau", tau)


def test_a_rendered_batch_script_serves_on_one_node(
    demo_run: RunFolder, folder: Path, tmp_path: Path, record_property: Record
) -> None:
    """The Slurm script of the published draft, with `srun` replaced, reaches a healthy real server"""
    text = subprocess.run(
        (str(PROGRAM), "serve", str(folder), "--render", "slurm", "--port", str(free_port("127.0.0.1"))),
        env={**os.environ, RUNS_ENV: str(demo_run.path.parent)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    for name, program in {
        "srun": '#!/usr/bin/env bash\nwhile [[ "$1" == --* ]]; do shift; done\nexec "$@"\n',
        "scontrol": "#!/usr/bin/env bash\necho n0\n",
    }.items():
        (tmp_path / name).write_text(program)
        (tmp_path / name).chmod(0o700)
    (tmp_path / "serve.sbatch").write_text(text)
    path = f"{tmp_path}:{PROGRAM.parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "SLURM_JOB_NODELIST": "n0", "VLLM_API_KEY": KEY}
    job = subprocess.Popen(
        ["bash", str(tmp_path / "serve.sbatch")],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert job.stdout is not None
    try:
        lines: list[str] = []
        for line in job.stdout:
            lines.append(line)
            if line.startswith("ready:"):
                break
        assert lines and lines[-1].startswith("ready:"), "".join(lines[-40:])
        record_property("ready_after_s", re.findall(r"after (\d+) s", lines[-1])[0])
    finally:
        os.killpg(job.pid, signal.SIGTERM)
        job.wait(60)


def test_the_profile_of_the_run_names_the_same_draft(demo_run: RunFolder, folder: Path) -> None:
    """`serve RUN --print` names the folder that the run published"""
    profile: Profile = demo_run.profile()
    printed = subprocess.run(
        (str(PROGRAM), "serve", demo_run.run_id, "--print"),
        env={**os.environ, RUNS_ENV: str(demo_run.path.parent)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert str(folder / "serve.sh") in printed and profile.name == "laptop"
