"""Requests in flight, played step by step against the cost table.

Each of R requests walks over answers of the replay; when one ends, another prompt takes its place, so that R
are always in flight. Every step, a policy says how many draft tokens of each request are verified; the step
takes what the table says for a batch of so many tokens. Several such groups run side by side for speed of the
simulation only. They start in the middle of answers, as in a server that has been running.

Letters: S groups, R requests of a group, K positions, A anchors, P prompts.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tasks.evaluate.policy.costs import step_seconds
from tasks.evaluate.policy.models import CostTable
from tasks.evaluate.policy.scheduler import allocate, best_budget, schedule, survival, threshold
from tasks.evaluate.policy.slots import Bools, Floats, Ints
from tasks.evaluate.policy.walks import Played, Walks

Choose = Callable[[Ints, Ints], Ints]
"""(anchors `[S, R]`, anchors of the round before or -1) -> draft tokens to verify `[S, R]`."""
_LEAST, _MOST = 64, 1024
"""Requests that are played side by side, in all groups together."""
_FIGURES = 4


def steps_per_s(table: CostTable, requests: int, positions: int) -> Floats:
    """`[R * K + 1]`, steps per second when 0, 1, ... draft tokens are verified beside `requests` tokens."""
    tokens = requests + np.arange(requests * positions + 1)
    return 1.0 / step_seconds(table, tokens, drafting=requests)


def by_scheduler(confidences: Floats, speeds: Floats) -> Choose:
    """Algorithm 1 on the confidences `[A, K]` of the tokens themselves."""
    return lambda here, _: schedule(confidences[here], speeds)


def by_adaptive_verification(confidences: Floats, speeds: Floats) -> Choose:
    """As vLLM 0.32: the budget from the confidences of the round before (1 for a new request), the tokens by
    those of this round."""
    chance = survival(confidences)
    stale = np.vstack([chance, np.ones((1, chance.shape[1]))])
    return lambda here, before: allocate(chance[here], best_budget(stale[before], speeds))


def by_threshold(confidences: Floats, least: float) -> Choose:
    """Draft tokens whose survival is at least `least`, whatever the load."""
    chance = survival(confidences)
    return lambda here, _: threshold(chance[here], least)


def play(walks: Walks, table: CostTable, requests: int, passes: int, choose: Choose, seed: int) -> Played:
    """Play until every prompt was answered about `passes` times, and each at least once.

    A request's share of time is that of its whole steps, since it waits for the batch. Only answers that were
    played from first to last token count, so that a prompt's figures do not depend on where it was cut.
    """
    random = np.random.default_rng(seed)
    groups = max(1, min(_MOST, max(_LEAST, walks.prompts // 4)) // requests)
    here = random.choice(walks.starts, size=(groups, requests))
    before = np.full_like(here, -1)
    whole = np.zeros(here.shape, dtype=bool)
    running = np.zeros((_FIGURES, *here.shape))
    queue, served = random.permutation(walks.prompts), 0
    totals = np.zeros((_FIGURES, walks.prompts))
    seconds_of = step_seconds(table, np.arange(requests * (walks.positions + 1) + 1), drafting=requests)
    while served < passes * walks.prompts or not totals[0].all():
        verified = choose(here, before)
        won = np.minimum(walks.accepted[here], verified)
        running += _figures(won, verified, seconds_of[requests + verified.sum(axis=1)])
        following = walks.next_row[here, won]
        ended = following < 0
        _add(totals, walks.prompt[here], running, ended & whole)
        fresh = queue[(served + np.arange(int(ended.sum()))) % len(queue)]
        served += len(fresh)
        running[:, ended] = 0
        whole |= ended
        before = np.where(ended, -1, here)
        following[ended] = walks.first_row[fresh]
        here = following
    return Played(*totals)


def _figures(won: Ints, verified: Ints, seconds: Floats) -> Floats:
    """`[4, S, R]`: rounds, accepted, verified and seconds of one step."""
    return np.stack([np.ones(won.shape), won, verified, np.repeat(seconds[:, None], won.shape[1], axis=1)])


def _add(totals: Floats, prompt: Ints, figures: Floats, chosen: Bools) -> None:
    """Add the figures `[4, S, R]` of the chosen requests to their prompts' totals `[4, P]`."""
    for total, figure in zip(totals, figures, strict=True):
        total += np.bincount(prompt[chosen], figure[chosen], len(total))
