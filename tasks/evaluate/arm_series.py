"""All arms of an evaluation, one after another, one engine start each."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ValidationError

from profiles.evaluation import AGAIN, PLAIN
from tasks.errors import RetrainError
from tasks.evaluate.arm_plan import PlannedArm
from tasks.evaluate.arm_record import ArmRecord, LivePrompt
from tasks.evaluate.arm_session import by_domain
from tasks.evaluate.arms import ArmsWork, measure_arm, measured, stored_arm, work_of
from tasks.evaluate.live import measure_domains
from tasks.evaluate.verdict_ties import Question, Ruling, ask_rulings, questions
from tasks.serve.arms import ArmEndpoint
from tasks.stage import sha256_text, write_atomic

RULINGS = "rulings.json"


@dataclass
class MeasuredArms:
    """Every arm's record, or why there is none."""

    plan: Sequence[PlannedArm]
    records: dict[str, ArmRecord] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    """Optional arms whose engine died, hung or did not start."""
    reused: set[str] = field(default_factory=set)
    starts: dict[str, int] = field(default_factory=dict)
    """Engine starts by arm, in this attempt."""
    rulings: dict[str, Ruling] = field(default_factory=dict)
    """What the target said about differences, by `Question.key`."""

    @property
    def plain(self) -> ArmRecord:
        return self.records[PLAIN]

    def planned(self, name: str) -> PlannedArm:
        """The plan of an arm; A/A belongs to the target alone."""
        wanted = PLAIN if name == AGAIN else name
        return next(arm for arm in self.plan if arm.name == wanted)


def measure_arms(work: ArmsWork, plan: Sequence[PlannedArm]) -> MeasuredArms:
    """Measure every arm that is available, in the order of the plan, whose last one is the target alone.

    An optional arm whose engine does not start, dies or hangs costs that arm.

    Raises:
        RetrainError: A required arm could not be measured.
    """
    found = MeasuredArms(plan)
    for arm in plan[:-1]:
        if arm.unavailable:
            continue
        try:
            _one(work, arm, found)
        except RetrainError as error:
            if arm.required:
                raise
            found.failures[arm.name] = error.what
    _target_alone(work, plan[-1], found)
    return found


def _one(work: ArmsWork, arm: PlannedArm, found: MeasuredArms) -> None:
    stored = stored_arm(work.folder, arm.name, work.fingerprint(arm))
    if stored is not None:
        found.records[arm.name] = stored
        found.reused.add(arm.name)
        if work.is_loaded(arm):
            return
    found.starts[arm.name] = 1
    found.records[arm.name] = measure_arm(work, arm, stored)


def _target_alone(work: ArmsWork, arm: PlannedArm, found: MeasuredArms) -> None:
    """Measure the target without a draft, twice (A/A), and ask it about every difference, in one start."""
    fingerprint = work.fingerprint(arm)
    again = again_prompts(work)
    again_fingerprint = sha256_text(fingerprint + json.dumps([prompt.prompt_id for prompt in again]))
    found.rulings = _stored_rulings(work.folder, fingerprint)
    for name, wanted in ((PLAIN, fingerprint), (AGAIN, again_fingerprint)):
        stored = stored_arm(work.folder, name, wanted) if name == PLAIN or again else None
        if stored is not None:
            found.records[name] = stored
            found.reused.add(name)
    complete = PLAIN in found.records and (AGAIN in found.records or not again) and work.is_loaded(arm)
    if complete and not _open_questions(found):
        return
    found.starts[PLAIN] = 1
    with work.serve(arm) as endpoint:
        if PLAIN not in found.records:
            found.records[PLAIN] = work.store(measured(work, arm, endpoint))
        if again and AGAIN not in found.records:
            found.records[AGAIN] = work.store(_again(work, endpoint, again, found.plain, again_fingerprint))
        asked = _open_questions(found)
        if asked:
            found.rulings |= _ask(work, endpoint, asked)
            _store_rulings(work.folder, fingerprint, found.rulings)
        work.load(arm, endpoint)


def again_prompts(work: ArmsWork) -> list[LivePrompt]:
    """Prompts that the target alone answers twice; none without the arm `plain-again`."""
    live = work.profile.evaluate.live
    if AGAIN not in live.arms:
        return []
    most = live.again_per_domain
    return [prompt for prompts in by_domain(work.prompts).values() for prompt in prompts[:most]]


def _again(
    work: ArmsWork, endpoint: ArmEndpoint, prompts: Sequence[LivePrompt], plain: ArmRecord, fingerprint: str
) -> ArmRecord:
    """The same prompts once more on the same server: what differs here, no draft did."""
    client = work.client(endpoint)
    limit_s = work.profile.serve.progress_timeout_s
    asking = measure_domains(
        client, by_domain(prompts), work.profile.evaluate.live.concurrency, limit_s, lambda answer: None
    )
    began = time.monotonic()
    answers, counts = asyncio.run(work_of(client, asking))
    return ArmRecord(
        name=AGAIN,
        fingerprint=fingerprint,
        argv=plain.argv,
        engine=plain.engine,
        answers={prompt.prompt_id: answers[prompt.prompt_id] for prompt in prompts},
        domains=counts,
        speculates=plain.speculates,
        seconds=time.monotonic() - began,
        conditions=plain.conditions,
        starts=0,
    )


def _open_questions(found: MeasuredArms) -> list[Question]:
    """Differences that the target has not been asked about."""
    others = [record.answers for name, record in found.records.items() if name != PLAIN]
    asked = questions(found.plain.answers, others)
    return [question for question in asked if question.key not in found.rulings]


def _ask(work: ArmsWork, endpoint: ArmEndpoint, asked: Sequence[Question]) -> dict[str, Ruling]:
    client = work.client(endpoint)
    by_id = {prompt.prompt_id: prompt for prompt in work.prompts}
    live, limit_s = work.profile.evaluate.live, work.profile.serve.progress_timeout_s
    work.progress.update(done=0, total=len(asked), unit="differences", note="asking the target")
    return asyncio.run(work_of(client, ask_rulings(client, asked, by_id, live.concurrency, limit_s)))


def _stored_rulings(folder: Path, fingerprint: str) -> dict[str, Ruling]:
    try:
        stored = json.loads((folder / RULINGS).read_text(encoding="utf-8"))
        if stored["fingerprint"] != fingerprint:
            return {}
        return {key: Ruling.model_validate(value) for key, value in stored["rulings"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ValidationError):
        return {}


def _store_rulings(folder: Path, fingerprint: str, rulings: Mapping[str, Ruling]) -> None:
    kept = {key: ruling.model_dump(mode="json") for key, ruling in rulings.items()}
    write_atomic(folder / RULINGS, json.dumps({"fingerprint": fingerprint, "rulings": kept}, indent=1))
