"""What config.json must say."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from drafts import profile
from folders import edit, material

from tasks.publish.refusals import config
from tasks.publish.refusals.config import config_refusals
from tasks.publish.refusals.models import Material, Refusal


def found(material: Material) -> list[str]:
    return [f"{one.where}: {one.what}" for one in config_refusals(material)]


def verifier(value: dict[str, Any]) -> dict[str, Any]:
    part: dict[str, Any] = value["speculators_config"]["verifier"]
    return part


def proposal(value: dict[str, Any]) -> dict[str, Any]:
    part: dict[str, Any] = value["speculators_config"]["proposal_methods"][0]
    return part


@pytest.fixture
def no_child(monkeypatch: pytest.MonkeyPatch) -> None:
    """These configurations are new, and upstream's class is asked in an integration test."""
    monkeypatch.setattr(config, "_tried", lambda material: [])


@pytest.mark.usefixtures("no_child")
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda c: c.pop("sample_from_anchor"), "does not write out sample_from_anchor"),
        (lambda c: c.pop("transformer_layer_config"), "does not write out transformer_layer_config"),
        (lambda c: verifier(c).pop("name_or_path"), "it names no target"),
        (lambda c: verifier(c).update(name_or_path="/models/x"), "a path of this machine"),
        (lambda c: verifier(c).update(name_or_path="./x"), "a path of this machine"),
        (lambda c: verifier(c).update(name_or_path="C:\\models\\x"), "a path of this machine"),
        (lambda c: verifier(c).update(name_or_path="a/b/c"), "a path of this machine"),
        (lambda c: verifier(c).update(revision="/models/x"), "the target's revision is a path"),
        (lambda c: proposal(c).update(accept_tolerance=0.1), "accepts tokens besides the target's own"),
        (lambda c: proposal(c).update(verifier_accept_k=2), "accepts tokens besides the target's own"),
        (lambda c: c.update(markov_rank=5), "trained parameters, its sizes ask for"),
        (lambda c: c["transformer_layer_config"].update(vocab_size=101), "training said"),
    ],
)
def test_a_config_that_says_too_little_or_something_else(
    tmp_path: Path, change: Callable[[Any], Any], words: str
) -> None:
    bad = material(tmp_path)
    edit(bad.folder / "config.json", change)
    assert any(words in line for line in found(bad)), found(bad)


@pytest.mark.usefixtures("no_child")
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda c: verifier(c).update(name_or_path="target"), "names no repository"),
        (lambda c: verifier(c).pop("revision"), "the target's revision is missing"),
    ],
)
def test_strangers_need_a_repository_and_a_revision(
    tmp_path: Path, change: Callable[[Any], Any], words: str
) -> None:
    local = material(tmp_path)
    edit(local.folder / "config.json", change)
    assert found(local) == []  # a folder on this machine has the target's digest beside it
    public = dataclasses.replace(local, profile=profile(kind="hub", hub={"repo": "acme/tiny"}))
    assert any(words in line for line in found(public))


def test_a_config_that_cannot_be_read(tmp_path: Path) -> None:
    bad = material(tmp_path)
    (bad.folder / "config.json").write_text("[]")
    assert found(bad) == ["config.json: it is missing, or cannot be read"]


def test_only_a_config_that_nobody_tried_is_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The exporter's proof holds for what is published: only the target's name and revision differ."""

    def asked(material: Material) -> list[str]:
        return ["block_size: 8 / 4"]

    monkeypatch.setattr(config, "_tried", asked)
    good = material(tmp_path)
    assert found(good) == []
    edit(good.folder / "config.json", lambda c: c.update(mask_token_id=1))
    changed = dataclasses.replace(good)
    differs = "config.json: speculators reads its configuration differently: block_size: 8 / 4"
    assert found(changed) == [differs]
    monkeypatch.setattr(config, "find_spec", lambda name: None)
    assert found(dataclasses.replace(good)) == [
        "config.json: nobody has shown that speculators reads it as it is written"
    ]


@pytest.mark.usefixtures("no_child")
def test_every_refusal_says_what_to_do(tmp_path: Path) -> None:
    bad = material(tmp_path)
    edit(bad.folder / "config.json", lambda c: (verifier(c).clear(), c.pop("sample_from_anchor")))
    every: list[Refusal] = list(config_refusals(bad))
    assert every and all(one.remedy and one.where.startswith("config.json") for one in every)
