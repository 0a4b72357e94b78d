"""A writer whose own segment is full, beside a server whose process has just died: -800 for a while."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from running_store import MIB, SEGMENT_BYTES, Writer, running_master

from tasks.stream.checksum import check_seal
from tasks.stream.codes import TRANSFER_FAILED
from tasks.stream.pinned import PinnedStore, PutRefused
from tasks.stream.store import StoreClient

pytestmark = pytest.mark.integration

LENDER = """
import sys
from running_store import Writer
writer = Writer(sys.argv[1])
print("lends", flush=True)
sys.stdin.read()
"""


class Watched:
    """A client that tells when a put of it failed with -800."""

    def __init__(self, raw: Any):
        self.failed = threading.Event()
        self._raw = raw

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)

    def put_from(self, *arguments: Any) -> int:
        code = int(self._raw.put_from(*arguments))
        if code == TRANSFER_FAILED:
            self.failed.set()
        return code


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    with running_master(tmp_path / "log") as address:
        yield address


def killed_lender(master: str) -> None:
    """Lend a segment to the store and die; the master believes in it for its `client_ttl`."""
    with subprocess.Popen(
        [sys.executable, "-c", LENDER, master],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": ":".join(sys.path)},
    ) as lender:
        assert lender.stdout is not None and any("lends" in line for line in lender.stdout)
        lender.kill()


def test_put_waits_for_a_living_segment_and_marks_what_found_none(master: str) -> None:
    writer, reader = Writer(master), StoreClient(master)
    watched = Watched(writer.client.raw)
    store = PinnedStore(watched, put_timeout_s=300.0, segment_bytes=SEGMENT_BYTES)
    writer.client._pinned.preferred_segment = writer.client.raw.get_hostname()
    keys = writer.occupy("full-")
    killed_lender(master)
    put = threading.Thread(target=store.put_from, args=("late", writer.address, MIB))
    put.start()
    assert watched.failed.wait(120)
    reader.remove(keys[0])
    put.join()
    counts = store.counters.take()
    assert check_seal(reader.get("late")) == 0, "no wait for space"
    assert counts["transfer_waits"] >= 1 and counts["transfer_wait_seconds"] > 0 and "put_waits" not in counts

    writer.occupy("more-")
    hasty = PinnedStore(watched, put_timeout_s=0.0, segment_bytes=SEGMENT_BYTES)
    with pytest.raises(PutRefused, match="put answered -800") as caught:
        hasty.put_from("never", writer.address, MIB)
    assert caught.value.reason == "transfer_failed"
    store.put("never:error", json.dumps({"reason": caught.value.reason}).encode())
    assert json.loads(bytes(reader.get("never:error"))) == {"reason": "transfer_failed"}
    assert store.counters.take()["reserves_spent"] == 1
    reader.close()
    writer.client.close()
