"""README and docs say only what exists: paths, commands, options, profile fields."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest
import yaml

from flows.cli.main import cli
from profiles.schema import Profile

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
# Data of tests, which a reader of the map does not look for.
NOT_IN_MAP = {"tests/golden", "tests/bench"}


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def commands() -> list[list[str]]:
    return [shlex.split(line) for block in blocks("bash") for line in block.splitlines() if line.strip()]


def map_of_files() -> list[str]:
    section = README.split("## Map of files")[1].split("\n## ")[0]
    return re.findall(r"^    (\S+) {2,}\S", section, flags=re.MULTILINE)


def test_every_path_of_the_map_exists() -> None:
    missing = [path for path in map_of_files() if not (ROOT / path).exists()]
    assert len(map_of_files()) > 25 and missing == []


def test_every_folder_of_the_packages_is_in_the_map() -> None:
    listed = set(map_of_files())
    for package in ("flows", "tasks", "profiles", "tests"):
        for folder in (ROOT / package).iterdir():
            name = f"{package}/{folder.name}"
            if folder.name.startswith(("_", ".")) or name in NOT_IN_MAP:
                continue
            if any(path.is_file() for path in folder.rglob("*")):
                assert f"{name}/" in listed, f"{name}/ is not in README's map of files"


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))], ids=lambda p: p.name
)
def test_links_lead_to_files(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
        assert target.startswith("https://") or (page.parent / target).exists(), target


def test_the_picture_is_a_real_one() -> None:
    picture = ROOT / "docs/images/report.png"
    assert picture.read_bytes().startswith(b"\x89PNG") and picture.stat().st_size < 400_000


def test_make_targets_exist() -> None:
    rules = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    used = {words[1] for words in commands() if words[0] == "make"}
    used |= {word for code in re.findall(r"`make ([a-z]+)", README) for word in [code]}
    assert {"demo", "test"} <= used <= rules


def test_retrain_dspark_commands_parse() -> None:
    found = [words[1:] for words in commands() if words[0] == "retrain-dspark"]
    assert {words[0] for words in found} >= {
        "run",
        "plan",
        "doctor",
        "resume",
        "logs",
        "clean",
        "serve",
        "ui",
    }
    for words in found:
        command = cli.get_command(click.Context(cli), words[0])
        assert command is not None, f"retrain-dspark {words[0]}"
        command.make_context(words[0], words[1:])


def test_prefect_commands_name_what_prefect_yaml_holds() -> None:
    deployed = yaml.safe_load((ROOT / "prefect.yaml").read_text())
    names = {deployment["name"] for deployment in deployed["deployments"]}
    pool = deployed["definitions"]["pool"]["name"]
    found = [words for words in commands() if words[0] == "prefect"]
    assert ["prefect", "deployment", "run", "retrain-dspark"] in found
    for words in found:
        if words[1:3] == ["deployment", "run"]:
            assert words[3] in names
        if words[1:3] in (["work-pool", "create"], ["worker", "start"]):
            assert pool in words
    assert not any(schedule["active"] for d in deployed["deployments"] for schedule in d.get("schedules", ()))


def test_make_overrides_are_fields_of_the_profile() -> None:
    arguments = [word for words in commands() for word in words if word.startswith("ARGS=")]
    for argument in arguments:
        for field in re.findall(r"--set (\S+)=", argument):
            model = Profile
            *parts, last = field.split(".")
            for part in parts:
                model = model.model_fields[part].annotation  # type: ignore[assignment]
            assert last in model.model_fields, field


def test_the_example_profile_is_valid_and_short() -> None:
    (text,) = blocks("yaml")
    assert len(text.splitlines()) <= 14
    profile = Profile.model_validate(yaml.safe_load(text))
    assert profile.publish.name == "my-model-dspark"


def test_decisions_are_numbered_and_complete() -> None:
    pages = sorted((ROOT / "docs/decisions").glob("*.md"))
    for number, page in enumerate(pages, start=1):
        text = page.read_text(encoding="utf-8")
        assert page.name.startswith(f"{number:04d}-") and text.startswith(f"# {number}. ")
        for part in ("**Decision.**", "**Why.**", "**Rejected.**", "**Cost.**"):
            assert part in text, (page.name, part)
