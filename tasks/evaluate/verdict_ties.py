"""Asks the target about the first difference of two answers: how likely is either token after that prefix?

One arm is up at a time, so the arm without a draft is measured last and asked while it still runs. Only two
log-probabilities are asked for, of exactly the two tokens: a list of the most likely ones could lack a
token that is badly wrong.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import httpx
from pydantic import BaseModel, ConfigDict

from tasks.errors import ServiceError
from tasks.evaluate.arm_record import Answer, LivePrompt
from tasks.evaluate.live import ArmClient, top_logprobs, watched


@dataclass(frozen=True)
class Question:
    """The first difference of two answers to one prompt."""

    prompt_id: str
    position: int
    """Answer token, from 0."""
    prefix: tuple[int, ...]
    """Answer tokens before it, common to both."""
    plain_token: int | None
    """None if that answer had ended."""
    other_token: int | None

    @property
    def key(self) -> str:
        return f"{self.prompt_id}@{self.position}:{self.plain_token}/{self.other_token}"


class Ruling(BaseModel):
    """What the target said."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    plain_logprob: float | None = None
    """None if it could not say; then nothing shows that the difference is a tie."""
    other_logprob: float | None = None
    error: str = ""


def question(plain: Answer, other: Answer) -> Question | None:
    """Where two answers part; None if they are equal."""
    left, right = plain.token_ids, other.token_ids
    if left == right:
        return None
    shorter = min(len(left), len(right))
    at = next((i for i in range(shorter) if left[i] != right[i]), shorter)
    return Question(
        prompt_id=plain.prompt_id,
        position=at,
        prefix=left[:at],
        plain_token=left[at] if at < len(left) else None,
        other_token=right[at] if at < len(right) else None,
    )


def questions(plain: Mapping[str, Answer], others: Iterable[Mapping[str, Answer]]) -> list[Question]:
    """Every first difference of the arms from the plain one, each once."""
    found: dict[str, Question] = {}
    for answers in others:
        for name, answer in answers.items():
            if name not in plain or answer.error or plain[name].error:
                continue
            asked = question(plain[name], answer)
            if asked is not None and None not in (asked.plain_token, asked.other_token):
                found[asked.key] = asked
    return list(found.values())


async def ask_rulings(
    client: ArmClient,
    asked: Sequence[Question],
    prompts: Mapping[str, LivePrompt],
    concurrency: int,
    stall_s: float,
) -> dict[str, Ruling]:
    """What the target says about each question, by its key.

    Raises:
        ServiceError: The server made no token for `stall_s` seconds.
    """
    limit = asyncio.Semaphore(concurrency)
    rulings: dict[str, Ruling] = {}

    async def one(question: Question) -> None:
        async with limit:
            rulings[question.key] = await _ask(client, question, prompts[question.prompt_id])

    await watched(client, [one(question) for question in asked], stall_s)
    return rulings


async def _ask(client: ArmClient, question: Question, prompt: LivePrompt) -> Ruling:
    """One decoding step after prompt and common prefix; log-probabilities of both tokens."""
    tokens = [question.plain_token, question.other_token]
    wanted = {"logprobs": 1, "logprob_token_ids": tokens, "return_tokens_as_token_ids": True}
    try:
        reply = await client.complete((*prompt.token_ids, *question.prefix), max_tokens=1, **wanted)
        (step,) = top_logprobs(reply["choices"][0]["logprobs"])
    except ServiceError as error:
        return Ruling(error=error.what)
    except (httpx.HTTPError, KeyError, IndexError, TypeError, ValueError) as error:
        return Ruling(error=f"{type(error).__name__}: {error}")
    return Ruling(
        plain_logprob=step.get(question.plain_token or 0), other_logprob=step.get(question.other_token or 0)
    )
