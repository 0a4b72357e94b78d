"""What Slurm prints, as components; recorded from version 22.05."""

from __future__ import annotations

import pytest

from tasks.errors import AllocationEnded, NodeLost
from tasks.processes.slurm.commands import Component, cleaned_environment, parsed_components, words_of
from tasks.processes.slurm.ended import fault_of
from tasks.processes.slurm.queue import described

RUNNING = (
    "JobId=2 HetJobId=2 HetJobOffset=0 JobName=a job = x HetJobIdSet=2-3 UserId=root(0) QOS=(null) "
    "JobState=RUNNING Reason=None Dependency=(null) Requeue=0 Restarts=0 BatchFlag=1 ExitCode=0:0 "
    "StartTime=2026-12-01T03:26:49 EndTime=2026-12-01T03:36:49 Partition=batch ReqNodeList=(null) "
    "NodeList=n1 BatchHost=n1 NumNodes=1 Socks/Node=* NtasksPerN:B:S:C=1:0:*:* Command=(null)\n"
    "JobId=3 HetJobId=2 HetJobOffset=1 JobName=a JobState=PENDING Reason=Resources Restarts=0 "
    "StartTime=2026-12-01T04:00:00 EndTime=Unknown ReqNodeList=(null) NodeList= NumNodes=2\n"
)


def component(state: str, offset: int = 0, reason: str = "", restarts: int = 0) -> Component:
    return Component("4", offset, state, reason, restarts=restarts)


def test_components_are_read() -> None:
    first, second = parsed_components(RUNNING)
    assert first == Component("2", 0, "RUNNING", "", "n1", "2026-12-01T03:26:49", "2026-12-01T03:36:49")
    assert second.waits and second.reason == "Resources" and second.nodes == "" and second.end == ""
    assert list(parsed_components("No jobs in the system\n")) == []


def test_several_states_at_once() -> None:
    """Newer versions join flags to the state."""
    (found,) = parsed_components("JobId=7 JobState=COMPLETING+NODE_FAIL Reason=NodeDown NodeList=n2")
    assert found.state == "COMPLETING" and not found.is_over and found.offset == 0


def test_values_may_hold_spaces() -> None:
    fields = words_of(
        "NodeName=n3 State=DOWN+NOT_RESPONDING Reason=Not responding [slurm@2026] Partitions=a,b"
    )
    assert fields["Reason"] == "Not responding [slurm@2026]" and fields["Partitions"] == "a,b"


def test_waiting_is_told_with_reason_and_start() -> None:
    found = list(parsed_components(RUNNING))
    assert described("2", found) == "job 2 waits (Resources), expected start 2026-12-01T04:00:00"
    assert described("2", [component("PENDING")]) == "job 2 waits (no reason given), no expected start yet"


@pytest.mark.parametrize(
    ("found", "kind", "says"),
    [
        (
            [component("PREEMPTED"), component("CANCELLED", 1)],
            AllocationEnded,
            "job 4 on n1, n2, n3 was preempted",
        ),
        ([component("CANCELLED"), component("TIMEOUT", 1)], AllocationEnded, "reached its time limit"),
        ([component("CANCELLED"), component("RUNNING", 1)], AllocationEnded, "was cancelled"),
        ([component("RUNNING"), component("NODE_FAIL", 1, "NodeDown")], NodeLost, "node n2, n3 is lost"),
        ([component("COMPLETING", 0, "NodeDown"), component("RUNNING", 1)], NodeLost, "node n1 is lost"),
        ([component("PENDING", 0, "BeginTime")], AllocationEnded, "into the queue again (BeginTime)"),
        ([component("RUNNING", restarts=1)], None, ""),
        ([component("FAILED", 0, "NonZeroExitCode")], AllocationEnded, "ended (FAILED NonZeroExitCode)"),
        ([component("SPECIAL_EXIT")], AllocationEnded, "into the queue again"),
        ([component("OUT_OF_MEMORY")], AllocationEnded, "ran out of memory"),
        ([], AllocationEnded, "does not know job 4 on n1, n2, n3 any more"),
        ([component("RUNNING"), component("RUNNING", 1)], None, ""),
    ],
)
def test_states_become_errors(found: list[Component], kind: type[Exception] | None, says: str) -> None:
    """Each way to lose nodes has its own words, names nodes, and can be resumed."""
    fault = fault_of("4", found, {0: ("n1",), 1: ("n2", "n3")})
    if kind is None:
        assert fault is None
        return
    assert type(fault) is kind and fault is not None
    assert says in fault.what and fault.exit_code == 75 and "n1" in f"{fault.where}n1"


def test_another_allocation_leaves_no_trace() -> None:
    inside = {
        "SLURM_JOB_ID": "1",
        "SBATCH_PARTITION": "x",
        "SLURM_CONF": "/c",
        "PATH": "/bin",
        "SRUN_X": "kept",
    }
    assert cleaned_environment(inside) == {"SLURM_CONF": "/c", "PATH": "/bin", "SRUN_X": "kept"}
