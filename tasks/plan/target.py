"""What a plan knows of the target: its own config, or the profile's sizes while it is not here."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from profiles.hardware import TargetShape
from profiles.schema import Profile
from tasks.errors import RetrainError, UsageError
from tasks.plan.figures import Figure
from tasks.plan.parameters import DTYPE_BYTES
from tasks.serve.target_config import TargetConfig, read_target_config
from tasks.serve.target_folder import converted_folder, resolve_target


@dataclass(frozen=True)
class KnownTarget:
    """The target's shape and where it comes from."""

    config: TargetConfig
    origin: Literal["config", "profile"]

    @property
    def name(self) -> str:
        return self.config.architecture or self.config.folder.name


def known_target(profile: Profile) -> KnownTarget:
    """The target's own config; where its folder is absent, `hardware.target` of the profile.

    A target that is still inside its wheel is not converted for a plan.

    Raises:
        UsageError: There is no folder, and the profile does not give all sizes.
        RetrainError: The wheel's target has not been converted.
    """
    shape = profile.hardware.target
    folder = _folder(profile)
    if folder.is_dir():
        return KnownTarget(read_target_config(folder), "config")
    if shape is not None and shape.num_hidden_layers is not None:
        return KnownTarget(_from_profile(folder, shape, shape.num_hidden_layers), "profile")
    if profile.target.source.kind == "gguf_wheel":
        raise RetrainError(
            "the target has not been converted yet, so its sizes are not known",
            where=str(folder),
            hint="run `make setup`, or start a run: the conversion takes about 20 s once",
        )
    if shape is not None:
        raise UsageError(
            f"there is no target folder '{profile.target.model}', and the profile does not say how many "
            "layers the target has",
            where="hardware.target.num_hidden_layers",
            hint="set it, or point target.model at a folder with the target's config.json: a plan needs no "
            "weights",
        )
    return KnownTarget(read_target_config(resolve_target(profile)), "config")


def _folder(profile: Profile) -> Path:
    if profile.target.source.kind == "gguf_wheel":
        return converted_folder(profile)
    return Path(profile.target.model).expanduser().absolute()


def _from_profile(folder: Path, shape: TargetShape, layers: int) -> TargetConfig:
    return TargetConfig(
        folder=folder,
        architecture="",
        hidden_size=shape.hidden_size,
        num_hidden_layers=layers,
        vocab_size=shape.vocab_size,
        intermediate_size=shape.intermediate_size,
        num_attention_heads=shape.num_attention_heads,
        num_key_value_heads=shape.num_key_value_heads,
        head_dim=shape.head_dim,
        tie_word_embeddings=False,
        max_position_embeddings=None,
        bos_token_id=None,
        eos_token_ids=(),
        raw={},
    )


def weights_of(profile: Profile, target: KnownTarget) -> Figure:
    """Bytes of the target's weights: the profile's, else of its files, else estimated from the config."""
    if profile.hardware.weights_gb is not None:
        return Figure(
            value=profile.hardware.weights_gb * 1e9, unit="B", source="profile", where="hardware.weights_gb"
        )
    if found := _file_bytes(target.config.folder.glob("*.safetensors")):
        return Figure(value=found, unit="B", source="measured", where="files of the target's folder")
    if target.origin == "profile":
        return Figure(unit="B")
    size = parameters_of(target.config) * DTYPE_BYTES[profile.target.dtype]
    return Figure(value=size, unit="B", source="estimated", where="a dense decoder of the config's sizes")


def _file_bytes(files: Iterable[Path]) -> int:
    return sum(file.stat().st_size for file in files)


def parameters_of(target: TargetConfig) -> int:
    """Parameters of a dense decoder, near enough for memory: attention, MLP and embeddings."""
    hidden, heads, kv = target.hidden_size, target.num_attention_heads, target.num_key_value_heads
    layer = 2 * hidden * target.head_dim * (heads + kv) + 3 * hidden * (
        target.intermediate_size or 4 * hidden
    )
    tables = 1 if target.tie_word_embeddings else 2
    return target.num_hidden_layers * layer + tables * target.vocab_size * hidden
