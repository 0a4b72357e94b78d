"""Upstream's writer of packed samples (hs-connectors 0.9.0) with sealed, pinned, patient puts."""

from __future__ import annotations

import ctypes
import json
import sys
from typing import TYPE_CHECKING, Any

from hs_connectors.mooncake_store import (
    MooncakeHiddenStatesStore,
    MooncakeIntegrityError,
    MooncakeStoreConfig,
    NonFiniteTensorError,
)

from tasks.stream.checksum import ALGORITHM, SEAL_BYTES
from tasks.stream.pinned import Part, PinnedStore, PutRefused
from tasks.stream.store import ERROR_SUFFIX
from tasks.stream.versions import announce_versions

if TYPE_CHECKING:
    import torch

_ZEROS = ctypes.create_string_buffer(64)
"""What fills the gaps that upstream's layout leaves to align tensors."""
_MARKER_CHARACTERS = 1000
"""Keeps an error marker, whatever its letters, far below the reserve's size."""


class SealedStore(MooncakeHiddenStatesStore):
    """Upstream's packing with our puts. Holds no copy of a sample beyond upstream's staging buffers,
    and not even these for host tensors over TCP.

    Args:
        put_timeout_s: Longest wait of one put for space.
        unique_keys: See `PinnedStore`.
    """

    def __init__(self, config: MooncakeStoreConfig, put_timeout_s: float, *, unique_keys: bool = False):
        super().__init__(config)
        self._store: Any = None
        self._put_timeout_s = put_timeout_s
        self._unique_keys = unique_keys

    def setup(self) -> SealedStore:
        if self._store is None:
            super().setup()
            self._store = PinnedStore(
                self._store,
                put_timeout_s=self._put_timeout_s,
                segment_bytes=self.config.global_segment_size,
                unique_keys=self._unique_keys,
            )
        return self

    def put_sample(self, transfer_manifest: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
        """Publish `tensors` as the manifest describes them.

        Tensors of the host go into the store from where they are. Those of an accelerator, and all where
        the transport is RDMA, go upstream's way through its registered buffer, on the current stream.

        Raises:
            MooncakeIntegrityError: The tensors are not those of the manifest.
            PutRefused: The store did not take the sample.
        """
        store: PinnedStore = self._require_store()
        total = int(transfer_manifest["metadata"]["total_aligned_bytes"])
        store.refuse_too_large(total)
        host = all(tensor.device.type == "cpu" and tensor.is_contiguous() for tensor in tensors.values())
        if not host or self.config.protocol != "tcp":
            super().put_sample(transfer_manifest, tensors)
            return
        _check_tensors(transfer_manifest, tensors)
        parts = _parts(transfer_manifest["tensors"], tensors, total - SEAL_BYTES)
        store.put_in_place(transfer_manifest["handle"], parts)

    def put_error(self, transfer_manifest: dict[str, Any], error: str) -> None:
        """Publish a marker in place of the sample, with the cause in a word for the reader.

        Upstream's reader takes `error` from it; `reason` and `waits` are ours. They come from the
        exception that is being handled, because upstream hands on only its text.

        Raises:
            PutRefused: The store did not take the marker either.
        """
        reason, waits = _cause(sys.exc_info()[1])
        marker = {"error": error[:_MARKER_CHARACTERS], "reason": reason, "waits": waits}
        key = transfer_manifest["handle"] + ERROR_SUFFIX
        self._require_store().put(key, json.dumps(marker).encode())

    def take_counters(self) -> dict[str, float]:
        """What was counted since the last call; see `put_counters`."""
        return self._store.counters.take() if self._store is not None else {}

    def end_waits(self) -> None:
        """Let puts that wait for space give up; for the end of the server."""
        if self._store is not None:
            self._store.end_waits()

    def close(self) -> None:
        """Leave the store; the objects of this client go with it."""
        if self._store is not None:
            self._store.close()


def _cause(error: BaseException | None) -> tuple[str, int]:
    """A word for what kept a sample from being stored, and how often its put had waited."""
    if isinstance(error, PutRefused):
        return error.reason, error.waits
    return ("not_finite" if isinstance(error, NonFiniteTensorError) else "writer_failed"), 0


def _check_tensors(manifest: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
    """Refuse tensors that would be read back as something else.

    Raises:
        MooncakeIntegrityError: With both descriptions.
    """
    described = {name: (tuple(s["shape"]), s["dtype"]) for name, s in manifest["tensors"].items()}
    given = {name: (tuple(tensor.shape), str(tensor.dtype)) for name, tensor in tensors.items()}
    if described != given:
        raise MooncakeIntegrityError(f"the manifest describes {described}, the tensors are {given}")


def _parts(layout: dict[str, Any], tensors: dict[str, torch.Tensor], total: int) -> list[Part]:
    """Where the bytes of a payload of `total` bytes lie: tensors at their offsets, zeros between them."""
    parts: list[Part] = []
    end = 0
    for name, spec in sorted(layout.items(), key=lambda item: int(item[1]["offset"])):
        start = int(spec["offset"])
        parts += [(ctypes.addressof(_ZEROS), start - end), (tensors[name].data_ptr(), tensors[name].nbytes)]
        end = start + tensors[name].nbytes
    parts.append((ctypes.addressof(_ZEROS), total - end))
    if any(not 0 <= size <= len(_ZEROS) for _, size in parts[::2]):
        raise MooncakeIntegrityError(f"the layout {layout} leaves more than padding between tensors")
    return [part for part in parts if part[1]]


def enlarge_by_seal(manifest: dict[str, Any]) -> None:
    """Make upstream's transfer manifest tell of seal and versions; every field of upstream's stays valid."""
    metadata = manifest["metadata"]
    metadata["checksum"] = {"algorithm": ALGORITHM, "bytes": SEAL_BYTES}
    metadata["total_aligned_bytes"] += SEAL_BYTES
    announce_versions(manifest)
