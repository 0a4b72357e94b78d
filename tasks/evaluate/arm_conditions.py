"""Writes down under which conditions an arm is measured."""

from __future__ import annotations

import json
import os
import platform
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from profiles.evaluation import engine_of_arms
from profiles.schema import Profile
from tasks.evaluate.arm_plan import PlannedArm
from tasks.evaluate.arm_record import LivePrompt
from tasks.evaluate.attach import AttachedArm
from tasks.evaluate.conditions import UNKNOWN, Conditions
from tasks.run_folder import RunFolder
from tasks.serve.options import engine_arguments
from tasks.stage import MANIFEST, canonical, sha256_text

_PROCESSORS = Path("/proc/cpuinfo")
_VALIDATE = "01-validate"
Said = TypeVar("Said")


@dataclass(frozen=True)
class Machine:
    """What the arms run on."""

    hardware: str = UNKNOWN
    toolkit_channel: str = UNKNOWN


def machine_of(run: RunFolder) -> Machine:
    """GPUs and CUDA toolkit as the run's validate stage found them; without one, this machine's processor."""
    try:
        text = (run.path / _VALIDATE / MANIFEST).read_text(encoding="utf-8")
        found: dict[str, Any] = json.loads(text)["result"]
    except (OSError, ValueError, KeyError, TypeError):
        return Machine(_processor())
    gpus = [gpu for node in _nodes(found) for gpu in node.get("gpus") or ()]
    names = Counter(str(gpu.get("name") or "GPU") for gpu in gpus)
    hardware = ", ".join(f"{count} x {name}" for name, count in sorted(names.items()))
    return Machine(hardware or _processor(), str(found.get("toolkit_channel") or UNKNOWN))


def _nodes(report: dict[str, Any]) -> list[dict[str, Any]]:
    return list(report.get("nodes") or ()) or [report.get("facts") or {}]


def _processor() -> str:
    lines = _PROCESSORS.read_text(encoding="utf-8").splitlines() if _PROCESSORS.exists() else []
    name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return f"{len(os.sched_getaffinity(0))} cores, {name or platform.machine()}"


def conditions_of(
    profile: Profile,
    arm: PlannedArm,
    *,
    target: str,
    prompts: Sequence[LivePrompt],
    engine: str,
    machine: Machine,
) -> Conditions:
    """Everything that the arm's figures depend on.

    Args:
        target: Digest of the target.
        prompts: The prompts in the order of asking.
        engine: Name and version.
    """
    live, how = profile.evaluate.live, arm.speculation
    options = engine_of_arms(live, profile.serve)
    config = how.config or {}
    drafts = how.config is not None
    tokens = config.get("num_speculative_tokens")
    return Conditions(
        engine=engine,
        runner=how.runner,
        interpreter=live.triton_interpreter and how.runner == "v2",
        engine_arguments=(*engine_arguments(options), *profile.serve.extra_args),
        target=target,
        dtype=live.dtype,
        method=how.method,
        draft=_draft_digest(arm),
        num_speculative_tokens=tokens if isinstance(tokens, int) else None,
        # vLLM's own defaults where an arm's config does not say.
        draft_sample_method=str(config.get("draft_sample_method", "greedy")) if drafts else "",
        rejection_sample_method=str(config.get("rejection_sample_method", "standard")) if drafts else "",
        seed=profile.evaluate.seed,
        concurrency=live.concurrency,
        max_num_seqs=live.max_num_seqs,
        prefix_cache=options.prefix_caching,
        thinking=profile.prompts.thinking,
        max_new_tokens=live.max_new_tokens,
        prompts=prompts_digest(prompts),
        toolkit_channel=machine.toolkit_channel,
        hardware=machine.hardware,
    )


def conditions_of_attached(
    profile: Profile, arm: AttachedArm, arms: Sequence[AttachedArm], prompts: Sequence[LivePrompt]
) -> Conditions:
    """The same for a server that runs already, as far as it tells; the rest is unknown, not assumed.

    A setting that only some arms tell is unknown for all: it cannot be compared.

    Args:
        arms: All arms, this one included.
    """
    live, drafts = profile.evaluate.live, arm.draft_tokens > 0
    told = UNKNOWN if drafts else ""
    return Conditions(
        engine=arm.engine,
        runner=UNKNOWN,
        interpreter=live.triton_interpreter,
        target=_told(arm.target or None, [one.target or None for one in arms]) or UNKNOWN,
        dtype=_told(arm.dtype, [one.dtype for one in arms]) or UNKNOWN,
        method=arm.method or UNKNOWN,
        draft=told,
        num_speculative_tokens=arm.draft_tokens or None,
        draft_sample_method=told,
        rejection_sample_method=told,
        seed=profile.evaluate.seed,
        concurrency=live.concurrency,
        max_num_seqs=_told(arm.max_num_seqs, [one.max_num_seqs for one in arms]),
        prefix_cache=_told(arm.prefix_caching, [one.prefix_caching for one in arms]),
        thinking=profile.prompts.thinking,
        max_new_tokens=live.max_new_tokens,
        prompts=prompts_digest(prompts),
    )


def _told(own: Said | None, of_all: Sequence[Said | None]) -> Said | None:
    return None if None in of_all else own


def _draft_digest(arm: PlannedArm) -> str:
    """Digest of the draft's files, or of the name of a model that the arm's own config brings."""
    if arm.draft is not None:
        return sha256_text(canonical(dict(arm.draft.files)))
    model = (arm.speculation.config or {}).get("model")
    return sha256_text(str(model)) if model else ""


def prompts_digest(prompts: Sequence[LivePrompt]) -> str:
    """Digest of the prompts as token ids, in order."""
    return sha256_text(canonical([[prompt.prompt_id, list(prompt.token_ids)] for prompt in prompts]))
