"""What the hidden-state store promises, against a real mooncake_master on loopback."""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from running_store import MIB, OBJECT_BYTES, SEGMENT_BYTES, Writer, free_ports, running_master

from tasks.errors import StoreError
from tasks.stream.checksum import SEAL_BYTES, SealBroken, check_seal
from tasks.stream.codes import OBJECT_EXISTS
from tasks.stream.pinned import PinnedStore, PutRefused
from tasks.stream.store import ObjectMissing, StoreClient, WrongSize

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_master(tmp_path_factory.mktemp("master") / "log") as address:
        yield address


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


class Wrapped:
    """A client of Mooncake's, of which a subclass changes or watches a call."""

    def __init__(self, raw: Any):
        self._raw = raw

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)


class Watching(Wrapped):
    """A client that remembers the nice value of the threads that wait for a transfer."""

    def __init__(self, raw: Any):
        super().__init__(raw)
        self.nice: list[int] = []

    def get_into(self, *arguments: Any) -> int:
        self.nice.append(_nice())
        return int(self._raw.get_into(*arguments))


def _nice() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


def test_who_waits_for_a_large_object_gives_way(
    writer: Writer, reader: StoreClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer.fill(3)
    writer.pinned(1.0).put_from("t-nice", writer.address, OBJECT_BYTES)
    reader.raw, own = (watching := Watching(reader.raw)), _nice()
    for limit in (OBJECT_BYTES, OBJECT_BYTES + 1):
        monkeypatch.setattr("tasks.stream.store._HANDED_ON_BYTES", limit)
        assert check_seal(reader.get("t-nice", OBJECT_BYTES)) == 0
    assert watching.nice == [min(own + 10, 19), own] and _nice() == own


class Crowded(Wrapped):
    """A client that counts the transfers that run at once; each takes a moment."""

    def __init__(self, raw: Any):
        super().__init__(raw)
        self._lock = threading.Lock()
        self.running = self.most = 0

    def get_into(self, *arguments: Any) -> int:
        with self._lock:
            self.running += 1
            self.most = max(self.most, self.running)
        time.sleep(0.05)
        with self._lock:
            self.running -= 1
        return int(self._raw.get_into(*arguments))


def test_transfers_of_all_sizes_share_one_limit(
    master: str, writer: Writer, reader: StoreClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tasks.stream.store._CORES_A_TRANSFER", 2 * len(os.sched_getaffinity(0)))
    monkeypatch.setattr("tasks.stream.store._HANDED_ON_BYTES", OBJECT_BYTES)
    sizes = {"t-small": MIB, "t-large": OBJECT_BYTES}
    for key, size in sizes.items():
        writer.pinned(1.0).put_from(key, writer.address, size)
    with StoreClient(master) as client, ThreadPoolExecutor(4) as threads:
        client.raw = crowded = Crowded(client.raw)
        wanted = [*sizes.items()] * 4
        assert list(threads.map(lambda one: len(client.get(*one)), wanted)) == [size for _, size in wanted]
    assert crowded.most == 1


def test_unread_objects_are_never_evicted(writer: Writer, reader: StoreClient) -> None:
    keys = _fill_store(writer)
    assert len(keys) >= 2
    assert all(reader.exists(key) for key in keys)


class Answering(Wrapped):
    """A client whose puts of existing keys answer `code`, as other versions of Mooncake do."""

    def __init__(self, raw: Any, code: int):
        super().__init__(raw)
        self._code = code

    def put_from(self, key: str, *arguments: Any) -> int:
        exists = self._raw.is_exist(key) == 1
        return self._code if exists else int(self._raw.put_from(key, *arguments))


@pytest.mark.parametrize("unique_keys", [False, True])
def test_existing_key_is_an_error_unless_it_holds_the_same(
    writer: Writer, reader: StoreClient, unique_keys: bool
) -> None:
    """Mooncake answers 0 (this version) or -705; a writer that does not look first relies on -705."""
    key = f"t-once-{unique_keys}"
    raw = Answering(writer.client.raw, OBJECT_EXISTS if unique_keys else 0)
    store = PinnedStore(raw, put_timeout_s=1.0, segment_bytes=SEGMENT_BYTES, unique_keys=unique_keys)
    writer.fill(1)
    store.put_from(key, writer.address, MIB)
    before = bytes(reader.get(key))
    store.put_from(key, writer.address, MIB)
    writer.fill(2)
    for size in (MIB, 2 * MIB):
        with pytest.raises(PutRefused, match="holds something else") as caught:
            store.put_from(key, writer.address, size)
        assert caught.value.reason == "key_exists"
    assert bytes(reader.get(key)) == before
    assert store.put(f"{key}:error", b"x") == store.put(f"{key}:error", b"x") == 0
    with pytest.raises(PutRefused, match="holds something else"):
        store.put(f"{key}:error", b"y")


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


class Counting(Wrapped):
    """A client that counts how often an object's size is asked for."""

    def __init__(self, raw: Any):
        super().__init__(raw)
        self.asked = 0

    def get_size(self, key: str) -> int:
        self.asked += 1
        return int(self._raw.get_size(key))


def test_a_size_that_is_known_is_not_asked_for(
    writer: Writer, reader: StoreClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer.pinned(1.0).put_from("t-known", writer.address, MIB)
    raw = Counting(reader.raw)
    monkeypatch.setattr(reader, "raw", raw)
    assert check_seal(reader.get("t-known", MIB)) == 0 and raw.asked == 0
    assert check_seal(reader.get("t-known")) == 0 and raw.asked == 1
    for other in (MIB - 1, MIB + 1, MIB // 2, 3 * MIB, SEAL_BYTES):
        with pytest.raises(WrongSize, match=f"has {MIB} bytes, its manifest says {other}"):
            reader.get("t-known", other)
    with pytest.raises(ObjectMissing):
        reader.get("t-unknown", MIB)


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
    _, port = free_ports()
    with pytest.raises(StoreError, match="cannot be reached"):
        StoreClient(f"127.0.0.1:{port}")
