"""Upstream's writer of packed samples (hs-connectors 0.9.0) with sealed, pinned, patient puts."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import xxhash
from hs_connectors.mooncake_store import (
    MooncakeHiddenStatesStore,
    MooncakeIntegrityError,
    MooncakeStoreConfig,
    NonFiniteTensorError,
)

from tasks.stream.checksum import ALGORITHM, SEAL_BYTES
from tasks.stream.pinned import PinnedStore, PutRefused
from tasks.stream.store import ERROR_SUFFIX
from tasks.stream.versions import announce_versions

if TYPE_CHECKING:
    import torch

_CHUNK_BYTES = 4 << 20
"""Copied, and digested while it is in the processor's cache: memory is read once, not twice. Not smaller,
because each step hands the interpreter lock back and forth with the engine's own thread."""
_MARKER_CHARACTERS = 1000
"""Keeps an error marker, whatever its letters, far below the reserve's size."""


class SealedStore(MooncakeHiddenStatesStore):
    """Upstream's packing with our puts. Holds no copy of a sample beyond upstream's staging buffers.

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

        Tensors of an accelerator take upstream's way through its pinned buffer, on the current stream.

        Raises:
            MooncakeIntegrityError: The tensors are not those of the manifest.
            PutRefused: The store did not take the sample.
        """
        store: PinnedStore = self._require_store()
        total = int(transfer_manifest["metadata"]["total_aligned_bytes"])
        store.refuse_too_large(total)
        if not all(tensor.device.type == "cpu" and tensor.is_contiguous() for tensor in tensors.values()):
            super().put_sample(transfer_manifest, tensors)
            return
        _check_tensors(transfer_manifest, tensors)
        staging = self._staging_buffer("put", total)
        digest = _pack(staging[: total - SEAL_BYTES], transfer_manifest["tensors"], tensors)
        store.put_digested(transfer_manifest["handle"], staging.data_ptr(), total, digest)

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


def _pack(staging: torch.Tensor, layout: dict[str, Any], tensors: dict[str, torch.Tensor]) -> int:
    """Copy host tensors to their offsets in `staging` (uint8), zero the gaps; XXH3-64 of all of it.

    NumPy copies in this thread; torch would call up its thread pool for each piece.
    """
    import numpy as np
    import torch

    room = staging.numpy()
    digest = xxhash.xxh3_64()
    end = 0
    for name, spec in sorted(layout.items(), key=lambda item: int(item[1]["offset"])):
        start = int(spec["offset"])
        room[end:start] = 0
        digest.update(room[end:start])
        source = tensors[name].view(-1).view(torch.uint8).numpy()
        end = start + len(source)
        for low in range(0, len(source), _CHUNK_BYTES):
            piece = source[low : low + _CHUNK_BYTES]
            place = room[start + low : start + low + len(piece)]
            np.copyto(place, piece)
            digest.update(place)
    room[end:] = 0
    digest.update(room[end:])
    return digest.intdigest()


def enlarge_by_seal(manifest: dict[str, Any]) -> None:
    """Make upstream's transfer manifest tell of seal and versions; every field of upstream's stays valid."""
    metadata = manifest["metadata"]
    metadata["checksum"] = {"algorithm": ALGORITHM, "bytes": SEAL_BYTES}
    metadata["total_aligned_bytes"] += SEAL_BYTES
    announce_versions(manifest)
