"""What the hidden-state store promises, against a real mooncake_master on loopback."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import pytest
from running_store import MIB, OBJECT_BYTES, SEGMENT_BYTES, Writer, free_ports, running_master

from tasks.errors import StoreError
from tasks.stream.checksum import SEAL_BYTES, SealBroken, check_seal
from tasks.stream.store import ObjectMissing, StoreClient

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


def test_unread_objects_are_never_evicted(writer: Writer, reader: StoreClient) -> None:
    keys = _fill_store(writer)
    assert len(keys) >= 2
    assert all(reader.exists(key) for key in keys)


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
    _, port = free_ports()
    with pytest.raises(StoreError, match="cannot be reached"):
        StoreClient(f"127.0.0.1:{port}")
