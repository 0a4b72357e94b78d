"""A draft from a folder and from a hub, over real HTTP to a small hub."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from small_hub import COMMIT, repository, running_hub

from tasks.errors import ServiceError, UsageError
from tasks.evaluate.draft_source import checkpoint_of, find_draft, read_found

NAME = "someone/small.dspark"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "hub"
    folder.mkdir()
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    with running_hub(folder) as url:
        monkeypatch.setenv("HF_ENDPOINT", url)
        yield folder


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()} | {"config.py": b"raise SystemExit"}


def test_a_folder_says_what_the_profile_must(draft_dir: Path) -> None:
    found = find_draft(str(draft_dir))
    assert found.folder == draft_dir and found.revision is None
    assert found.overrides() == {
        "target": {"aux_layer_ids": [1, 2]},
        "train": {"draft": {"block_size": 4}},
    }
    draft = checkpoint_of(found)
    assert (draft.step, draft.block_size, draft.draft_vocab_size) == (0, 4, 32)
    assert set(draft.files) == {"config.json", "model.safetensors"} and draft.parameters > 1000
    assert "not trained in this run" in draft.notes[0]


def test_a_repository_is_fetched_without_its_code_and_its_revision_is_kept(
    hub: Path, draft_dir: Path
) -> None:
    repository(hub, "models", NAME, files_of(draft_dir))
    found = find_draft(NAME)
    assert found.revision == COMMIT and found.origin == f"{NAME} at revision {COMMIT}"
    assert (found.folder / "model.safetensors").read_bytes() == (draft_dir / "model.safetensors").read_bytes()
    assert not (found.folder / "config.py").exists()
    assert checkpoint_of(found).files == checkpoint_of(find_draft(str(draft_dir))).files
    assert find_draft(f"{NAME}@{COMMIT}").folder == found.folder
    assert read_found(found.folder, NAME, COMMIT) == found


def test_what_the_cache_holds_is_used_when_the_hub_is_away(
    hub: Path, draft_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository(hub, "models", NAME, files_of(draft_dir))
    found = find_draft(NAME)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert find_draft(NAME) == found
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert find_draft(NAME) == found


def test_an_unreachable_hub_is_one_clear_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(ServiceError, match="1:9 cannot be reached, and the cache"):
        find_draft(NAME)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ServiceError, match="HF_HUB_OFFLINE is set, and the cache does not hold it"):
        find_draft(NAME)


def test_missing_and_closed_repositories_and_revisions_are_named(hub: Path, draft_dir: Path) -> None:
    with pytest.raises(UsageError, match="there is no model 'someone/else'"):
        find_draft("someone/else")
    repository(hub, "models", "someone/closed", files_of(draft_dir), commit="")
    with pytest.raises(UsageError, match="asks for an agreement first"):
        find_draft("someone/closed")
    repository(hub, "models", NAME, files_of(draft_dir))
    with pytest.raises(UsageError, match="has no revision 'v9'"):
        find_draft(f"{NAME}@v9")
    repository(hub, "models", "someone/notes", {"README.txt": b"hello"})
    with pytest.raises(UsageError, match="holds none of the files"):
        find_draft("someone/notes")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"speculators_model_type": "eagle3"},
            "it is not a DSpark draft: speculators_model_type is 'eagle3'",
        ),
        ({"block_size": 0}, "block_size 0"),
        ({"aux_hidden_state_layer_ids": [2, 1]}, r"aux_hidden_state_layer_ids \[2, 1\]"),
    ],
)
def test_a_folder_that_is_no_draft_is_refused(
    tmp_path: Path, draft_dir: Path, changes: dict[str, object], said: str
) -> None:
    folder = shutil.copytree(draft_dir, tmp_path / "draft")
    config = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(UsageError, match=said):
        find_draft(str(folder))


def test_what_is_neither_a_folder_nor_a_repository_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no draft folder"):
        find_draft(str(tmp_path / "nothing"))
    with pytest.raises(UsageError, match="is gone"):
        read_found(tmp_path / "nothing", "x", None)
    with pytest.raises(UsageError, match="cannot be a repository"):
        find_draft("owner/a--b")
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UsageError, match=r"config\.json cannot be read"):
        find_draft(str(tmp_path))


def test_a_draft_that_does_not_sample_from_its_anchor_has_one_token_less(
    tmp_path: Path, draft_dir: Path
) -> None:
    folder = shutil.copytree(draft_dir, tmp_path / "draft")
    config = json.loads((folder / "config.json").read_text())
    config |= {"sample_from_anchor": False, "speculators_config": {}}
    (folder / "config.json").write_text(json.dumps(config))
    assert find_draft(str(folder)).draft_tokens == 3
