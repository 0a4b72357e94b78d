"""Is a published draft whole? Runs with Python alone: this file travels inside every published folder.

    python verify.py FOLDER                        0 if whole, else 1 and what is wrong
    python verify.py FOLDER --speculative-config   the same, then vLLM's configuration on stdout

A draft that lost a tensor may still load and then propose garbage; so a server asks here first.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
import sys
from pathlib import Path
from typing import Any

MANIFEST = "manifest.json"
CONFIG_KEYS = (
    "architectures",
    "speculators_model_type",
    "speculators_config",
    "block_size",
    "draft_vocab_size",
    "aux_hidden_state_layer_ids",
    "mask_token_id",
    "markov_rank",
    "enable_confidence_head",
    "sample_from_anchor",
    "transformer_layer_config",
)
"""Keys without which vLLM guesses, or reads the draft in another way than it was trained."""
REQUIRED_FILES = ("config.json", "README.md", "serve.json", "serve.sh", "verify.py")
_LAYER_PARTS = (
    "input_layernorm",
    "post_attention_layernorm",
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.o_proj",
    "self_attn.q_norm",
    "self_attn.k_norm",
    "mlp.gate_proj",
    "mlp.up_proj",
    "mlp.down_proj",
)
_DTYPE_BYTES = {
    "F64": 8,
    "F32": 4,
    "F16": 2,
    "BF16": 2,
    "I64": 8,
    "I32": 4,
    "I16": 2,
    "I8": 1,
    "U8": 1,
    "BOOL": 1,
}


def required_tensors(config: dict[str, Any]) -> list[str]:
    """Tensors that a DSpark draft of this configuration must carry (speculators 0.9, vLLM's loader)."""
    names = ["fc.weight", "hidden_norm.weight", "norm.weight"]
    layers = config["transformer_layer_config"]
    names += [
        f"layers.{n}.{part}.weight" for n in range(layers["num_hidden_layers"]) for part in _LAYER_PARTS
    ]
    if config["markov_rank"] > 0:
        names += ["markov_head.markov_w1.weight", "markov_head.markov_w2.weight"]
        gate = {"gated": "gate_proj", "rnn": "joint_proj"}.get(config.get("markov_head_type", "vanilla"))
        names += [f"markov_head.{gate}.weight", f"markov_head.{gate}.bias"] if gate else []
    if config["enable_confidence_head"]:
        names += ["confidence_head.proj.weight", "confidence_head.proj.bias"]
    if config["draft_vocab_size"] < layers["vocab_size"]:
        names += ["lm_head.weight", "t2d", "d2t"]
    return names


def read_tensors(path: Path) -> dict[str, dict[str, Any]]:
    """Tensor name -> {dtype, shape} of a safetensors file, from its header.

    Raises:
        ValueError: The file is not a whole safetensors file.
    """
    size = path.stat().st_size
    with open(path, "rb") as stream:
        start = stream.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else -1
        if not 0 < length <= size - 8:
            raise ValueError("its header does not fit into the file")
        header = json.loads(stream.read(length))
    tensors, end = {}, 0
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        first, last = entry["data_offsets"]
        if last - first != math.prod(entry["shape"]) * _DTYPE_BYTES[entry["dtype"]]:
            raise ValueError(f"the bytes of {name} do not fit its shape")
        end = max(end, last)
        tensors[name] = {"dtype": entry["dtype"], "shape": entry["shape"]}
    if 8 + length + end != size:
        raise ValueError(f"it has {size} bytes where its header tells {8 + length + end}")
    return tensors


def folder_problems(folder: Path) -> list[str]:
    """Everything that is missing or changed, as sentences; empty if the folder is whole."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        files, tensors = dict(manifest["files"]), dict(manifest["tensors"])
    except FileNotFoundError:
        return [f"{MANIFEST} is missing"]
    except (OSError, ValueError, KeyError, TypeError):
        return [f"{MANIFEST} cannot be read"]
    problems = [f"{name} is not in {MANIFEST}" for name in REQUIRED_FILES if name not in files]
    problems += _file_problems(folder, files)
    config, config_problems = _config(folder)
    found, tensor_problems = _tensors(folder, files)
    problems += config_problems + tensor_problems
    wanted = dict.fromkeys(required_tensors(config) if config else ())
    for name in [*tensors, *(name for name in wanted if name not in tensors)]:
        if name not in found:
            problems.append(f"tensor {name} is missing")
        elif name in tensors and found[name] != tensors[name]:
            problems.append(f"tensor {name} has {found[name]} where {tensors[name]} was published")
    return problems


def _file_problems(folder: Path, files: dict[str, str]) -> list[str]:
    problems = []
    for name, digest in sorted(files.items()):
        path = folder / name
        if Path(name).is_absolute() or ".." in Path(name).parts:
            problems.append(f"{name} points out of the folder")
        elif not path.is_file():
            problems.append(f"{name} is missing")
        elif _sha256(path) != digest:
            problems.append(f"{name} was changed")
    return problems


def _config(folder: Path) -> tuple[dict[str, Any] | None, list[str]]:
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None, ["config.json cannot be read"]
    missing = [key for key in CONFIG_KEYS if key not in config]
    layers = config.get("transformer_layer_config")
    if isinstance(layers, dict):
        missing += [
            f"transformer_layer_config.{k}" for k in ("num_hidden_layers", "vocab_size") if k not in layers
        ]
    return (None if missing else config), [f"config.json has no {key}" for key in missing]


def _tensors(folder: Path, files: dict[str, str]) -> tuple[dict[str, dict[str, Any]], list[str]]:
    names = [name for name in files if name.endswith(".safetensors")]
    found: dict[str, dict[str, Any]] = {}
    problems = [] if names else [f"no .safetensors file is in {MANIFEST}"]
    for name in names:
        try:
            found.update(read_tensors(folder / name))
        except FileNotFoundError:
            continue
        except (OSError, ValueError, KeyError, TypeError) as error:
            problems.append(f"{name} is damaged: {error}")
    return found, problems


def _sha256(path: Path) -> str:
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def speculative_config(folder: Path) -> dict[str, Any]:
    """vLLM's speculative configuration with the folder's own path as the model."""
    stored = json.loads((folder / "serve.json").read_text(encoding="utf-8"))["speculative_config"]
    return {**stored, "model": str(folder.resolve())}


def main(arguments: list[str]) -> int:
    names = [word for word in arguments if not word.startswith("--")]
    if len(names) != 1 or set(arguments) - set(names) - {"--speculative-config"}:
        print("usage: verify.py FOLDER [--speculative-config]", file=sys.stderr)
        return 2
    folder = Path(names[0])
    if problems := folder_problems(folder):
        print(f"{folder} is not a whole draft and is not served:", file=sys.stderr)
        print("\n".join(f"  {problem}" for problem in problems), file=sys.stderr)
        print("  to do: publish it again, or copy the whole folder again from where it came", file=sys.stderr)
        return 1
    if "--speculative-config" in arguments:
        print(json.dumps(speculative_config(folder)))
    else:
        print(f"{folder}: whole")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
