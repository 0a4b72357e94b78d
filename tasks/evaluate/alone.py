"""What a measurement without training is given, and what the profile must say for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from profiles.load import load_profile, merge
from profiles.overlays import FULL, overlay_values
from profiles.schema import Profile
from tasks.errors import UsageError
from tasks.evaluate.attach import ArmAddress
from tasks.evaluate.draft_source import FoundDraft, find_draft, read_found

_NO_TRAINING: dict[str, Any] = {
    "prompts": {"train": []},
    # Only evaluation prompts are captured: nothing trains beside them, and every sample stays.
    "stream": {"overlap": False, "retention": "all"},
    "train": {"init_from": None},
}
_OWN_ANSWERS: dict[str, Any] = {
    "stream": {"answers": "generate", "answer_url": None, "answer_model": None, "answer_api_key_env": None}
}


@dataclass(frozen=True)
class Measuring:
    """What is measured: a draft that this run serves, or arms that run already."""

    draft: FoundDraft | None = None
    arms: tuple[ArmAddress, ...] = ()

    def facts(self) -> dict[str, Any]:
        """What `run.json` keeps, so that a resumed run measures the same. No key is in it."""
        if self.draft is None:
            return {"arms": [[arm.name, arm.url, arm.key_env] for arm in self.arms]}
        return {"draft": [str(self.draft.folder), self.draft.name, self.draft.revision]}


def measuring_of(facts: Mapping[str, Any]) -> Measuring:
    """What an earlier attempt measured.

    Raises:
        UsageError: Its draft is gone.
    """
    if "draft" in facts:
        folder, name, revision = facts["draft"]
        return Measuring(draft=read_found(Path(folder), name, revision))
    return Measuring(arms=tuple(ArmAddress(*arm) for arm in facts["arms"]))


def measuring(draft: str | None, arms: Sequence[ArmAddress], target: str | None) -> Measuring:
    """What the user asks for.

    Raises:
        UsageError: Neither a draft nor arms, or both; or the draft cannot be used.
        ServiceError: The draft's hub cannot be reached.
    """
    if bool(draft) == bool(arms):
        raise UsageError(
            "give a draft to serve, or arms that run already" + (", not both" if draft else ""),
            where="--draft, --arm",
            hint="--draft FOLDER_OR_REPOSITORY, or --arm none=URL --arm draft=URL",
        )
    if arms and target:
        raise UsageError(
            "arms that run already have their target",
            where="--target",
            hint="leave --target out; the servers are asked for their tokens",
        )
    return Measuring(draft=find_draft(draft)) if draft else Measuring(arms=tuple(arms))


def overrides_for(
    base: str | Profile,
    asked: Measuring,
    *,
    target: str | None = None,
    prompts: Sequence[str] = (),
    full: bool = False,
    overrides: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """What differs from the profile: the overlay, the draft's needs, the options, then the user's overrides.

    Args:
        base: The profile.
        target: Folder of the target, instead of the profile's.
        prompts: Evaluation prompts, instead of the profile's and the overlay's.
        full: Lay the overlay `full` over the profile.
        overrides: The user's own, which win.

    Raises:
        ProfileProblem: The profile cannot be loaded.
    """
    profile = load_profile(base).profile
    values = overlay_values(FULL, profile.name) if full else {}
    values = merge(values, _NO_TRAINING)
    if profile.stream.answers != "generate":
        values = merge(values, _OWN_ANSWERS)
    if asked.draft is not None:
        values = merge(values, asked.draft.overrides())
    if target is not None:
        values = merge(values, {"target": {"model": target, "source": {"kind": "path"}}})
    if prompts:
        values = merge(values, {"prompts": {"evaluate": list(prompts)}})
    return merge(values, overrides or {})
