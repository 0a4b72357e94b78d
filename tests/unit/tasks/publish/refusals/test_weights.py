"""Weights that are damaged, in another format, or not those that were evaluated."""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from drafts import config, evaluation, save, shapes_of, tensors_of
from folders import conditions, material

from tasks.evaluate.arm_models import ArmDetail, ArmsDetail
from tasks.publish.refusals.models import Material
from tasks.publish.refusals.weights import weight_refusals
from tasks.stage import canonical, sha256_text

WEIGHTS = "model.safetensors"


def found(material: Material) -> list[str]:
    return [f"{one.where}: {one.what}" for one in weight_refusals(material)]


def without(name: str) -> Callable[[Path], object]:
    kept = {n: t for n, t in tensors_of(config()).items() if n != name}
    return lambda folder: save(folder / WEIGHTS, kept, shapes_of(config()))


def with_nan(folder: Path) -> None:
    tensors = tensors_of(config())
    name = "layers.1.mlp.up_proj.weight"
    tensors[name] = ("F32", struct.pack("<f", float("nan")) + tensors[name][1][4:])
    save(folder / WEIGHTS, tensors, shapes_of(config()))


def as_link(folder: Path) -> None:
    (folder / WEIGHTS).rename(folder / "elsewhere.safetensors")
    (folder / WEIGHTS).symlink_to(folder / "elsewhere.safetensors")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (without("d2t"), "model.safetensors: the draft lacks d2t"),
        (without("fc.weight"), "the draft lacks fc.weight"),
        (with_nan, "tensor layers.1.mlp.up_proj.weight holds NaN or infinity"),
        (lambda f: (f / WEIGHTS).write_bytes((f / WEIGHTS).read_bytes()[:-3]), "it is damaged"),
        (lambda f: (f / WEIGHTS).unlink(), "the draft has no weights in safetensors"),
        (lambda f: (f / "pytorch_model.bin").write_bytes(b"x"), "pytorch_model.bin: it is no safetensors"),
        (lambda f: (f / "extra.dat").write_bytes(b"\x80\x04\x95rest"), "extra.dat: it is no safetensors"),
        (lambda f: (f / "more.txt").write_bytes(b"PK\x03\x04rest"), "more.txt: it is no safetensors"),
        (as_link, "it is a link to somewhere else"),
    ],
)
def test_weights_that_are_not_published(tmp_path: Path, change: Callable[[Path], object], words: str) -> None:
    bad = material(tmp_path)
    change(bad.folder)
    assert any(words in line for line in found(bad)), found(bad)


def test_other_bytes_than_those_evaluated(tmp_path: Path) -> None:
    """Whole, finite, of the right shape, and still another draft."""
    bad = material(tmp_path)
    tensors = tensors_of(config())
    tensors["norm.weight"] = ("F32", struct.pack("<f", 0.25) * 4)
    save(bad.folder / WEIGHTS, tensors, shapes_of(config()))
    assert found(bad) == [f"{WEIGHTS}: it is not the file that was evaluated: its SHA-256 differs"]


def test_a_config_that_was_changed_after_the_evaluation(tmp_path: Path) -> None:
    bad = material(tmp_path)
    (bad.draft_dir / "config.json").write_text((bad.draft_dir / "config.json").read_text() + "\n")
    assert found(bad) == ["config.json: it is not the configuration that was evaluated"]


@pytest.mark.parametrize("same", [True, False])
def test_the_engine_measured_this_draft(tmp_path: Path, same: bool) -> None:
    good = material(tmp_path)
    digest = sha256_text(canonical(dict(good.draft.files))) if same else "f" * 64
    arm = ArmDetail(name="draft", status="measured", required=True, conditions=conditions(draft=digest))
    measured = evaluation(arms_detail=ArmsDetail(arms=(arm,), order=("draft",), starts=1))
    lines = found(dataclasses.replace(good, evaluation=measured))
    assert lines == ([] if same else [f"{WEIGHTS}: the engine was measured with another draft"])
