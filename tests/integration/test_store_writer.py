"""The writing side against a real store: a full one, its error markers, and upstream's own reader."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import torch
from hs_connectors.mooncake_store import (
    VERSION,
    MooncakeHiddenStatesStore,
    MooncakeIntegrityError,
    MooncakeStoreConfig,
    packed_layout,
)
from running_store import MIB, OBJECT_BYTES, SEGMENT_BYTES, Writer, running_master

from tasks.stream.checksum import SEAL_BYTES, SealBroken, check_seal
from tasks.stream.codes import STORE_FULL
from tasks.stream.pinned import PinnedStore, PutRefused
from tasks.stream.reserve import KEY_PREFIX, RESERVE_BYTES, largest_object
from tasks.stream.sealed import SealedStore, enlarge_by_seal
from tasks.stream.store import StoreClient

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_master(tmp_path_factory.mktemp("master") / "log") as address:
        yield address


@pytest.fixture(scope="module")
def clients(master: str) -> Iterator[tuple[Writer, StoreClient]]:
    writer, reader = Writer(master), StoreClient(master)
    yield writer, reader
    reader.close()
    writer.client.close()


@pytest.fixture
def writer(clients: tuple[Writer, StoreClient]) -> Writer:
    return clients[0]


@pytest.fixture
def reader(clients: tuple[Writer, StoreClient]) -> StoreClient:
    return clients[1]


@pytest.fixture(autouse=True)
def empty_store(reader: StoreClient) -> Iterator[None]:
    """Each test begins with an empty segment: closing and mounting one takes seconds."""
    yield
    reader.remove_matching(".*")


def sample(key: str, rows: int, dtype: torch.dtype = torch.bfloat16) -> tuple[dict[str, Any], dict[str, Any]]:
    """Manifest and tensors of one sample with `rows` tokens, 3 layers and 65 values."""
    tensors = {"hidden_states": torch.randn(rows, 3, 65).to(dtype), "token_ids": torch.arange(rows)}
    layout, total = packed_layout({name: (list(t.shape), t.dtype) for name, t in tensors.items()})
    metadata = {"num_tokens": rows, "total_aligned_bytes": total, "extract_mode": "all"}
    manifest = {"handle": key, "version": VERSION, "tensors": layout, "metadata": metadata}
    enlarge_by_seal(manifest)
    return manifest, tensors


_KEPT: list[SealedStore] = []
"""Their buffers are registered with the client of all tests, so no other may get their addresses."""


def sealed_on(writer: Writer, timeout_s: float = 5.0) -> SealedStore:
    """Our writer on the client of `writer`."""
    store = SealedStore(MooncakeStoreConfig(global_segment_size=SEGMENT_BYTES), timeout_s)
    store._store = writer.pinned(timeout_s)
    _KEPT.append(store)
    return store


@cache
def upstream_reader(client: StoreClient) -> MooncakeHiddenStatesStore:
    store = MooncakeHiddenStatesStore(MooncakeStoreConfig())
    store._store = client.raw
    return store


class Watched:
    """A client whose refused puts set `refused`, so that a test knows when a writer waits."""

    def __init__(self, raw: Any):
        self.refused = threading.Event()
        self._raw = raw

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)

    def batch_put_from_multi_buffers(self, *arguments: Any) -> list[int]:
        codes = list(self._raw.batch_put_from_multi_buffers(*arguments))
        if STORE_FULL in codes:
            self.refused.set()
        return codes


def watched(store: SealedStore) -> Watched:
    raw = store._store._store
    store._store._store = Watched(raw)
    return store._store._store  # type: ignore[no-any-return]


def marker_of(reader: StoreClient, key: str) -> dict[str, Any]:
    return dict(json.loads(bytes(reader.get(f"{key}:error"))))


def put_or_mark(store: SealedStore, manifest: dict[str, Any], tensors: dict[str, Any]) -> None:
    """What the connector's writer thread does with a sample."""
    try:
        store.put_sample(manifest, tensors)
    except Exception as error:
        store.put_error(manifest, str(error))


