"""Checks on a target's weights that need only the safetensors headers: no torch, no GPU.

The draft copies the target's embedding, output head and final norm, so these three must be found, unpacked
and of the size that the config states, before any server starts.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tasks.errors import UsageError
from tasks.serve.target_config import TargetConfig, read_json

INDEX = "model.safetensors.index.json"
_FLOATS = ("F32", "F16", "BF16")
_MAX_HEADER_BYTES = 100 * 2**20
_EMBEDDING = ("embed_tokens.weight", "tok_embeddings.weight")

# vLLM 0.32 classes of text models that hand out auxiliary hidden states (`SupportsEagle3`).
ARCHITECTURES = frozenset(
    (
        "AfmoeForCausalLM",
        "ApertusForCausalLM",
        "Cohere2MoeForCausalLM",
        "DeepseekForCausalLM",
        "DeepseekV2ForCausalLM",
        "DeepseekV3ForCausalLM",
        "Ernie4_5ForCausalLM",
        "Gemma4ForCausalLM",
        "Gemma4ForConditionalGeneration",
        "GptOssForCausalLM",
        "GraniteForCausalLM",
        "InternLM3ForCausalLM",
        "K2HorizonForCausalLM",
        "KimiK25ForConditionalGeneration",
        "LagunaForCausalLM",
        "Llama4ForCausalLM",
        "Llama4ForConditionalGeneration",
        "LlamaForCausalLM",
        "LlavaForConditionalGeneration",
        "MiMoForCausalLM",
        "MiMoV2ForCausalLM",
        "MiniCPM3ForCausalLM",
        "MiniCPMForCausalLM",
        "MiniMaxM2ForCausalLM",
        "Ministral3ForCausalLM",
        "Mistral3ForConditionalGeneration",
        "MistralForCausalLM",
        "MistralLarge3ForCausalLM",
        "NemotronHForCausalLM",
        "Phi3ForCausalLM",
        "PixtralForConditionalGeneration",
        "Plamo3ForCausalLM",
        "Qwen2ForCausalLM",
        "Qwen2_5_VLForConditionalGeneration",
        "Qwen3ForCausalLM",
        "Qwen3MoeForCausalLM",
        "Qwen3NextForCausalLM",
        "Qwen3VLForConditionalGeneration",
        "Qwen3VLMoeForConditionalGeneration",
        "Qwen3_5ForCausalLM",
        "Qwen3_5ForConditionalGeneration",
        "Qwen3_5MoeForCausalLM",
        "Qwen3_5MoeForConditionalGeneration",
        "TeleChat3ForCausalLM",
    )
)


@dataclass(frozen=True)
class Tensor:
    """One tensor of a checkpoint, as its header describes it."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: str


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files that the checkpoint consists of.

    Raises:
        UsageError: There are none, or the index names files that are not there.
    """
    index = folder / INDEX
    if index.exists():
        mapping = read_json(index).get("weight_map")
        names = sorted(set(mapping.values())) if isinstance(mapping, dict) else []
        missing = [name for name in names if not (folder / name).is_file()]
        if missing or not names:
            raise UsageError(
                f"the target's index names {len(missing)} weight files that are missing"
                + (f": {', '.join(missing[:3])}" if missing else ": it names none at all"),
                where=str(index),
                hint="download the target again, completely",
            )
        return [folder / name for name in names]
    single = folder / "model.safetensors"
    if single.is_file():
        return [single]
    others = sorted(p.name for p in folder.iterdir() if p.suffix in (".bin", ".pt", ".pth", ".gguf"))
    raise UsageError(
        "the target folder has no safetensors weights"
        + (f" (only {', '.join(others[:3])})" if others else ""),
        where=f"target.model: {folder}",
        hint="point target.model at a folder with model.safetensors or its shards and their index",
    )


def read_header(path: Path) -> dict[str, Tensor]:
    """Name -> tensor of one safetensors file.

    Raises:
        UsageError: The file is not safetensors or shorter than its header says.
    """
    try:
        with open(path, "rb") as stream:
            (length,) = struct.unpack("<Q", stream.read(8))
            if length > _MAX_HEADER_BYTES:
                raise ValueError(f"its header would have {length} bytes")
            header = json.loads(stream.read(length))
        header.pop("__metadata__", None)
        end = max((entry["data_offsets"][1] for entry in header.values()), default=0)
        size = path.stat().st_size
        if size < 8 + length + end:
            raise ValueError(f"it has {size:,} of {8 + length + end:,} bytes")
        return {
            name: Tensor(name, entry["dtype"], tuple(entry["shape"]), path.name)
            for name, entry in header.items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError, struct.error) as error:
        raise UsageError(
            f"{path.name} is not a complete safetensors file: {error}",
            where=str(path),
            hint="download or convert the target again",
        ) from None


@dataclass(frozen=True)
class OutputTensors:
    """What turns the last layer's output into logits."""

    head: Tensor
    """The output head `[vocabulary, hidden]`; the embedding where the two are tied."""
    norm: Tensor
    """The final norm `[hidden]`."""


