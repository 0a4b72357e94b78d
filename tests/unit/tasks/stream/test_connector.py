"""The connector between vLLM's scheduler and its writer threads: what it saves, reports and leaves alone."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

if find_spec("vllm") is None:
    pytest.skip("vLLM is not installed; run: make setup", allow_module_level=True)

from hs_connectors import mooncake_hidden_states_connector as upstream
from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.v1.request import RequestStatus

from tasks.errors import ServiceError, UsageError
from tasks.stream import connector as ours
from tasks.stream.canary import Canary
from tasks.stream.checksum import SEAL_BYTES
from tasks.stream.connector import HostStreams, RetrainConnector
from tasks.stream.probe import Probed
from tasks.stream.sample import Answer
from tasks.stream.versions import require_same_versions

LAYER_IDS, HIDDEN, BLOCK = (2, 5, 30), 8, 4
"""Two auxiliary layers and, as vLLM counts, the output of the last of 30."""
LAYERS, COMMIT = len(LAYER_IDS), "c" * 40


def connector(
    role: KVConnectorRole = KVConnectorRole.SCHEDULER,
    layers: tuple[int, ...] = LAYER_IDS,
    commit: str = COMMIT,
) -> RetrainConnector:
    hf = SimpleNamespace(eagle_aux_hidden_state_layer_ids=list(layers))
    config: Any = SimpleNamespace(
        kv_transfer_config=KVTransferConfig(
            kv_connector="RetrainConnector",
            kv_role="kv_producer",
            kv_connector_module_path="tasks.stream.connector",
            kv_connector_extra_config={"mooncake": {"num_writer_threads": 1}, "put_timeout_s": 3},
        ),
        speculative_config=SimpleNamespace(
            method="extract_hidden_states", draft_model_config=SimpleNamespace(hf_config=hf)
        ),
        model_config=SimpleNamespace(
            get_hidden_size=lambda: HIDDEN,
            dtype=torch.float32,
            model="org/m",
            revision="main",
            hf_config=SimpleNamespace(_commit_hash=commit),
        ),
        cache_config=SimpleNamespace(block_size=BLOCK),
    )
    return RetrainConnector(config, role, None)  # type: ignore[arg-type]


def request(name: str, status: RequestStatus = RequestStatus.FINISHED_STOPPED, **changed: Any) -> Any:
    values: dict[str, Any] = {
        "request_id": name,
        "status": status,
        "kv_transfer_params": {"include_output_tokens": True},
        "prompt_token_ids": [1, 2, 3],
        "all_token_ids": [1, 2, 3, 4, 5],
    }
    return SimpleNamespace(**{**values, **changed})


def step(scheduler: RetrainConnector) -> Any:
    """What the scheduler sends to the workers in its next step."""
    return scheduler.build_connector_meta(SimpleNamespace(scheduled_new_reqs=[]))  # type: ignore[arg-type]


class Cuda:
    """A device module as `torch.cuda` is one."""

    class Stream: ...

    class Event: ...


def test_no_op_streams_on_cpu() -> None:
    assert ours.current_platform.is_cpu(), "this environment has vLLM for CPU"
    assert connector()._device() is HostStreams
    HostStreams.Event().record()
    HostStreams.Stream().wait_event(HostStreams.Event())
    with HostStreams.stream(HostStreams.Stream()):
        pass


def test_streams_of_an_accelerator_are_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ours, "current_platform", SimpleNamespace(is_cpu=lambda: False))
    monkeypatch.setattr(upstream, "accelerator_module", lambda: Cuda)
    one = connector()
    assert one._device() is Cuda and one._device() is one._device()
    # What runs beside the engine on an accelerator is upstream's code, unchanged.
    for name in ("_write_sample", "register_kv_caches", "build_connector_meta", "_get_executor"):
        assert getattr(RetrainConnector, name) is getattr(upstream.MooncakeHiddenStatesConnector, name)


def test_finished_request_gets_a_sealed_manifest_that_tells_versions() -> None:
    scheduler = connector()
    delay, manifest = scheduler.request_finished(request("cmpl-run-1-7-0a1-0-abc"), [0])
    assert delay and manifest is not None
    plain = manifest["tensors"]["token_ids"]
    assert manifest["tensors"]["hidden_states"]["shape"] == [4, LAYERS, HIDDEN]
    assert manifest["metadata"]["total_aligned_bytes"] == plain["offset"] + 64 + SEAL_BYTES
    require_same_versions(manifest, "server")
    assert [save.transfer_manifest for save in step(scheduler).pending_saves] == [manifest]


def test_manifest_tells_the_layers_and_the_revision_that_vllm_extracts() -> None:
    manifest = connector().request_finished(request("r"), [0])[1]
    assert manifest is not None
    read = json.loads(json.dumps(manifest))
    assert read["metadata"]["layer_ids"] == list(LAYER_IDS) and read["metadata"]["revision"] == COMMIT
    probed = Probed(Answer((1, 2), "stop", read), 3, torch.zeros(0))
    assert canary(LAYER_IDS)._same_target(probed)
    with pytest.raises(ServiceError, match=r"captures layers \[2, 5, 30\], the profile needs \[2, 6, 30\]"):
        canary((2, 6, 30))._same_target(probed)
    assert canary(LAYER_IDS, COMMIT)._same_target(probed)
    with pytest.raises(UsageError, match=f"serves revision {COMMIT}, target.revision is {'d' * 40}"):
        canary(LAYER_IDS, "d" * 40)._same_target(probed)


def canary(layer_ids: tuple[int, ...], revision: str | None = None) -> Canary:
    """The reader's check of a manifest; it asks for nothing here."""
    prober: Any = None
    return Canary(
        prober=prober,
        prompts=(),
        max_new_tokens=1,
        head=None,
        why_not="",
        layer_ids=layer_ids,
        revision=revision,
        every=1,
        path=Path("canary.json"),
    )


