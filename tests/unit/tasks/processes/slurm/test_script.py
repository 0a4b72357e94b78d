"""Batch scripts and steps, compared with golden files: `REWRITE_GOLDEN=1 pytest` writes them anew."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from profiles.load import load_profile
from profiles.schema import Profile
from tasks.processes.slurm.phases import phase_for
from tasks.processes.slurm.script import ON_NODE, batch_script, prepared, step_words

GOLDEN = Path(__file__).resolve().parents[4] / "golden" / "slurm"
EVERYTHING = {
    "account": "nlp",
    "partition": "gb300,gb300-spill",
    "qos": "high",
    "reservation": "k3@night",
    "constraint": "nvl72&ib",
    "exclude": ["tray07", "tray11"],
    "options": ["--switches=1"],
    "time_limit_minutes": 720,
}


def profile_with(slurm: dict[str, Any], name: str = "gb300-kimi-k3", **parts: Any) -> Profile:
    return load_profile(name, {"launch": {"kind": "slurm", "slurm": slurm}, **parts}).profile


def script_of(profile: Profile, stage: str, role: str, train_nodes: tuple[str, ...] = ()) -> str:
    phase = phase_for(profile, stage, role)
    text = batch_script(
        profile,
        phase,
        job_name=f"dspark-r1-{phase.name}-0a1b2c",
        python="/opt/venv/bin/python",
        heartbeat=Path("/shared/my runs/r1/services/dspark.beat"),
        log=Path("/shared/my runs/r1/logs/slurm.log"),
        train_nodes=train_nodes,
    )
    return text.replace(str(ON_NODE), "/opt/project/on_node")


@pytest.mark.parametrize(
    ("name", "slurm", "stage", "role", "train_nodes"),
    [
        ("hold", EVERYTHING, "serve", "serve", ()),
        ("capture", {"allocation": "per_phase"}, "stream", "train", ()),
        ("train", {"allocation": "per_phase"}, "train", "train", ("tray03",)),
        ("evaluate", {"allocation": "per_phase", "account": "nlp"}, "evaluate", "serve", ()),
    ],
)
def test_batch_scripts(
    name: str, slurm: dict[str, Any], stage: str, role: str, train_nodes: tuple[str, ...]
) -> None:
    """Kimi K3 on three trays: two serve, one trains; each way to hold nodes, word for word."""
    text = script_of(profile_with(slurm), stage, role, train_nodes)
    path = GOLDEN / f"{name}.sbatch"
    if os.environ.get("REWRITE_GOLDEN"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


def test_one_group_of_nodes_is_no_heterogeneous_job() -> None:
    """Where the same nodes serve and train there is one component, and steps name none."""
    profile = profile_with({}, "laptop")
    text = script_of(profile, "train", "train")
    assert "hetjob" not in text and text.count("--nodes=1") == 1
    phase = phase_for(profile, "evaluate", "serve")
    assert phase.group_of("serve") == phase.group_of("train") == 0 and len(phase.groups) == 1


def test_a_step_shares_the_nodes_and_shows_nothing() -> None:
    """One task on each node, beside others, with all GPUs and none of the flow's environment."""
    slurm = profile_with(
        {"container_image": "/img/k3.sqsh", "container_mounts": ["/data:/data"]}
    ).launch.slurm
    words = step_words(
        slurm,
        job="12",
        group=1,
        nodes=("n2", "n3"),
        name="target",
        gpus_per_node=4,
        container=True,
        mounts=(Path("/shared/runs"),),
    )
    for word in (
        "--jobid=12",
        "--het-group=1",
        "--nodelist=n2,n3",
        "--nodes=2",
        "--ntasks=2",
        "--overlap",
        "--export=NIL",
        "--gpus-per-node=4",
        "--container-image=/img/k3.sqsh",
        "--container-mounts=/shared/runs:/shared/runs,/data:/data",
    ):
        assert word in words
    bare = step_words(slurm, job="12", group=None, nodes=("n1",), name="keeper")
    assert not any(word.startswith(("--het-group", "--container", "--gpus")) for word in bare)


def test_set_up_lines_come_before_the_process() -> None:
    """A failing line ends the step; the process takes the shell's place and its arguments stay whole."""
    import subprocess

    slurm = profile_with({"setup": ["export A='b c'", "cd /"]}).launch.slurm
    words = prepared(slurm, ("/bin/sh", "-c", 'echo "$A $0 $PWD"', "x  y"))
    done = subprocess.run(words, capture_output=True, text=True, check=True, env={})
    assert done.stdout == "b c x  y /\n"
    failing = prepared(profile_with({"setup": ["false"]}).launch.slurm, ("/bin/echo", "ran"))
    done = subprocess.run(failing, capture_output=True, text=True, check=False)
    assert done.returncode != 0 and done.stdout == ""
    assert prepared(profile_with({}).launch.slurm, ("a", "b")) == ("a", "b")
