"""What the fake target answers, by upstream's own layout; `make verify PART=streaming` asks the real one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from conforming_fake import HIDDEN, LAYER_IDS, LAYERS, conforming_fake
from hs_connectors.mooncake_store import VERSION, packed_layout
from vllm_conversation import PROMPT, conversation

from tasks.stream.checksum import SEAL_BYTES

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    with conforming_fake(tmp_path_factory.mktemp("fake")) as fake:
        yield conversation(fake)


def test_key_guards_the_api_and_nothing_else(said: dict[str, Any]) -> None:
    assert said["without key"] == {"/health": 200, "/metrics": 200, "/version": 200, "/v1/models": 401}
    assert said["with another key"] == 401


def test_refusals_have_vllms_form(said: dict[str, Any]) -> None:
    fields = ["code", "message", "param", "type"]
    assert said["refused"] == {"unknown model": [404, fields, 404], "too long": [400, fields, 400]}


def test_who_does_not_ask_for_states_gets_none(said: dict[str, Any]) -> None:
    assert said["did not ask"] is None


def test_counters_move_by_what_was_computed(said: dict[str, Any]) -> None:
    assert said["counted"] == {
        "generation_tokens_total": 4.0,
        "kv_cache_usage_perc": 0.0,
        "num_requests_running": 0.0,
        "num_requests_waiting": 0.0,
        "prompt_tokens_total": float(len(PROMPT)),
    }


@pytest.mark.parametrize(
    ("kind", "generated", "rows", "mode"),
    [("generate", 4, 8, "all"), ("prefill", 1, 5, "all"), ("prompt only", 4, 5, "prompt_only")],
)
def test_manifest_is_that_of_upstreams_connector(
    kind: str, generated: int, rows: int, mode: str, said: dict[str, Any]
) -> None:
    spec, total = packed_layout(
        {"hidden_states": ([rows, LAYERS, HIDDEN], torch.float32), "token_ids": ([rows], torch.int64)}
    )
    answer = said[kind]
    manifest = answer["manifest"]
    assert answer["tokens"] == [len(PROMPT), generated, "length"]
    assert manifest["handle"].startswith("cmpl-conformance-") and manifest["version"] == VERSION
    assert manifest["tensors"] == spec
    assert manifest["metadata"]["num_tokens"] == rows and manifest["metadata"]["extract_mode"] == mode
    assert manifest["metadata"]["total_aligned_bytes"] == total + SEAL_BYTES
    assert manifest["metadata"]["layer_ids"] == [*LAYER_IDS] and manifest["metadata"]["revision"] is None
    assert answer["stored"] == "sealed, of the announced size"
