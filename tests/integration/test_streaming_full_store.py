"""A segment for three samples, fifty producers and a slow reader: the product's writer loses none."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hs_connectors.mooncake_store import VERSION, MooncakeStoreConfig, packed_layout
from streaming_bench import Master

from tasks.stream.checksum import check_seal
from tasks.stream.sealed import SealedStore, enlarge_by_seal
from tasks.stream.store import StoreClient

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]
MIB = 2**20
SEGMENT_BYTES = 16 * MIB
PRODUCERS = 50
ROWS = 4 * MIB // (8 * 128 * 4)
"""Three samples of a little more than 4 MiB fit into the segment, four do not."""
READ_PAUSE_S = 0.02


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Master]:
    master = Master(tmp_path_factory.mktemp("master"))
    yield master
    master.kill()


def sample(number: int) -> tuple[dict[str, object], dict[str, torch.Tensor]]:
    """Manifest and tensors of one producer; every value tells whose they are."""
    tensors = {
        "hidden_states": torch.full((ROWS, 8, 128), float(number)),
        "token_ids": torch.full((ROWS,), number, dtype=torch.int64),
    }
    spec, total = packed_layout({name: (tuple(t.shape), t.dtype) for name, t in tensors.items()})
    metadata = {"num_tokens": ROWS, "total_aligned_bytes": total, "extract_mode": "all"}
    manifest = {"handle": f"full-{number}", "version": VERSION, "tensors": spec, "metadata": metadata}
    enlarge_by_seal(manifest)
    return manifest, tensors


def test_all_fifty_arrive_once_and_whole(master: Master, tmp_path: Path) -> None:
    config = MooncakeStoreConfig(
        local_hostname="127.0.0.1",
        master_server_address=master.address,
        global_segment_size=SEGMENT_BYTES,
        local_buffer_size=16 * MIB,
    )
    store = SealedStore(config, put_timeout_s=180.0).setup()
    failed: list[str] = []

    def produce(number: int) -> None:
        try:
            store.put_sample(*sample(number))
        except Exception as error:
            failed.append(f"{number}: {error}")

    producers = [threading.Thread(target=produce, args=(number,)) for number in range(PRODUCERS)]
    for producer in producers:
        producer.start()
    with StoreClient(master.address) as reader:
        arrived, waits, most = _read_slowly(reader, failed)
        left = reader.remove_matching("^full-.*")
    for producer in producers:
        producer.join()
    assert not failed
    assert sorted(arrived) == list(range(PRODUCERS)) and left == 0
    assert waits > 0 and most <= 3, "the store was never full, or held more than it has"


def _read_slowly(reader: StoreClient, failed: list[str]) -> tuple[list[int], int, int]:
    """Numbers that arrived, how often their puts waited, and the most samples seen at once."""
    arrived: list[int] = []
    waits = most = 0
    deadline = time.monotonic() + 180
    while len(arrived) + len(failed) < PRODUCERS:
        assert time.monotonic() < deadline, f"{len(arrived)} of {PRODUCERS} arrived"
        present = [n for n in range(PRODUCERS) if n not in arrived and reader.exists(f"full-{n}")]
        most = max(most, len(present))
        for number in present:
            stored = reader.get(f"full-{number}")
            waits += check_seal(stored)
            assert bytes(stored[:4]) == bytes(torch.tensor([float(number)]).numpy().tobytes())
            time.sleep(READ_PAUSE_S)
            assert reader.remove(f"full-{number}")
            arrived.append(number)
    return arrived, waits, most
