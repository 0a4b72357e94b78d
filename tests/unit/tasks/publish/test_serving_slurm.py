"""The batch script really runs: with bash, and small programs in place of Slurm's and the engine."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tasks.processes.ports import free_port
from tasks.publish.serving_recipe import Recipe
from tasks.publish.serving_slurm import slurm
from tasks.publish.serving_source import find_served, recipe_of

FAKE = Path(__file__).resolve().parents[3] / "fakes" / "speculating_server.py"
SRUN = """#!/usr/bin/env bash
echo "$*" >> "$LOG"
while [[ "$1" == --* ]]; do
    [[ "$1" == --nodelist=* ]] && export NODE="${1#*=}"
    shift
done
exec "$@"
"""
SCONTROL = "#!/usr/bin/env bash\nprintf 'n0\\nn1\\n'\n"
IP = "#!/usr/bin/env bash\necho '2: ib0    inet 127.0.0.1/24 brd 127.0.0.255 scope global ib0'\n"
VLLM = """#!/usr/bin/env bash
echo "$NODE $NCCL_SOCKET_IFNAME $GLOO_SOCKET_IFNAME ${{VLLM_API_KEY:+key}}" >> "$LOG.engine"
[[ "$NODE" == "$DYING" ]] && exit 7
if [[ " $* " == *" --headless "* ]]; then exec sleep 600; fi
exec {python} {fake} "${{@:3}}"
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    """A folder of programs: two nodes that are this machine."""
    folder = tmp_path / "bin"
    folder.mkdir()
    vllm = VLLM.format(python=sys.executable, fake=FAKE)
    for name, text in {"srun": SRUN, "scontrol": SCONTROL, "ip": IP, "vllm": vllm}.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o700)
    return folder


def recipe(**changes: Any) -> Recipe:
    found = recipe_of(find_served("kimi-k3-published", weights=False), target=None)
    return replace(found, interface="ib0", port=free_port("127.0.0.1"), **changes)


def started(cluster: Path, text: str, **environment: str) -> subprocess.Popen[str]:
    script = cluster.parent / "serve.sbatch"
    script.write_text(text)
    values: Mapping[str, str] = {
        **os.environ,
        "PATH": f"{cluster}:{os.environ['PATH']}",
        "SLURM_JOB_NODELIST": "n[0-1]",
        "LOG": str(cluster.parent / "log"),
        "POLL_S": "0.1",
        "DYING": "none",
        "VLLM_API_KEY": "canary-key",
        **environment,
    }
    return subprocess.Popen(
        ["bash", str(script)],
        env=values,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_one_step_on_each_node_and_ready_when_the_head_is_healthy(cluster: Path) -> None:
    job = started(cluster, slurm(recipe()))
    assert job.stdout is not None
    try:
        line = next(line for line in job.stdout if line.startswith("ready:"))
        assert line.startswith("ready: http://n0:")
    finally:
        job.terminate()
        job.communicate(timeout=30)
    assert job.returncode == 143
    log = (cluster.parent / "log").read_text()
    steps = [line for line in log.splitlines() if "vllm serve" in line]
    assert [line.split("--nodelist=")[1].split()[0] for line in sorted(steps)] == ["n0", "n1"]
    head, worker = sorted(steps)
    assert "--node-rank 0 --master-addr 127.0.0.1" in head and "--headless" not in head
    assert "--headless --nnodes 2 --node-rank 1 --master-addr 127.0.0.1" in worker
    engines = (cluster.parent / "log.engine").read_text().splitlines()
    assert sorted(engines) == ["n0 ib0 ib0 key", "n1 ib0 ib0 key"]
    assert "canary-key" not in log


@pytest.mark.parametrize("node", ["n0", "n1"])
def test_a_node_that_dies_ends_the_job_and_the_other_node(cluster: Path, node: str) -> None:
    """Its ranks would wait for each other in a collective for ever."""
    job = started(cluster, slurm(recipe()), DYING=node)
    _, errors = job.communicate(timeout=60)
    assert job.returncode not in (0, None)
    assert "a step ended" in errors


def test_a_job_without_its_key_or_interface_does_not_start(cluster: Path) -> None:
    for text, environment, word in (
        (slurm(recipe()), {"VLLM_API_KEY": ""}, "VLLM_API_KEY"),
        (slurm(replace(recipe(), interface="")), {}, "FABRIC_INTERFACE"),
    ):
        job = started(cluster, text, **environment)
        _, errors = job.communicate(timeout=30)
        assert job.returncode != 0 and word in errors
    assert not (cluster.parent / "log").exists()


def test_words_reach_the_engine_as_they_are(cluster: Path) -> None:
    nasty = "a $HOME $(id) `id` 'q' \"d\" \\"
    (cluster / "vllm").write_text('#!/usr/bin/env bash\nprintf "%s\\0" "$@" > "$LOG.words"\nexit 7\n')
    single = recipe(nodes=1, arguments={"chat-template": nasty})
    job = started(cluster, slurm(single))
    job.communicate(timeout=30)
    words = (cluster.parent / "log.words").read_text().split("\0")
    assert words[words.index("--chat-template") + 1] == nasty
