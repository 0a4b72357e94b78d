"""Comparisons of two drafts, resampled from the rounds of real replays: how often does the gate err?

`real_rounds.json` holds what each verification round accepted, by domain and prompt, of drafts of the
laptop's target: `unseen` on domains that a draft was not trained on (acceptance length 1.18), `seen` on those
that it was (1.70). Each part is made of replays (`05-evaluate/answers/replay-*.jsonl` of runs) by

    python tests/support/resampled_drafts.py REPLAY.jsonl ...

A draft's walk over an answer draws rounds of that prompt again, each side for itself: two walks of one draft
differ as two drafts of equal worth would, which share nothing but the prompts. Real pairs share more.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tasks.evaluate.assemble import replay_measurement
from tasks.evaluate.models import Difference, EvaluationReport
from tasks.evaluate.report import domain_differences
from tasks.measure.acceptance import PromptCounts
from tasks.measure.intervals import Bootstrap, paired_macro_difference
from tests.unit.tasks.publish import drafts

DRAFTED = 4
"""Draft tokens of a round in the recorded replays."""
TOKENS = 64
"""Answer tokens that a walk covers."""
Counts = dict[str, list[PromptCounts]]


@dataclass(frozen=True)
class Prompts:
    """Recorded prompts of one domain: `accepted[i, :lengths[i]]` are the rounds of prompt i."""

    accepted: Any
    lengths: Any


def recorded(kind: str) -> dict[str, Prompts]:
    """The recorded rounds, by domain.

    Args:
        kind: `unseen` or `seen`.
    """
    text = (Path(__file__).parent / "real_rounds.json").read_text(encoding="utf-8")
    domains: Mapping[str, list[str]] = json.loads(text)[kind]
    return {name: _padded([[int(one) for one in row] for row in rows]) for name, rows in domains.items()}


def _padded(rows: list[list[int]]) -> Prompts:
    lengths = np.array([len(row) for row in rows])
    table = np.zeros((len(rows), lengths.max()), dtype=np.int64)
    for place, row in enumerate(rows):
        table[place, : len(row)] = row
    return Prompts(table, lengths)


def macro_tau(rounds: Mapping[str, Prompts]) -> float:
    """Macro acceptance length of the recorded rounds."""
    return float(np.mean([1 + prompts.accepted.sum() / prompts.lengths.sum() for prompts in rounds.values()]))


def chance_of_one_more(rounds: Mapping[str, Prompts], gain: float) -> float:
    """Chance that a round accepts one more token, so that the macro acceptance length grows by `gain`.

    Args:
        gain: Share, e.g. 0.05; below 0 the token is lost instead.
    """
    able = []
    for prompts in rounds.values():
        real = np.arange(prompts.accepted.shape[1]) < prompts.lengths[:, None]
        changeable = prompts.accepted < DRAFTED if gain > 0 else prompts.accepted > 0
        able.append((changeable & real).sum() / prompts.lengths.sum())
    return abs(gain) * macro_tau(rounds) / float(np.mean(able))


def walks(rng: Any, prompts: Prompts, chosen: Any, change: float) -> list[PromptCounts]:
    """Counts of one draft's walks.

    Args:
        chosen: Place of each prompt among the recorded ones.
        change: Chance that a round accepts one token more (above 0) or less (below 0).
    """
    places = (rng.random((len(chosen), TOKENS)) * prompts.lengths[chosen][:, None]).astype(np.int64)
    accepted = prompts.accepted[chosen[:, None], places]
    luck = rng.random(accepted.shape) < abs(change)
    accepted = np.clip(accepted + np.sign(change) * luck, 0, DRAFTED).astype(np.int64)
    covered = np.cumsum(accepted + 1, axis=1)
    ended = (covered >= TOKENS).argmax(axis=1)
    rows = np.arange(len(chosen))
    return [
        PromptCounts(int(end) + 1, int(total - end - 1))
        for end, total in zip(ended, covered[rows, ended], strict=True)
    ]


@dataclass(frozen=True)
class Comparison:
    """Both drafts on the same prompts."""

    new: Counts
    old: Counts

    def report(self, how: Bootstrap) -> EvaluationReport:
        """As the evaluate stage reports it, with everything else in order."""
        return drafts.evaluation(
            replay=replay_measurement(self.new, how),
            incumbent="v0001",
            incumbent_replay=replay_measurement(self.old, how),
            incumbent_gain=_difference(self.new, self.old, how),
            incumbent_domains=domain_differences(self.new, self.old, how),
        )


def _difference(new: Counts, old: Counts, how: Bootstrap) -> Difference:
    found = paired_macro_difference(new, old, how)
    return Difference(value=found.value, low=found.low, high=found.high)


def compared(
    rng: Any, rounds: Mapping[str, Prompts], prompts: int, change: float, fallen: Mapping[str, float] = {}
) -> Comparison:
    """One comparison: prompts are drawn from the recorded ones, then both drafts walk them.

    Args:
        prompts: Over all domains.
        change: Of the new draft's rounds, as in `walks`.
        fallen: Domains whose change is another.
    """
    new: Counts = {}
    old: Counts = {}
    for place, (name, known) in enumerate(rounds.items()):
        count = (prompts + place) // len(rounds)
        chosen = rng.integers(0, len(known.lengths), count)
        new[name] = walks(rng, known, chosen, fallen.get(name, change))
        old[name] = walks(rng, known, chosen, 0.0)
    return Comparison(new, old)


def main() -> None:
    """Write the rounds of replays, one string of digits a prompt, by domain."""
    domains: dict[str, list[str]] = {}
    for path in sys.argv[1:]:
        for line in Path(path).read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            if row["rounds"][1]:
                domains.setdefault(row["domain"], []).append("".join(map(str, row["rounds"][1])))
    print(json.dumps(dict(sorted(domains.items())), indent=1))


if __name__ == "__main__":
    main()
