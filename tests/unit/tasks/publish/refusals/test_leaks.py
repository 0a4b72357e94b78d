"""Secrets, paths and names of machines in any file, in any clothes; and no alarm without a fire."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from urllib.parse import quote

import pytest
from drafts import config, profile, save, shapes_of, tensors_of, validation
from folders import material

from tasks.publish.refusals.leaks import leak_refusals
from tasks.publish.refusals.models import Material
from tasks.publish.scan.__main__ import main

CANARY = "kq7/Zp+canary=93&x!"
FORMS = {
    "plain": CANARY,
    "base64": base64.b64encode(CANARY.encode()).decode(),
    "base64 of more": base64.urlsafe_b64encode(f"user:{CANARY}:end".encode()).decode(),
    "url": quote(CANARY, safe=""),
    "url twice": quote(quote(CANARY, safe=""), safe=""),
    "hexadecimal": CANARY.encode().hex(),
    "two lines": f"{CANARY[:9]}\n    {CANARY[9:]}",
    "two quoted lines": f'"{CANARY[:5]}",\n  "{CANARY[5:]}"',
    "base64 over two lines": f"{base64.b64encode(CANARY.encode()).decode()[:11]}\n"
    f"{base64.b64encode(CANARY.encode()).decode()[11:]}",
    "json": json.dumps({"a": f"x\n{CANARY}"}),
}


def found(material: Material) -> list[str]:
    return [f"{one.where}: {one.what}" for one in leak_refusals(material)]


@pytest.fixture
def bad(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Material:
    monkeypatch.setenv("MY_API_TOKEN", CANARY)
    return material(tmp_path)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["README.md", "serve.json", "plots/acceptance-by-domain.png"])
def test_a_known_secret_is_found(bad: Material, name: str, form: str) -> None:
    with open(bad.folder / name, "ab") as stream:
        stream.write(f"\n{FORMS[form]}\n".encode())
    lines = found(bad)
    assert f"{name}: a secret of the environment stands in a file" in lines, lines
    assert not any(CANARY in line for line in lines)


def test_a_secret_in_the_metadata_of_weights(bad: Material) -> None:
    tensors = tensors_of(config())
    for form in ("plain", "base64 of more", "two lines"):
        save(bad.folder / "model.safetensors", tensors, shapes_of(config()), {"note": FORMS[form]})
        assert "model.safetensors: a secret of the environment stands in a file" in found(bad), form


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("hf_" + "aB3dE6gH9j" * 3, "a Hugging Face token"),
        ("hf_aB3dE6gH9jaB3dE6\n  gH9jaB3dE6gH9j", "a Hugging Face token"),
        (base64.b64encode(b"login with hf_" + b"aB3dE6gH9j" * 3).decode(), "a Hugging Face token"),
        ("AKIA" + "Z7QWERTYUIOPASDF", "AWS"),
        ("-----BEGIN OPENSSH PRIVATE KEY-----", "a private key"),
        ("ghp_" + "a1B2c3D4e5" * 4, "GitHub"),
        ("http://me:s3cretpass@tracking.example:5000", "a password in an address"),
        ("Authorization: Bearer " + "a1B2c3D4e5" * 3, "a bearer token"),
        ('password: "correct-horse-battery"', "Secret Keyword"),
        ('key = "q7R2xV9mK4tB8wZ1nC6yH3dJ5fL0sGpA+E/u"', "Base64 High Entropy String"),
    ],
)
def test_a_secret_that_nobody_told_us_is_found_by_its_looks(tmp_path: Path, text: str, kind: str) -> None:
    bad = material(tmp_path)
    with open(bad.folder / "serve.sh", "a") as stream:
        stream.write(f"\n{text}\n")
    lines = found(bad)
    assert any(kind in line for line in lines), lines
    assert not any(text in line for line in lines)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("read /home/alice/models/x", "a path of a machine (/home/alice)"),
        ("at /mnt/fast/captures", "a path of a machine"),
        ("tray:/home/alice/models", "a path of a machine"),
        (quote("see /scratch/run-7/log", safe=""), "a path of a machine"),
        (base64.b64encode(b"the log is at /data/team/run-7").decode(), "a path of a machine"),
        ("~/secret/thing", "a path of a machine"),
        ("C:\\Users\\alice", "a path of a machine"),
        ("file:///srv/x", "a path of a machine"),
        ("http://192.168.7.4:5000", "an address of a private network"),
        ("tcp://10.1.2.3:50051", "an address of a private network"),
        ("store.gpu-pool.internal", "an address of a private network"),
        ("measured on tray-07b, all of it", "the name of a machine (tray-07b)"),
        ("on GPU-8f3a1b2c-1111-2222-3333-444455556666", "an address of a private network or machine"),
    ],
)
def test_places_are_found(tmp_path: Path, text: str, words: str) -> None:
    facts = {**validation().facts, "node_id": "tray-07b.rack.example"}
    bad = material(tmp_path, validation=validation().model_copy(update={"facts": facts}))
    with open(bad.folder / "README.md", "a") as stream:
        stream.write(f"\n{text}\n")
    assert any(words in line for line in found(bad)), found(bad)


def test_a_server_that_the_profile_names_is_found(tmp_path: Path) -> None:
    base = profile()
    attached = base.serve.model_copy(update={"kind": "attach", "url": "http://pod-9.example:8000/v1"})
    bad = material(tmp_path, profile=base.model_copy(update={"serve": attached}))
    with open(bad.folder / "README.md", "a") as stream:
        stream.write("\nIt was answered by pod-9, mostly.\n")
    assert found(bad) == ["README.md: the name of a machine (pod-9) stands in a file"]


def test_a_folder_of_the_run_is_found(tmp_path: Path) -> None:
    bad = material(tmp_path, private_folders=(tmp_path / "odd place", Path("/x")))
    (bad.folder / "serve.json").write_text(json.dumps({"a": f"{tmp_path}/odd place/run"}))
    assert any("a path of this machine" in line for line in found(bad))


@pytest.mark.parametrize(
    "text",
    [
        "d2a61a312222d600f12d9e4233b006eda6f2f78d9a0fc588c6187afa26a269b8",
        '"digest": "d2a61a312222d600f12d9e4233b006eda6f2f78d9a0fc588c6187afa26a269b8",',
        "| flow run id | `f1df7803-684e-4842-aa35-7ab7c34273a4` |",
        "| mlflow parent run id | `968322c51d8344cbb1594c926f445b4c` |",
        '"run_id": "20261201-032808-laptop-f1df7803"',
        "nvidia-curand-cu12: 10.3.9.90",
        "kernel_release: 6.14.0-1012-nvidia-64k",
        "mooncake-transfer-engine-non-cuda: 0.3.13.post1",
        "Set VLLM_API_KEY to ask clients for a key.",
        '"num_speculative_tokens": 8, "tokenizer_digest": "bc22a93397f75f1b594b9614532858b8"',
        '-v "$PWD":/draft:ro --entrypoint /draft/serve.sh -e PYTHON=/app/.venv/bin/python',
        "[DSpark](https://arxiv.org/abs/2607.05147)",
        "revision: 25cebcd0b62b9006a6439a6efc48a87999933b650afb170af5bc41acf3ab7bf6",
    ],
)
def test_what_every_card_says_is_no_alarm(tmp_path: Path, text: str) -> None:
    good = material(tmp_path)
    with open(good.folder / "README.md", "a") as stream:
        stream.write(f"\n{text}\n")
    assert found(good) == []


def test_any_folder_can_be_looked_through(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = material(tmp_path).folder
    assert main([str(good)]) == 0 and ", 0 findings, " in capsys.readouterr().out
    (good / "notes.txt").write_text("hf_" + "aB3dE6gH9j" * 3)
    assert main([str(good)]) == 1
    assert "notes.txt: a Hugging Face token" in capsys.readouterr().out
    assert main([]) == 2
