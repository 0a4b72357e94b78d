"""What the hidden-state store promises, against a real mooncake_master on loopback."""

from __future__ import annotations

import ctypes
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tasks.errors import StoreError
from tasks.stream.checksum import SEAL_BYTES, SealBroken, check_seal
from tasks.stream.pinned import PinnedStore
from tasks.stream.store import ObjectMissing, StoreClient

pytestmark = pytest.mark.integration

MIB = 2**20
SEGMENT_BYTES = 64 * MIB
OBJECT_BYTES = 16 * MIB


def _free_ports() -> tuple[int, int]:
    with socket.socket() as one, socket.socket() as two:
        one.bind(("127.0.0.1", 0))
        two.bind(("127.0.0.1", 0))
        return one.getsockname()[1], two.getsockname()[1]


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    program = shutil.which("mooncake_master", path=str(Path(sys.executable).parent))
    assert program, "mooncake_master is not beside this Python"
    rpc, metrics = _free_ports()
    log = tmp_path_factory.mktemp("master") / "log"
    with open(log, "w") as stream:
        process = subprocess.Popen(
            [
                program,
                "-rpc_address=127.0.0.1",
                f"-rpc_port={rpc}",
                "-metrics_host=127.0.0.1",
                f"-metrics_port={metrics}",
            ],
            stdout=stream,
            stderr=stream,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + 30
        while True:
            assert process.poll() is None, log.read_text()[-2000:]
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", rpc)) == 0:
                    break
            assert time.monotonic() < deadline, "the master does not listen"
            time.sleep(0.05)
        yield f"127.0.0.1:{rpc}"
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


class Writer:
    """A client that lends memory, with one registered buffer, as the connector has."""

    def __init__(self, master: str):
        self.client = StoreClient(master, segment_bytes=SEGMENT_BYTES)
        self.buffer = (ctypes.c_char * OBJECT_BYTES)()
        self.address = ctypes.addressof(self.buffer)
        assert self.client.raw.register_buffer(self.address, OBJECT_BYTES) == 0

    def pinned(self, timeout_s: float) -> PinnedStore:
        return PinnedStore(self.client.raw, put_timeout_s=timeout_s, segment_bytes=SEGMENT_BYTES)

    def fill(self, byte: int) -> None:
        ctypes.memset(self.address, byte, OBJECT_BYTES)


@pytest.fixture(scope="module")
def writer(master: str) -> Iterator[Writer]:
    writer = Writer(master)
    yield writer
    writer.client.close()


@pytest.fixture
def reader(master: str, writer: Writer) -> Iterator[StoreClient]:
    with StoreClient(master) as client:
        yield client
        client.remove_matching("^t-.*")


def _fill_store(writer: Writer) -> list[str]:
    store = writer.pinned(timeout_s=0.05)
    keys: list[str] = []
    try:
        while len(keys) < 100:
            store.put_from(f"t-full-{len(keys)}", writer.address, OBJECT_BYTES)
            keys.append(f"t-full-{len(keys)}")
    except StoreError:
        return keys
    raise AssertionError("the store took more than it has")


def test_round_trip_is_sealed(writer: Writer, reader: StoreClient) -> None:
    writer.fill(7)
    writer.pinned(1.0).put_from("t-a", writer.address, OBJECT_BYTES)
    stored = reader.get("t-a", OBJECT_BYTES)
    assert check_seal(stored) == 0
    assert bytes(stored[:100]) == bytes([7]) * 100 and len(stored) == OBJECT_BYTES


def test_unread_objects_are_never_evicted(writer: Writer, reader: StoreClient) -> None:
    keys = _fill_store(writer)
    assert len(keys) >= 2
    assert all(reader.exists(key) for key in keys)


def test_full_store_makes_the_put_wait_until_the_reader_makes_room(
    writer: Writer, reader: StoreClient
) -> None:
    keys = _fill_store(writer)
    timer = threading.Timer(0.3, reader.remove, (keys[0],))
    timer.start()
    assert writer.pinned(timeout_s=30).put_from("t-late", writer.address, OBJECT_BYTES) == 0
    timer.join()
    assert check_seal(reader.get("t-late")) >= 1


def test_existing_key_is_an_error_not_a_silent_success(writer: Writer, reader: StoreClient) -> None:
    store = writer.pinned(1.0)
    store.put_from("t-once", writer.address, MIB)
    with pytest.raises(StoreError, match="already in the store"):
        store.put_from("t-once", writer.address, MIB)


def test_object_larger_than_the_segment_is_refused_at_once(writer: Writer) -> None:
    with pytest.raises(StoreError, match="one sample has"):
        writer.pinned(60.0).put_from("t-huge", writer.address, SEGMENT_BYTES + 1)


def test_overwritten_bytes_are_noticed(writer: Writer, reader: StoreClient) -> None:
    writer.fill(1)
    writer.pinned(1.0).put_from("t-damaged", writer.address, MIB)
    data = bytearray(reader.get("t-damaged"))
    data[MIB // 2] ^= 0x10
    reader.remove("t-damaged")
    ctypes.memmove(writer.address, bytes(data), MIB)
    # The damaged bytes go in under the same key by a plain put, past the seal's writer.
    assert writer.client.raw.put_from("t-damaged", writer.address, MIB) == 0
    with pytest.raises(SealBroken, match="differs from the seal"):
        check_seal(reader.get("t-damaged", MIB))


def test_remove_works_under_a_lease_and_tells_what_was_there(writer: Writer, reader: StoreClient) -> None:
    writer.pinned(1.0).put_from("t-leased", writer.address, MIB)
    reader.get("t-leased")
    assert writer.client.raw.remove("t-leased") < 0, "a read object is leased"
    assert reader.remove("t-leased") and not reader.exists("t-leased")
    assert not reader.remove("t-leased")


def test_missing_object_and_wrong_size_are_told_apart(writer: Writer, reader: StoreClient) -> None:
    with pytest.raises(ObjectMissing):
        reader.get("t-nothing")
    writer.pinned(1.0).put_from("t-size", writer.address, MIB)
    with pytest.raises(StoreError, match="manifest says"):
        reader.get("t-size", MIB + SEAL_BYTES)


def test_regex_removes_one_run_only(writer: Writer, reader: StoreClient) -> None:
    from tasks.stream.capture import key_pattern

    store = writer.pinned(1.0)
    mine = ["cmpl-run-1-7-0a1b2c3dx1-0-abc", "cmpl-run-1-ready-0-abc", "chatcmpl-run-1-ready-abc"]
    other = "cmpl-run-1-other-7-0a1b2c3dx1-0-abc"
    for key in [*mine, other]:
        store.put_from(key, writer.address, MIB)
    assert reader.remove_matching(key_pattern("run-1")) == len(mine)
    assert reader.exists(other) and not any(reader.exists(key) for key in mine)
    reader.remove(other)


def test_master_that_is_not_there_is_a_clear_error() -> None:
    _, port = _free_ports()
    with pytest.raises(StoreError, match="cannot be reached"):
        StoreClient(f"127.0.0.1:{port}")
