"""Mistakes of users, by the real command line: field, value, remedy on one screen, code 2, nothing left."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from publishing_hub import running_hub

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

SCREEN_LINES, SCREEN_CHARS = 24, 2400
CANARY = "canary-5f1d"


def row(number: int, role: str = "user") -> str:
    text = f"Question {number}: which of {number * 7} and {number * 5 + 3} stones weighs {number} grams more?"
    return json.dumps({"id": str(number), "domain": "qa", "messages": [{"role": role, "content": text}]})


def prompts(path: Path, numbers: range, **rows: Any) -> Path:
    path.write_text("".join(f"{row(number, **rows)}\n" for number in numbers), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def tiny_target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama of a few kilobytes, saved as its library saves it, with a real tokenizer."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("target")
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2, "num_key_value_heads": 2}
    LlamaForCausalLM(LlamaConfig(vocab_size=64, num_hidden_layers=4, **sizes)).save_pretrained(folder)
    words = Tokenizer(WordLevel({"<unk>": 0, "<eos>": 1}, unk_token="<unk>"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<eos>")
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def values(tmp_path: Path, tiny_target: Path) -> dict[str, Any]:
    """A profile with nothing wrong in it, in a folder whose name has a space and an accent."""
    folder = tmp_path / "mes données"
    folder.mkdir()
    shutil.copytree(tiny_target, folder / "target")
    return {
        "name": "tiny",
        "hardware": {"mode": "none", "min_memory_gib": 0.1, "min_disk_gib": 0.1, "min_cores": 1},
        "target": {"model": str(folder / "target"), "aux_layer_ids": [1, 2], "max_model_len": 256},
        "prompts": {
            "train": [str(prompts(folder / "train.jsonl", range(20)))],
            "evaluate": [str(prompts(folder / "evaluate.jsonl", range(100, 104)))],
            "max_similarity": 1.0,
        },
    }


def retrain(folder: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    """The command in a folder of its own, with a run root that does not exist yet."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "MLFLOW_"))}
    given = {"RETRAIN_DSPARK_RUNS": str(folder / "runs"), "HF_TOKEN": CANARY, **env}
    return subprocess.run(
        (sys.executable, "-c", "from flows.cli.main import main; main()", *words),
        cwd=folder,
        env={**kept, **given, "PYTHONPATH": str(Path(__file__).parents[2])},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )


def refused(folder: Path, *words: str, says: tuple[str, ...], **env: str) -> None:
    """Everything that a refusal has to be."""
    done = retrain(folder, *words, **env)
    text = done.stdout + done.stderr
    assert done.returncode == 2, text
    for part in says:
        assert part in text
    assert "Traceback" not in text
    assert done.stdout == "", "mistakes are told on standard error"
    assert len(text.splitlines()) <= SCREEN_LINES and len(text) <= SCREEN_CHARS, text
    runs = folder / "runs"
    left = sorted(path.name for path in runs.iterdir()) if runs.is_dir() else []
    assert left == [], "no run, no database, no server: it was refused before"
    ours = [p.pid for p in psutil.process_iter(["environ"]) if _belongs(p.info["environ"], runs)]
    assert ours == [], "nothing is left running"


def _belongs(environment: dict[str, str] | None, runs: Path) -> bool:
    return (environment or {}).get("RETRAIN_DSPARK_RUNS") == str(runs)


def written(folder: Path, values: dict[str, Any], name: str = "p.yaml") -> str:
    path = folder / name
    path.write_text(yaml.safe_dump(values, allow_unicode=True), encoding="utf-8")
    return str(path)