@pytest.mark.parametrize("rows", [0, 1, 7, 30_000])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_upstreams_reader_reads_ours(
    writer: Writer, reader: StoreClient, rows: int, dtype: torch.dtype
) -> None:
    manifest, tensors = sample("u-a", rows, dtype)
    sealed_on(writer).put_sample(manifest, tensors)
    read = upstream_reader(reader).get_sample(json.loads(json.dumps(manifest)), timeout=5)
    assert all(torch.equal(read[name], tensor) for name, tensor in tensors.items())
    stored = reader.get("u-a", manifest["metadata"]["total_aligned_bytes"])
    assert check_seal(stored) == 0
    assert manifest["metadata"]["checksum"] == {"algorithm": "xxh3-64", "bytes": SEAL_BYTES}


def test_sample_goes_into_another_clients_segment_from_where_it_lies(
    writer: Writer, reader: StoreClient
) -> None:
    """With two servers a sample may be stored by the other one; here `reader` lends no memory itself."""
    manifest, tensors = sample("u-far", 3000)
    far = SealedStore(MooncakeStoreConfig(global_segment_size=SEGMENT_BYTES), 5.0)
    far._store = PinnedStore(reader.raw, put_timeout_s=5.0, segment_bytes=SEGMENT_BYTES)
    far.put_sample(manifest, tensors)
    assert far._staging == {}
    assert check_seal(reader.get("u-far")) == 0
    read = upstream_reader(writer.client).get_sample(manifest, timeout=5)
    assert all(torch.equal(read[name], tensor) for name, tensor in tensors.items())


def test_layout_with_room_for_more_than_padding_is_refused(writer: Writer) -> None:
    manifest, tensors = sample("u-gap", 3)
    manifest["metadata"]["total_aligned_bytes"] += 640
    with pytest.raises(MooncakeIntegrityError, match="more than padding"):
        sealed_on(writer).put_sample(manifest, tensors)


def test_tensors_that_upstream_packs_are_sealed_too(writer: Writer, reader: StoreClient) -> None:
    """As those of an accelerator: here, ones that are not contiguous."""
    manifest, tensors = sample("u-strided", 50)
    tensors["hidden_states"] = tensors["hidden_states"].transpose(0, 1).contiguous().transpose(0, 1)
    assert not tensors["hidden_states"].is_contiguous()
    sealed_on(writer).put_sample(manifest, tensors)
    assert check_seal(reader.get("u-strided")) == 0
    read = upstream_reader(reader).get_sample(manifest, timeout=5)
    assert torch.equal(read["hidden_states"], tensors["hidden_states"])


def test_one_changed_byte_is_found_wherever_it_is(writer: Writer, reader: StoreClient) -> None:
    manifest, tensors = sample("u-damaged", 11)
    sealed_on(writer).put_sample(manifest, tensors)
    stored = bytearray(reader.get("u-damaged"))
    for at in [*range(0, len(stored) - SEAL_BYTES, 97), len(stored) - SEAL_BYTES, len(stored) - 48]:
        stored[at] ^= 4
        with pytest.raises(SealBroken):
            check_seal(memoryview(stored))
        stored[at] ^= 4
    assert check_seal(memoryview(stored)) == 0


def test_tensors_that_differ_from_the_manifest_are_refused(writer: Writer, reader: StoreClient) -> None:
    manifest, tensors = sample("u-other", 9)
    with pytest.raises(MooncakeIntegrityError, match="manifest describes"):
        sealed_on(writer).put_sample(manifest, {**tensors, "token_ids": torch.arange(8)})
    assert not reader.exists("u-other")


