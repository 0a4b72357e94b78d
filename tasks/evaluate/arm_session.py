"""What is asked of an arm while its one server runs.

Order of a session: warm-up; the drift set; all domains, once for each repetition; the drift set again;
samples at a temperature above 0, if wanted; then, of the target alone, its answers once more (A/A) and the
rulings on every difference.

Every further start of an engine costs minutes on a large target, so arms are not started again to rotate
their order. What the order could blur is bounded otherwise: the order of *domains* rotates from one
repetition to the next, within the same start; and the same few requests at the start and the end of each
arm show by how much its own speed changed meanwhile. That bounds drift inside an arm. A machine that
changes between arms would show as arms whose drift sets differ before anything else does; tokens and
acceptance do not depend on speed at all.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import httpx

from profiles.evaluation import Sampled
from tasks.errors import ServiceError
from tasks.evaluate.arm_models import Drift
from tasks.evaluate.arm_record import Answer, DomainCounts, LivePrompt, Repetition
from tasks.evaluate.live import ArmClient, measure_domains, settled, warm_up, watched

DRIFT_PROMPTS = 2
DRIFT_TOKENS = 8
Domains = Mapping[str, Sequence[LivePrompt]]


@dataclass(frozen=True)
class Wishes:
    """What to ask."""

    prompts: Sequence[LivePrompt]
    concurrency: int
    stall_s: float
    repetitions: int = 1
    sampled: Sampled | None = None
    seed: int = 0


@dataclass
class Session:
    """What came of it."""

    answers: dict[str, Answer] = field(default_factory=dict)
    domains: dict[str, DomainCounts] = field(default_factory=dict)
    speculates: bool = False
    seconds: float = 0.0
    further: list[Repetition] = field(default_factory=list)
    drift: Drift | None = None
    sampled: dict[str, tuple[tuple[int, ...], ...]] = field(default_factory=dict)


async def hold_session(client: ArmClient, wishes: Wishes, answered: Callable[[Answer], None]) -> Session:
    """Ask everything that every arm is asked.

    Raises:
        ServiceError: The server is gone, or made no token for `stall_s` seconds.
    """
    session = Session()
    domains = by_domain(wishes.prompts)
    first = wishes.prompts[0] if wishes.prompts else None
    session.speculates = (await warm_up(client, first)).has_speculation
    steady = wishes.prompts[:DRIFT_PROMPTS]
    before = await _drift_set(client, steady, wishes.stall_s)
    for number in range(wishes.repetitions):
        began = time.monotonic()
        answers, counts = await measure_domains(
            client, rotated(domains, number), wishes.concurrency, wishes.stall_s, answered
        )
        seconds = time.monotonic() - began
        if number == 0:
            session.answers = {prompt.prompt_id: answers[prompt.prompt_id] for prompt in wishes.prompts}
            session.domains = {name: counts[name] for name in domains}
            session.seconds = seconds
        else:
            session.further.append(_repetition(session.answers, answers, counts, seconds))
    after = await _drift_set(client, steady, wishes.stall_s)
    if before is not None and after is not None:
        session.drift = Drift(
            seconds_before=before[0], seconds_after=after[0], same_tokens=before[1] == after[1]
        )
    if wishes.sampled is not None:
        session.sampled = await ask_samples(client, wishes, wishes.sampled)
    return session


def by_domain(prompts: Sequence[LivePrompt]) -> dict[str, list[LivePrompt]]:
    """Prompts by domain, in order of first appearance."""
    domains: dict[str, list[LivePrompt]] = {}
    for prompt in prompts:
        domains.setdefault(prompt.domain, []).append(prompt)
    return domains


def rotated(domains: Domains, number: int) -> dict[str, Sequence[LivePrompt]]:
    """The domains in the order of repetition `number` (from 0): each begins one domain later."""
    names = list(domains)
    start = number % len(names) if names else 0
    return {name: domains[name] for name in (*names[start:], *names[:start])}


def first_of_domains(prompts: Sequence[LivePrompt], count: int) -> list[LivePrompt]:
    """Up to `count` prompts, taken from the domains in turn, in the order of asking."""
    lists = list(by_domain(prompts).values())
    deepest = max(map(len, lists), default=0)
    turns = [one[depth] for depth in range(deepest) for one in lists if depth < len(one)]
    chosen = {prompt.prompt_id for prompt in turns[:count]}
    return [prompt for prompt in prompts if prompt.prompt_id in chosen]


def _repetition(
    first: Mapping[str, Answer],
    answers: Mapping[str, Answer],
    counts: Mapping[str, DomainCounts],
    seconds: float,
) -> Repetition:
    unsteady = [name for name, answer in answers.items() if answer.token_ids != first[name].token_ids]
    said = {name: one.acceptance for name, one in answers.items() if one.acceptance is not None}
    return Repetition(
        order=tuple(counts), domains=dict(counts), acceptance=said, seconds=seconds, unsteady=tuple(unsteady)
    )


async def _drift_set(
    client: ArmClient, prompts: Sequence[LivePrompt], stall_s: float
) -> tuple[float, list[tuple[int, ...]]] | None:
    """Seconds and tokens of the fixed requests, all at once; None if one failed. Not measured otherwise."""
    before = await client.scrape()
    given: dict[str, Answer] = {}

    async def one(prompt: LivePrompt) -> None:
        given[prompt.prompt_id] = await client.ask(prompt, max_tokens=DRIFT_TOKENS)

    began = time.monotonic()
    await watched(client, [one(prompt) for prompt in prompts], stall_s)
    seconds = time.monotonic() - began
    tokens = [given[prompt.prompt_id].token_ids for prompt in prompts]
    await settled(client, before, sum(map(len, tokens)), client.restart_s)
    failed = not prompts or any(answer.error for answer in given.values())
    return None if failed else (seconds, tokens)


async def ask_samples(
    client: ArmClient, wishes: Wishes, how: Sampled
) -> dict[str, tuple[tuple[int, ...], ...]]:
    """Short continuations at a temperature above 0, by prompt; a prompt that failed is left out."""
    limit = asyncio.Semaphore(max(1, wishes.concurrency // 2))
    found: dict[str, tuple[tuple[int, ...], ...]] = {}
    body = {"temperature": how.temperature, "n": how.samples, "max_tokens": how.tokens, "seed": wishes.seed}

    async def one(prompt: LivePrompt) -> None:
        async with limit:
            try:
                reply = await client.complete(prompt.token_ids, **body)
                found[prompt.prompt_id] = tuple(tuple(one["token_ids"]) for one in reply["choices"])
            except (ServiceError, httpx.HTTPError, KeyError, TypeError, ValueError):
                return  # the check says how many prompts it compared

    chosen = first_of_domains(wishes.prompts, how.prompts)
    await watched(client, [one(prompt) for prompt in chosen], wishes.stall_s)
    return found
