"""The KV connector that runs inside the target's vLLM and sends hidden states to the store.

`RetrainConnector` is upstream's Mooncake connector (hs-connectors 0.9.0) with puts that cannot lose a
sample silently, a seal behind each object, and streams that do nothing where there is no accelerator.
The manifest in the response stays valid for upstream's reader: the seal only enlarges the object.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from hs_connectors.mooncake_hidden_states_connector import MooncakeHiddenStatesConnector
from hs_connectors.mooncake_store import MooncakeStoreConfig
from vllm.platforms import current_platform

from tasks.stream.sealed import SealedStore, enlarge_by_seal

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.request import Request

PUT_TIMEOUT_KEY = "put_timeout_s"
"""Name in `kv_connector_extra_config`: longest wait of one put for space, seconds."""
DEFAULT_PUT_TIMEOUT_S = 45.0


class _NoStream:
    def wait_event(self, event: object) -> None:
        """Nothing runs beside the host."""


class _NoEvent:
    def record(self, *streams: object) -> None:
        """Nothing runs beside the host."""


class HostStreams:
    """What the connector needs of `torch.cuda`, where all work is done by the host in order."""

    Stream = _NoStream
    Event = _NoEvent

    @staticmethod
    def stream(stream: object) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()


class RetrainConnector(MooncakeHiddenStatesConnector):
    """Sends each finished request's hidden states to the store, sealed and pinned."""

    def __init__(self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig):
        super().__init__(vllm_config, role, kv_cache_config)
        extra = self._kv_transfer_config.get_from_extra_config
        self._store = SealedStore(
            MooncakeStoreConfig.from_dict(extra("mooncake", {})),
            float(extra(PUT_TIMEOUT_KEY, DEFAULT_PUT_TIMEOUT_S)),
        )

    def _device(self) -> Any:
        """Streams and events of the accelerator, or ones that do nothing on CPU."""
        return HostStreams if current_platform.is_cpu() else super()._device()

    def request_finished(self, request: Request, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        """Upstream's manifest, enlarged by the seal."""
        delay_free, manifest = super().request_finished(request, block_ids)
        if manifest is not None:
            enlarge_by_seal(manifest)
        return delay_free, manifest
