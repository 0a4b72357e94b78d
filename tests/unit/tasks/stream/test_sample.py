"""Which samples may enter the log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tasks.stream.checksum import SEAL_BYTES, SealBroken, check_seal, seal
from tasks.stream.sample import Answer, Request, SampleRejected, Shape, answer_of, verify

SHAPE = Shape(layers=3, hidden_size=8, dtype="float32")
REQUEST = Request(0, "p", "qa", "train", (5, 6, 7), 4, 0.0, 1.0, 0)
IDS = (1, 2, 3)
ROWS = len(REQUEST.prompt_ids) + len(IDS) - 1


def parts() -> dict[str, torch.Tensor]:
    states = torch.randn(ROWS, 3, 8, generator=torch.Generator().manual_seed(0))
    return {"hidden_states": states, "token_ids": torch.tensor([5, 6, 7, 1, 2])}


def manifest_and_object(tensors: dict[str, torch.Tensor]) -> tuple[dict[str, Any], bytearray]:
    specs, payload = {}, bytearray()
    for name, tensor in tensors.items():
        data = bytes(tensor.contiguous().view(torch.uint8).flatten().tolist())
        specs[name] = {
            "shape": list(tensor.shape),
            "dtype": str(tensor.dtype),
            "nbytes": len(data),
            "offset": len(payload),
        }
        payload += data + bytes(-len(data) % 64)
    manifest = {
        "handle": "k",
        "version": 1,
        "tensors": specs,
        "metadata": {"total_aligned_bytes": len(payload) + SEAL_BYTES},
    }
    return manifest, payload + seal(bytes(payload), waits=2)


def check(tensors: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor, int]:
    manifest, stored = manifest_and_object(tensors)
    return verify(memoryview(stored), Answer(IDS, "stop", manifest), REQUEST, SHAPE)


def test_good_sample_passes_unchanged() -> None:
    states, ids, waits = check(parts())
    assert torch.equal(states, parts()["hidden_states"])
    assert ids.tolist() == [5, 6, 7, 1, 2] and waits == 2


def _set(name: str, value: float) -> Callable[[dict[str, torch.Tensor]], None]:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        tensors[name][-1] = value

    return change


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_set("hidden_states", float("nan")), "not_finite"),
        (_set("hidden_states", float("inf")), "not_finite"),
        (_set("hidden_states", 0.0), "constant"),
        (_set("token_ids", 9), "token_ids"),
        (lambda t: t.update(hidden_states=t["hidden_states"][:-1]), "shape"),
        (lambda t: t.update(hidden_states=t["hidden_states"][:, :2]), "shape"),
        (lambda t: t.update(hidden_states=t["hidden_states"].bfloat16()), "dtype"),
    ],
)
def test_bad_sample_is_rejected(change: Callable[[dict[str, torch.Tensor]], None], reason: str) -> None:
    tensors = parts()
    change(tensors)
    with pytest.raises(SampleRejected) as caught:
        check(tensors)
    assert caught.value.reason == reason


def verdict_on(states: torch.Tensor) -> str:
    """Reason why these states are rejected; empty if they pass."""
    tensors = {"hidden_states": states, "token_ids": torch.tensor([5, 6, 7, 1, 2])}
    manifest, stored = manifest_and_object(tensors)
    shape = Shape(3, states.shape[-1], str(states.dtype).removeprefix("torch."))
    try:
        verify(memoryview(stored), Answer(IDS, "stop", manifest), REQUEST, shape)
    except SampleRejected as error:
        return error.reason
    return ""


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_one_value_that_is_not_finite_is_found_whatever_its_neighbours_are(dtype: torch.dtype) -> None:
    largest = torch.finfo(dtype).max
    for place, values in (
        (0, [float("nan")]),
        (18, [float("-inf")]),
        (4, [float("inf"), float("-inf")]),
        (10, [largest, float("inf")]),
    ):
        states = torch.randn(ROWS, 3, 20, generator=torch.Generator().manual_seed(1)).to(dtype)
        assert verdict_on(states) == ""
        states[3, 1, place : place + len(values)] = torch.tensor(values, dtype=dtype)
        assert verdict_on(states) == "not_finite"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_large_values_whose_sum_overflows_pass(dtype: torch.dtype) -> None:
    states = torch.full((ROWS, 3, 20), torch.finfo(dtype).max, dtype=dtype)
    states[..., ::7] = 1.0
    assert verdict_on(states) == ""


def test_a_row_is_constant_only_if_all_of_it_is() -> None:
    states = torch.randn(ROWS, 3, 20, generator=torch.Generator().manual_seed(1))
    states[2, 0, :19] = 0.5
    assert verdict_on(states) == ""
    states[2, 0] = 0.5
    assert verdict_on(states) == "constant"


@pytest.mark.parametrize("position", [0, 300, -65, -64, -50, -44])
def test_one_changed_byte_is_noticed(position: int) -> None:
    manifest, stored = manifest_and_object(parts())
    stored[position] ^= 1
    with pytest.raises(SampleRejected) as caught:
        verify(memoryview(stored), Answer(IDS, "stop", manifest), REQUEST, SHAPE)
    assert caught.value.reason == "checksum"


def test_cut_object_has_no_valid_seal() -> None:
    whole = bytes(100) + seal(bytes(100))
    assert check_seal(memoryview(whole)) == 0
    for cut in (whole[:-1], whole[:10], whole[1:]):
        with pytest.raises(SealBroken):
            check_seal(memoryview(cut))


def test_expected_bytes_cover_the_object() -> None:
    _, stored = manifest_and_object(parts())
    assert len(stored) <= SHAPE.expected_bytes(ROWS)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"choices": [{}], "kv_transfer_params": {"handle": "k", "version": 1}}, "no_token_ids"),
        ({"choices": [{"token_ids": [1]}]}, "no_handle"),
        (
            {"choices": [{"token_ids": [1]}], "kv_transfer_params": {"handle": "k", "version": 2}},
            "manifest_version",
        ),
        (
            {
                "choices": [{"token_ids": [1], "prompt_token_ids": [5, 6]}],
                "kv_transfer_params": {"handle": "k", "version": 1},
            },
            "prompt_changed",
        ),
    ],
)
def test_incomplete_answer_is_rejected(body: dict[str, Any], reason: str) -> None:
    with pytest.raises(SampleRejected) as caught:
        answer_of(body, REQUEST.prompt_ids)
    assert caught.value.reason == reason
