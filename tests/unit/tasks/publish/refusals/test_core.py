"""All refusals at once, each with its remedy; a good draft has none."""

from __future__ import annotations

from pathlib import Path

import pytest
from drafts import checkpoint, evaluation, export, profile
from folders import material, package

from tasks.errors import GateRefused, PublishError
from tasks.publish.refusals.core import refusals
from tasks.publish.refusals.models import Refusal, refuse


def test_a_good_folder_is_not_refused(tmp_path: Path) -> None:
    assert refusals(material(tmp_path)) == []


def test_everything_that_speaks_against_it_is_said_at_once(tmp_path: Path) -> None:
    """Nothing is mended in rounds: one error names each fault, where it is and what to do."""
    draft_dir = export(tmp_path / "draft", without="fc.weight", sample_from_anchor=False)
    draft = checkpoint(draft_dir, parameters=7)
    (draft_dir / "config.json").write_text((draft_dir / "config.json").read_text() + " ")
    bad = package(
        tmp_path,
        draft_dir=draft_dir,
        draft=draft,
        profile=profile(license=""),
        evaluation=evaluation(
            rejection_sample_method="synthetic", notes=("hf_" + "a1B2" * 8, f"read {tmp_path}/x")
        ),
    )
    (tmp_path / "out").mkdir()
    with pytest.raises(GateRefused) as caught:
        bad.build(tmp_path / "out", "v0001")
    text = str(caught.value)
    for words in (
        "the draft lacks fc.weight",
        "not the configuration that was evaluated",
        "training said 7",
        "acceptance was synthetic",
        "the draft's license is missing",
        "it seems to hold a Hugging Face token",
        "a path of this machine",
    ):
        assert words in text, words
    reasons = [line for line in text.splitlines() if line.strip().partition(".")[0].isdigit()]
    assert text.count("to do: ") == len(reasons) + 1 and str(len(reasons)) in text.splitlines()[0]
    assert isinstance(caught.value, PublishError)


def test_one_refusal_is_an_error_of_its_own() -> None:
    refuse([])
    with pytest.raises(GateRefused) as caught:
        refuse([Refusal("it is damaged", "model.safetensors", "train it again")] * 2)
    assert (caught.value.what, caught.value.where, caught.value.hint) == (
        "it is damaged",
        "model.safetensors",
        "train it again",
    )
