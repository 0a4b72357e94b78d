"""Only what a draft consists of, within the hub's limits, and no rows of training data."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from drafts import profile, save
from folders import material

from tasks.publish.refusals.files import file_refusals
from tasks.publish.refusals.models import Material


def found(material: Material) -> list[str]:
    return [f"{one.where}: {one.what}" for one in file_refusals(material)]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("rows.jsonl", '{"a": 1}\n'),
        ("train.parquet", "PAR1"),
        ("samples.json", '[{"prompt": "Tell me", "completion": "No"}]'),
        ("plots/one.json", '{"messages": []}'),
    ],
)
def test_training_rows_need_permission(tmp_path: Path, name: str, content: str) -> None:
    held = material(tmp_path)
    (held.folder / name).write_text(content)
    assert any(f"{name}: it holds rows of training data" in line for line in found(held))
    permitted = dataclasses.replace(held, profile=profile(training_rows=True))
    assert found(permitted) == []


def test_captured_states_are_rows_too(tmp_path: Path) -> None:
    held = material(tmp_path)
    save(
        held.folder / "hs_0.safetensors", {"hidden_states": ("F32", bytes(8)), "token_ids": ("I64", bytes(8))}
    )
    rows = "it holds rows of training data, and nobody has permitted to publish them"
    assert found(held) == [f"hs_0.safetensors: {rows}"]


@pytest.mark.parametrize("name", [".env", "notes.txt", "config.py", "cpu/secret.sh", "trainer_state.json"])
def test_a_file_that_belongs_to_no_draft(tmp_path: Path, name: str) -> None:
    other = material(tmp_path)
    (other.folder / name).write_text("{}")
    assert found(other) == [f"{name}: it belongs to no published draft"]


def test_limits_of_the_hub(tmp_path: Path) -> None:
    hub = {"repo": "acme/tiny", "max_files": 3, "max_file_bytes": 7000}
    public = material(tmp_path, profile=profile(kind="hub", hub=hub))
    lines = found(public)
    assert any(line.startswith("publish.hub.max_files: ") and "more than 3" in line for line in lines)
    assert any(line.startswith("model.safetensors: ") and "more than 7,000" in line for line in lines)
    assert found(dataclasses.replace(public, profile=profile())) == []
