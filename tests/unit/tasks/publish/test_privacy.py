"""Names instead of paths, and nothing secret."""

from __future__ import annotations

from pathlib import Path

import pytest
from drafts import profile

from tasks.publish.privacy import public_values, target_name
from tasks.redaction import secrets_of


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("/models/x/Llama-3", "Llama-3"),
        ("./local/target/", "target"),
        ("~/target", "target"),
        ("Qwen/Qwen3-8B", "Qwen/Qwen3-8B"),
        ("smollm2-135m-instruct", "smollm2-135m-instruct"),
        ("a/b/c", "c"),
    ],
)
def test_target_name(model: str, name: str) -> None:
    base = profile()
    assert (
        target_name(base.model_copy(update={"target": base.target.model_copy(update={"model": model})}))
        == name
    )


def test_a_relative_folder_that_exists_is_no_hub_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "models" / "x").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    base = profile()
    local = base.model_copy(update={"target": base.target.model_copy(update={"model": "models/x"})})
    assert target_name(local) == "x"


def test_public_values_keep_settings_and_drop_places() -> None:
    values = {
        "lr": 0.003,
        "betas": [0.9, 0.95],
        "log_dir": "x",
        "note": "at /home/me/x",
        "api_key": "k",
        "inner": {"device": "cpu", "file": "f"},
        "only_private": {"path": "p"},
        "none": None,
    }
    assert public_values(values) == {
        "lr": 0.003,
        "betas": [0.9, 0.95],
        "inner": {"device": "cpu"},
        "none": None,
    }


def test_secrets_are_found_by_name() -> None:
    assert secrets_of({"HF_TOKEN": "abcdefgh", "PATH": "/usr/bin", "SHORT_TOKEN": "abc"}) == ["abcdefgh"]