def check_weights(config: TargetConfig) -> None:
    """Find what the draft copies from the target.

    Raises:
        UsageError: Unsupported architecture; a tensor is missing, ambiguous, packed or of another size.
    """
    if config.architecture not in ARCHITECTURES:
        raise UsageError(
            f"unsupported architecture '{config.architecture}'",
            where=f"{config.folder / 'config.json'}: architectures",
            hint="the engine gives hidden states of known families only, e.g. Llama, Qwen3, DeepseekV3",
        )
    tensors = _all_tensors(config)
    _require(tensors, config, _EMBEDDING, (config.vocab_size, config.hidden_size))
    _output_tensors(tensors, config)


def output_tensors(config: TargetConfig) -> OutputTensors:
    """The final norm and the output head, by their headers.

    Raises:
        UsageError: One of them is missing, ambiguous, packed or of another size.
    """
    return _output_tensors(_all_tensors(config), config)


def _all_tensors(config: TargetConfig) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for path in weight_files(config.folder):
        tensors |= read_header(path)
    return tensors


def _output_tensors(tensors: Mapping[str, Tensor], config: TargetConfig) -> OutputTensors:
    names = _EMBEDDING if config.tie_word_embeddings else ("lm_head.weight", "output.weight")
    return OutputTensors(
        head=_require(tensors, config, names, (config.vocab_size, config.hidden_size)),
        norm=_require(
            tensors, config, ("model.norm.weight", "norm.weight", "norm_f.weight"), (config.hidden_size,)
        ),
    )


def _require(
    tensors: Mapping[str, Tensor], config: TargetConfig, names: tuple[str, ...], shape: tuple[int, ...]
) -> Tensor:
    tensor = _find(tensors, config, names)
    packed = tensor.dtype not in _FLOATS
    if packed or tensor.shape != shape:
        raise UsageError(
            f"{tensor.name} is {tensor.dtype} {list(tensor.shape)}; the draft needs floats {list(shape)}",
            where=str(config.folder / tensor.file),
            hint="use weights whose embedding, output head and final norm are not packed or quantized",
        )
    return tensor


def _find(tensors: Mapping[str, Tensor], config: TargetConfig, names: tuple[str, ...]) -> Tensor:
    """The one tensor of that role: by exact name, else by the end of its name outside the layers."""
    for name in names:
        if name in tensors:
            return tensors[name]
        matches = [t for key, t in tensors.items() if key.endswith(f".{name}") and ".layers." not in key]
        if len(matches) == 1:
            return matches[0]
        if matches:
            raise UsageError(
                f"several tensors could be {name}: {', '.join(sorted(t.name for t in matches)[:4])}",
                where=str(config.folder),
                hint="keep the language model's weights only",
            )
    stem = names[0].rsplit(".", 2)[-2]
    near = sorted(key for key in tensors if f"{stem}." in key and ".layers." not in key)
    raise UsageError(
        f"the target's weights have no tensor {names[0]}"
        + (f"; {', '.join(near[:3])} cannot take its place" if near else ""),
        where=str(config.folder),
        hint="the draft copies this tensor: use an unpacked checkpoint with the family's usual tensor names",
    )
