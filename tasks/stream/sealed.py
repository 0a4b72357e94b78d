"""Upstream's writer of packed samples (hs-connectors 0.9.0) with sealed, pinned, patient puts."""

from __future__ import annotations

from typing import Any

from hs_connectors.mooncake_store import MooncakeHiddenStatesStore, MooncakeStoreConfig

from tasks.stream.checksum import ALGORITHM, SEAL_BYTES
from tasks.stream.pinned import PinnedStore


class SealedStore(MooncakeHiddenStatesStore):
    """Upstream's packing and checks, with our puts.

    Args:
        put_timeout_s: Longest wait of one put for space.
    """

    def __init__(self, config: MooncakeStoreConfig, put_timeout_s: float):
        super().__init__(config)
        self._store: Any = None
        self._put_timeout_s = put_timeout_s

    def setup(self) -> SealedStore:
        if self._store is None:
            super().setup()
            self._store = PinnedStore(
                self._store,
                put_timeout_s=self._put_timeout_s,
                segment_bytes=self.config.global_segment_size,
            )
        return self


def enlarge_by_seal(manifest: dict[str, Any]) -> None:
    """Make upstream's transfer manifest tell of the seal; every field of upstream's stays valid."""
    metadata = manifest["metadata"]
    metadata["checksum"] = {"algorithm": ALGORITHM, "bytes": SEAL_BYTES}
    metadata["total_aligned_bytes"] += SEAL_BYTES
