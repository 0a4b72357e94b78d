"""After a hang: is it the machine? The hardware check once more, and what it finds beside the error.

A stalled collective is often the first sign of a failing link or GPU. The driver knows, the trainer's log
does not.
"""

from __future__ import annotations

from profiles.schema import Profile
from tasks.errors import RetrainError, Stalled
from tasks.processes.launcher import Launcher
from tasks.report.progress import Progress
from tasks.run_folder import RunFolder
from tasks.stages import VALIDATE
from tasks.validate.core import check_machines
from tasks.validate.models import ValidationReport
from tasks.validate.summary import summary_lines


def checked(
    error: Stalled, profile: Profile, run: RunFolder, launcher: Launcher, progress: Progress
) -> Stalled:
    """The same error with the result of the check. A machine that fails it is checked again by a resume."""
    try:
        report = check_machines(profile, run, launcher, progress)
    except (RetrainError, OSError) as problem:
        said = [f"the hardware could not be checked after it: {str(problem).splitlines()[0]}"]
    else:
        said = _said(report)
        if report.worst == "fail":
            run.stage(VALIDATE).invalidate()
    return Stalled(
        "\n".join([error.what, *said]), where=error.where, hint=error.hint, log_tail=error.log_tail
    )


def _said(report: ValidationReport) -> list[str]:
    """One line if nothing fails, else each failure with its remedy."""
    failed = [line for line in summary_lines(report.checks) if line.status == "fail"]
    if not failed:
        passed = sum(check.status == "pass" for check in report.checks)
        return [f"hardware check after it: nothing fails ({passed} checks passed)"]
    lines = ["hardware check after it, which a resume runs again first:"]
    for line in failed:
        lines += line.told()
    return lines
