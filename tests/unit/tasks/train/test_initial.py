"""Which draft `train.init_from` names: found once, known by its content."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from profiles.schema import Profile, Train
from tasks.errors import StageInputError
from tasks.publish.core import publish
from tasks.run_folder import RunFolder, create_run
from tasks.train.initial import draft_digest, resolve_initial
from tests.unit.tasks.publish import drafts


def a_run(tmp_path: Path, initial: str | None) -> tuple[Profile, RunFolder]:
    profile = drafts.profile().model_copy(update={"train": Train(init_from=initial)})
    return profile, create_run(tmp_path / "runs", "one", profile)


def draft(folder: Path, weights: bytes = b"weights") -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(weights)
    return folder


def test_nothing_named_starts_anew(tmp_path: Path) -> None:
    assert resolve_initial(*a_run(tmp_path, None)) is None


def test_no_champion_yet_starts_anew_and_stays_so(tmp_path: Path) -> None:
    """Resumed after its own draft was promoted, a run does not turn into a warm start of itself."""
    profile, run = a_run(tmp_path, "incumbent")
    assert resolve_initial(profile, run) is None
    champion = publish(**drafts.publish_inputs(tmp_path, "one")).location
    assert resolve_initial(profile, run) is None
    found = resolve_initial(profile, create_run(tmp_path / "runs", "two", profile))
    assert found is not None and (found.name, found.folder) == ("v0001", champion)


def test_a_folder_is_known_by_its_content(tmp_path: Path) -> None:
    folder = draft(tmp_path / "some" / "draft")
    found = resolve_initial(*a_run(tmp_path, str(folder)))
    assert found is not None and found.name == "draft"
    assert found.digest == draft_digest(shutil.copytree(folder, tmp_path / "copy"))
    assert found.digest != draft_digest(draft(tmp_path / "other", b"other weights"))


@pytest.mark.parametrize("missing", ["config.json", "model.safetensors"])
def test_a_folder_without_a_draft_is_refused(tmp_path: Path, missing: str) -> None:
    folder = draft(tmp_path / "draft")
    (folder / missing).unlink()
    with pytest.raises(StageInputError, match="the initial draft has no") as refused:
        resolve_initial(*a_run(tmp_path, str(folder)))
    assert str(folder) in refused.value.where
