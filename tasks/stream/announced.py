"""What a manifest says of the target whose states it describes: captured layers, revision and tap point.

The writer takes them from the configuration that vLLM itself extracts by, so they are told also by a server
that others started. The canary compares them with what the run asks for.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from profiles.serving import TAP_VARIABLE
from tasks.errors import ServiceError, UsageError

_SNAPSHOT = re.compile(r"/snapshots/([0-9a-f]{40})/?$")
_COMMIT = re.compile(r"[0-9a-f]{7,40}")
_DIGITS = 8


@dataclass(frozen=True)
class Announced:
    """The target as its server knows it.

    Args:
        model: Name or folder that the server was started with.
        revision: Commit of the model's repository; None where the server cannot know it (a plain folder).
        layer_ids: Captured layers in vLLM's numbering. The number of hidden layers stands for the output of
            the last one, before the final norm.
        tap_point: Where the states of a target with Attention Residuals are taken; None for one without.
    """

    model: str
    revision: str | None
    layer_ids: tuple[int, ...]
    tap_point: str | None = None

    @property
    def key_part(self) -> str:
        """Eight hexadecimal digits that differ between revisions, sets of layers and tap points."""
        tap = [] if self.tap_point is None else [self.tap_point]
        told = json.dumps([self.model, self.revision, self.layer_ids, *tap])
        return hashlib.sha256(told.encode()).hexdigest()[:_DIGITS]

    def announce(self, manifest: dict[str, Any]) -> None:
        """Write layers, revision and tap point into a transfer manifest."""
        manifest["metadata"]["layer_ids"] = list(self.layer_ids)
        manifest["metadata"]["revision"] = self.revision
        manifest["metadata"]["tap_point"] = self.tap_point


def announced_by(vllm_config: Any) -> Announced:
    """Read model, revision, layers and tap point from a `VllmConfig` and the server's environment.

    A model of the Hugging Face hub carries its commit in its configuration, however it was named.
    """
    model = vllm_config.model_config
    snapshot = _SNAPSHOT.search(str(model.model))
    commit = getattr(model.hf_config, "_commit_hash", None)
    draft = vllm_config.speculative_config.draft_model_config.hf_config
    return Announced(
        model=str(model.model),
        revision=commit or (snapshot[1] if snapshot else None) or model.revision,
        layer_ids=tuple(int(layer) for layer in draft.eagle_aux_hidden_state_layer_ids),
        tap_point=_tap_point(model),
    )


def _tap_point(model: Any) -> str | None:
    """As vLLM decides it: by the variable, and only where the target has Attention Residuals."""
    text = getattr(model, "hf_text_config", None)
    if getattr(text, "attn_res_block_size", None) is None:
        return None
    return "attn_res_stream" if int(os.environ.get(TAP_VARIABLE) or "0") else "prefix_only"


def require_same_tap(manifest: Mapping[str, Any], tap_point: str | None) -> None:
    """Compare the tap point that a manifest tells with the one that the run asks for.

    States of both have one shape and type, so that nothing else would notice.

    Args:
        tap_point: `target.tap_point` of the profile.

    Raises:
        ServiceError: They differ, or a target that has two does not say which one it is.
    """
    metadata = manifest.get("metadata")
    told = metadata.get("tap_point") if isinstance(metadata, Mapping) else None
    if told == tap_point:
        return
    raise ServiceError(
        f"the server takes hidden states at {told or 'an unknown point'}, the profile needs them at "
        f"{tap_point or 'the layers themselves'}: a draft trained on the one does not work on the other",
        where="target.tap_point",
        hint=f"start the server with {TAP_VARIABLE} as the profile needs it (attn_res_stream is 1), or set "
        "target.tap_point to the server's",
    )


def require_same_revision(manifest: Mapping[str, Any], revision: str | None) -> None:
    """Compare the revision that a manifest tells with the one that the run asks for.

    Only where both sides know a commit: a branch or tag names another commit tomorrow, and a plain folder has
    none.

    Args:
        revision: `target.revision` of the profile.

    Raises:
        UsageError: They differ; both are named.
    """
    metadata = manifest.get("metadata")
    served = str(metadata.get("revision") or "") if isinstance(metadata, Mapping) else ""
    if not (revision and _COMMIT.fullmatch(revision) and _COMMIT.fullmatch(served)):
        return
    if not (served.startswith(revision) or revision.startswith(served)):
        raise UsageError(
            f"the server serves revision {served}, target.revision is {revision}",
            where="target.revision",
            hint="start the server with that revision, or set target.revision to the server's",
        )
