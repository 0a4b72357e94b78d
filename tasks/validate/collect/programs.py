"""Other programs, asked with a deadline. Only the standard library."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


class NotInstalled(Exception):
    """The program is not there."""


class Unanswered(Exception):
    """The program did not end in time or could not be started; the text says which."""


@dataclass(frozen=True)
class Answer:
    """What a program printed and how it ended."""

    status: int
    output: str
    complaint: str

    @property
    def why(self) -> str:
        """First line of its complaint, or of its output, or the exit status."""
        lines = (self.complaint.strip() or self.output.strip()).splitlines()
        return lines[0].strip() if lines else f"exit status {self.status}"


def ask(
    argv: Sequence[str], deadline_s: float, stdin: str = "", environment: Mapping[str, str] = {}
) -> Answer:
    """Run a program and take what it prints.

    Args:
        environment: Added to this process's own.

    A process in uninterruptible sleep cannot be ended: it is sent SIGKILL and not waited for.

    Raises:
        NotInstalled: No such program.
        Unanswered: Deadline passed, or it could not be started.
    """
    try:
        child = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env={**os.environ, "LC_ALL": "C", **environment},
            start_new_session=True,
        )
    except FileNotFoundError as error:
        raise NotInstalled(f"{argv[0]} is not installed") from error
    except OSError as error:
        raise Unanswered(f"{argv[0]} could not be started: {error.strerror}") from error
    try:
        output, complaint = child.communicate(stdin or None, timeout=deadline_s)
    except subprocess.TimeoutExpired as error:
        _give_up(child)
        raise Unanswered(f"timed out after {deadline_s:g} s") from error
    return Answer(child.returncode, output, complaint)


def _give_up(child: subprocess.Popen[str]) -> None:
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        child.kill()
    for pipe in (child.stdin, child.stdout, child.stderr):
        if pipe:
            pipe.close()
    child.poll()
