"""A damaged folder is refused with what is wrong, by the module and by the script inside the folder."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from drafts import config, export, publish_inputs, save, tensors_of

from tasks.errors import PublishError
from tasks.publish.check_folder import read_tensors, required_tensors
from tasks.publish.core import publish
from tasks.publish.refusals.weights import first_not_finite
from tasks.publish.verify import verify_folder
from tasks.stage import sha256_file


@pytest.fixture
def folder(published: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(published, tmp_path / "draft"))


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(publish(**publish_inputs(tmp_path_factory.mktemp("publish"))).location)


def edit(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


def rehash(folder: Path) -> None:
    """Make the manifest agree with the files again: the damage must be seen by content, not by hash."""
    edit(
        folder / "manifest.json",
        lambda m: m["files"].update(
            {name: sha256_file(folder / name) for name in m["files"] if (folder / name).is_file()}
        ),
    )


@pytest.mark.parametrize("tensor", [*required_tensors(config())])
def test_deleting_any_tensor_is_refused(folder: Path, tensor: str) -> None:
    weights = {n: t for n, t in tensors_of(config()).items() if n != tensor}
    save(folder / "model.safetensors", weights)
    rehash(folder)
    with pytest.raises(PublishError, match=f"tensor {tensor} is missing"):
        verify_folder(folder)
    edit(folder / "manifest.json", lambda m: m["tensors"].pop(tensor))
    with pytest.raises(PublishError, match=f"tensor {tensor} is missing"):
        verify_folder(folder)


@pytest.mark.parametrize(
    "name", ["config.json", "serve.sh", "serve.json", "README.md", "model.safetensors", "verify.py"]
)
def test_a_missing_or_changed_file_is_refused(folder: Path, name: str) -> None:
    whole = (folder / name).read_bytes()
    (folder / name).write_bytes(whole + b" ")
    with pytest.raises(PublishError, match=f"{name} was changed"):
        verify_folder(folder)
    (folder / name).unlink()
    with pytest.raises(PublishError, match=f"{name} is missing"):
        verify_folder(folder)


@pytest.mark.parametrize("key", ["sample_from_anchor", "mask_token_id", "transformer_layer_config"])
def test_a_missing_key_is_refused(folder: Path, key: str) -> None:
    edit(folder / "config.json", lambda c: c.pop(key))
    rehash(folder)
    with pytest.raises(PublishError, match=f"config.json has no {key}"):
        verify_folder(folder)


def test_a_missing_manifest_is_refused(folder: Path) -> None:
    (folder / "manifest.json").unlink()
    with pytest.raises(PublishError, match=r"manifest.json is missing"):
        verify_folder(folder)
    with pytest.raises(PublishError, match=r"manifest.json is missing"):
        verify_folder(folder / "nowhere")


def test_a_truncated_file_is_refused(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4])
    rehash(folder)
    with pytest.raises(PublishError, match="is damaged"):
        verify_folder(folder)


def test_the_script_in_the_folder_needs_nothing_but_python(folder: Path) -> None:
    command = [sys.executable, "-I", str(folder / "verify.py"), str(folder)]
    good = subprocess.run([*command, "--speculative-config"], capture_output=True, text=True, cwd="/")
    assert good.returncode == 0, good.stderr
    assert json.loads(good.stdout)["model"] == str(folder)
    (folder / "config.json").unlink()
    bad = subprocess.run(command, capture_output=True, text=True, cwd="/")
    assert bad.returncode == 1
    assert "config.json is missing" in bad.stderr and "Traceback" not in bad.stderr


def test_serve_sh_refuses_a_damaged_folder_before_vllm(folder: Path) -> None:
    save(folder / "model.safetensors", {n: t for n, t in tensors_of(config()).items() if n != "fc.weight"})
    environment = {"PYTHON": sys.executable, "PATH": "/usr/bin:/bin"}
    done = subprocess.run([folder / "serve.sh", "/target"], capture_output=True, text=True, env=environment)
    assert done.returncode == 1
    assert "tensor fc.weight is missing" in done.stderr and "Traceback" not in done.stderr


def test_serve_sh_asks_for_a_target(folder: Path) -> None:
    done = subprocess.run(
        [folder / "serve.sh"], capture_output=True, text=True, env={"PATH": "/usr/bin:/bin"}
    )
    assert done.returncode == 2 and "which target?" in done.stderr


def test_serve_sh_gives_vllm_the_draft(folder: Path, tmp_path: Path) -> None:
    """A program in place of Python records the last command line; verification runs for real."""
    python = tmp_path / "python"
    python.write_text(
        f'#!/bin/sh\n[ "$1" = -m ] || exec {sys.executable} "$@"\nprintf "%s\\n" "$@" "$TRITON_INTERPRET"\n'
    )
    python.chmod(0o755)
    done = subprocess.run(
        [folder / "serve.sh", "/some where", "8123", "--seed", "3"],
        capture_output=True,
        text=True,
        env={"PYTHON": str(python), "PATH": "/usr/bin:/bin"},
    )
    words = done.stdout.splitlines()
    assert words[words.index("--model") + 1] == "/some where"
    assert words[words.index("--port") + 1] == "8123" and words[words.index("--host") + 1] == "127.0.0.1"
    assert json.loads(words[words.index("--speculative-config") + 1])["model"] == str(folder)
    assert words[-3:] == ["--seed", "3", "1"]


@pytest.mark.parametrize(("kind", "extra"), [("gated", "gate_proj"), ("rnn", "joint_proj")])
def test_markov_variants_need_their_own_tensors(kind: str, extra: str) -> None:
    assert f"markov_head.{extra}.bias" in required_tensors(config(markov_head_type=kind))


def test_what_a_plain_draft_does_not_need() -> None:
    names = required_tensors(config(markov_rank=0, enable_confidence_head=False, draft_vocab_size=100))
    assert not {n for n in names if n.startswith(("markov", "confidence", "lm_head"))} and "d2t" not in names


@pytest.mark.parametrize(
    ("dtype", "data"),
    [
        ("F32", struct.pack("<2f", 1.0, float("nan"))),
        ("F32", struct.pack("<2f", float("-inf"), 0)),
        ("BF16", b"\x00\x3f\x80\x7f"),
    ],
)
def test_weights_that_are_not_finite_are_found(tmp_path: Path, dtype: str, data: bytes) -> None:
    save(tmp_path / "w.safetensors", {"good": ("F32", struct.pack("<f", 3e38)), "bad": (dtype, data)})
    assert first_not_finite(tmp_path / "w.safetensors") == "bad"
    assert set(read_tensors(tmp_path / "w.safetensors")) == {"good", "bad"}


def test_an_export_is_finite(tmp_path: Path) -> None:
    assert first_not_finite(export(tmp_path / "d") / "model.safetensors") is None
