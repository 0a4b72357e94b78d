"""Refusals about config.json: what it must say, and that upstream's class reads it as it is written."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import Any

from tasks.processes.environment import child_environment
from tasks.publish import check_folder
from tasks.publish.refusals.models import Material, Refusal
from tasks.publish.refusals.words import is_path, is_repository
from tasks.train.round_trip import config_digest
from tasks.train.size import draft_parameters, shape_of_config

CONFIG = "config.json"
_FROM_TARGET = ("lm_head.weight", "embed_tokens.weight", "t2d", "d2t")
_ROUND_TRIP_TIMEOUT_S = 300.0


def config_refusals(material: Material) -> Iterator[Refusal]:
    """Everything that speaks against the folder's config.json."""
    config = material.config
    if not config:
        yield Refusal("it is missing, or cannot be read", CONFIG, "train or export the draft again")
        return
    missing = [key for key in check_folder.CONFIG_KEYS if key not in config]
    if missing:
        yield Refusal(
            f"the draft's config does not write out {', '.join(missing)}",
            CONFIG,
            "vLLM would guess; export the draft again with every option explicit",
        )
    yield from verifier_refusals(material, config)
    yield from lossy_refusals(config)
    yield from parameter_refusals(material, config)
    yield from round_trip_refusals(material, config)


def verifier_refusals(material: Material, config: Mapping[str, Any]) -> Iterator[Refusal]:
    """The target that the draft belongs to: a name for everybody, and on a hub which revision of it."""
    place = f"{CONFIG}: speculators_config.verifier"
    verifier = (config.get("speculators_config") or {}).get("verifier") or {}
    name, revision = str(verifier.get("name_or_path") or ""), verifier.get("revision")
    if not name:
        yield Refusal("it names no target", place, "set publish.card.base_model to the target's OWNER/NAME")
    elif is_path(name):
        yield Refusal(
            "the target's name is a path of this machine",
            place,
            "set publish.card.base_model to the target's OWNER/NAME",
        )
    elif material.goes_to_hub and not is_repository(name):
        yield Refusal(
            f"'{name}' names no repository, so nobody else can find the target",
            place,
            "set publish.card.base_model to the target's OWNER/NAME",
        )
    if material.goes_to_hub and not revision:
        yield Refusal(
            "the target's revision is missing: its next one may accept less",
            place,
            "set target.revision to the commit that the weights came from",
        )
    if revision and is_path(str(revision)):
        yield Refusal("the target's revision is a path", place, "set target.revision to a commit")


def lossy_refusals(config: Mapping[str, Any]) -> Iterator[Refusal]:
    """Proposal methods that accept tokens which the target would not have chosen."""
    methods = (config.get("speculators_config") or {}).get("proposal_methods") or []
    for method in methods:
        if method.get("accept_tolerance") or method.get("verifier_accept_k", 1) != 1:
            yield Refusal(
                f"its proposal method accepts tokens besides the target's own "
                f"(accept_tolerance {method.get('accept_tolerance')}, "
                f"verifier_accept_k {method.get('verifier_accept_k')})",
                f"{CONFIG}: speculators_config.proposal_methods",
                "export the draft again with accept_tolerance 0 and verifier_accept_k 1",
            )


def parameter_refusals(material: Material, config: Mapping[str, Any]) -> Iterator[Refusal]:
    """Weights against the formula, and the formula against what training said."""
    try:
        count = draft_parameters(shape_of_config(config))
    except (KeyError, TypeError):
        return  # a missing size is a refusal already
    sizes: dict[str, int] = {}
    for path in material.folder.glob("*.safetensors"):
        try:
            tensors = check_folder.read_tensors(path)
        except (OSError, ValueError, KeyError, TypeError):
            return  # so is a damaged file
        sizes |= {name: math.prod(entry["shape"]) for name, entry in tensors.items()}
    stored = sum(size for name, size in sizes.items() if name not in _FROM_TARGET)
    if sizes and stored != count.trained:
        yield Refusal(
            f"the weights hold {stored:,} trained parameters, its sizes ask for {count.trained:,}",
            CONFIG,
            "config.json and weights are of different drafts, or damaged; train or export again",
        )
    if material.draft.parameters != count.total:
        yield Refusal(
            f"its sizes make {count.total:,} parameters in serving, training said "
            f"{material.draft.parameters:,}",
            CONFIG,
            "config.json was changed after training; run again from stage train",
        )


def round_trip_refusals(material: Material, config: Mapping[str, Any]) -> Iterator[Refusal]:
    """Read and written again by upstream's class, config.json must be the same.

    The exporter has done that already; a child process does it for a configuration that is another one.
    """
    if config_digest(config) == material.draft.round_trip:
        return
    if find_spec("speculators") is None:
        yield Refusal(
            "nobody has shown that speculators reads it as it is written",
            CONFIG,
            "publish where speculators is installed, or train again: the exporter checks it",
        )
        return
    changed = _tried(material)
    if changed:
        yield Refusal(
            f"speculators reads its configuration differently: {'; '.join(changed)}",
            CONFIG,
            "export the draft again with the version of speculators that is installed",
        )


def _tried(material: Material) -> list[str]:
    done = subprocess.run(
        (sys.executable, "-m", "tasks.train.round_trip", str(material.folder)),
        env=child_environment(os.environ, {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}, {}),
        capture_output=True,
        text=True,
        timeout=_ROUND_TRIP_TIMEOUT_S,
    )
    if done.returncode != 0:
        return [f"it could not be tried: {(done.stderr.strip().splitlines() or ['no message'])[-1][:200]}"]
    found: list[str] = json.loads(done.stdout.splitlines()[-1])["differences"]
    return found
