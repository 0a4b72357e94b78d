"""Which arms are measured, with which speculative config, and why one cannot be."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from profiles.evaluation import DRAFT, INCUMBENT, MTP, NGRAM, PLAIN, SUFFIX, OwnArm
from profiles.schema import Profile
from tasks.evaluate.hub import is_repository
from tasks.serve.arms import TARGET_ALONE, Speculation, draft_speculation, runner_for
from tasks.serve.target_code import code_files

REQUIRED = (PLAIN, DRAFT)
_COMMIT = re.compile(r"[0-9a-f]{40}")
NGRAM_MIN, NGRAM_MAX = 2, 4
"""Tokens that the end of a text must share with an earlier place before n-gram decoding copies on."""
_SUFFIX_PACKAGE = "arctic_inference"
_MTP_FIELDS = ("num_nextn_predict_layers", "mtp_num_hidden_layers")
"""Fields of a target's config that say how many layers of its own it drafts with."""


@dataclass(frozen=True)
class DraftFolder:
    """A draft in Speculators format."""

    folder: Path
    files: Mapping[str, str] = field(default_factory=dict)
    """Digests of its files."""


@dataclass(frozen=True)
class PlannedArm:
    """One arm: how it speculates, or why it is not available."""

    name: str
    speculation: Speculation = TARGET_ALONE
    draft: DraftFolder | None = None
    unavailable: str = ""

    @property
    def required(self) -> bool:
        """Whether the evaluation fails if this arm does."""
        return self.name in REQUIRED


def plan_arms(
    profile: Profile, target_dir: Path, draft: DraftFolder, incumbent: DraftFolder | None, no_incumbent: str
) -> tuple[PlannedArm, ...]:
    """Every arm that the profile names, in the order of measuring.

    The candidate comes first, so that a draft that cannot be served fails early. The target alone comes last:
    only it can say whether a difference of any other arm's answers is a tie, and it is started once.

    Args:
        no_incumbent: Why there is none to measure.
    """
    live = profile.evaluate.live
    arms = [PlannedArm(DRAFT, draft_speculation(profile, draft.folder), draft)]
    if INCUMBENT in live.arms:
        arms.append(_incumbent(profile, incumbent, no_incumbent))
    if NGRAM in live.arms:
        arms.append(PlannedArm(NGRAM, _speculation(profile, ngram_config(profile))))
    if SUFFIX in live.arms:
        missing = "" if find_spec(_SUFFIX_PACKAGE) else "the engine needs the package arctic-inference for it"
        arms.append(PlannedArm(SUFFIX, _speculation(profile, {"method": "suffix"}), unavailable=missing))
    if MTP in live.arms:
        arms.append(_mtp(profile, target_dir))
    arms += [_own(profile, name, own, draft, incumbent) for name, own in live.own_arms.items()]
    return (*arms, PlannedArm(PLAIN))


def ngram_config(profile: Profile) -> dict[str, Any]:
    """As many tokens a round as the draft proposes, so that both cost the target the same verification."""
    return {
        "method": "ngram",
        "num_speculative_tokens": profile.train.draft.block_size,
        "prompt_lookup_min": NGRAM_MIN,
        "prompt_lookup_max": NGRAM_MAX,
    }


def mtp_layers(target_dir: Path) -> int:
    """Layers of its own that a target drafts with, as its config says; 0 if it has none."""
    try:
        config = json.loads((target_dir / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return 0
    for part in (config, config.get("text_config")):
        for name in _MTP_FIELDS if isinstance(part, dict) else ():
            if isinstance(part.get(name), int) and part[name] > 0:
                return int(part[name])
    return 0


def _speculation(profile: Profile, config: Mapping[str, Any], runner: str | None = None) -> Speculation:
    found = Speculation(config)
    chosen = runner_for(found.method, profile.evaluate.live.triton_interpreter)
    return Speculation(config, "v1" if (runner or chosen) == "v1" else "v2")


def _incumbent(profile: Profile, incumbent: DraftFolder | None, reason: str) -> PlannedArm:
    if incumbent is None:
        return PlannedArm(INCUMBENT, unavailable=reason)
    config = dict(draft_speculation(profile, incumbent.folder).config or {})
    config["num_speculative_tokens"] = block_size_of(incumbent.folder) or config["num_speculative_tokens"]
    return PlannedArm(INCUMBENT, _speculation(profile, config), incumbent)


def block_size_of(draft_dir: Path) -> int | None:
    """Tokens that a draft proposes at once, as its config says; None if it does not."""
    try:
        found = json.loads((draft_dir / "config.json").read_text(encoding="utf-8")).get("block_size")
    except (OSError, ValueError):
        return None
    return found if isinstance(found, int) else None


def _mtp(profile: Profile, target_dir: Path) -> PlannedArm:
    layers = mtp_layers(target_dir)
    config = {"method": "mtp", "num_speculative_tokens": layers or 1}
    reason = "" if layers else "the target's config names no layers of its own to draft with"
    return PlannedArm(MTP, _speculation(profile, config), unavailable=reason)


def _own(
    profile: Profile, name: str, own: OwnArm, draft: DraftFolder, incumbent: DraftFolder | None
) -> PlannedArm:
    """A user's arm; `{draft}` and `{incumbent}` in its config become folders."""
    text = json.dumps(own.speculative_config)
    used = draft if "{draft}" in text else incumbent if "{incumbent}" in text else None
    if "{incumbent}" in text and incumbent is None:
        return PlannedArm(name, unavailable="its config names {incumbent}, and there is none to measure")
    code = _code_of(profile, own)
    if code:
        return PlannedArm(name, unavailable=code)
    folders = {"{draft}": str(draft.folder), "{incumbent}": str(incumbent.folder) if incumbent else ""}
    config = {key: folders.get(value, value) if isinstance(value, str) else value
              for key, value in own.speculative_config.items()}  # fmt: skip
    planned = _speculation(profile, config, own.runner)
    return PlannedArm(name, replace(planned, tap_point=own.tap_point), used)


def _code_of(profile: Profile, own: OwnArm) -> str:
    """Why a user's arm may not start: vLLM lets a draft's own code run wherever it lets the target's."""
    model = str(own.speculative_config.get("model") or "")
    if not profile.target.trust_remote_code or not model or model.startswith("{"):
        return ""
    folder = Path(model).expanduser()
    if folder.is_dir():
        files = ", ".join(path.name for path in code_files(folder)[:2])
        return f"its draft brings code ({files}), which would run beside the target's" if files else ""
    if not is_repository(model):
        return f"there is no draft folder '{model}'"
    pinned = _COMMIT.fullmatch(str(own.speculative_config.get("revision") or ""))
    unpinned = f"code of the target may run, so code of {model} might too: pin its revision (a commit)"
    return "" if pinned else unpinned
