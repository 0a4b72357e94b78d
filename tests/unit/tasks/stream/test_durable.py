"""What is said of a disk without space, wherever the write was."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from tasks.stream.durable import LogWriteError, naming_full_disk


def test_a_full_disk_is_named_with_its_file(tmp_path: Path) -> None:
    full = pytest.raises(LogWriteError, match=r"the disk is full \(.* bytes free\)")
    with full as caught, naming_full_disk("the counters", tmp_path):
        raise OSError(errno.ENOSPC, "No space left on device", "counters.json")
    assert caught.value.where == "counters.json"


def test_other_errors_pass(tmp_path: Path) -> None:
    with pytest.raises(ConnectionRefusedError), naming_full_disk("the counters", tmp_path):
        raise ConnectionRefusedError(errno.ECONNREFUSED, "refused")