def test_full_store_waits_and_counts_until_there_is_room(writer: Writer, reader: StoreClient) -> None:
    store = sealed_on(writer, timeout_s=300)
    keys = writer.occupy("u-full-")
    watch = watched(store)
    manifest, tensors = sample("u-late", 20_000)
    put = threading.Thread(target=store.put_sample, args=(manifest, tensors))
    put.start()
    assert watch.refused.wait(120)
    for key in keys[:2]:
        reader.remove(key)
    put.join()
    waits = check_seal(reader.get("u-late"))
    counts = store.take_counters()
    assert waits >= 1 and counts["put_waits"] == waits and counts["put_wait_seconds"] > 0
    assert counts["puts"] == 1 and counts["put_bytes"] == manifest["metadata"]["total_aligned_bytes"]
    assert store.take_counters() == {}


def test_marker_reaches_the_reader_through_the_reserve(writer: Writer, reader: StoreClient) -> None:
    store = sealed_on(writer, timeout_s=0.02)
    writer.occupy("u-full-")
    assert writer.client.raw.put("u-tiny", b"x", writer.client._pinned) == -200, "not even a byte fits"
    manifest, tensors = sample("u-refused", 20_000)
    put_or_mark(store, manifest, tensors)
    marker = marker_of(reader, "u-refused")
    assert marker["reason"] == "store_full"
    assert "no space for 'u-refused'" in marker["error"]
    assert not store._store.reserve.held
    counts = store.take_counters()
    assert (counts["puts_refused"], counts["markers"], counts["reserves_spent"]) == (1, 1, 1)
    assert marker["waits"] == counts.get("put_waits", 0)
    with pytest.raises(MooncakeIntegrityError, match="no space for"):
        upstream_reader(reader).get_sample(manifest, timeout=5)


def test_many_markers_fit_into_one_reserve(writer: Writer, reader: StoreClient) -> None:
    store = sealed_on(writer, timeout_s=0.0)
    writer.occupy("u-full-")
    for number in range(8):
        manifest, tensors = sample(f"u-m{number}", 2000)
        put_or_mark(store, manifest, tensors)
    assert [marker_of(reader, f"u-m{n}")["reason"] for n in range(8)] == ["store_full"] * 8
    assert store.take_counters()["reserves_spent"] == 1


def test_longest_marker_fits_into_the_reserve(writer: Writer, reader: StoreClient) -> None:
    store = sealed_on(writer)
    writer.occupy("u-full-")
    manifest, _ = sample("u-long", 1)
    store.put_error(manifest, "\U0001f40c" * 10_000)
    assert marker_of(reader, "u-long")["error"].startswith("\U0001f40c")
    assert reader.size("u-long:error") < RESERVE_BYTES // 4


def test_markers_of_several_threads_arrive_although_samples_wait(writer: Writer, reader: StoreClient) -> None:
    store = sealed_on(writer, timeout_s=0.3)
    writer.occupy("u-full-")
    samples = [sample(f"u-t{number}", 500) for number in range(4)]
    threads = [threading.Thread(target=put_or_mark, args=(store, *one)) for one in samples]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [marker_of(reader, f"u-t{n}")["reason"] for n in range(4)] == ["store_full"] * 4


def test_reserve_is_taken_again_when_there_is_space(writer: Writer, reader: StoreClient) -> None:
    store = sealed_on(writer, timeout_s=0.0)
    keys = writer.occupy("u-full-")
    put_or_mark(store, *sample("u-no", 20_000))
    assert not reader.exists(store._store.reserve.key)
    for key in keys[:2]:
        reader.remove(key)
    store.put_sample(*sample("u-yes", 100))
    assert store._store.reserve.held and reader.exists(store._store.reserve.key)
    keys = writer.occupy("u-more-")
    put_or_mark(store, *sample("u-again", 20_000))
    assert marker_of(reader, "u-again")["reason"] == "store_full"
    assert store.take_counters()["reserves_spent"] == 2


