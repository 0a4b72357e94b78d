"""Tokens per step: the figure by which arms of different methods are compared.

vLLM counts a round only where something was drafted. DSpark drafts in every step; n-gram and suffix decoding
skip the steps in which they find nothing, so for them `1 + accepted / rounds` flatters. Over all decoding
steps of the engine, those without a draft counted as one token, every method has the same denominator;
without speculation it is 1.

vLLM has no counter of the steps of a request. They follow from its tokens: the first comes from the prefill,
and each later step gives one token and those that it accepted, so

    steps = tokens - answers - accepted
    tokens per step = 1 + accepted / steps = (tokens - answers) / (tokens - answers - accepted)

A last round may accept more than the answer took. Each such token hides one step without a draft, fewer than
K an answer, and never a round: steps are at least the rounds that were counted. So an arm that drafts in
every step has its tau here. Where the server says the rounds of each response this is taken answer by answer,
which gives intervals, otherwise of a domain's counters.
"""

from __future__ import annotations

from collections.abc import Mapping

from tasks.evaluate.arm_counts import by_request
from tasks.evaluate.arm_record import ArmRecord, DomainCounts
from tasks.evaluate.assemble import counted_measurement, replay_measurement
from tasks.evaluate.measured import Measurement
from tasks.measure.acceptance import PromptCounts, decoding_steps
from tasks.measure.intervals import Bootstrap


def tokens_per_step(record: ArmRecord, domain_of: Mapping[str, str], how: Bootstrap) -> Measurement | None:
    """Tokens per step of one arm: of each domain, macro and pooled; `rounds` of its parts are steps.

    A domain in which nothing was drafted has 1. An arm that never drafted though it should has no value at
    all: that is a fault and no acceptance.

    Args:
        domain_of: Domain of each prompt that was asked.
        how: How intervals over prompts are made; there are none where only counters say what was accepted.

    Returns:
        None if nothing valid was counted.
    """
    valid = {name: counts for name, counts in record.domains.items() if not counts.invalid}
    if record.speculates and not any(counts.rounds for counts in valid.values()):
        return None
    requests = by_request(record, domain_of, steps=True) if record.speculates else None
    if requests is not None:
        known = {name: counts for name, counts in requests.items() if name in valid}
        return replay_measurement(known, how) if known else None
    counted = {name: steps_of(counts) for name, counts in valid.items()}
    prompts = {name: counts.requests for name, counts in valid.items()}
    return counted_measurement(counted, prompts) if any(one.rounds for one in counted.values()) else None


def steps_of(counts: DomainCounts) -> PromptCounts:
    """The counters of a domain over all decoding steps."""
    steps = decoding_steps(counts.answered, counts.requests - counts.failed, counts.rounds, counts.accepted)
    return PromptCounts(steps, counts.accepted, counts.per_position)
