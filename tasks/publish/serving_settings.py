"""A published `serve.json`: read strictly, and read with distrust where it comes from a hub."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from profiles.deploying import FlagValue
from profiles.text import DuplicateKey, NotAMapping, parse_source
from tasks.errors import UsageError
from tasks.publish.serving_recipe import flags_of

FILE = "serve.json"
_FLAGS = frozenset(
    (
        "served-model-name",
        "dtype",
        "max-model-len",
        "max-num-seqs",
        "max-num-batched-tokens",
        "enable-chunked-prefill",
        "enable-prefix-caching",
        "generation-config",
        "enforce-eager",
        "distributed-executor-backend",
        "tensor-parallel-size",
        "pipeline-parallel-size",
        "data-parallel-size",
        "decode-context-parallel-size",
        "enable-expert-parallel",
        "all2all-backend",
        "moe-backend",
        "gpu-memory-utilization",
        "kv-cache-dtype",
        "prefix-match-unit",
        "max-cudagraph-capture-size",
        "attention-backend",
        "attention-config",
        "enable-flashinfer-autotune",
        "load-format",
        "reasoning-parser",
        "tool-call-parser",
        "enable-auto-tool-choice",
        "language-model-only",
    )
)
_VARIABLES = frozenset(
    (
        "VLLM_USE_V2_MODEL_RUNNER",
        "VLLM_CPU_KVCACHE_SPACE",
        "VLLM_ENABLE_V1_MULTIPROCESSING",
        "VLLM_KIMI_K3_AUX_ATTN_RES_STREAM",
        "TRITON_INTERPRET",
    )
)
_SPECULATION = frozenset(
    (
        "method",
        "model",
        "num_speculative_tokens",
        "draft_sample_method",
        "rejection_sample_method",
        "enable_adaptive_verification",
    )
)
"""What this project may write. Others of vLLM's options run code or read files: `--tool-parser-plugin`."""


class ServedTarget(BaseModel):
    """The target that the draft belongs to."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    name: str
    digest: str = ""


class ServeSettings(BaseModel):
    """Content of `serve.json`, as far as serving needs it."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    speculative_config: dict[str, Any]
    target: ServedTarget
    arguments: tuple[str, ...]
    environment: dict[str, str]
    cpu: bool = False
    interpreter: bool = False

    def speculation(self) -> dict[str, Any]:
        """The speculative options without the place of the draft."""
        return {name: value for name, value in self.speculative_config.items() if name != "model"}

    def flags(self, where: str) -> dict[str, FlagValue]:
        """The arguments by name; raises UsageError where one stands twice."""
        return flags_of(self.arguments, where)


def read_settings(folder: Path, name: str = "") -> ServeSettings:
    """The settings of a published folder.

    Args:
        name: What a user calls the folder; empty takes its path.

    Raises:
        UsageError: There are none, a key stands twice, or a value has the wrong type.
    """
    where = name or str(folder)
    try:
        text = (folder / FILE).read_text(encoding="utf-8")
        json.loads(text)
        return ServeSettings.model_validate(parse_source(text, FILE).values)
    except DuplicateKey as error:
        raise UsageError(
            f"'{error.key}' stands twice in {FILE}, in lines {error.first_line} and {error.line}",
            where=where,
            hint="keep one of them; publish the draft again if you did not edit the file",
        ) from None
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in fault["loc"])
        raise UsageError(
            f"{FILE}: {field}: {fault['msg']}", where=where, hint="publish the draft again"
        ) from None
    except (OSError, ValueError, NotAMapping):
        raise UsageError(
            f"there is no published draft in this folder: {FILE} is missing or not JSON",
            where=where,
            hint="give a version folder, e.g. runs/published/NAME/v0001",
        ) from None


def refuse_strange(settings: ServeSettings, where: str) -> None:
    """Refuse settings from a hub that hold what this project never writes: it could run code here.

    Raises:
        UsageError: Names the flag, variable or option.
    """
    strange = [f"--{name}" for name in settings.flags(where) if name not in _FLAGS]
    strange += [name for name in settings.environment if name not in _VARIABLES]
    strange += [name for name in settings.speculative_config if name not in _SPECULATION]
    if strange:
        raise UsageError(
            f"its {FILE} sets what a published draft needs not: {', '.join(strange)}",
            where=where,
            hint="download the repository, read the file, and serve the folder if you trust it",
        )


def refuse_changed(folder: Path, where: str) -> None:
    """Compare files from a hub with the manifest that came with them, where one did.

    Raises:
        UsageError: A file is not the one that was published.
    """
    from tasks.stage import sha256_file

    try:
        manifest: Mapping[str, Any] = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return
    except (OSError, ValueError):
        raise UsageError("its manifest.json cannot be read", where=where, hint="fetch it again") from None
    files = {str(name): str(digest) for name, digest in dict(manifest.get("files", {})).items()}
    changed = [
        path.name
        for path in sorted(folder.iterdir())
        if path.name in files and sha256_file(path) != files[path.name]
    ]
    if changed:
        raise UsageError(
            f"{', '.join(changed)} is not what was published",
            where=where,
            hint="remove it from the hub's cache and fetch it again, or ask who published it",
        )
