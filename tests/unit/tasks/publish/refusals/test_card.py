"""A card that is complete and says what was measured, and everything that makes it neither."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from drafts import evaluation, measurement, profile, tau
from folders import material, package
from huggingface_hub import ModelCard

from tasks.publish.licenses import license_fields
from tasks.publish.refusals.card import SECTIONS, card_refusals
from tasks.publish.refusals.models import Material

ODD_DOMAIN = 'law: "cases" & it\'s | more'


def found(material: Material) -> list[str]:
    return [f"{one.where}: {one.what}" for one in card_refusals(material)]


def built(root: Path, **changes: Any) -> tuple[str, dict[str, Any]]:
    """Card and metadata of a draft that is packed with these changes."""
    place = root / "out"
    place.mkdir()
    package(root, **changes).build(place, "v0001")
    text = (place / "README.md").read_text()
    return text, ModelCard(text).data.to_dict()


def front_matter(text: str, change: Callable[[dict[str, Any]], object]) -> str:
    _, data, body = text.split("---\n", 2)
    values = yaml.safe_load(data)
    change(values)
    return f"---\n{yaml.safe_dump(values)}---\n{body}"


@pytest.mark.parametrize("section", SECTIONS)
def test_an_incomplete_card_is_refused(tmp_path: Path, section: str) -> None:
    bad = material(tmp_path)
    path = bad.folder / "README.md"
    head, title, rest = path.read_text().partition(f"## {section}\n")
    following = rest.partition("\n## ")
    path.write_text(f"{head}{title}\n{following[1]}{following[2]}")
    assert any(f"'{section}' says nothing" in line for line in found(bad)), found(bad)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: d.pop("license"), "the card's metadata has no license"),
        (lambda d: d.pop("base_model"), "the card's metadata has no base_model"),
        (lambda d: d.pop("base_model_relation"), "has no base_model_relation"),
        (lambda d: d.pop("library_name"), "has no library_name"),
        (lambda d: d.update(tags=[]), "has no tags"),
        (lambda d: d.update(license="other"), "the license has no name"),
        (lambda d: d.update(base_model="/models/x"), "the base model is a path"),
        (lambda d: d["model-index"][0]["results"].pop(), "results and the evaluation differ in writing"),
        (lambda d: d.pop("model-index"), "results and the evaluation differ in"),
        (lambda d: d["model-index"][0]["results"][0]["metrics"][0].update(value=math.nan), "is no number"),
    ],
)
def test_metadata_that_no_hub_takes(
    tmp_path: Path, change: Callable[[dict[str, Any]], object], words: str
) -> None:
    bad = material(tmp_path)
    path = bad.folder / "README.md"
    path.write_text(front_matter(path.read_text(), change))
    assert any(words in line for line in found(bad)), found(bad)


def test_a_card_that_is_missing_or_no_yaml(tmp_path: Path) -> None:
    bad = material(tmp_path)
    path = bad.folder / "README.md"
    path.write_text("---\nlicense: [\n---\n# x\n")
    assert any("metadata is not valid" in line for line in found(bad))
    path.unlink()
    assert "README.md: the card is missing" in found(bad)


@pytest.mark.parametrize(
    ("publish", "words"),
    [
        ({"license": ""}, "publish.license: the draft's license is missing"),
        ({"license": "unknown"}, "publish.license: the draft's license is missing"),
        ({"card": {"base_model": "/models/x"}}, "publish.card.base_model: the base model is a path"),
        ({"card": {"language": ["English"]}}, "publish.card.language: 'English' is no language code"),
    ],
)
def test_a_profile_that_says_too_little(tmp_path: Path, publish: dict[str, Any], words: str) -> None:
    bad = dataclasses.replace(material(tmp_path), profile=profile(**publish))
    assert any(words in line for line in found(bad)), found(bad)


def test_what_a_profile_says_stands_in_the_card(tmp_path: Path) -> None:
    card = {
        "base_model": "acme/target",
        "language": ["en", "de"],
        "tags": ["house-style"],
        "data": "Questions of our support desk, by consent of the askers.",
        "limits": "Not for long tables.",
        "citation": "@misc{ours, title = {Ours}}",
    }
    text, data = built(tmp_path, profile=profile(card=card, license="ACME Model License 1.0"))
    assert (data["base_model"], data["base_model_relation"]) == ("acme/target", "adapter")
    assert (data["license"], data["license_name"]) == ("other", "acme-model-license-1.0")
    assert data["language"] == ["en", "de"] and data["tags"][-1] == "house-style"
    assert "speculators" in data["tags"] and data["library_name"] == "speculators"
    for words in (card["data"], card["limits"], card["citation"], "--revision 5f0b02c7", "acme/target"):
        assert str(words) in text, words


def test_what_is_not_known_is_left_out(tmp_path: Path) -> None:
    text, data = built(tmp_path)
    assert not {"language", "datasets", "license_name"} & data.keys() and None not in data.values()
    assert "None" not in text and "null" not in text.partition("```yaml")[0]
    assert "Sliding window" not in text


def test_a_domain_may_have_any_name_and_no_result_is_no_number(tmp_path: Path) -> None:
    domains = {ODD_DOMAIN: tau(1.7, 1.5), "law-cases-it-s-more": tau(1.6, 1.4), "2024": tau(1.5, 1.3)}
    empty = {"silent": tau(None, None, rounds=0), "broken": tau(1.5).model_copy(update={"value": math.nan})}
    shown = measurement(domains={**domains, **empty})
    text, data = built(tmp_path, evaluation=evaluation(replay=shown))
    results = data["model-index"][0]["results"]
    assert [one["dataset"]["name"] for one in results] == list(domains)
    assert len({one["dataset"]["type"] for one in results}) == 3
    assert all(math.isfinite(metric["value"]) for one in results for metric in one["metrics"])
    row = next(line for line in text.splitlines() if line.startswith("| law: "))
    assert row.replace(r"\|", "").count("|") == 7 and "| broken | unknown |" in text


def test_the_images_are_beside_the_card_and_small(tmp_path: Path) -> None:
    text, _ = built(tmp_path)
    images = sorted((tmp_path / "out" / "plots").iterdir())
    assert [path.name for path in images] == ["acceptance-by-domain.png", "acceptance-by-position.png"]
    for path in images:
        assert f"](plots/{path.name})" in text
        assert path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size < 200_000


def test_licenses() -> None:
    assert license_fields(" Apache-2.0 ") == {"license": "apache-2.0"}
    assert license_fields("custom") == {"license": "other", "license_name": "custom"}
