"""Which captures live, so that only the objects of dead ones are swept from a store that several share.

Each capture client holds a lock on a small file in one folder per node, next to the runs. The kernel drops
the lock with the process, however it ends. A file that can be locked belongs to a capture that died before
it had emptied the store. What runs on other nodes is not in this folder and never touched.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path

from tasks.errors import ServiceError
from tasks.stream.keys import request_prefix


class Claim:
    """This process is the one capture client of a run.

    Args:
        folder: Where the captures of this node keep their claims.
        run_id: The run.
        store_master: `host:port` of its store.

    Attributes:
        inherited: Store of an earlier capture of this run that died before it was empty, or "".

    Raises:
        ServiceError: Another process captures for the same run.
    """

    def __init__(self, folder: Path, run_id: str, store_master: str):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.path = folder / f"{request_prefix(run_id)}.json"
        locked = _lock(self.path, create=True)
        if locked is None:
            raise ServiceError(
                f"another process captures for the run '{run_id}' already",
                where=str(self.path),
                hint="wait for it or end it: two captures of one run would remove each other's samples",
            )
        self._file = locked
        self.inherited = str(_read(locked).get("store_master", ""))
        os.ftruncate(locked, 0)
        os.pwrite(locked, json.dumps({"run_id": run_id, "store_master": store_master}).encode(), 0)

    def release(self, *, is_empty: bool) -> None:
        """End the claim.

        Args:
            is_empty: Nothing of the run is in the store; otherwise the next capture sweeps it.
        """
        if is_empty:
            self.path.unlink(missing_ok=True)
        os.close(self._file)


def dead_runs(folder: Path, store_master: str) -> Iterator[str]:
    """Runs that left objects in this store and whose capture died.

    The run's claim is held while the caller works on it, and gone afterwards.

    Args:
        store_master: Only runs of this store; others cannot be swept from here.
    """
    for path in sorted(folder.glob("*.json")):
        locked = _lock(path, create=False)
        if locked is None:
            continue
        try:
            known = _read(locked)
            if known.get("store_master") == store_master:
                yield str(known["run_id"])
                path.unlink(missing_ok=True)
        finally:
            os.close(locked)


def _lock(path: Path, *, create: bool) -> int | None:
    """A locked descriptor of `path`; None if somebody holds it, or it is not there."""
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o600)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(descriptor).st_ino == path.stat().st_ino:
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            return None
        except FileNotFoundError:
            pass
        os.close(descriptor)  # it was removed between opening and locking


def _read(descriptor: int) -> dict[str, object]:
    """What a claim says; nothing if its writer died before it said anything."""
    try:
        value = json.loads(os.pread(descriptor, 65536, 0))
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
