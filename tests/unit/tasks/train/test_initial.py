"""Which draft `train.init_from` names: found once, known by its content."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from profiles.schema import Draft, Profile, Train
from tasks.errors import StageInputError, UsageError
from tasks.publish.core import publish
from tasks.run_folder import RunFolder, create_run
from tasks.train.earlier import check_initial
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


FITTING = Draft(num_layers=2, block_size=8, markov_rank=4)


def asked(initial: str, draft: Draft = FITTING) -> Profile:
    return drafts.profile().model_copy(update={"train": Train(init_from=initial, draft=draft)})


def test_what_cannot_fit_is_refused_before_a_run_exists(tmp_path: Path) -> None:
    folder = drafts.export(tmp_path / "draft")
    check_initial(asked(str(folder)), tmp_path, None)
    other = asked(str(folder), FITTING.model_copy(update={"block_size": 4}))
    with pytest.raises(UsageError, match=r"block size is 8, wanted 4 \(train\.draft\.block") as refused:
        check_initial(other, tmp_path, None)
    assert str(folder) in refused.value.where
    with pytest.raises(UsageError, match=r"the initial draft has no config\.json"):
        check_initial(asked(str(tmp_path / "nothing")), tmp_path, None)


def test_the_champion_is_looked_at_too(tmp_path: Path) -> None:
    check_initial(asked("incumbent"), tmp_path / "runs", None)  # there is none yet
    publish(**drafts.publish_inputs(tmp_path, "one"))
    check_initial(asked("incumbent"), tmp_path / "runs", None)
    with pytest.raises(UsageError, match="Markov rank is 4, wanted 16"):
        check_initial(
            asked("incumbent", FITTING.model_copy(update={"markov_rank": 16})), tmp_path / "runs", None
        )


def test_a_target_of_another_width_is_refused(tmp_path: Path) -> None:
    folder = drafts.export(tmp_path / "draft")
    target = SimpleNamespace(hidden_size=8, vocab_size=100)
    with pytest.raises(UsageError, match="hidden size is 4, wanted 8"):
        check_initial(asked(str(folder)), tmp_path, target)  # type: ignore[arg-type]
