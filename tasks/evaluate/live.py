"""Ask one server the evaluation prompts, one domain after another, and read its counters around each.

Counters live as long as the server and cannot be told apart by prompt, so a domain is finished before the
next one starts; the requests that warm the server up lie before the first reading.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

import httpx

from tasks.errors import ServiceError
from tasks.evaluate.arm_record import Answer, ArmRecord, DomainCounts, LivePrompt
from tasks.measure.counters import Scrape, SpecDelta, delta, parse_scrape
from tasks.serve.vllm_http import refusal

__all__ = [
    "Answer",
    "ArmClient",
    "ArmRecord",
    "DomainCounts",
    "LivePrompt",
    "ask_domains",
    "measure_domains",
    "settled",
    "warm_up",
    "watched",
]

REQUEST_TIMEOUT_S = 900.0
SCRAPE_TIMEOUT_S = 30.0
RESTART_S = 30.0
"""A server that restarts is waited for so long before its counters are given up."""
TOP_LOGPROBS = 5
WARM_UP_TOKENS = 12
_TOKEN = "token_id:"


class ArmClient:
    """Requests to one server.

    Args:
        url: Base URL without `/v1`.
        served_name: Model name in requests.
        api_key: Key of the server, or None.
        max_new_tokens: Longest answer.
        logprobs: Ask for the most likely tokens of each step.
        restart_s: How long a server that is gone is waited for: one that others start may come back, as
            `RESTART_S` allows; one that was started here does not.
    """

    def __init__(
        self,
        url: str,
        served_name: str,
        api_key: str | None,
        max_new_tokens: int,
        logprobs: bool = False,
        restart_s: float = 0.0,
    ):
        self.restart_s = restart_s
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

    async def complete(self, token_ids: Sequence[int], **changes: Any) -> dict[str, Any]:
        """The server's JSON for one prompt.

        Raises:
            ServiceError: It refused; with its words.
            httpx.HTTPError, ValueError: No answer, or none that is JSON.
        """
        body = {**self.body, "prompt": list(token_ids), **changes}
        reply = await self.client.post(f"{self.url}/v1/completions", json=body)
        if reply.status_code != httpx.codes.OK:
            raise ServiceError(f"HTTP {refusal(reply)}", where=self.url)
        found: dict[str, Any] = reply.json()
        return found

    async def ask(self, prompt: LivePrompt, **changes: Any) -> Answer:
        """One greedy answer; a failure is an answer with `error`, so that it is counted."""
        try:
            reply = await self.complete(prompt.token_ids, **changes)
            choice = reply["choices"][0]
            return Answer(
                prompt_id=prompt.prompt_id,
                token_ids=tuple(choice["token_ids"]),
                finish_reason=choice["finish_reason"] or "",
                top_logprobs=top_logprobs(choice.get("logprobs")),
                acceptance=_acceptance(reply),
            )
        except ServiceError as error:
            return Answer(prompt_id=prompt.prompt_id, error=error.what)
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
    async with client.client:
        first = next((prompts[0] for prompts in domains.values() if prompts), None)
        before = await warm_up(client, first)
        answers, counts = await measure_domains(client, domains, concurrency, stall_s, answered)
    return answers, counts, before.has_speculation


async def warm_up(client: ArmClient, prompt: LivePrompt | None) -> Scrape:
    """One short answer that no measurement counts; the counters after it."""
    before = await client.scrape()
    if prompt is None:
        return before
    warm = await client.ask(prompt, max_tokens=WARM_UP_TOKENS)
    return await settled(client, before, len(warm.token_ids))


async def measure_domains(
    client: ArmClient,
    domains: Mapping[str, Sequence[LivePrompt]],
    concurrency: int,
    stall_s: float,
    answered: Callable[[Answer], None],
) -> tuple[dict[str, Answer], dict[str, DomainCounts]]:
    """Measure domain after domain. One in which the server restarted is measured once more, then invalid.

    A server that restarted is warmed up again.
    """
    answers: dict[str, Answer] = {}
    counts: dict[str, DomainCounts] = {}
    limit = asyncio.Semaphore(concurrency)

    async def one(prompt: LivePrompt) -> None:
        async with limit:
            answer = await client.ask(prompt)
        answers[prompt.prompt_id] = answer
        answered(answer)

    async def domain(name: str, last: Scrape | None, again: bool) -> Scrape:
        prompts = domains[name]
        before = await client.scrape()
        restarted = last is not None and bool(delta(last, before).invalid)
        if restarted or again:
            before = await warm_up(client, prompts[0])
        await watched(client, [one(prompt) for prompt in prompts], stall_s)
        given = [answers[prompt.prompt_id] for prompt in prompts]
        tokens = sum(len(answer.token_ids) for answer in given)
        after = await settled(client, before, tokens, client.restart_s)
        counts[name] = _domain_counts(delta(before, after), given, tokens).model_copy(
            update={"measured_again": again, "restarted_before": restarted and not again}
        )
        return after

    last: Scrape | None = None
    for name in domains:
        last = await domain(name, last, again=False)
        if counts[name].restarted:
            last = await domain(name, None, again=True)
    return answers, counts


async def _work_done(client: ArmClient) -> int | None:
    """Tokens and drafts that the server has made so far; None if it does not say now."""
    try:
        made = delta(Scrape({}, {}), await client.scrape())
    except ServiceError:
        return None  # a busy server may miss one reading; silence for the whole limit is the error
    return made.generated + made.drafts


async def watched(client: ArmClient, requests: Sequence[Coroutine[Any, Any, None]], stall_s: float) -> None:
    """Wait for all requests; give up if the server's counters stand still for `stall_s` seconds.

    Raises:
        ServiceError: They did.
    """
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


async def settled(client: ArmClient, before: Scrape, expected: int, patience_s: float = 0.0) -> Scrape:
    """Scrape until the counters include `expected` new tokens, at most a second later.

    vLLM writes a step's counters after it hands out the step's tokens.

    Args:
        patience_s: How long a server that does not answer at all is waited for.

    Raises:
        ServiceError: No answer for so long.
    """
    began = time.monotonic()
    while True:
        try:
            after = await client.scrape()
        except ServiceError:
            if time.monotonic() - began >= patience_s:
                raise
            await asyncio.sleep(0.25)
            continue
        change = delta(before, after)
        if change.invalid or change.generated >= expected or time.monotonic() > began + 1.0:
            return after
        await asyncio.sleep(0.02)


def _domain_counts(change: SpecDelta, given: Sequence[Answer], answered: int) -> DomainCounts:
    invalid, restarted = change.invalid, bool(change.invalid)
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
        requests=len(given),
        failed=sum(bool(answer.error) for answer in given),
        restarted=restarted,
    )


def top_logprobs(logprobs: Any) -> tuple[dict[int, float], ...]:
    """Log-probabilities by token id for each step of an answer, from a completion's `logprobs`."""
    if not logprobs or not logprobs.get("top_logprobs"):
        return ()
    return tuple(
        {int(key.removeprefix(_TOKEN)): float(value) for key, value in (step or {}).items()}
        for step in logprobs["top_logprobs"]
    )


def _acceptance(reply: Mapping[str, Any]) -> tuple[int, ...] | None:
    """`metrics.speculative_decoding.acceptance_histogram` of a vLLM response; None if it has none."""
    said = (reply.get("metrics") or {}).get("speculative_decoding") or {}
    histogram = said.get("acceptance_histogram")
    return tuple(int(count) for count in histogram) if histogram is not None else None
