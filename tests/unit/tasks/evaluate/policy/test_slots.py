"""The slots file as replay writes it, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from tasks.errors import StageInputError
from tasks.evaluate.policy.slots import fit_half, prompt_keys, read_slots, slots_beside


def test_what_lies_beyond_the_answer_is_not_right(tmp_path: Path) -> None:
    tensors = {
        "right": np.ones((2, 3), dtype=np.uint8),
        "known": np.array([[1, 1, 1], [1, 0, 1]], dtype=np.uint8),
        "overlap": np.zeros((2, 3), dtype=np.float32),
        "confidence": np.zeros((2, 3), dtype=np.float32),
        "prompt": np.array([0, 0]),
        "anchor": np.array([0, 1]),
        "round": np.array([1, 0], dtype=np.uint8),
    }
    path = tmp_path / "x.slots.safetensors"
    save_file(tensors, path, metadata={"any": "thing"})
    slots = read_slots(path)
    assert slots.known.tolist() == [[True] * 3, [True, False, False]]
    assert slots.right.tolist() == slots.known.tolist()
    assert slots.confidence is not None and slots.positions == 3


def test_a_head_that_is_missing_or_not_finite_is_said(invent: Callable[..., Any]) -> None:
    without = invent("a.slots.safetensors", logits=None).slots
    broken = invent("b.slots.safetensors", logits=lambda chance, _: np.full(chance.shape, np.nan)).slots
    assert without.confidence is None and "no confidence head" in without.notes[0]
    assert broken.confidence is None and "not finite" in broken.notes[0]


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda data: data[: len(data) // 2], "not a whole safetensors file"),
        (lambda data: b"", "not a whole safetensors file"),
        (lambda data: data.replace(b"anchor", b"ancho_"), "lacks anchor"),
    ],
)
def test_a_damaged_file_is_refused(
    damage: Callable[[bytes], bytes], said: str, invent: Callable[..., Any]
) -> None:
    path = invent(prompts=2).path
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(StageInputError, match=said) as refused:
        read_slots(path)
    assert refused.value.where == str(path) and refused.value.hint


def test_tensors_must_fit_each_other(tmp_path: Path, invent: Callable[..., Any]) -> None:
    slots = invent(prompts=2).slots
    names = {"right": slots.right, "known": slots.known, "round": slots.round}
    tensors = {name: value.astype(np.uint8) for name, value in names.items()}
    path = tmp_path / "y.slots.safetensors"
    save_file({**tensors, "prompt": slots.prompt[:-1], "anchor": slots.anchor}, path)
    with pytest.raises(StageInputError, match="'prompt' of shape"):
        read_slots(path)


def test_a_prompt_stays_in_its_half_wherever_it_stands(invent: Callable[..., Any], tmp_path: Path) -> None:
    slots = invent(prompts=30).slots
    rows = tmp_path / "replay.jsonl"
    assert slots_beside(rows) == tmp_path / "replay.slots.safetensors"
    lines = [json.dumps({"prompt_ids": [7, number]}) for number in range(30)]
    rows.write_text("\n".join(lines))
    forward = fit_half(prompt_keys(slots, rows))
    rows.write_text("\n".join(reversed(lines)))
    backward = fit_half(prompt_keys(slots, rows))
    assert forward.tolist() == backward[::-1].tolist()
    assert 5 < forward.sum() < 25


def test_rows_that_cannot_be_read_leave_the_numbers(invent: Callable[..., Any], tmp_path: Path) -> None:
    slots = invent(prompts=3).slots
    rows = tmp_path / "replay.jsonl"
    assert prompt_keys(slots, rows) == ["0", "1", "2"]
    rows.write_text("{not json")
    assert prompt_keys(slots, rows) == ["0", "1", "2"]
