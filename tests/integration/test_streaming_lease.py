"""A read that takes longer than its lease: a known outcome, never a partial sample."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest
from streaming_bench import Master

from tasks.stream.checksum import check_seal
from tasks.stream.pinned import PinnedStore
from tasks.stream.store import LeaseExpired, StoreClient

pytestmark = pytest.mark.integration
MIB = 2**20
OBJECT_BYTES = 64 * MIB
"""Copying it takes several times the shortest lease that the master gives, 1 ms."""


def _put(client: StoreClient, key: str) -> None:
    buffer = (ctypes.c_char * OBJECT_BYTES)()
    address = ctypes.addressof(buffer)
    assert client.raw.register_buffer(address, OBJECT_BYTES) == 0
    store = PinnedStore(client.raw, put_timeout_s=5.0, segment_bytes=2 * OBJECT_BYTES)
    assert store.put_from(key, address, OBJECT_BYTES) == 0


@pytest.mark.parametrize(("lease_ms", "expires"), [("1", True), ("10000", False)])
def test_expired_lease_is_told_from_a_lost_object(lease_ms: str, expires: bool, tmp_path: Path) -> None:
    master = Master(tmp_path, f"-default_kv_lease_ttl={lease_ms}")
    try:
        with (
            StoreClient(master.address, segment_bytes=2 * OBJECT_BYTES) as writer,
            StoreClient(master.address, local_buffer_bytes=2 * OBJECT_BYTES) as reader,
        ):
            _put(writer, "lease")
            if expires:
                with pytest.raises(LeaseExpired, match="lease ran out"):
                    reader.get("lease", OBJECT_BYTES)
            else:
                assert check_seal(reader.get("lease", OBJECT_BYTES)) == 0
            assert reader.exists("lease")
    finally:
        master.kill()
