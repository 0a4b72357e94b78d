"""Fill the folder of one version: weights, config, card, how to serve, manifest."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from profiles.schema import Profile
from tasks.evaluate.models import EvaluationReport
from tasks.publish import check_folder, speculation_profile
from tasks.publish.card import CardInputs, render_card
from tasks.publish.check_folder import MANIFEST, read_tensors
from tasks.publish.models import Decision
from tasks.publish.plots import plots
from tasks.publish.privacy import revision_of, target_name
from tasks.publish.refusals.core import refuse_folder
from tasks.publish.refusals.models import Material, read_object
from tasks.publish.serving import interpreter_files, serve_script, serve_settings
from tasks.publish.speculation_build import MadeFrom
from tasks.publish.speculation_build import speculation_profile as made_speculation_profile
from tasks.publish.speculation_profile import SpeculationProfile
from tasks.serve.models import TargetIdentity
from tasks.stage import sha256_file
from tasks.stream.models import CaptureManifest
from tasks.train.models import DraftCheckpoint
from tasks.validate.models import ValidationReport

FORMAT = 1
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
            GateRefused: Something speaks against publishing it; the message names everything that does.
        """
        tensors = copy_weights(self.draft_dir, folder)
        config = self._config()
        settings = serve_settings(self.profile, self.identity.model_digest, self.identity.architecture)
        write(folder / "config.json", _json(config))
        write(folder / "serve.json", _json(settings))
        write(folder / "serve.sh", serve_script(settings), mode=0o700)
        shutil.copyfile(check_folder.__file__, folder / "verify.py")
        if settings["interpreter"]:
            for name, text in interpreter_files().items():
                write(folder / name, text)
        speculation = self._speculation(folder, version, config)
        write(folder / speculation_profile.FILE, speculation_profile.text_of(speculation))
        write(folder / "README.md", self._card(folder, version, config, settings, speculation))
        write(folder / MANIFEST, self._manifest(folder, version, tensors))
        refuse_folder(
            Material(
                folder=folder,
                profile=self.profile,
                draft=self.draft,
                draft_dir=self.draft_dir,
                evaluation=self.evaluation,
                validation=self.validation,
                private_folders=self.private_folders,
            )
        )

    def _config(self) -> dict[str, Any]:
        """The export's configuration, with the target's public name and revision in place of a path."""
        pinned = self.profile.target.revision or self.identity.revision
        return published_config(self.draft_dir, target_name(self.profile), pinned)

    def _speculation(self, folder: Path, version: str, config: Mapping[str, Any]) -> SpeculationProfile:
        return made_speculation_profile(
            MadeFrom(
                profile=self.profile,
                version=version,
                run_id=self.run_id,
                evaluation=self.evaluation,
                identity=self.identity,
                validation=self.validation,
                revision=revision_of(config),
                weights={path.name: sha256_file(path) for path in sorted(folder.glob("*.safetensors"))},
                captures=self.captures.digest,
            )
        )

    def _card(
        self,
        folder: Path,
        version: str,
        config: dict[str, Any],
        settings: dict[str, Any],
        speculation: SpeculationProfile,
    ) -> str:
        images = plots(self.evaluation)
        for plot in images:
            write(folder / plot.file, plot.png)
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
                settings=settings,
                speculation=speculation,
                plots=images,
            )
        )

    def _manifest(self, folder: Path, version: str, tensors: dict[str, Any]) -> str:
        files = {
            path.relative_to(folder).as_posix(): sha256_file(path)
            for path in sorted(folder.rglob("*"))
            if path.is_file()
        }
        manifest: dict[str, Any] = {
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
        return _json(manifest)


def write(path: Path, content: str | bytes, mode: int = 0o600) -> None:
    """Write a file that only its owner reads, and the folder that it lies in."""
    path.parent.mkdir(mode=0o700, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    path.chmod(mode)


def _json(value: Mapping[str, Any]) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def copy_weights(source: Path, folder: Path) -> dict[str, dict[str, Any]]:
    """Copy every safetensors file (and nothing else that was exported); returns the tensors of whole ones.

    What is missing, damaged or not finite is a refusal later, beside all others.
    """
    tensors: dict[str, dict[str, Any]] = {}
    for file in sorted(source.glob("*.safetensors")):
        copy = folder / file.name
        shutil.copyfile(file, copy)
        copy.chmod(0o600)
        with suppress(ValueError, KeyError, TypeError):
            tensors.update(read_tensors(copy))
    index = source / "model.safetensors.index.json"
    if index.is_file():
        shutil.copyfile(index, folder / index.name)
    return tensors


def published_config(draft_dir: Path, target: str, revision: str | None = None) -> dict[str, Any]:
    """The draft's config with the target's name in place of its path, and without code references.

    Args:
        revision: Of the target, where the configuration does not name one itself.

    Returns:
        An empty one if it cannot be read, which is a refusal later.
    """
    config = read_object(draft_dir / "config.json")
    for key in _DROPPED_KEYS:
        config.pop(key, None)
        config.get("transformer_layer_config", {}).pop(key, None)
    verifier = config.get("speculators_config", {}).get("verifier")
    if isinstance(verifier, dict):
        verifier["name_or_path"] = target
        if revision:
            verifier.setdefault("revision", revision)
    return config