def test_keys_of_another_revision_or_other_layers_differ() -> None:
    """A store that still holds an earlier run's samples under the same request ids (a changed target)."""
    servers = [connector(), connector(commit="d" * 40), connector(layers=(2, 6, 30))]
    manifests = [
        server.request_finished(request("cmpl-run-1-7-0a1b2c3dx1-0-abc"), [0])[1] for server in servers
    ]
    parts = [str(manifest["handle"]).split("-")[-3] for manifest in manifests if manifest is not None]
    assert len(set(parts)) == 3 and all(len(part) == 8 for part in parts)


@pytest.mark.parametrize(
    "status", [RequestStatus.FINISHED_ABORTED, RequestStatus.FINISHED_ERROR, RequestStatus.FINISHED_IGNORED]
)
def test_request_without_a_reader_saves_nothing_and_frees_its_blocks(status: RequestStatus) -> None:
    scheduler = connector()
    scheduler.build_connector_meta(
        SimpleNamespace(scheduled_new_reqs=[SimpleNamespace(req_id="r")])  # type: ignore[arg-type]
    )
    assert scheduler.request_finished(request("r", status), [0, 1]) == (False, None)
    assert step(scheduler).pending_saves == [] and scheduler._request_keys == {}


@pytest.mark.parametrize(
    "status",
    [
        RequestStatus.FINISHED_STOPPED,
        RequestStatus.FINISHED_LENGTH_CAPPED,
        RequestStatus.FINISHED_REPETITION,
    ],
)
def test_answered_request_is_saved(status: RequestStatus) -> None:
    assert connector().request_finished(request("r", status), [0])[1] is not None


def test_request_that_did_not_ask_is_not_saved() -> None:
    assert connector().request_finished(request("r", kv_transfer_params=None), [0]) == (False, None)


def test_copies_of_one_request_are_not_saved() -> None:
    """With `n=2` vLLM runs `0_<id>` and `1_<id>`, and the response has one handle."""
    scheduler = connector()
    for index in range(2):
        assert scheduler.request_finished(request(f"{index}_cmpl-a-0"), [0]) == (False, None)
    assert scheduler.request_finished(request("0-in-process"), [0])[1] is not None


def test_keys_never_repeat_and_begin_with_the_request_id() -> None:
    from tasks.stream.capture import key_pattern

    name = "cmpl-run-1-7-0a1b2c3dx1-0-abc"
    servers = [connector(), connector()]
    manifests = [s.request_finished(request(name), [0])[1] for s in servers for _ in range(2)]
    keys = [str(manifest["handle"]) for manifest in manifests if manifest is not None]
    assert len(set(keys)) == 4 and all(key.startswith(f"{name}-") for key in keys)
    import re

    assert all(re.match(key_pattern("run-1"), key) for key in keys)


@pytest.mark.parametrize("rank", [0, 1])
def test_worker_reports_saves_only(rank: int) -> None:
    """The scheduler ends with an assertion when a worker reports a request that it has dropped."""
    scheduler, worker = connector(), connector(KVConnectorRole.WORKER)
    worker._is_tp_rank_zero = rank == 0
    saved: list[str] = []
    worker._store_ready = True
    worker._write_sample = lambda pending, event: saved.append(pending.req_id)  # type: ignore[method-assign]
    scheduler.request_finished(request("done"), [0])
    scheduler.request_finished(request("gone", RequestStatus.FINISHED_ABORTED), [1])
    worker.bind_connector_metadata(step(scheduler))
    reported = set(worker.get_finished({"done", "gone"})[0] or ())
    worker.clear_connector_metadata()
    if rank == 0:
        worker._get_executor().shutdown(wait=True)
        worker.bind_connector_metadata(step(scheduler))
        reported |= set(worker.get_finished(set())[0] or ())
    assert reported == {"done"} and saved == (["done"] if rank == 0 else [])
    assert worker._announced == set()


def test_counts_reach_the_servers_metrics() -> None:
    from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

    registry = CollectorRegistry()

    def counter(**given: Any) -> Counter:
        return Counter(registry=registry, **given)

    metrics = RetrainConnector.build_prom_metrics(
        SimpleNamespace(kv_transfer_config=None),  # type: ignore[arg-type]
        {Counter: counter, Gauge: Gauge, Histogram: Histogram},
        ["model_name", "engine"],
        {0: ["target", "0"]},
    )
    first = RetrainConnector.build_kv_connector_stats({"puts": 1, "put_wait_seconds": 0.5})
    second = RetrainConnector.build_kv_connector_stats({"puts": 2, "put_waits": 3})
    assert first is not None and second is not None
    total = first.aggregate(second)
    metrics.observe(total.to_dict())
    labels = {"model_name": "target", "engine": "0"}
    assert registry.get_sample_value(f"{ours.METRIC_PREFIX}puts_total", labels) == 3
    assert registry.get_sample_value(f"{ours.METRIC_PREFIX}put_waits_total", labels) == 3
    assert registry.get_sample_value(f"{ours.METRIC_PREFIX}markers_lost_total", labels) == 0
    assert total.reduce() == {"put_wait_seconds": 0.5, "put_waits": 3, "puts": 3} and not total.is_empty()


def test_server_that_stored_nothing_ends_quietly() -> None:
    one = connector(KVConnectorRole.WORKER)
    assert one.get_kv_connector_stats() is None
    one.shutdown()
