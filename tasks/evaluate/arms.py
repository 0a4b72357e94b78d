"""One arm of the live measurement: start its server, ask, store the record. A stored record is reused."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from profiles.schema import Profile
from tasks.evaluate.live import Answer, ArmClient, ArmRecord, LivePrompt, ask_domains
from tasks.processes.launcher import Launcher
from tasks.report.progress import Progress
from tasks.run_folder import RunFolder
from tasks.serve.arms import ArmEndpoint, serve_arm
from tasks.stage import canonical, sha256_text, write_atomic

PLAIN = "plain"
DRAFT = "draft"


def arm_fingerprint(
    profile: Profile,
    target_digest: str,
    draft_files: Mapping[str, str],
    prompts: Sequence[LivePrompt],
) -> str:
    """What an arm's answers depend on: settings, target, draft (empty for the plain arm), prompts."""
    parts: dict[str, Any] = {
        "live": profile.evaluate.live.model_dump(mode="json"),
        "block_size": profile.train.draft.block_size,
        "max_model_len": profile.target.max_model_len,
        "target": target_digest,
        "draft": dict(draft_files),
        "prompts": [prompt.model_dump(mode="json") for prompt in prompts],
    }
    return sha256_text(canonical(parts))


def stored_arm(folder: Path, name: str, fingerprint: str) -> ArmRecord | None:
    """The finished record of an arm if it was made from the same inputs."""
    try:
        record = ArmRecord.model_validate_json((folder / f"{name}.json").read_text(encoding="utf-8"))
    except (OSError, ValidationError):
        return None
    return record if record.fingerprint == fingerprint else None


def measure_arm(
    profile: Profile,
    run: RunFolder,
    folder: Path,
    name: str,
    *,
    prompts: Sequence[LivePrompt],
    fingerprint: str,
    target_dir: Path,
    draft_dir: Path | None,
    launcher: Launcher,
    progress: Progress,
) -> ArmRecord:
    """Measure one arm, or hand back what an earlier attempt stored in `folder`.

    Args:
        folder: Folder of arm records; the record is written at once when the arm is done.
        draft_dir: The draft to serve with, or None for the plain arm.

    Raises:
        ServiceError: The server did not start, or died.
    """
    stored = stored_arm(folder, name, fingerprint)
    if stored is not None:
        return stored
    with serve_arm(
        profile,
        run,
        launcher,
        name=f"arm-{name}",
        target_dir=target_dir,
        draft_dir=draft_dir,
        progress=progress,
    ) as arm:
        record = _ask(profile, arm, name, prompts, fingerprint, progress)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_atomic(folder / f"{name}.json", record.model_dump_json(indent=1))
    return record


def _ask(
    profile: Profile,
    arm: ArmEndpoint,
    name: str,
    prompts: Sequence[LivePrompt],
    fingerprint: str,
    progress: Progress,
) -> ArmRecord:
    """Send all prompts to an arm that serves, and gather what it answered and counted."""
    live = profile.evaluate.live
    done: list[Answer] = []

    def answered(answer: Answer) -> None:
        done.append(answer)
        progress.update(done=len(done), total=len(prompts), unit="answers", note=f"arm {name}")

    exact = live.dtype == "float32"
    client = ArmClient(arm.url, arm.served_name, arm.api_key, live.max_new_tokens, logprobs=not exact)
    limit_s = profile.serve.progress_timeout_s
    started = time.monotonic()
    answers, counts, speculates = asyncio.run(
        ask_domains(client, by_domain(prompts), live.concurrency, limit_s, answered)
    )
    return ArmRecord(
        name=name,
        fingerprint=fingerprint,
        argv=tuple(arm.argv),
        engine=arm.engine,
        answers={prompt.prompt_id: answers[prompt.prompt_id] for prompt in prompts},
        domains=counts,
        speculates=speculates,
        seconds=time.monotonic() - started,
    )


def by_domain(prompts: Sequence[LivePrompt]) -> dict[str, list[LivePrompt]]:
    """Prompts by domain, in order of first appearance."""
    domains: dict[str, list[LivePrompt]] = {}
    for prompt in prompts:
        domains.setdefault(prompt.domain, []).append(prompt)
    return domains
