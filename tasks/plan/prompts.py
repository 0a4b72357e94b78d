"""The prompts of a plan as a table: read, dropped, left, and how long; no text of any."""

from __future__ import annotations

from collections.abc import Mapping

from rich.table import Table

from tasks.prompts.counts import PromptCounts, SideCounts, Spread


def prompts_table(counts: PromptCounts, trainable_tokens: int) -> Table:
    """Both sides beside each other.

    Args:
        trainable_tokens: Answer tokens of the train split if every answer is as long as allowed.
    """
    table = Table(title="Prompts", title_justify="left", header_style="bold", expand=False)
    table.add_column("what")
    table.add_column("training", justify="right", overflow="fold")
    table.add_column("evaluation", justify="right", overflow="fold")
    sides = (counts.train, counts.evaluate)
    _add(table, "rows read", [f"{side.rows:,}" for side in sides])
    for title, of in (("unusable row", _bad), ("dropped", _dropped), ("no recorded answer", _unanswered)):
        for reason in dict.fromkeys(reason for side in sides for reason in of(side)):
            _add(table, f"{title}: {reason}", [f"{of(side).get(reason, 0):,}" for side in sides])
    _add(table, "conversations left", [f"{side.conversations:,}" for side in sides])
    _add(table, "prompts", [_prompts(counts), f"{counts.evaluate.prompts:,}"])
    _add(table, "characters of a prompt: p50 / p90 / max", [_spread(side.chars) for side in sides])
    _add(table, "turns of a prompt: p50 / p90 / max", [_spread(side.turns) for side in sides])
    _add(table, "alike across train and held-out", [f"{counts.leaks:,} pairs", ""])
    if counts.recorded:
        about = "about " if counts.recorded_tokens_estimated else ""
        _add(table, "with a recorded answer", [f"{counts.recorded:,}", ""])
        _add(table, "trainable tokens, recorded", [f"{about}{counts.recorded_tokens:,}", ""])
    _add(table, "trainable tokens, generated", [f"at most {trainable_tokens:,}", ""])
    return table


def _add(table: Table, what: str, values: list[str]) -> None:
    table.add_row(what, *values)


def _bad(side: SideCounts) -> Mapping[str, int]:
    return side.bad


def _dropped(side: SideCounts) -> Mapping[str, int]:
    return side.dropped


def _unanswered(side: SideCounts) -> Mapping[str, int]:
    return side.unanswered


def _prompts(counts: PromptCounts) -> str:
    return f"{counts.train.prompts:,} ({counts.held_out:,} held out)"


def _spread(spread: Spread) -> str:
    return f"{spread.p50:,} / {spread.p90:,} / {spread.max:,}"
