"""One tree of errors. Each says what happened and with which values, where, and what to do."""

from __future__ import annotations

from collections.abc import Sequence

from tasks.redaction import redact

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_RESUMABLE = 75
EXIT_INTERRUPTED = 130


class RetrainError(Exception):
    """Base of every error that a user may see.

    Args:
        what: What happened, with the values involved.
        where: Field, file, process or URL that the fault belongs to.
        hint: What to do about it.
        log_tail: Last lines of the log of a process that died.
    """

    exit_code = EXIT_FAILED

    def __init__(self, what: str, *, where: str = "", hint: str = "", log_tail: Sequence[str] = ()):
        # Texts of libraries repeat addresses with their passwords; an error goes to terminals and databases.
        self.what = redact(what)
        self.where = redact(where)
        self.hint = redact(hint)
        self.log_tail = tuple(redact(line) for line in log_tail)
        super().__init__(self.what)

    def __str__(self) -> str:
        lines = [self.what]
        if self.where:
            lines.append(f"  where: {self.where}")
        if self.hint:
            lines.append(f"  to do: {self.hint}")
        if self.log_tail:
            lines.append("  last lines of its log:")
            lines += [f"    {line}" for line in self.log_tail]
        return "\n".join(lines)

    def __reduce__(self) -> tuple[object, ...]:
        """Keep `where` and `hint` when Prefect pickles the error into a state."""
        return (_rebuild, (type(self), self.what, self.where, self.hint, self.log_tail))


def _rebuild(
    kind: type[RetrainError], what: str, where: str, hint: str, log_tail: Sequence[str]
) -> RetrainError:
    return kind(what, where=where, hint=hint, log_tail=log_tail)


class UsageError(RetrainError):
    """Bad input from the user: profile, flag, prompt file, path."""

    exit_code = EXIT_USAGE


class ProfileError(UsageError):
    """A profile that cannot be loaded; `where` is the dotted field."""


class HardwareError(RetrainError):
    """A failing check of the validate stage."""


class UnmetRequirement(HardwareError, UsageError):
    """A failing check whose remedy is in the user's hands at once: free disk space, another port."""

    exit_code = EXIT_USAGE


class ServiceError(RetrainError):
    """A server that did not start, is not ours, died, or makes no progress."""


class PortInUse(ServiceError, UsageError):
    """The port that the profile asks for belongs to another program."""

    exit_code = EXIT_USAGE


class JobError(RetrainError):
    """A finite child process (trainer, capture client) ended with an error."""


class Stalled(JobError):
    """A child process showed no progress for longer than its limit."""


class StoreError(RetrainError):
    """The hidden-state store refused, lost or damaged an object."""


class BudgetSpent(RetrainError):
    """The run used what its profile allows; it stopped cleanly and can be resumed."""

    exit_code = EXIT_RESUMABLE


class StageInputError(RetrainError):
    """A stage received inputs that it cannot use."""


class PublishError(RetrainError):
    """Publication failed after the decision to publish."""


class GateRefused(PublishError):
    """Publication is refused; a draft that is merely not better is *held*, not refused."""


class NodeLost(ServiceError):
    """A node of the run's allocation failed; the same run can be resumed on others."""

    exit_code = EXIT_RESUMABLE


class AllocationEnded(ServiceError):
    """The cluster took the nodes back (preemption, wall time, cancellation) or never gave them."""

    exit_code = EXIT_RESUMABLE
