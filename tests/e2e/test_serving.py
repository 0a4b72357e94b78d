"""A published draft served on the real engine as a user does it: `make verify PART=publish`."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tasks.processes.ports import free_port
from tasks.publish.serving_ask import Asked, ask, served_name
from tasks.run_folder import RUNS_ENV
from tasks.serve.vllm_http import Server
from tests.support.tiny_publication import publish_tiny

pytestmark = [pytest.mark.verify("publish"), pytest.mark.timeout(1800)]
Record = Callable[[str, object], None]
BLOCK = 4
KEY = "a-key-of-the-test"
PROGRAM = Path(sys.executable).parent / "retrain-dspark"
READY_S = 900


@dataclass(frozen=True)
class Published:
    """A draft that was published in this session, and a question whose answer it learned."""

    root: Path
    folder: Path
    target: Path
    question: str

    def environment(self, **more: str) -> dict[str, str]:
        return {**os.environ, RUNS_ENV: str(self.root / "runs"), "VLLM_API_KEY": KEY, **more}


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Published:
    root = tmp_path_factory.mktemp("published")
    return Published(root, *publish_tiny(root))


@contextmanager
def served(published: Published, tmp_path: Path, *words: str) -> Iterator[str]:
    """`retrain-dspark serve ...` until it is healthy; gives its address, and ends it."""
    port = free_port("127.0.0.1")
    with open(tmp_path / "server.log", "wb") as log:
        process = subprocess.Popen(
            (str(PROGRAM), "serve", *words, "--port", str(port)),
            env=published.environment(),
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


def asked_by_command(published: Published, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        (str(PROGRAM), "ask", published.question, *words, "--max-tokens", "24"),
        env=published.environment(),
        capture_output=True,
        text=True,
        timeout=READY_S,
    )


def figures(text: str) -> tuple[int, int, float]:
    """Rounds, accepted draft tokens and tau that `ask` shows."""
    found = re.search(r"(\d+) rounds, (\d+) of \d+ draft tokens accepted, tau ([\d.]+)", text)
    assert found is not None, text
    return int(found[1]), int(found[2]), float(found[3])


def test_serve_script_answers_ask(published: Published, tmp_path: Path, record_property: Record) -> None:
    """The published `serve.sh` serves on the real engine; chunks of its stream are its rounds"""
    with served(published, tmp_path, str(published.folder)) as url:
        done = asked_by_command(published, "--url", url)
        server = Server(url, served_name(Server(url, "", KEY), None), KEY)
        answers = [ask(server, Asked(f"w{number} w7 w9", 40)) for number in range(6)]
    assert done.returncode == 0, done.stderr
    rounds, accepted, tau = figures(done.stdout)
    assert "agreed: the stream's chunks and the counters" in done.stdout, done.stdout
    assert tau == pytest.approx(1 + accepted / rounds, abs=0.01) and done.stdout.count("⟨") > 0
    told = [answer.rounds.doubt for answer in answers if answer.rounds.doubt]
    assert all("pieces are not rounds" in doubt for doubt in told), told
    record_property("tau", tau)
    record_property("answers_with_rounds", f"{len(answers) - len(told)} of {len(answers)}")


def test_ask_serves_a_folder_and_ends_its_server(published: Published, record_property: Record) -> None:
    """`ask QUESTION FOLDER` starts the draft; the server's own list of rounds and its counters agree"""
    done = asked_by_command(published, str(published.folder))
    assert done.returncode == 0, done.stderr[-4000:]
    rounds, accepted, tau = figures(done.stdout)
    assert "agreed: the response's list" in done.stdout and accepted > 0, done.stdout
    marked = sum(len(part.split()) for part in re.findall("⟨([^⟩]*)⟩", done.stdout.split("\n\n")[0]))
    # Accepted tokens, as far as the answer's end did not cut the last round.
    assert accepted - BLOCK < marked <= accepted
    record_property("rounds", rounds)
    record_property("tau", tau)


def test_a_rendered_batch_script_serves_on_one_node(
    published: Published, tmp_path: Path, record_property: Record
) -> None:
    """The Slurm script of the published draft, with `srun` replaced, reaches a healthy real server"""
    port = str(free_port("127.0.0.1"))
    text = subprocess.run(
        (str(PROGRAM), "serve", str(published.folder), "--render", "slurm", "--port", port),
        env=published.environment(),
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
    job = subprocess.Popen(
        ["bash", str(tmp_path / "serve.sbatch")],
        env=published.environment(PATH=path, SLURM_JOB_NODELIST="n0"),
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
