"""Before training, and while samples come in: do the captured states explain the captured answers?

A log whose states were mixed up between samples trains a useless draft without any error: shapes, hashes and
token ids all fit. So some samples, spread over the log, are compared with the target's own output head.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tasks.errors import StageInputError
from tasks.stream.continuity import LEAST_ROWS, broken_links, layer_links
from tasks.stream.explain import MAX_ROWS, QuickCheck, Rows, answer_rows, explain
from tasks.stream.head import OutputHead, open_head
from tasks.stream.log import HiddenStateLog, IndexEntry
from tasks.stream.sample import SampleRejected
from tasks.train.settings import TrainSettings

MAX_SAMPLES = 32
EVERY = 16
"""Of the samples that come in during training the first `MAX_SAMPLES` are judged, then one of so many."""
_NAMED = 5
_RECAPTURE = (
    "capture again: retrain-dspark resume --from stream. If it happens again, compare target.model with the "
    "model that the server serves, and target.aux_layer_ids with the layers that it captures"
)


def check_explained(settings: TrainSettings, log: HiddenStateLog, entries: Sequence[IndexEntry]) -> str:
    """Check at most `MAX_SAMPLES` of `entries`, evenly spread.

    Returns:
        What could not be checked, in words for the draft's card; empty if everything was.

    Raises:
        StageInputError: Samples whose last layer does not explain their answer, or whose auxiliary layers are
            not of the same tokens.
    """
    head, why_not = open_head(Path(settings.target_dir), settings.capture_dtype)
    chosen = _spread(entries)
    rows, links = _read(log, chosen)
    unexplained = _unexplained(head, chosen, rows, settings.temperature) if head is not None else []
    if unexplained:
        raise StageInputError(
            f"the last layer explains the answers of only {len(chosen) - len(unexplained)} of "
            f"{len(chosen)} checked samples; not of {_names(unexplained)}: their states are of other "
            "tokens, another sample, another layer or another model",
            where=str(log.folder),
            hint=_RECAPTURE,
        )
    broken = [broken_links(own, settings.layer_links) for own in links]
    mixed = [entry for entry, places in zip(chosen, broken, strict=True) if places]
    if mixed:
        layers = sorted({settings.aux_layer_ids[place] for places in broken for place in places})
        raise StageInputError(
            f"auxiliary layers {layers} of {len(mixed)} of {len(chosen)} checked samples do not go with "
            f"the layers after them: {_names(mixed)} hold states of another sample",
            where=str(log.folder),
            hint=_RECAPTURE,
        )
    return f"not checked: whether the captured states explain the answers ({why_not})" if head is None else ""


class ArrivingCheck:
    """Judges samples of a growing log when training takes them, before they change the draft.

    `check_explained` sees only what is there when training starts. This one reads few samples a second time
    and compares each with some rows of the head, so that training does not wait for it.

    Args:
        settings: Of the trainer.
        log: Where the samples are read.
    """

    def __init__(self, settings: TrainSettings, log: HiddenStateLog):
        head, _ = open_head(Path(settings.target_dir), settings.capture_dtype)
        self._quick = QuickCheck(head) if head is not None else None
        self._width = head.hidden_size if head is not None else 0
        self._settings = settings
        self._log = log
        self._seen = 0

    def __call__(self, entries: Sequence[IndexEntry]) -> None:
        """Take note of `entries`, and judge those whose turn it is.

        Raises:
            StageInputError: The states of one do not explain its answer, or its auxiliary layers are not of
                the same tokens.
        """
        for entry in entries:
            turn, self._seen = self._seen, self._seen + 1
            if turn < MAX_SAMPLES or turn % EVERY == 0:
                self._judge(entry)

    def _judge(self, entry: IndexEntry) -> None:
        states = self._log.load(entry)[0]
        if self._quick is not None and states.shape[-1] == self._width:
            try:
                self._quick(states, entry.prompt_tokens, entry.answer_ids, self._settings.temperature)
            except SampleRejected as rejected:
                raise StageInputError(
                    f"{_names([entry])} came in during training, and its last layer does not explain its "
                    f"answer ({rejected}): the states are of other tokens, another sample, another layer or "
                    "another model",
                    where=str(self._log.folder),
                    hint=_RECAPTURE,
                ) from None
        answer = states[entry.prompt_tokens - 1 :]
        links = layer_links(answer) if len(answer) >= LEAST_ROWS else ()
        places = broken_links(links, self._settings.layer_links)
        if places:
            raise StageInputError(
                f"{_names([entry])} came in during training, and its auxiliary layers "
                f"{sorted(self._settings.aux_layer_ids[place] for place in places)} do not go with the "
                "layers after them: they hold states of another sample",
                where=str(self._log.folder),
                hint=_RECAPTURE,
            )


def _spread(entries: Sequence[IndexEntry]) -> list[IndexEntry]:
    count = min(MAX_SAMPLES, len(entries))
    return [entries[place * len(entries) // count] for place in range(count)]


def _read(log: HiddenStateLog, entries: Sequence[IndexEntry]) -> tuple[list[Rows], list[tuple[float, ...]]]:
    """Rows of the last layer, and similarity of neighbouring layers (empty for few rows), sample by sample.

    Prompts begin alike, so only the answer's rows tell samples apart.
    """
    rows, links = [], []
    for entry in entries:
        states = log.load(entry)[0]
        answer = states[entry.prompt_tokens - 1 :]
        rows.append(answer_rows(states, entry.prompt_tokens, entry.answer_ids, MAX_ROWS))
        links.append(layer_links(answer) if len(answer) >= LEAST_ROWS else ())
    return rows, links


def _unexplained(
    head: OutputHead, entries: Sequence[IndexEntry], rows: Sequence[Rows], temperature: float | None
) -> list[IndexEntry]:
    """Entries whose `rows` do not explain their answers; another width than the head's is none of ours."""
    fitting = [place for place, one in enumerate(rows) if one.states.shape[-1] == head.hidden_size]
    found = explain(head, [rows[place] for place in fitting], temperature)
    return [entries[place] for place, one in zip(fitting, found, strict=True) if not one.good]


def _names(entries: Sequence[IndexEntry]) -> str:
    shown = ", ".join(f"{entry.i} ({entry.prompt_id})" for entry in entries[:_NAMED])
    more = len(entries) - _NAMED
    return f"sample {shown}" + (f" and {more} more" if more > 0 else "")
