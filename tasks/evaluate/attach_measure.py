"""Measures arms that run already: same prompts, lossless comparison, tau and load as for our own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from profiles.schema import Profile
from tasks.errors import ServiceError, StageInputError
from tasks.evaluate.arm_conditions import conditions_of_attached
from tasks.evaluate.arm_plan import PlannedArm
from tasks.evaluate.arm_series import MeasuredArms
from tasks.evaluate.attach import AttachedArm
from tasks.evaluate.live import Answer, ArmClient, ArmRecord, LivePrompt, ask_domains
from tasks.evaluate.load.arm import load_arm, loaded
from tasks.evaluate.models import EvaluationReport
from tasks.evaluate.prompt_sets import set_notes
from tasks.evaluate.report import arm_report, build_report
from tasks.evaluate.worth.gather import with_worth
from tasks.processes.launcher import Launcher
from tasks.prompts.load import load_prompts
from tasks.prompts.prompt import Prompt
from tasks.report.progress import Progress
from tasks.run_folder import RunFolder
from tasks.serve.vllm_http import Server
from tasks.stage import canonical, sha256_text, write_atomic

_TOKENIZE_TIMEOUT_S = 60.0
_COMPARED = 4
"""Prompts that every arm tokenizes, to show that they have one tokenizer and one template."""
NO_REPLAY = "the arms run elsewhere, so nothing was captured and there is no replay to compare with"


def measure_attached(
    profile: Profile,
    run: RunFolder,
    folder: Path,
    arms: Sequence[AttachedArm],
    launcher: Launcher,
    progress: Progress,
) -> EvaluationReport:
    """Ask all arms, one after another, then load each.

    Args:
        folder: Stage folder; arms (`arms/`) and load points (`load/`) that are stored in it are reused.
        arms: From `attach_arms`, the plain one first.

    Raises:
        UsageError: The prompts cannot be read.
        StageInputError: The arms do not tokenize alike, or no prompt fits.
        ServiceError: A server does not answer any more.
    """
    prompts = live_prompts(profile, arms)
    found = MeasuredArms([PlannedArm(arm.name) for arm in arms])
    for arm in arms:
        conditions = conditions_of_attached(profile, arm, arms, prompts)
        record = _measure(profile, folder / "arms", arm, prompts, progress)
        found.records[arm.name] = record.model_copy(update={"conditions": conditions, "starts": 0})
    plain, decided, *others = (found.records[arm.name] for arm in arms)
    notes = [NO_REPLAY, *set_notes(profile.prompts.evaluate), *(note for arm in arms for note in arm.notes)]
    report = build_report(
        profile,
        rows=[],
        plain=plain,
        draft=decided,
        block_size=arms[1].draft_tokens,
        incumbent=None,
        incumbent_rows=None,
        notes=notes,
        arms=found,
        prompts=prompts,
    )
    report = report.model_copy(
        update={"arms": (*report.arms, *(arm_report(record, profile) for record in others))}
    )
    for arm in arms:
        identity = _fingerprint(profile, arm, prompts)
        load_arm(profile, arm, arm.name, prompts, folder, launcher, run, progress, identity)
    load = loaded(profile, [arm.name for arm in arms], folder)
    if load is not None:
        report = report.model_copy(update={"load": load, "notes": (*report.notes, *load.notes)})
    return with_worth(
        profile,
        report,
        rows=(),
        incumbent_rows=None,
        draft_dir=None,
        run_dir=run.path,
        draft_arm=arms[1].name,
    )


def live_prompts(profile: Profile, arms: Sequence[AttachedArm]) -> list[LivePrompt]:
    """The first prompts of each domain, in the servers' own tokens.

    Raises:
        StageInputError: As `measure_attached`.
    """
    taken: dict[str, int] = {}
    chosen: list[Prompt] = []
    for prompt in load_prompts(profile).split("evaluate"):
        if taken.get(prompt.domain, 0) < profile.evaluate.live.per_domain:
            taken[prompt.domain] = taken.get(prompt.domain, 0) + 1
            chosen.append(prompt)
    order = list(dict.fromkeys(prompt.domain for prompt in chosen))
    chosen.sort(key=lambda prompt: order.index(prompt.domain))
    asked = [(prompt, tokens_of(arms[0], prompt, profile.prompts.thinking)) for prompt in chosen]
    for other in arms[1:]:
        for prompt, ids in asked[:_COMPARED]:
            if tokens_of(other, prompt, profile.prompts.thinking) != ids:
                raise StageInputError(
                    f"arms {arms[0].name} and {other.name} make different tokens of prompt {prompt.id}",
                    where=other.url,
                    hint="serve both with the same tokenizer and chat template",
                )
    room = profile.target.max_model_len - max(
        profile.evaluate.live.max_new_tokens, profile.evaluate.load.max_new_tokens
    )
    fitting = [
        LivePrompt(prompt_id=prompt.id, domain=prompt.domain, token_ids=ids)
        for prompt, ids in asked
        if 0 < len(ids) <= room
    ]
    if not fitting:
        raise StageInputError(
            f"none of {len(asked)} evaluation prompts fits into {room} tokens",
            where="prompts.evaluate",
            hint="raise target.max_model_len to what the servers take, or ask for shorter answers",
        )
    return fitting


def tokens_of(arm: AttachedArm, prompt: Prompt, thinking: bool) -> tuple[int, ...]:
    """A prompt as the server's tokenizer and chat template write it.

    Raises:
        ServiceError: It does not tokenize.
    """
    body: dict[str, Any] = {
        "model": arm.served_name,
        "messages": prompt.turns(),
        "add_generation_prompt": True,
        "chat_template_kwargs": {"enable_thinking": thinking},
    }
    if prompt.tools:
        body["tools"] = list(prompt.tools)
    server = Server(arm.url, arm.served_name, arm.api_key)
    tokens = server.post("/tokenize", body, _TOKENIZE_TIMEOUT_S).json().get("tokens")
    if not isinstance(tokens, list):
        raise ServiceError("/tokenize gives no tokens", where=arm.url, hint="is it a vLLM server?")
    return tuple(int(token) for token in tokens)


def _measure(
    profile: Profile, folder: Path, arm: AttachedArm, prompts: Sequence[LivePrompt], progress: Progress
) -> ArmRecord:
    """Ask one arm, or take what an earlier attempt stored."""
    fingerprint = _fingerprint(profile, arm, prompts)
    stored = _stored(folder / f"{arm.name}.json", fingerprint)
    if stored is not None:
        return stored
    domains: dict[str, list[LivePrompt]] = {}
    for prompt in prompts:
        domains.setdefault(prompt.domain, []).append(prompt)
    live = profile.evaluate.live
    done: list[Answer] = []

    def answered(answer: Answer) -> None:
        done.append(answer)
        progress.update(done=len(done), total=len(prompts), unit="answers", note=f"arm {arm.name}")

    client = ArmClient(
        arm.url, arm.served_name, arm.api_key, live.max_new_tokens, logprobs=live.dtype != "float32"
    )
    started = time.monotonic()
    answers, counts, speculates = asyncio.run(
        ask_domains(client, domains, live.concurrency, profile.serve.progress_timeout_s, answered)
    )
    record = ArmRecord(
        name=arm.name,
        fingerprint=fingerprint,
        argv=(),
        engine=arm.engine,
        answers={prompt.prompt_id: answers[prompt.prompt_id] for prompt in prompts},
        domains=counts,
        speculates=speculates,
        seconds=time.monotonic() - started,
    )
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_atomic(folder / f"{arm.name}.json", record.model_dump_json(indent=1))
    return record


def _stored(file: Path, fingerprint: str) -> ArmRecord | None:
    """The record of an earlier attempt if it was made from the same inputs."""
    try:
        record = ArmRecord.model_validate_json(file.read_text(encoding="utf-8"))
    except (OSError, ValidationError):
        return None
    return record if record.fingerprint == fingerprint else None


def _fingerprint(profile: Profile, arm: AttachedArm, prompts: Sequence[LivePrompt]) -> str:
    parts = [
        profile.evaluate.live.model_dump(mode="json"),
        [arm.url, arm.engine, arm.served_name, arm.draft_tokens],
        [prompt.model_dump(mode="json") for prompt in prompts],
    ]
    return sha256_text(canonical(parts))
