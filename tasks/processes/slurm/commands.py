"""Slurm's commands: submit, ask for states, cancel. Standard library only: the guard process cancels too.

States are read from `scontrol --oneliner`, whose `NAME=value` words have been the same for a decade. The JSON
of the same commands needs a plugin that not every cluster installs, and its types differ between versions;
`sacct` needs a database that small clusters do not have.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

_TIMEOUT_S = 60.0
_SHARED = ("HOME", "LANG", "LOGNAME", "PATH", "SLURM_CONF", "USER")
_UNKNOWN = re.compile(r"invalid job id", re.IGNORECASE)
_GONE = re.compile(r"invalid job id|already complet|invalid step", re.IGNORECASE)
_WORD = re.compile(r"(?:^| )([A-Z][\w:/*-]*)=")
_NOTHING = ("", "(null)", "N/A", "Unknown", "None", "n/a")

WAITING = (
    "PENDING",
    "CONFIGURING",
    "REQUEUED",
    "REQUEUE_HOLD",
    "REQUEUE_FED",
    "SPECIAL_EXIT",
    "RESV_DEL_HOLD",
)
ENDING = ("COMPLETING", "SIGNALING", "STAGE_OUT")
"""States on the way to another one: the reason is not said yet."""


class CommandFailed(Exception):
    """A command of Slurm that did not do its work; the text is what it said."""


@dataclass(frozen=True)
class Component:
    """One component of a job, as Slurm sees it now; a job that is not heterogeneous has one."""

    job: str
    offset: int
    state: str
    reason: str = ""
    nodes: str = ""
    """Slurm's expression, e.g. `n[1-2]`; empty while it waits."""
    start: str = ""
    """Start, or the expected one while it waits, as Slurm prints times; empty if it does not know."""
    end: str = ""
    restarts: int = 0

    @property
    def runs(self) -> bool:
        return self.state == "RUNNING"

    @property
    def waits(self) -> bool:
        return self.state in WAITING

    @property
    def is_over(self) -> bool:
        return not (self.runs or self.waits or self.state in ENDING)


def cleaned_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Without what another allocation left: its variables would steer srun and sbatch into that one."""
    dropped = ("SLURM_", "SBATCH_", "SALLOC_", "SCANCEL_", "SQUEUE_", "PMI", "SCONTROL_")
    return {k: v for k, v in environment.items() if k == "SLURM_CONF" or not k.startswith(dropped)}


def run_command(
    words: Sequence[str],
    *,
    text: str | None = None,
    conf: str = "",
    environment: Mapping[str, str] | None = None,
) -> str:
    """Run one of Slurm's commands and return what it printed.

    Args:
        text: Standard input.
        conf: `SLURM_CONF`, where it is not the one of this process.
        environment: The command's; None takes this process's without traces of another allocation.

    Raises:
        CommandFailed: It is not installed, said no, or took too long.
    """
    if environment is None:
        environment = {**cleaned_environment(os.environ), **({"SLURM_CONF": conf} if conf else {})}
    try:
        done = subprocess.run(
            words,
            input=text,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            env=environment,
        )
    except OSError as error:
        raise CommandFailed(f"{words[0]}: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise CommandFailed(f"{words[0]} did not answer within {_TIMEOUT_S:.0f} s") from None
    if done.returncode != 0:
        raise CommandFailed(f"{words[0]}: {(done.stderr or done.stdout).strip() or done.returncode}")
    return done.stdout


def submit(script: str) -> str:
    """Hand a batch script to Slurm; returns the job's id (of a heterogeneous job, its leader's).

    What the job's environment can hold of this process's is a short list without secrets.
    """
    shared = {name: os.environ[name] for name in _SHARED if name in os.environ}
    return run_command(("sbatch", "--parsable"), text=script, environment=shared).strip().partition(";")[0]


def components(job: str) -> list[Component]:
    """The job as Slurm knows it, by offset; empty when it has forgotten it."""
    try:
        text = run_command(("scontrol", "--oneliner", "show", "job", job))
    except CommandFailed as error:
        if _UNKNOWN.search(str(error)):
            return []
        raise
    return sorted(parsed_components(text), key=lambda component: component.offset)


def parsed_components(text: str) -> Iterator[Component]:
    """Components in the output of `scontrol --oneliner show job`."""
    for line in text.splitlines():
        fields = words_of(line)
        if "JobId" not in fields:
            continue
        yield Component(
            job=fields["JobId"],
            offset=int(fields.get("HetJobOffset", "0") or 0),
            # Several states at once are joined by "+" in newer versions; the base state comes first.
            state=fields.get("JobState", "").partition("+")[0],
            reason=known(fields.get("Reason", "")),
            nodes=known(fields.get("NodeList", "")),
            start=known(fields.get("StartTime", "")),
            end=known(fields.get("EndTime", "")),
            restarts=int(fields.get("Restarts", "0") or 0),
        )


def words_of(line: str) -> dict[str, str]:
    """`NAME=value` words of a line; a value may hold spaces. The first of a name counts."""
    marks = list(_WORD.finditer(line))
    ends = [mark.start() for mark in marks[1:]] + [len(line)]
    found: dict[str, str] = {}
    for mark, end in zip(marks, ends, strict=False):
        found.setdefault(mark.group(1), line[mark.end() : end].strip())
    return found


def known(value: str) -> str:
    """The value, or nothing where Slurm prints one of its words for nothing."""
    return "" if value in _NOTHING else value


def host_names(expression: str) -> tuple[str, ...]:
    """`n[1-2],m3` -> its nodes, in order."""
    if not expression:
        return ()
    return tuple(run_command(("scontrol", "show", "hostnames", expression)).split())


def node_states(nodes: Sequence[str]) -> dict[str, tuple[str, str, str]]:
    """Node -> its state, why, and its address; of a node that is down the state holds `DOWN`."""
    text = run_command(("scontrol", "--oneliner", "show", "node", ",".join(nodes)))
    rows = [words_of(line) for line in text.splitlines() if line.startswith("NodeName=")]
    return {
        row["NodeName"]: (row.get("State", ""), known(row.get("Reason", "")), row.get("NodeAddr", ""))
        for row in rows
    }


def cancel(target: str, signal: str = "") -> None:
    """Cancel a job (`12`), a component (`12+1`) or a step (`12.3`); what is gone already is no fault."""
    words = ("scancel", *((f"--signal={signal}",) if signal else ()), target)
    try:
        run_command(words)
    except CommandFailed as error:
        if not re.search(
            r"invalid job id|already complet|invalid step|step.* not", str(error), re.IGNORECASE
        ):
            raise


def jobs_named(name: str, conf: str = "") -> list[str]:
    """Ids of this user's jobs of that name that wait or run; one that is ending needs nobody."""
    words = ("squeue", "--noheader", f"--name={name}", "--me", "--format=%A %T")
    rows = [line.split() for line in run_command(words, conf=conf).splitlines()]
    return list(dict.fromkeys(row[0] for row in rows if row and row[-1] not in ENDING))


def cancel_named(name: str, conf: str = "") -> None:
    """Cancel every job of this name; names of jobs are made to be nobody else's."""
    for job in jobs_named(name, conf):
        run_command(("scancel", job), conf=conf)
