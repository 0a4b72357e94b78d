"""From played rounds to a recommendation: how many draft tokens, and whether adapting them helps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from profiles.evaluation import Policy
from tasks.evaluate.policy.calibration import scaled
from tasks.evaluate.policy.costs import is_measured, step_seconds
from tasks.evaluate.policy.models import (
    Calibration,
    CostTable,
    Gain,
    PolicyName,
    Recommended,
    SimulatedLoad,
    SimulatedPolicy,
)
from tasks.evaluate.policy.options import command_line, options
from tasks.evaluate.policy.pace import Pace, gain
from tasks.evaluate.policy.reliability import sigmoid
from tasks.evaluate.policy.simulation import (
    Choose,
    by_adaptive_verification,
    by_scheduler,
    by_threshold,
    play,
    steps_per_s,
)
from tasks.evaluate.policy.slots import Bools, Floats, Slots
from tasks.evaluate.policy.walks import Played, Walks, walk_fixed, walks_of
from tasks.measure.intervals import Bootstrap

MIN_PROMPTS = 8
"""With fewer prompts an interval says nothing, and every verdict is undecided."""


@dataclass(frozen=True)
class Replayed:
    """The rounds of a replay, ready to be played; the confidences belong to `walks`' anchors."""

    walks: Walks
    confidences: Floats | None
    held_out: Walks
    """Prompts on which no temperature was fitted."""
    calibrated: Floats | None
    """Confidences after scaling, for `held_out`; None if nothing was fitted."""
    raw_held_out: Floats | None = None
    """Confidences before scaling, for `held_out`."""


def replayed(slots: Slots, fitting: Bools, calibration: Calibration | None) -> Replayed:
    """Prepare the rounds of all prompts, and of those that calibration did not see."""
    walks, rest = walks_of(slots), walks_of(slots, ~fitting)
    if slots.confidence is None:
        return Replayed(walks, None, rest, None)
    raw = sigmoid(slots.confidence[walks.rows])
    temperatures = calibration.temperatures if calibration else ()
    if not rest.prompts or not any(one.fitted for one in temperatures):
        return Replayed(walks, raw, rest, None)
    logits = slots.confidence[rest.rows]
    return Replayed(walks, raw, rest, scaled(logits, [one.value for one in temperatures]), sigmoid(logits))


class Load:
    """Plays the policies at one concurrency."""

    def __init__(
        self, rounds: Replayed, table: CostTable, requests: int, settings: Policy, how: Bootstrap
    ) -> None:
        self._rounds, self._table, self._requests = rounds, table, requests
        self._settings, self._how = settings, how
        self._speeds = steps_per_s(table, requests, rounds.walks.positions)
        self._weights = {id(w): walk_fixed(w, w.positions).tokens for w in (rounds.walks, rounds.held_out)}
        self.paces: dict[tuple[str, float | None], Pace] = {}

    def policies(self) -> Iterator[SimulatedPolicy]:
        """Every policy in turn: fixed numbers first, then those that need confidences."""
        walks = self._rounds.walks
        for tokens in range(walks.positions + 1):
            yield self._fixed(tokens)
        confidences = self._rounds.confidences
        if confidences is None:
            return
        yield self._judged("adaptive", None, *self._play(by_adaptive_verification(confidences, self._speeds)))
        yield self._judged("scheduler", None, *self._play(by_scheduler(confidences, self._speeds)))
        for least in self._settings.thresholds:
            yield self._judged("threshold", least, *self._play(by_threshold(confidences, least)))
        if self._rounds.calibrated is not None:
            calibrated = by_scheduler(self._rounds.calibrated, self._speeds)
            yield self._judged("calibrated_scheduler", None, *self._play(calibrated, self._rounds.held_out))

    def calibration_gain(self) -> Gain | None:
        """Gain of the scheduler by scaled confidences over that by raw ones, on prompts not fitted."""
        rest, scaled_pace = self._rounds.held_out, self.paces.get(("calibrated_scheduler", None))
        if scaled_pace is None or self._rounds.raw_held_out is None:
            return None
        played, _ = self._play(by_scheduler(self._rounds.raw_held_out, self._speeds), rest)
        return gain(scaled_pace, self._pace(played, rest), self._how)

    def _fixed(self, tokens: int) -> SimulatedPolicy:
        done = walk_fixed(self._rounds.walks, tokens)
        batch = self._requests * (1 + tokens)
        seconds = step_seconds(self._table, batch, drafting=self._requests if tokens else 0).item()
        played = Played(done.rounds, done.accepted, done.verified, done.rounds * seconds)
        return self._judged("fixed", float(tokens), played, self._rounds.walks)

    def _play(self, choose: Choose, walks: Walks | None = None) -> tuple[Played, Walks]:
        walks = walks or self._rounds.walks
        passes, seed = self._settings.passes, self._how.seed
        return play(walks, self._table, self._requests, passes, choose, seed), walks

    def _pace(self, played: Played, walks: Walks) -> Pace:
        seconds = np.full(walks.prompts, np.nan)
        np.divide(played.seconds, played.tokens, out=seconds, where=played.tokens > 0)
        return Pace(seconds, self._weights[id(walks)])

    def _judged(
        self, name: PolicyName, setting: float | None, played: Played, walks: Walks
    ) -> SimulatedPolicy:
        pace = self._pace(played, walks)
        self.paces[name, setting] = pace
        plain = step_seconds(self._table, self._requests).item()
        alone = Pace(np.full(walks.prompts, plain), pace.weights)
        seen = played.tokens > 0
        weights = pace.weights[seen]
        return SimulatedPolicy(
            policy=name,
            setting=setting,
            tau=float(weights.sum() / (weights * played.rounds[seen] / played.tokens[seen]).sum()),
            verified=float(played.verified.sum() / played.rounds.sum()),
            speedup=gain(pace, alone, self._how),
            prompts=int(seen.sum()),
        )


