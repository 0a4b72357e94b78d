"""Rounds and steps of single answers, as the server says in each response, checked against its counters.

A round is a step in which something was drafted; `arm_steps` says why arms are compared by steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from tasks.evaluate.arm_models import Spread
from tasks.evaluate.arm_record import Answer, ArmRecord, DomainCounts
from tasks.measure.acceptance import PromptCounts, decoding_steps, pool, tau

ByDomain = dict[str, list[PromptCounts]]


def of_histogram(rounds_by_accepted: Sequence[int]) -> PromptCounts:
    """Counts from rounds by the number of accepted draft tokens, `[K + 1]`."""
    per_position = tuple(sum(rounds_by_accepted[i + 1 :]) for i in range(len(rounds_by_accepted) - 1))
    return PromptCounts(sum(rounds_by_accepted), sum(per_position), per_position)


def all_steps(counts: PromptCounts, tokens: int) -> PromptCounts:
    """The same acceptance over all decoding steps of an answer of `tokens` tokens."""
    steps = decoding_steps(tokens, 1, counts.rounds, counts.accepted)
    return PromptCounts(steps, counts.accepted, counts.per_position)


def by_prompt(record: ArmRecord) -> dict[str, PromptCounts]:
    """Counts of the first pass by prompt, as far as the server says them."""
    return {
        name: of_histogram(answer.acceptance)
        for name, answer in record.answers.items()
        if answer.acceptance is not None and not answer.error
    }


def by_request(record: ArmRecord, domain_of: Mapping[str, str], steps: bool = False) -> ByDomain | None:
    """Counts of each prompt by domain, all passes summed: a prompt stays one unit however often it is asked.

    Args:
        domain_of: Domain of each prompt.
        steps: Over all decoding steps instead of rounds with a draft.

    Returns:
        None if the server did not say them for every answer.
    """
    domains: ByDomain = {}
    for name, answer in record.answers.items():
        if answer.error:
            continue
        if answer.acceptance is None:
            return None
        counts = [of_histogram(one) for one in (answer.acceptance, *_later(record, name))]
        if steps:
            counts = [all_steps(one, len(answer.token_ids)) for one in counts]
        domains.setdefault(domain_of[name], []).append(pool(counts))
    return domains


def _later(record: ArmRecord, prompt_id: str) -> list[tuple[int, ...]]:
    return [
        again.acceptance[prompt_id]
        for again in record.further
        if prompt_id in again.acceptance and prompt_id not in again.unsteady
    ]


def disagreements(record: ArmRecord, domain_of: Mapping[str, str]) -> list[str]:
    """Domains whose responses do not add up to the server's counters, with both numbers."""
    said: ByDomain = {}
    for name, counts in by_prompt(record).items():
        said.setdefault(domain_of[name], []).append(counts)
    found = []
    for name, parts in said.items():
        domain, whole = record.domains.get(name), pool(parts)
        if domain is None or domain.invalid or domain.failed:
            continue
        if (whole.rounds, whole.accepted) != (domain.rounds, domain.accepted):
            found.append(
                f"{name}: responses say {whole.rounds} rounds and {whole.accepted} accepted, "
                f"the counters {domain.rounds} and {domain.accepted}"
            )
    return found


def pooled(domains: Iterable[DomainCounts]) -> PromptCounts:
    """Counters of several domains, summed."""
    return pool(PromptCounts(one.rounds, one.accepted, one.per_position) for one in domains)


def spread(record: ArmRecord) -> Spread | None:
    """Tokens per step of single answers; None if no response says it."""
    answers: Mapping[str, Answer] = record.answers
    counts = [
        all_steps(of_histogram(one.acceptance), len(one.token_ids))
        for one in answers.values()
        if one.acceptance and not one.error
    ]
    values = [value for one in counts if (value := tau(one.rounds, one.accepted)) is not None]
    if not values:
        return None
    low, ten, middle, ninety, high = np.percentile(values, [0, 10, 50, 90, 100])
    return Spread(
        answers=len(values),
        lowest=float(low),
        p10=float(ten),
        median=float(middle),
        p90=float(ninety),
        highest=float(high),
    )
