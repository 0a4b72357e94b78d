"""Ask one server the evaluation prompts, one domain after another, and read its counters around each.

Counters cannot be told apart by prompt, so a domain is finished before the next one starts; the
request that warms the server up lies before the first reading.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

import httpx
from pydantic import BaseModel, ConfigDict

from tasks.errors import ServiceError
from tasks.measure.counters import Scrape, SpecDelta, delta, parse_scrape
from tasks.serve.vllm_http import refusal

REQUEST_TIMEOUT_S = 900.0
SCRAPE_TIMEOUT_S = 30.0
TOP_LOGPROBS = 5
WARM_UP_TOKENS = 12
_TOKEN = "token_id:"


class LivePrompt(BaseModel):
    """One prompt, already tokens, so that both arms read exactly the same."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    prompt_id: str
    domain: str
    token_ids: tuple[int, ...]


class Answer(BaseModel):
    """What one arm answered."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    prompt_id: str
    token_ids: tuple[int, ...] = ()
    finish_reason: str = ""
    error: str = ""
    """Why the request failed; empty if it did not."""
    top_logprobs: tuple[dict[int, float], ...] = ()
    """The most likely tokens of each step, if they were asked for."""


class DomainCounts(BaseModel):
    """Counter differences over one domain."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    rounds: int
    accepted: int
    draft_tokens: int
    per_position: tuple[int, ...]
    generated: int
    """Output tokens that the server counted; more than `answered` means that others used it too."""
    answered: int
    invalid: str = ""