COMMAND_LINES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "unknown profile": (("run", "-p", "laptpo"), ("'laptpo'", "did you mean 'laptop'", "profiles: ")),
    "missing profile file": (("run", "-p", "no/such.yaml"), ("no/such.yaml", "No such file", "laptop")),
    "wrong suffix": (("run", "-p", "mine.txt"), ("mine.txt", "YAML or JSON")),
    "profile is a folder": (("run", "-p", "./"), ("cannot be read", "laptop")),
    "mistyped field": (("run", "--set", "train.epoch=2"), ("train.epoch", "did you mean epochs")),
    "unknown part": (("run", "--set", "trian.epochs=2"), ("trian", "did you mean train")),
    "out of range": (
        ("run", "--set", "train.epochs=-1"),
        ("train.epochs", "-1", "greater than or equal to 0"),
    ),
    "wrong type": (("run", "--set", "train.lr=fast"), ("train.lr", '"fast"', "number")),
    "wrong choice": (("run", "--set", "train.optimizer=sgd"), ("train.optimizer", '"sgd"', "adamw")),
    "a value for a part": (("run", "--set", "train=5"), ("train", "5")),
    "no equals sign": (("run", "--set", "train.epochs"), ("'train.epochs'", "FIELD=VALUE")),
    "value is not YAML": (("run", "--set", "train.epochs={1"), ("train.epochs={1", "quote it")),
    "attach without url": (("run", "--set", "serve.kind=attach"), ("serve.kind is attach", "serve.url")),
    "attach without store": (
        ("run", "--set", "serve.kind=attach", "--set", "serve.url=http://x"),
        ("serve.kind is attach", "store.master"),
    ),
    "unknown run": (("resume", "20260101-nope"), ("'20260101-nope'", "newest runs")),
    "run id with slashes": (("resume", "../../etc"), ("'../../etc'", "newest runs")),
    "logs of an unknown run": (("logs", "a/b"), ("'a/b'", "newest runs")),
    "unknown stage": (("resume", "x", "--from", "trian"), ("trian", "validate", "publish")),
    "unknown command": (("rnu",), ("rnu", "--help")),
    "nothing to serve": (("serve",), ("nothing was published yet", "retrain-dspark run")),
    "not a draft": (("serve", "nowhere"), ("no published draft", "nowhere")),
    "facts that are not there": (("doctor", "--facts", "none.json"), ("none.json", "doctor --record")),
    "facts and this machine": (("doctor", "--facts", "a", "--record", "b"), ("--facts reads no machine",)),
    "record in no folder": (("doctor", "--record", "no/such.json"), ("no/such.json", "folder is not there")),
    "unknown role": (("doctor", "--role", "head"), ("head", "serve", "train", "both")),
    "layer of the plan": (("plan", "-p", "laptpo"), ("'laptpo'", "laptop")),
}


@pytest.mark.parametrize("case", COMMAND_LINES)
def test_command_line(case: str, tmp_path: Path) -> None:
    words, says = COMMAND_LINES[case]
    refused(tmp_path, *words, says=says)


@pytest.mark.parametrize("suffix", ["yaml", "json"])
def test_duplicate_key(suffix: str, tmp_path: Path) -> None:
    texts = {
        "yaml": "name: a\ntarget: {}\nname: b\n",
        "json": '{"name": "a",\n "target": {},\n "name": "b"}\n',
    }
    path = tmp_path / f"twice.{suffix}"
    path.write_text(texts[suffix])
    refused(tmp_path, "run", "-p", str(path), says=("'name' is given twice", "line 1", "line 3", str(path)))


