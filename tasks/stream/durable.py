"""Writes that survive a power cut, and what is said when a disk does not take them."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tasks.errors import RetrainError

_FULL = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "the file would exceed the limit on file sizes",
}

_HINT = (
    "free space there, or bound the log with stream.retention: window; then resume the run: complete samples "
    "are kept"
)


class LogWriteError(RetrainError):
    """A sample could not be put on disk; everything that was complete before is still there."""


@contextmanager
def writing(what: str, path: Path | str, needed_bytes: int) -> Iterator[None]:
    """Turn an `OSError` inside into a `LogWriteError` that says what the disk lacks.

    Args:
        what: What is being written, for the message.
        needed_bytes: Bytes that it takes.

    Raises:
        LogWriteError: With path, bytes needed and bytes free.
    """
    try:
        yield
    except OSError as error:
        raise write_error(what, Path(path), needed_bytes, error) from None


@contextmanager
def naming_full_disk(what: str, path: Path) -> Iterator[None]:
    """Turn an `OSError` inside that says that there is no space into a `LogWriteError`; others pass.

    Args:
        what: What is being written, for the message.
        path: Where; its disk is looked at.

    Raises:
        LogWriteError: With path and bytes free.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            raise
        raise LogWriteError(
            f"{what} cannot be written: {_FULL[error.errno]} ({free_bytes(path):,} bytes free)",
            where=str(error.filename or path),
            hint=_HINT,
        ) from None


def write_error(what: str, path: Path, needed_bytes: int, error: OSError) -> LogWriteError:
    """The error of a failed write, from the system's."""
    cause = _FULL.get(error.errno or 0, error.strerror or type(error).__name__)
    return LogWriteError(
        f"{what} cannot be written: {cause} ({needed_bytes:,} bytes needed, {free_bytes(path):,} free)",
        where=str(path),
        hint=_HINT,
    )


def free_bytes(path: Path) -> int:
    """Bytes that this user may still write where `path` is or would be."""
    while not path.exists() and path != path.parent:
        path = path.parent
    state = os.statvfs(path)
    return state.f_bavail * state.f_frsize


def write_all(descriptor: int, data: memoryview | bytes) -> None:
    """Write all of `data`; the system may take it in parts."""
    rest = memoryview(data)
    while len(rest):
        rest = rest[os.write(descriptor, rest) :]


def remove(path: str) -> None:
    """Remove a file that may not be there."""
    with suppress(FileNotFoundError):
        os.unlink(path)