class ArmRecord(BaseModel):
    """Everything that one arm gave: the unit that a resumed evaluation reuses."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    fingerprint: str
    argv: tuple[str, ...]
    engine: str
    answers: dict[str, Answer]
    domains: dict[str, DomainCounts]
    speculates: bool
    """Whether the server counts drafts."""
    seconds: float
    """Time in which requests were open."""

    @property
    def failed(self) -> int:
        return sum(bool(answer.error) for answer in self.answers.values())

    @property
    def output_tokens(self) -> int:
        return sum(len(answer.token_ids) for answer in self.answers.values())


class ArmClient:
    """Requests to one server.

    Args:
        url: Base URL without `/v1`.
        served_name: Model name in requests.
        api_key: Key of the server, or None.
        max_new_tokens: Longest answer.
        logprobs: Ask for the most likely tokens of each step.
    """

    def __init__(
        self,
        url: str,
        served_name: str,
        api_key: str | None,
        max_new_tokens: int,
        logprobs: bool = False,
    ):
        self.url = url.rstrip("/")
        self.body: dict[str, Any] = {
            "model": served_name,
            "max_tokens": max_new_tokens,
            "temperature": 0.0,
            "return_token_ids": True,
        }
        if logprobs:
            self.body |= {"logprobs": TOP_LOGPROBS, "return_tokens_as_token_ids": True}
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self.client = httpx.AsyncClient(headers=headers, timeout=REQUEST_TIMEOUT_S, trust_env=False)

    async def ask(self, prompt: LivePrompt, **changes: Any) -> Answer:
        """One greedy answer; a failure is an answer with `error`, so that it is counted."""
        body = {**self.body, "prompt": list(prompt.token_ids), **changes}
        try:
            reply = await self.client.post(f"{self.url}/v1/completions", json=body)
            if reply.status_code != httpx.codes.OK:
                return Answer(
                    prompt_id=prompt.prompt_id,
                    error=f"HTTP {refusal(reply)}",
                )
            choice = reply.json()["choices"][0]
            return Answer(
                prompt_id=prompt.prompt_id,
                token_ids=tuple(choice["token_ids"]),
                finish_reason=choice["finish_reason"] or "",
                top_logprobs=_top_logprobs(choice.get("logprobs")),
            )
        except (httpx.HTTPError, KeyError, IndexError, TypeError, ValueError) as error:
            return Answer(prompt_id=prompt.prompt_id, error=f"{type(error).__name__}: {error}")

    async def scrape(self) -> Scrape:
        """Read the server's counters.

        Raises:
            ServiceError: The page cannot be had.
        """
        where = f"{self.url}/metrics"
        try:
            reply = await self.client.get(where, timeout=SCRAPE_TIMEOUT_S)
            reply.raise_for_status()
        except httpx.HTTPError as error:
            raise ServiceError(
                f"the server's counters cannot be read: {error}",
                where=where,
                hint="see the server's log in the run folder",
            ) from error
        return parse_scrape(reply.text, where=where)


async def ask_domains(
    client: ArmClient,
    domains: Mapping[str, Sequence[LivePrompt]],
    concurrency: int,
    stall_s: float,
    answered: Callable[[Answer], None],
) -> tuple[dict[str, Answer], dict[str, DomainCounts], bool]:
    """Warm up, then measure each domain; returns answers, counts by domain, and "counts drafts".

    Raises:
        ServiceError: Requests were open and no token came for `stall_s` seconds, or the server is gone.
    """
    answers: dict[str, Answer] = {}
    counts: dict[str, DomainCounts] = {}
    limit = asyncio.Semaphore(concurrency)

    async def one(prompt: LivePrompt) -> None:
        async with limit:
            answer = await client.ask(prompt)
        answers[prompt.prompt_id] = answer
        answered(answer)

    async with client.client:
        first = next(iter(prompts[0] for prompts in domains.values() if prompts), None)
        before = await client.scrape()
        if first is not None:
            warm = await client.ask(first, max_tokens=WARM_UP_TOKENS)
            before = await _settled(client, before, len(warm.token_ids))
        for name, prompts in domains.items():
            await _watched(client, [one(prompt) for prompt in prompts], stall_s)
            tokens = sum(len(answers[prompt.prompt_id].token_ids) for prompt in prompts)
            after = await _settled(client, before, tokens)
            counts[name] = _domain_counts(delta(before, after), tokens)
            before = after
    return answers, counts, before.has_speculation


async def _work_done(client: ArmClient) -> int | None:
    """Tokens and drafts that the server has made so far; None if it does not say now."""
    try:
        made = delta(Scrape({}, {}), await client.scrape())
    except ServiceError:
        return None  # a busy server may miss one reading; silence for the whole limit is the error
    return made.generated + made.drafts


async def _watched(client: ArmClient, requests: Sequence[Coroutine[Any, Any, None]], stall_s: float) -> None:
    """Wait for all requests; give up if the server's counters stand still for `stall_s` seconds."""
    waiting = asyncio.gather(*requests)
    last, since = -1, time.monotonic()
    try:
        while not (await asyncio.wait({waiting}, timeout=min(2.0, stall_s / 4)))[0]:
            now = await _work_done(client)
            if now is not None and now != last:
                last, since = now, time.monotonic()
            elif time.monotonic() - since > stall_s:
                raise ServiceError(
                    f"requests are open and the server made no token for {stall_s:.0f} s",
                    where=client.url,
                    hint="see the server's log; serve.progress_timeout_s sets the limit",
                )
        await waiting
    finally:
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)


async def _settled(client: ArmClient, before: Scrape, expected: int) -> Scrape:
    """Scrape until the counters include `expected` new tokens, at most a second later.

    vLLM writes a step's counters after it hands out the step's tokens.
    """
    deadline = time.monotonic() + 1.0
    while True:
        after = await client.scrape()
        if delta(before, after).generated >= expected or time.monotonic() > deadline:
            return after
        await asyncio.sleep(0.02)


def _domain_counts(change: SpecDelta, answered: int) -> DomainCounts:
    invalid = change.invalid
    if not invalid and change.generated > answered:
        invalid = (
            f"the server generated {change.generated} tokens and {answered} were ours: "
            "another client used it, or a request failed half-way"
        )
    return DomainCounts(
        rounds=change.drafts,
        accepted=change.accepted,
        draft_tokens=change.draft_tokens,
        per_position=change.per_position,
        generated=change.generated,
        answered=answered,
        invalid=invalid,
    )


def _top_logprobs(logprobs: Any) -> tuple[dict[int, float], ...]:
    if not logprobs or not logprobs.get("top_logprobs"):
        return ()
    return tuple(
        {int(key.removeprefix(_TOKEN)): float(value) for key, value in (step or {}).items()}
        for step in logprobs["top_logprobs"]
    )