def simulate(
    rounds: Replayed, table: CostTable, settings: Policy, how: Bootstrap, base: Mapping[str, Any]
) -> tuple[list[SimulatedLoad], list[Recommended]]:
    """Play every policy at every concurrency and recommend one.

    Args:
        rounds: At least one prompt with a round.
        base: Speculative configuration under which the draft was measured.
    """
    loads, advice = [], []
    for requests in sorted(set(settings.concurrencies)):
        load = Load(rounds, table, requests, settings, how)
        policies = tuple(load.policies())
        largest = requests * (1 + rounds.walks.positions)
        extrapolated = not (is_measured(table, requests) and is_measured(table, largest))
        loads.append(
            SimulatedLoad(
                concurrency=requests,
                extrapolated=extrapolated,
                policies=policies,
                calibration_gain=load.calibration_gain(),
            )
        )
        advice.append(_recommended(loads[-1], load, table, settings, how, base))
    return loads, advice


def _recommended(
    played: SimulatedLoad,
    load: Load,
    table: CostTable,
    settings: Policy,
    how: Bootstrap,
    base: Mapping[str, Any],
) -> Recommended:
    fixed = [one for one in played.policies if one.policy == "fixed"]
    best = max(fixed, key=lambda one: (one.speedup.value, -(one.setting or 0)))
    tokens = int(best.setting or 0)
    adaptive = load.paces.get(("adaptive", None))
    over = gain(adaptive, load.paces["fixed", best.setting], how) if adaptive else None
    helps = _verdict(over, settings.min_gain) if table.meaningful and best.prompts >= MIN_PROMPTS else None
    fields = options(base, len(fixed) - 1 if helps else tokens, adaptive=bool(helps))
    return Recommended(
        concurrency=played.concurrency,
        num_speculative_tokens=tokens,
        expected_tau=best.tau,
        expected_speedup=1 + best.speedup.value,
        expected_speedup_low=1 + best.speedup.low,
        expected_speedup_high=1 + best.speedup.high,
        adaptive_verification_helps=helps,
        adaptive_gain=over,
        extrapolated=_outside(table, played.concurrency, tokens if not helps else len(fixed) - 1),
        vllm_options=fields,
        command_line=command_line(fields),
    )


def _outside(table: CostTable, requests: int, tokens: int) -> bool:
    return not (is_measured(table, requests) and is_measured(table, requests * (1 + tokens)))


def _verdict(over: Gain | None, min_gain: float) -> bool | None:
    """Whether the gain is large enough; None where the interval holds both a gain and a loss."""
    if over is None or over.low <= 0 <= over.high:
        return None
    return over.low > 0 and over.value >= min_gain