@pytest.mark.parametrize("text", ["", "- a\n", "name: [\n", "\ttab: 1\n"])
def test_profile_that_is_none(text: str, tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(text)
    refused(tmp_path, "run", "-p", str(path), says=(str(path),))


PROMPT_FILES: dict[str, tuple[str | None, str]] = {
    "missing": (None, "there is no prompt file"),
    "empty": ("\n\n", "is empty"),
    "not JSONL": ("id,text\n1,hello\n", "is not JSONL"),
    "no user turn": ("".join(f"{row(n, role='assistant')}\n" for n in range(9)), "it has no user turn"),
    "too few": ("".join(f"{row(n)}\n" for n in range(3)), "prompts.held_out"),
}


@pytest.mark.parametrize("case", PROMPT_FILES)
def test_prompt_file(case: str, tmp_path: Path, values: dict[str, Any]) -> None:
    text, says = PROMPT_FILES[case]
    path = tmp_path / "mine.jsonl"
    if text is not None:
        path.write_text(text)
    values["prompts"]["train"] = [str(path)]
    refused(tmp_path, "run", "-p", written(tmp_path, values), says=("prompts.", says, "to do:"))


def _no_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def _cut_weights(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def _no_template(folder: Path) -> None:
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    path = folder / "tokenizer_config.json"
    known = json.loads(path.read_text())
    known.pop("chat_template", None)
    path.write_text(json.dumps(known))


TARGETS: dict[str, tuple[Callable[[Path], Any], tuple[str, ...]]] = {
    "no folder": (shutil.rmtree, ("there is no target folder", "target.model")),
    "no weights": (_no_weights, ("safetensors", "target")),
    "cut weights": (_cut_weights, ("model.safetensors",)),
    "no config": (lambda folder: (folder / "config.json").unlink(), ("config.json",)),
    "no tokenizer": (lambda folder: (folder / "tokenizer.json").unlink(), ("no tokenizer",)),
    "no chat template": (_no_template, ("no chat template", "chat_template.jinja")),
}


@pytest.mark.parametrize("case", TARGETS)
def test_target_folder(case: str, tmp_path: Path, values: dict[str, Any]) -> None:
    damage, says = TARGETS[case]
    damage(Path(values["target"]["model"]))
    refused(tmp_path, "run", "-p", written(tmp_path, values), says=(*says, "to do:"))


@pytest.mark.parametrize("layers", ["[1, 9]", "[0, 1]", "[1, 4]"])
def test_layers_that_the_target_does_not_have(layers: str, tmp_path: Path, values: dict[str, Any]) -> None:
    path = written(tmp_path, values)
    refused(
        tmp_path, "run", "-p", path, "--set", f"target.aux_layer_ids={layers}",
        says=("target.aux_layer_ids", layers, "it has 4 layers", "use ids from 1 to 3"),
    )  # fmt: skip


@pytest.mark.parametrize("field", ["serve.port", "store.rpc_port"])
def test_port_of_another_program(field: str, tmp_path: Path, values: dict[str, Any]) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        refused(
            tmp_path, "run", "-p", written(tmp_path, values), "--set", f"{field}={port}",
            says=(field, "is held by", f"pid {os.getpid()}", "set the field to 0"),
        )  # fmt: skip


RECORDS: dict[str, tuple[str, str]] = {
    "unknown schema version": ('{"schema_version": 99, "node_id": "a"}', "schema_version is 99"),
    "truncated": ('{"schema_version": 1, "node_id": "a", "gpus": [{"index"', "the text was cut"),
    "not JSON": ("name: laptop\n", "no complete JSON"),
    "a profile": ('{"name": "laptop"}', "schema_version is none"),
    "no fields": ('{"schema_version": 1, "node_id": "a"}', "role: Field required"),
    "endless": ("[" * 200_000, "no complete JSON"),
}


@pytest.mark.parametrize("case", RECORDS)
def test_recorded_facts(case: str, tmp_path: Path) -> None:
    """Such a file is refused as facts, and is not overwritten by a record."""
    text, says = RECORDS[case]
    path = tmp_path / "serve-0.json"
    path.write_text(text)
    refused(tmp_path, "doctor", "--facts", str(path), says=(says, str(path), "to do:"))
    refused(tmp_path, "doctor", "--record", str(path), says=("not overwritten", str(path), "to do:"))
    assert path.read_text() == text


def test_two_records_of_one_node(tmp_path: Path) -> None:
    record = {"schema_version": 1, "node_id": "a", "role": "serve", "collected_at": "2026-11-30T00:00:00Z"}
    paths = [tmp_path / "first.json", tmp_path / "second.json"]
    for path in paths:
        path.write_text(json.dumps(record))
    words = ("doctor", "--facts", *map(str, paths))
    refused(tmp_path, *words, says=("two records are of the node 'a'", *map(str, paths)))


def test_not_enough_disk(tmp_path: Path, values: dict[str, Any]) -> None:
    words = ("run", "-p", written(tmp_path, values), "--set", "hardware.min_disk_gib=900000")
    refused(tmp_path, *words, says=("required at least 900000.0 GiB", "RETRAIN_DSPARK_RUNS"))


def test_run_root_that_cannot_be_used(tmp_path: Path, values: dict[str, Any]) -> None:
    (tmp_path / "file").write_text("")
    for root in ("/proc/none/runs", str(tmp_path / "file"), str(tmp_path / "file" / "runs")):
        words = ("run", "-p", written(tmp_path, values))
        refused(tmp_path, *words, says=("run root", root, "RETRAIN_DSPARK_RUNS"), RETRAIN_DSPARK_RUNS=root)


@pytest.mark.parametrize("words", [("--help",), ("run", "--help"), ("plan",), ("clean", "--dry-run")])
def test_looking_leaves_nothing_behind(
    words: tuple[str, ...], tmp_path: Path, values: dict[str, Any]
) -> None:
    """Help and plan make no folder, and work without a home."""
    more = ("-p", written(tmp_path, values)) if words == ("plan",) else ()
    done = retrain(tmp_path, *words, *more, HOME="")
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "runs").exists()


def test_a_secret_in_a_profile_is_refused_and_not_repeated(tmp_path: Path, values: dict[str, Any]) -> None:
    values["serve"] = {"environment": {"HF_TOKEN": CANARY}}
    path = written(tmp_path, values)
    refused(tmp_path, "run", "-p", path, says=("serve.environment", "HF_TOKEN", "secret"))
    done = retrain(tmp_path, "run", "-p", path)
    assert CANARY not in done.stdout + done.stderr


def test_token_of_a_hub_that_may_not_write(tmp_path: Path, values: dict[str, Any]) -> None:
    card = {"base_model": "lab/target"}
    values["publish"] = {"kind": "hub", "hub": {"repo": "lab/draft"}, "card": card}
    values["target"] = {**values["target"], "revision": "5f0b02c75b57c5855da9ae460ce51323ea669d8a"}
    with running_hub(tmp_path / "hub") as hub:
        says = (
            "nothing could be published in lab/draft: the hub does not know the token",
            "HF_TOKEN",
            "to do:",
        )
        refused(tmp_path, "run", "-p", written(tmp_path, values), says=says, HF_ENDPOINT=hub.url)
        values["publish"]["hub"]["token_env"] = "NO_SUCH_VARIABLE"
        says = (
            "there is no token for lab/draft",
            "NO_SUCH_VARIABLE is empty or not set",
            "publish.hub.token_env",
        )
        refused(tmp_path, "run", "-p", written(tmp_path, values), says=says, HF_ENDPOINT=hub.url)
