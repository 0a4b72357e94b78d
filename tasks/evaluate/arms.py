"""One arm of the live measurement: start its server, ask, store the record. A stored record is reused."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from profiles.evaluation import DRAFT, PLAIN
from profiles.schema import Profile
from tasks.evaluate.arm_conditions import Machine, conditions_of
from tasks.evaluate.arm_plan import PlannedArm
from tasks.evaluate.arm_record import ArmRecord
from tasks.evaluate.arm_session import Wishes, by_domain, hold_session
from tasks.evaluate.live import Answer, ArmClient, LivePrompt
from tasks.evaluate.load.arm import is_loaded, load_arm
from tasks.processes.launcher import Launcher
from tasks.report.progress import Progress
from tasks.run_folder import RunFolder
from tasks.serve.arms import ArmEndpoint, Speculation, serve_arm
from tasks.stage import canonical, sha256_text, write_atomic

__all__ = [
    "DRAFT",
    "PLAIN",
    "ArmsWork",
    "arm_fingerprint",
    "by_domain",
    "measure_arm",
    "measured",
    "stored_arm",
    "work_of",
]

Found = TypeVar("Found")
_SAYS_NOTHING_OF_ONE_ARM = {"arms", "own_arms", "again_per_domain", "tie_steps", "max_failed"}


@dataclass(frozen=True)
class ArmsWork:
    """Where the arms of an evaluation are measured, with what and about what; shared by its steps."""

    profile: Profile
    run: RunFolder
    folder: Path
    """Folder of arm records."""
    prompts: Sequence[LivePrompt]
    target_dir: Path
    target_digest: str
    launcher: Launcher
    progress: Progress
    machine: Machine

    def fingerprint(self, arm: PlannedArm) -> str:
        files = arm.draft.files if arm.draft else {}
        return arm_fingerprint(self.profile, self.target_digest, files, self.prompts, arm.speculation)

    def client(self, arm: ArmEndpoint) -> ArmClient:
        return ArmClient(arm.url, arm.served_name, arm.api_key, self.profile.evaluate.live.max_new_tokens)

    def serve(self, arm: PlannedArm) -> AbstractContextManager[ArmEndpoint]:
        """A `with` block in which the arm's server runs."""
        return serve_arm(
            self.profile,
            self.run,
            self.launcher,
            name=f"arm-{arm.name}",
            target_dir=self.target_dir,
            speculation=arm.speculation,
            progress=self.progress,
        )

    def load(self, arm: PlannedArm, endpoint: ArmEndpoint) -> None:
        """Load a server that runs at the profile's levels; a level that fails costs that level alone."""
        load_arm(
            self.profile,
            endpoint,
            arm.name,
            self.prompts,
            self.folder.parent,
            self.launcher,
            self.run,
            self.progress,
            self.fingerprint(arm),
        )

    def is_loaded(self, arm: PlannedArm) -> bool:
        """Whether no server is needed for the load of this arm any more."""
        return is_loaded(self.profile, arm.name, self.prompts, self.folder.parent, self.fingerprint(arm))

    def store(self, record: ArmRecord) -> ArmRecord:
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomic(self.folder / f"{record.name}.json", record.model_dump_json(indent=1))
        return record


def arm_fingerprint(
    profile: Profile,
    target_digest: str,
    draft_files: Mapping[str, str],
    prompts: Sequence[LivePrompt],
    speculation: Speculation | None = None,
) -> str:
    """What an arm's answers depend on: settings, target, draft (empty for the plain arm), prompts, method."""
    live = profile.evaluate.live.model_dump(mode="json", exclude=_SAYS_NOTHING_OF_ONE_ARM)
    config = dict((speculation.config if speculation else None) or {})
    config.pop("model", None)  # a folder's name; its files are in the fingerprint
    parts: dict[str, Any] = {
        "live": live,
        "block_size": profile.train.draft.block_size,
        "max_model_len": profile.target.max_model_len,
        "target": target_digest,
        "draft": dict(draft_files),
        "prompts": [prompt.model_dump(mode="json") for prompt in prompts],
        "speculative": config,
        "runner": speculation.runner if speculation else "",
    }
    return sha256_text(canonical(parts))


def stored_arm(folder: Path, name: str, fingerprint: str) -> ArmRecord | None:
    """The finished record of an arm if it was made from the same inputs."""
    try:
        record = ArmRecord.model_validate_json((folder / f"{name}.json").read_text(encoding="utf-8"))
    except (OSError, ValidationError):
        return None
    return record if record.fingerprint == fingerprint else None


def measure_arm(work: ArmsWork, arm: PlannedArm, stored: ArmRecord | None = None) -> ArmRecord:
    """Start the arm's server once, ask everything, store the record at once, then load the server.

    Args:
        stored: What an earlier attempt has measured: only the load is missing.

    Raises:
        ServiceError: The server did not start, died, or made no token for too long.
    """
    with work.serve(arm) as endpoint:
        record = stored or work.store(measured(work, arm, endpoint))
        work.load(arm, endpoint)
        return record


def measured(work: ArmsWork, arm: PlannedArm, endpoint: ArmEndpoint) -> ArmRecord:
    """What an arm that serves answered and counted."""
    live = work.profile.evaluate.live
    wishes = Wishes(
        prompts=work.prompts,
        concurrency=live.concurrency,
        stall_s=work.profile.serve.progress_timeout_s,
        repetitions=live.repetitions,
        sampled=live.sampled,
        seed=_seed(work.profile.evaluate.seed, arm.name),
    )
    done: list[Answer] = []

    def answered(answer: Answer) -> None:
        done.append(answer)
        total = max(len(work.prompts) * live.repetitions, len(done))
        work.progress.update(done=len(done), total=total, unit="answers", note=f"arm {arm.name}")

    client = work.client(endpoint)
    session = asyncio.run(work_of(client, hold_session(client, wishes, answered)))
    return ArmRecord(
        name=arm.name,
        fingerprint=work.fingerprint(arm),
        argv=tuple(endpoint.argv),
        engine=endpoint.engine,
        answers=session.answers,
        domains=session.domains,
        speculates=session.speculates,
        seconds=session.seconds,
        conditions=conditions_of(
            work.profile,
            arm,
            target=work.target_digest,
            prompts=work.prompts,
            engine=endpoint.engine,
            machine=work.machine,
        ),
        further=tuple(session.further),
        drift=session.drift,
        sampled=session.sampled,
    )


async def work_of(client: ArmClient, work: Coroutine[Any, Any, Found]) -> Found:
    """Do the work, then close the client's connections."""
    async with client.client:
        return await work


def _seed(base: int, name: str) -> int:
    """Every arm samples with random numbers of its own: a two-sample test needs independent samples."""
    return int.from_bytes(hashlib.sha256(f"{base}/{name}".encode()).digest()[:4], "big") >> 1