def test_reserve_that_a_restarted_master_forgot_is_taken_again(writer: Writer, reader: StoreClient) -> None:
    store = sealed_on(writer)
    reserve = store._store.reserve
    reserve.recheck()
    assert reserve.held
    reader.remove(reserve.key)
    reserve.recheck()
    assert not reserve.held
    store.put_sample(*sample("u-after", 100))
    assert reserve.held and reader.exists(reserve.key)


def test_reserve_stands_outside_every_runs_sweep_and_goes_with_its_writer(
    master: str, reader: StoreClient
) -> None:
    from tasks.stream.capture import key_pattern

    config = MooncakeStoreConfig(
        local_hostname="127.0.0.1",
        master_server_address=master,
        global_segment_size=SEGMENT_BYTES,
        local_buffer_size=OBJECT_BYTES,
    )
    store = SealedStore(config, 5.0).setup()
    key = store._store.reserve.key
    assert key.startswith(KEY_PREFIX) and reader.exists(key)
    assert reader.remove_matching(key_pattern("run-1")) == 0 and reader.exists(key)
    store.close()
    assert not reader.exists(key)


def test_sample_that_can_never_fit_is_refused_before_it_is_copied(
    writer: Writer, reader: StoreClient
) -> None:
    store = sealed_on(writer, timeout_s=60)
    manifest, tensors = sample("u-huge", 1)
    manifest["metadata"]["total_aligned_bytes"] = largest_object(SEGMENT_BYTES) + 1
    put_or_mark(store, manifest, tensors)
    assert marker_of(reader, "u-huge")["reason"] == "too_large"
    assert f"{largest_object(SEGMENT_BYTES):,}" in marker_of(reader, "u-huge")["error"]
    assert store._staging == {}


def test_largest_sample_fits_beside_the_reserve_and_a_larger_one_never_would(writer: Writer) -> None:
    largest = largest_object(SEGMENT_BYTES)
    whole = torch.zeros(SEGMENT_BYTES, dtype=torch.uint8)
    assert writer.client.raw.register_buffer(whole.data_ptr(), SEGMENT_BYTES) == 0
    store = writer.pinned(0.0)
    assert store.reserve.held
    assert writer.client.raw.put_from("u-larger", whole.data_ptr(), largest + MIB) == STORE_FULL
    assert store.put_from("u-largest", whole.data_ptr(), largest) == 0
    writer.client.raw.unregister_buffer(whole.data_ptr())


def test_existing_key_is_an_error_that_the_marker_names(writer: Writer, reader: StoreClient) -> None:
    store = sealed_on(writer)
    manifest, tensors = sample("u-once", 5)
    store.put_sample(manifest, tensors)
    before = bytes(reader.get("u-once"))
    put_or_mark(store, *sample("u-once", 5))
    assert marker_of(reader, "u-once")["reason"] == "key_exists"
    assert bytes(reader.get("u-once")) == before


def test_waiting_put_gives_up_when_the_server_ends(writer: Writer) -> None:
    store = sealed_on(writer, timeout_s=600)
    writer.occupy("u-full-")
    watch = watched(store)
    ender = threading.Thread(target=lambda: watch.refused.wait(120) and store.end_waits())
    ender.start()
    with pytest.raises(PutRefused, match="server ends") as caught:
        store.put_sample(*sample("u-never", 20_000))
    ender.join()
    assert caught.value.reason == "closing"


def test_objects_of_ours_are_never_evicted(writer: Writer, reader: StoreClient) -> None:
    """Upstream puts without a pin: where nobody has read yet, the first ones vanish."""
    store = writer.pinned(timeout_s=0.0)
    keys = [f"u-p{number}" for number in range(15)]
    for key in keys:
        store.put_from(key, writer.address, 4 * MIB)
    with pytest.raises(PutRefused, match="no space"):
        store.put_from("u-p15", writer.address, 4 * MIB)
    assert all(reader.exists(key) for key in keys)
