"""The KV connector that runs inside the target's vLLM and sends hidden states to the store.

`RetrainConnector` is upstream's Mooncake connector (hs-connectors 0.9.0) with puts that cannot lose a
sample silently, a seal behind each object, nothing stored that nobody will read, and streams that do
nothing where there is no accelerator. The manifest in the response stays valid for upstream's reader.

Memory: a request that waits for its put holds its KV blocks (`request_finished` delays their release)
and nothing else, so the queue of the writer threads is bounded by the KV cache, and a full store slows
the engine down instead of growing the process. Payload is copied where upstream copies it at most: one
gathered sample and, with an accelerator or RDMA, one staging buffer for each writer thread.
"""

from __future__ import annotations

import contextlib
import re
import secrets
from itertools import count
from typing import TYPE_CHECKING, Any

from hs_connectors.mooncake_hidden_states_connector import (
    MooncakeConnectorMetadata,
    MooncakeHiddenStatesConnector,
    sanitize_key,
)
from hs_connectors.mooncake_store import MooncakeStoreConfig
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats
from vllm.platforms import current_platform
from vllm.v1.request import RequestStatus

from tasks.stream.announced import announced_by
from tasks.stream.put_counters import MEANINGS
from tasks.stream.sealed import SealedStore, enlarge_by_seal

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.request import Request

PUT_TIMEOUT_KEY = "put_timeout_s"
"""Name in `kv_connector_extra_config`: longest wait of one put, seconds; see `profiles.streaming`."""
DEFAULT_PUT_TIMEOUT_S = 45.0
METRIC_PREFIX = "vllm:hidden_states_"
"""Begin of the connector's counters at the server's /metrics; `tasks.stream.put_counters` has the rest."""

_WITHOUT_STATES = frozenset(
    {RequestStatus.FINISHED_ABORTED, RequestStatus.FINISHED_ERROR, RequestStatus.FINISHED_IGNORED}
)


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


def wants_states(request: Request) -> bool:
    """Whether the hidden states of a finished request will be read by somebody.

    Not those of a request that was aborted (its client is gone), that failed, or was too long to be
    computed; not those of a request without `kv_transfer_params`, which did not ask; and not those of
    the copies that `n > 1` makes, of which the response names one. Objects are pinned: what nobody
    reads would stay until the server ends.
    """
    if request.status in _WITHOUT_STATES or request.kv_transfer_params is None:
        return False
    return re.match(r"\d+_", request.request_id) is None


class RetrainConnector(MooncakeHiddenStatesConnector):
    """Sends each finished request's hidden states to the store, sealed and pinned.

    Keys are upstream's (the request id, so run and attempt) with the target's revision and layers as eight
    digits, and a suffix that no other request has, of this or another server: in Mooncake a put of a key
    that exists answers 0 and stores nothing.
    """

    def __init__(self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig):
        super().__init__(vllm_config, role, kv_cache_config)
        extra = self._kv_transfer_config.get_from_extra_config
        self._store = SealedStore(
            MooncakeStoreConfig.from_dict(extra("mooncake", {})),
            float(extra(PUT_TIMEOUT_KEY, DEFAULT_PUT_TIMEOUT_S)),
            unique_keys=True,
        )
        self._target = announced_by(vllm_config)
        self._session = secrets.token_hex(8)
        self._numbers = count()
        self._announced: set[str] = set()

    def _device(self) -> Any:
        """Streams and events of the accelerator, or ones that do nothing on CPU."""
        return HostStreams if current_platform.is_cpu() else super()._device()

    def request_finished(self, request: Request, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        """Upstream's manifest, enlarged by the seal; no manifest and no save where nobody will read."""
        req_id = request.request_id
        if not wants_states(request):
            self._request_keys.pop(req_id, None)
            return False, None
        unique = f"{self._target.key_part}-{self._session}-{next(self._numbers):x}"
        self._request_keys[req_id] = f"{sanitize_key(req_id)}-{unique}"
        delay_free, manifest = super().request_finished(request, block_ids)
        if manifest is not None:
            enlarge_by_seal(manifest)
            self._target.announce(manifest)
        return delay_free, manifest

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        """Report saves that ended, and of requests with a save only.

        Upstream reports every finished request as saved. The scheduler has dropped those without a save
        already, and ends with an assertion when it hears of them again.
        """
        if self.has_connector_metadata():
            bound = self._get_connector_metadata()
            if isinstance(bound, MooncakeConnectorMetadata):
                self._announced.update(pending.req_id for pending in bound.pending_saves)
        saving = finished_req_ids & self._announced
        self._announced -= saving
        return super().get_finished(saving)

    def shutdown(self) -> None:
        """End waiting puts, finish those under way, give the reserve back and leave the store."""
        self._store.end_waits()
        if self._executor is not None:
            self._executor.shutdown(wait=True, cancel_futures=True)
        self._store.close()

    def get_kv_connector_stats(self) -> KVConnectorStats | None:
        counts = self._store.take_counters()
        return PutStats(data=counts) if counts else None

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> KVConnectorStats | None:
        return PutStats(data=dict(data or {}))

    @classmethod
    def build_prom_metrics(
        cls,
        vllm_config: VllmConfig,
        metric_types: dict[Any, Any],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> KVConnectorPromMetrics:
        return PutMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)


class PutStats(KVConnectorStats):
    """Counts of `put_counters` on their way from the worker to the server's log and /metrics."""

    def reset(self) -> None:
        self.data: dict[str, Any] = {}

    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        for name, amount in other.data.items():
            self.data[name] = self.data.get(name, 0) + amount
        return self

    def reduce(self) -> dict[str, int | float]:
        return {name: round(amount, 3) for name, amount in sorted(self.data.items())}

    def is_empty(self) -> bool:
        return not self.data


class PutMetrics(KVConnectorPromMetrics):
    """The counts as counters at /metrics, one for each engine."""

    def __init__(
        self,
        vllm_config: VllmConfig,
        metric_types: dict[Any, Any],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ):
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._counters = {
            (name, engine): counter.labels(*values)
            for name, counter in self._declare(labelnames).items()
            for engine, values in per_engine_labelvalues.items()
        }

    def _declare(self, labelnames: list[str]) -> dict[str, Any]:
        return {
            name: self._counter_cls(
                name=METRIC_PREFIX + name, documentation=f"Number of {meaning}.", labelnames=labelnames
            )
            for name, meaning in MEANINGS.items()
        }

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        for name, amount in transfer_stats_data.items():
            self._counters[(name, engine_idx)].inc(amount)
