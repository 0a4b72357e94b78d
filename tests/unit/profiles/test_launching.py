"""The profile's `launch` part: what is refused before anything is asked for."""

from __future__ import annotations

from typing import Any

import pytest

from profiles.load import ProfileProblem, load_profile


def launch(**fields: Any) -> Any:
    return load_profile("laptop", {"launch": fields}).profile.launch


def test_the_default_is_this_machine() -> None:
    found = load_profile("laptop").profile.launch
    assert found.kind == "local" and found.slurm.allocation == "hold"


@pytest.mark.parametrize(
    "value",
    ["a b", "x;rm", "$(id)", "a\n#SBATCH --x", "`id`", "a'b", 'a"b', "--wrap"],
)
def test_no_value_can_become_a_second_option_or_a_command(value: str) -> None:
    """What goes into a batch script or on srun's command line is a word."""
    if value != "--wrap":
        with pytest.raises(ProfileProblem, match=r"launch\.slurm\.partition"):
            launch(kind="slurm", slurm={"partition": value})
    with pytest.raises(ProfileProblem, match=r"launch\.slurm\.options"):
        launch(kind="slurm", slurm={"options": [f"--comment={value} --uid=0"]})


def test_constraints_and_node_lists_are_words() -> None:
    found = launch(kind="slurm", slurm={"constraint": "nvl72&(ib|roce)*2", "exclude": ["tray[07-09]", "n1"]})
    assert found.slurm.constraint == "nvl72&(ib|roce)*2" and found.slurm.exclude == ("tray[07-09]", "n1")


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"ports": [20000, 30000]}, "leave them empty with launch.kind local"),
        ({"scratch": "/local"}, "leave them empty with launch.kind local"),
        ({"kind": "slurm", "ports": [30000, 20000]}, "the smaller one first"),
        ({"kind": "slurm", "ports": [80, 20000]}, "two ports from 1024"),
        ({"kind": "slurm", "scratch": "relative"}, "launch.scratch"),
        ({"kind": "slurm", "slurm": {"setup": ["a\nb"]}}, "launch.slurm.setup"),
        ({"kind": "pbs"}, "launch.kind"),
    ],
)
def test_what_cannot_work_is_refused(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(ProfileProblem) as raised:
        launch(**fields)
    assert says in f"{raised.value.where}: {raised.value.what}"


def test_a_server_that_runs_needs_no_serving_nodes() -> None:
    over = {
        "launch": {"kind": "slurm"},
        "serve": {"kind": "attach", "url": "http://x:1"},
        "store": {"master": "x:1"},
    }
    with pytest.raises(ProfileProblem, match="asks for nodes that serve"):
        load_profile("laptop", over)


def test_a_cluster_chooses_addresses_itself() -> None:
    """On this machine several hosts need a data address in the profile; nodes of a cluster give their own."""
    roles = {"hardware": {"roles": {"colocated": False}}}
    with pytest.raises(ProfileProblem, match="data address"):
        load_profile("laptop", roles)
    assert load_profile("laptop", {**roles, "launch": {"kind": "slurm"}}).profile.store.host == "127.0.0.1"
