"""Code that comes with a target runs only where its revision is the pinned one."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from profiles.load import ProfileProblem, load_profile
from profiles.schema import Target
from tasks.errors import UsageError
from tasks.serve.target_code import code_digest, code_files, recorded_commit, require_allowed_code
from tasks.serve.target_folder import resolve_target

COMMIT, OTHER = "1" * 40, "2" * 40
CODE = b"class Tokenizer:\n    pass\n"


def git_name(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def target(folder: Path, **values: Any) -> Target:
    return Target.model_validate({"model": str(folder), "aux_layer_ids": [1], **values})


def downloaded(folder: Path, commit: str = COMMIT, code: bytes = CODE) -> Path:
    """A folder as `hf download --local-dir` leaves it: its notes hold each file's commit and hash."""
    folder.mkdir(parents=True)
    (folder / "tokenization_k3.py").write_bytes(code)
    records = folder / ".cache" / "huggingface" / "download"
    records.mkdir(parents=True)
    (records / "tokenization_k3.py.metadata").write_text(f"{commit}\n{git_name(code)}\n1765000000.0\n")
    (records / "tool_of_the_hub.py").write_text("# a note, not the target's")
    return folder


def cached(root: Path, commit: str = COMMIT) -> Path:
    """A folder of a hub's cache: files are links to contents under their names."""
    blobs, folder = root / "blobs", root / "snapshots" / commit
    blobs.mkdir(parents=True)
    folder.mkdir(parents=True)
    (blobs / git_name(CODE)).write_bytes(CODE)
    (folder / "tokenization_k3.py").symlink_to(blobs / git_name(CODE))
    return folder


def test_without_permission_nothing_runs_and_the_way_is_told(tmp_path: Path) -> None:
    folder = downloaded(tmp_path / "k3")
    with pytest.raises(UsageError, match=f"tokenization_k3.py.*which is {COMMIT} or sha256:") as caught:
        require_allowed_code(target(folder, trust_remote_code=True), folder)
    assert caught.value.where == "target.allow_code" and "read that code" in caught.value.hint
    require_allowed_code(target(folder), folder)


@pytest.mark.parametrize("place", [downloaded, cached])
def test_the_pinned_revision_may_run_and_no_other(tmp_path: Path, place: Any) -> None:
    folder = place(tmp_path / "k3")
    assert recorded_commit(folder, code_files(folder)) == COMMIT
    require_allowed_code(target(folder, trust_remote_code=True, allow_code=COMMIT), folder)
    with pytest.raises(UsageError, match=f"which is {COMMIT}.*lets {OTHER} run"):
        require_allowed_code(target(folder, trust_remote_code=True, allow_code=OTHER), folder)


def test_a_file_that_was_changed_is_not_the_revision_s_any_more(tmp_path: Path) -> None:
    folder = downloaded(tmp_path / "k3")
    (folder / "tokenization_k3.py").write_bytes(CODE + b"import os\n")
    assert recorded_commit(folder, code_files(folder)) is None
    with pytest.raises(UsageError, match="which is sha256:"):
        require_allowed_code(target(folder, trust_remote_code=True, allow_code=COMMIT), folder)


def test_a_file_that_the_download_did_not_bring_counts_too(tmp_path: Path) -> None:
    folder = downloaded(tmp_path / "k3")
    (folder / "more.py").write_text("print('never read')\n")
    with pytest.raises(UsageError, match=r"more\.py"):
        require_allowed_code(target(folder, trust_remote_code=True, allow_code=COMMIT), folder)


def test_a_folder_without_a_record_is_pinned_by_its_digest(tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    folder.mkdir()
    (folder / "modeling.py").write_bytes(CODE)
    digest = code_digest(folder, code_files(folder))
    require_allowed_code(target(folder, trust_remote_code=True, allow_code=digest), folder)
    (folder / "modeling.py").write_bytes(CODE + b"\n")
    with pytest.raises(UsageError, match=r"target\.allow_code lets"):
        require_allowed_code(target(folder, trust_remote_code=True, allow_code=digest), folder)


def test_code_of_another_repository_is_refused_whatever_is_pinned(tmp_path: Path) -> None:
    folder = downloaded(tmp_path / "k3")
    auto_map = {"AutoTokenizer": ["someone/else--tokenization.Tokenizer", None]}
    (folder / "tokenizer_config.json").write_text(json.dumps({"auto_map": auto_map}))
    with pytest.raises(UsageError, match=r"another repository.*someone/else"):
        require_allowed_code(target(folder, trust_remote_code=True, allow_code=COMMIT), folder)


def test_a_target_without_code_needs_no_permission(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    require_allowed_code(target(tmp_path, trust_remote_code=True), tmp_path)


def test_whoever_asks_for_the_folder_is_refused(tmp_path: Path) -> None:
    """Every stage asks for it before it loads a tokenizer, a model or a server."""
    folder = downloaded(tmp_path / "k3")
    values = {"source": {"kind": "path"}, "model": str(folder), "trust_remote_code": True}
    with pytest.raises(UsageError, match="allow_code"):
        resolve_target(load_profile("laptop", {"target": values}).profile)
    allowed = load_profile("laptop", {"target": {**values, "allow_code": COMMIT}}).profile
    assert resolve_target(allowed) == folder


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"allow_code": COMMIT}, "target.trust_remote_code is off"),
        ({"allow_code": COMMIT, "trust_remote_code": True, "revision": OTHER}, "of that revision is another"),
        ({"allow_code": "main", "trust_remote_code": True}, "allow_code"),
    ],
)  # fmt: skip
def test_a_pin_that_pins_nothing_is_refused(values: dict[str, Any], words: str) -> None:
    with pytest.raises(ProfileProblem, match=words):
        load_profile("laptop", {"target": values})
