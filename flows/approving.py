"""People's word before a draft becomes champion: a form in the Prefect UI, or a command."""

from __future__ import annotations

import logging
import os
import time
from typing import Any, Literal
from uuid import UUID

from prefect.flow_runs import pause_flow_run, resume_flow_run
from prefect.input import RunInput
from pydantic import Field

from flows.finding import is_live
from tasks.errors import ServiceError
from tasks.evaluate.models import EvaluationReport
from tasks.execute import RunContext
from tasks.publish.core import decided
from tasks.publish.models import Decision, Word
from tasks.publish.words import new_word, speak, words_of
from tasks.run_folder import RunFolder
from tasks.serve.models import TargetIdentity
from tasks.stages import TRAIN
from tasks.stream.models import CaptureManifest
from tasks.train.models import DraftCheckpoint

log = logging.getLogger("retrain_dspark")
ASKS = "asks_people"
"""Fact of a run that is paused for a person's word."""
_PAUSES_WITHIN_S = 30.0


class Approval(RunInput):
    """The form."""

    answer: Literal["promote", "hold"] = Field(description="Let this draft be the champion?")
    by: str = Field(min_length=1, max_length=200, description="Your name; kept with the decision.")
    why: str = Field(min_length=1, max_length=2000, description="Your reason; kept with the decision.")


def ask_people(
    ctx: RunContext,
    draft: DraftCheckpoint,
    evaluation: EvaluationReport,
    identity: TargetIdentity,
    captures: CaptureManifest,
) -> None:
    """Pause the flow run until a person has answered, if the profile wants one and the gate lets it through.

    Without a Prefect server of the user's there is no page to answer on: nothing is waited for, the draft is
    held, and `retrain-dspark promote` takes the word later. After the profile's time the same happens.
    """
    if not ctx.profile.publish.approval.required or not os.environ.get("PREFECT_API_URL"):
        return
    folder = ctx.run.stage(TRAIN).path / draft.path
    words = words_of(ctx.run)
    decision = decided(ctx.profile, ctx.run, draft, folder, evaluation, identity, captures, words)
    if not decision.waits:
        return
    hours = ctx.profile.publish.approval.timeout_hours
    ctx.run.remember(**{ASKS: True})
    ctx.progress.say(f"publish: waits up to {hours:g} h for a person's word (Prefect UI: Resume)")
    try:
        answer = _answer(question(ctx.run, decision), hours * 3600)
    finally:
        ctx.run.remember(**{ASKS: False})
    if answer is not None:
        speak(ctx.run, new_word("approval", answer.by, answer.why, answer.answer == "promote"))


def _answer(text: str, timeout_s: float) -> Approval | None:
    """What a person filled in; None if nobody did in time."""
    from prefect.exceptions import FlowPauseTimeout

    form = Approval.with_initial_data(description=text)
    try:
        return pause_flow_run(wait_for_input=form, timeout=int(timeout_s), poll_interval=2)
    except FlowPauseTimeout:
        log.info("publish: nobody answered in %.0f s", timeout_s)
        _run_again()
        return None


def _run_again() -> None:
    """Prefect takes a pause that ended by its time for a failure; the run goes on and holds the draft."""
    from prefect.client.orchestration import get_client
    from prefect.runtime import flow_run
    from prefect.states import Running

    with get_client(sync_client=True) as client:
        state: Any = Running(message="Nobody answered in time.")
        client.set_flow_run_state(UUID(str(flow_run.id)), state, force=True)


def question(run: RunFolder, decision: Decision) -> str:
    """What the form shows: the comparison, what a reader should know, and how to answer elsewhere."""
    lines = [
        f"**Run {run.run_id}** passed the gate and waits for a person.",
        "",
        *(f"- {line}" for line in (*decision.reasons, *decision.remarks)),
        "",
        f'Or: `retrain-dspark promote {run.run_id} --by NAME --why "TEXT"`',
    ]
    return "\n".join(lines)


def _resume(flow_run_id: str, values: dict[str, Any]) -> None:
    """Give the form's values; a run that is just about to pause is waited for."""
    from prefect.exceptions import NotPausedError

    deadline = time.monotonic() + _PAUSES_WITHIN_S
    while True:
        try:
            resume_flow_run(UUID(flow_run_id), run_input=values)
            return
        except NotPausedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)


def answer_paused(run: RunFolder, word: Word) -> bool:
    """Answer the form of a run that is paused now; False if it is not.

    Raises:
        ServiceError: Prefect does not let it resume.
    """
    if not run.facts().get(ASKS) or not is_live(run):
        return False
    values: dict[str, Any] = {"answer": "promote" if word.yes else "hold", "by": word.by, "why": word.why}
    try:
        _resume(run.facts()["flow_run_id"], values)
    except Exception as error:
        raise ServiceError(
            f"run {run.run_id} waits for a word, but Prefect refused it ({type(error).__name__}: {error})",
            where=os.environ.get("PREFECT_API_URL", "PREFECT_API_URL is not set"),
            hint="set PREFECT_API_URL to the server of that run, or answer on the page of the flow run",
        ) from None
    return True
