"""Fill the folder of one version: weights, config, card, how to serve, manifest."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from profiles.schema import Profile
from tasks.errors import PublishError
from tasks.evaluate.models import EvaluationReport
from tasks.publish import check_folder
from tasks.publish.card import CardInputs, render_card
from tasks.publish.check_folder import MANIFEST, read_tensors, required_tensors
from tasks.publish.models import Decision
from tasks.publish.privacy import refuse_leaks, target_name
from tasks.publish.serving import interpreter_files, serve_script, serve_settings
from tasks.serve.models import TargetIdentity
from tasks.stage import sha256_file
from tasks.stream.models import CaptureManifest
from tasks.train.models import DraftCheckpoint
from tasks.validate.models import ValidationReport

FORMAT = 1
_EXPONENTS = {"F32": (np.uint32, 0x7F800000), "BF16": (np.uint16, 0x7F80), "F16": (np.uint16, 0x7C00)}
_CHUNK_BYTES = 1 << 22
_DROPPED_KEYS = ("auto_map", "_name_or_path", "_commit_hash")


@dataclass(frozen=True)
class Package:
    """What a published folder is made from."""

    profile: Profile
    run_id: str
    draft: DraftCheckpoint
    draft_dir: Path
    target_dir: Path
    decision: Decision
    evaluation: EvaluationReport
    identity: TargetIdentity
    captures: CaptureManifest
    validation: ValidationReport
    lineage: Mapping[str, str]
    private_folders: tuple[Path, ...]
    """Folders of this machine that no published file may name."""

    def build(self, folder: Path, version: str) -> None:
        """Fill the empty `folder` as `version`.

        Raises:
            PublishError: The draft is not whole or not finite, or a file would leak a path or a secret.
        """
        weights = copy_weights(self.draft_dir, folder)
        config = published_config(self.draft_dir, target_name(self.profile))
        refuse_incomplete(config, weights)
        settings = serve_settings(self.profile, self.identity.model_digest, self.identity.architecture)
        write(folder / "config.json", json.dumps(config, indent=2, ensure_ascii=False) + "\n")
        write(folder / "README.md", self._card(version, config, settings))
        write(folder / "serve.json", json.dumps(settings, indent=2, ensure_ascii=False) + "\n")
        write(folder / "serve.sh", serve_script(settings), mode=0o700)
        shutil.copyfile(check_folder.__file__, folder / "verify.py")
        if settings["interpreter"]:
            for name, text in interpreter_files().items():
                (folder / name).parent.mkdir(mode=0o700, exist_ok=True)
                write(folder / name, text)
        write(folder / MANIFEST, self._manifest(folder, version, weights))
        refuse_leaks(folder, self.private_folders)

    def _card(self, version: str, config: dict[str, Any], settings: dict[str, Any]) -> str:
        return render_card(
            CardInputs(
                profile=self.profile,
                version=version,
                decision=self.decision,
                draft=self.draft,
                config=config,
                evaluation=self.evaluation,
                identity=self.identity,
                captures=self.captures,
                validation=self.validation,
                lineage=dict(self.lineage),
                speculative_config=settings["speculative_config"],
            )
        )

    def _manifest(self, folder: Path, version: str, tensors: dict[str, Any]) -> str:
        files = {
            path.relative_to(folder).as_posix(): sha256_file(path)
            for path in sorted(folder.rglob("*"))
            if path.is_file()
        }
        manifest = {
            "format": FORMAT,
            "name": self.profile.publish.name,
            "version": version,
            "run_id": self.run_id,
            "promoted": self.decision.promote,
            "target": {"name": target_name(self.profile), "digest": self.identity.model_digest},
            "captures": self.captures.digest,
            "files": files,
            "tensors": dict(sorted(tensors.items())),
        }
        return json.dumps(manifest, indent=2, ensure_ascii=False) + "\n"


def write(path: Path, text: str, mode: int = 0o600) -> None:
    path.write_text(text, encoding="utf-8")
    path.chmod(mode)


def copy_weights(source: Path, folder: Path) -> dict[str, dict[str, Any]]:
    """Copy every safetensors file (and nothing else that was exported); returns all tensors.

    Raises:
        PublishError: There is none, one is damaged, or a weight is not finite.
    """
    files = sorted(source.glob("*.safetensors"))
    if not files:
        raise PublishError("the draft has no weights", where=str(source), hint="train it again")
    tensors: dict[str, dict[str, Any]] = {}
    for file in files:
        copy = folder / file.name
        shutil.copyfile(file, copy)
        copy.chmod(0o600)
        try:
            tensors.update(read_tensors(copy))
        except ValueError as error:
            raise PublishError(f"{file.name} is damaged: {error}", where=str(source)) from error
        if name := first_not_finite(copy):
            raise PublishError(f"tensor {name} holds NaN or infinity", where=str(file), hint="train it again")
    index = source / "model.safetensors.index.json"
    if index.is_file():
        shutil.copyfile(index, folder / index.name)
    return tensors


def first_not_finite(path: Path) -> str | None:
    """Name of the first floating tensor with NaN or infinity: all exponent bits set. Reads in pieces."""
    with open(path, "rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        header = json.loads(stream.read(length))
        for name, entry in header.items():
            if name == "__metadata__" or entry["dtype"] not in _EXPONENTS:
                continue
            kind, mask = _EXPONENTS[entry["dtype"]]
            first, last = entry["data_offsets"]
            stream.seek(8 + length + first)
            pieces = _pieces(stream, last - first)
            if any(np.any((np.frombuffer(piece, kind) & kind(mask)) == mask) for piece in pieces):
                return str(name)
    return None


def _pieces(stream: BinaryIO, size_bytes: int) -> Iterator[bytes]:
    """The next `size_bytes` of a file, in pieces that fit into memory."""
    while size_bytes > 0:
        piece = stream.read(min(_CHUNK_BYTES, size_bytes))
        size_bytes -= len(piece) or size_bytes
        yield piece


def published_config(draft_dir: Path, target: str) -> dict[str, Any]:
    """The draft's config with the target's name in place of its path, and without code references.

    Raises:
        PublishError: A key that serving needs is not written out.
    """
    try:
        config: dict[str, Any] = json.loads((draft_dir / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise PublishError(f"the draft's config cannot be read: {error}", where=str(draft_dir)) from error
    for key in _DROPPED_KEYS:
        config.pop(key, None)
        config.get("transformer_layer_config", {}).pop(key, None)
    missing = [key for key in check_folder.CONFIG_KEYS if key not in config]
    if missing:
        raise PublishError(
            f"the draft's config does not write out {', '.join(missing)}",
            where=str(draft_dir / "config.json"),
            hint="vLLM would guess; export the draft again with every option explicit",
        )
    config["speculators_config"]["verifier"]["name_or_path"] = target
    return config


def refuse_incomplete(config: dict[str, Any], tensors: Mapping[str, Any]) -> None:
    """Raises PublishError if the weights lack a tensor that this configuration needs."""
    missing = [name for name in required_tensors(config) if name not in tensors]
    if missing:
        raise PublishError(
            "the draft lacks " + ", ".join(missing), where="model.safetensors", hint="train it again"
        )
