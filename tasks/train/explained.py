"""Before training: do the captured states explain the captured answers?

A log whose states were mixed up between samples trains a useless draft without any error: shapes, hashes and
token ids all fit. So some samples, spread over the log, are compared with the target's own output head.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from tasks.errors import StageInputError
from tasks.stream.continuity import LEAST_ROWS, broken_links, layer_links
from tasks.stream.explain import MAX_ROWS, answer_rows, explain
from tasks.stream.head import OutputHead, open_head
from tasks.stream.log import HiddenStateLog, IndexEntry
from tasks.train.settings import TrainSettings

MAX_SAMPLES = 32
_NAMED = 5
_RECAPTURE = (
    "capture again: retrain-dspark resume --from stream. If it happens again, compare target.model with the "
    "model that the server serves, and target.aux_layer_ids with the layers that it captures"
)


@dataclass(frozen=True)
class _Verdict:
    entry: IndexEntry
    last_layer: bool
    """The last layer explains the answer."""
    broken: tuple[int, ...]
    """Places of captured layers that do not go with the next one."""


def check_explained(settings: TrainSettings, log: HiddenStateLog, entries: Sequence[IndexEntry]) -> str:
    """Check at most `MAX_SAMPLES` of `entries`, evenly spread.

    Returns:
        What could not be checked, in words for the draft's card; empty if everything was.

    Raises:
        StageInputError: Samples whose last layer does not explain their answer, or whose auxiliary layers are
            not of the same tokens.
    """
    head, why_not = open_head(Path(settings.target_dir), settings.capture_dtype)
    verdicts = [_judge(settings, head, entry, log.load(entry)[0]) for entry in _spread(entries)]
    unexplained = [one.entry for one in verdicts if not one.last_layer]
    if unexplained:
        raise StageInputError(
            f"the last layer explains the answers of only {len(verdicts) - len(unexplained)} of "
            f"{len(verdicts)} checked samples; not of {_names(unexplained)}: their states are of other "
            "tokens, another sample, another layer or another model",
            where=str(log.folder),
            hint=_RECAPTURE,
        )
    mixed = [one for one in verdicts if one.broken]
    if mixed:
        layers = sorted({settings.aux_layer_ids[place] for one in mixed for place in one.broken})
        raise StageInputError(
            f"auxiliary layers {layers} of {len(mixed)} of {len(verdicts)} checked samples do not go with "
            f"the layers after them: {_names([one.entry for one in mixed])} hold states of another sample",
            where=str(log.folder),
            hint=_RECAPTURE,
        )
    return f"not checked: whether the captured states explain the answers ({why_not})" if head is None else ""


def _spread(entries: Sequence[IndexEntry]) -> list[IndexEntry]:
    count = min(MAX_SAMPLES, len(entries))
    return [entries[place * len(entries) // count] for place in range(count)]


def _judge(settings: TrainSettings, head: OutputHead | None, entry: IndexEntry, states: Tensor) -> _Verdict:
    """Judge `states [T, L, H]` of one sample."""
    good = True
    if head is not None and states.shape[-1] == head.hidden_size:
        temperature = 0.0 if entry.split == "evaluate" else settings.temperature
        rows = answer_rows(states, entry.prompt_tokens, entry.answer_ids, MAX_ROWS)
        good = explain(head, rows, temperature).good
    answer = states[entry.prompt_tokens - 1 :]
    # Prompts begin alike, so only the answer's rows tell samples apart.
    enough = len(answer) >= LEAST_ROWS
    broken = broken_links(layer_links(answer), settings.layer_links) if enough else []
    return _Verdict(entry, good, tuple(broken))


def _names(entries: Sequence[IndexEntry]) -> str:
    shown = ", ".join(f"{entry.i} ({entry.prompt_id})" for entry in entries[:_NAMED])
    more = len(entries) - _NAMED
    return f"sample {shown}" + (f" and {more} more" if more > 0 else "")
