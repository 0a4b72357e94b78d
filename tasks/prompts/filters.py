"""Leaves out training rows: length, exact and near duplicates, what resembles evaluation prompts.

Which of several alike rows stays does not depend on the order of the files: it is the one whose
conversation has the lowest hash.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from profiles.prompting import Prompts
from tasks.errors import UsageError
from tasks.prompts.conversation import conversation_hash, opening_key, prompt_key
from tasks.prompts.prompt import Message, text_of
from tasks.prompts.rows import Row, Sample
from tasks.prompts.similarity import Grams, Index, clusters, grams, grams_of, jaccard, words

_SHOWN = 5


@dataclass(frozen=True)
class Contaminated:
    """A training row that resembles an evaluation prompt."""

    training_id: str
    evaluation_id: str
    value: float


def of_length(rows: Sequence[Row], wanted: Prompts, dropped: Counter[str]) -> list[Row]:
    """Samples whose prompt is neither too short nor too long; rows without any left are gone."""
    longest = wanted.max_chars
    kept = []
    for row in rows:
        ends = _ends(row.messages)
        sizes = [ends[sample.turns - 1] for sample in row.samples]
        samples = tuple(
            sample
            for sample, size in zip(row.samples, sizes, strict=True)
            if size >= wanted.min_chars and (longest is None or size <= longest)
        )
        dropped["too short"] += sum(size < wanted.min_chars for size in sizes)
        dropped["too long"] += sum(longest is not None and size > longest for size in sizes)
        kept += _with_samples(row, samples)
    return kept


def _ends(messages: Sequence[Message]) -> list[int]:
    total, ends = 0, []
    for message in messages:
        total += len(message.content)
        ends.append(total)
    return ends


def _with_samples(row: Row, samples: tuple[Sample, ...]) -> list[Row]:
    if not samples:
        return []
    if len(samples) == len(row.samples):
        return [row]
    return [replace(row, samples=samples, messages=row.messages[: samples[-1].turns])]


def in_order(rows: Sequence[Row], seed: int) -> list[int]:
    """Places of the rows in an order that does not depend on theirs."""

    def rank(place: int) -> tuple[str, bool, str, str]:
        row = rows[place]
        last = row.samples[-1].recorded
        said = last.text if last else ""
        return conversation_hash(row.messages, seed), last is None, said, row.id

    return sorted(range(len(rows)), key=rank)


def without_duplicates(rows: Sequence[Row], order: Sequence[int], dropped: Counter[str]) -> dict[int, Row]:
    """Place -> row without the samples whose prompt an earlier row of the order has; in the rows' order."""
    seen: set[bytes] = set()
    kept: dict[int, Row] = {}
    for place in order:
        row = rows[place]
        samples = []
        for sample in row.samples:
            key = prompt_key(row.before(sample), row.tools)
            if key in seen:
                dropped["duplicate"] += 1
            else:
                seen.add(key)
                samples.append(sample)
        for left in _with_samples(row, tuple(samples)):
            kept[place] = left
    return dict(sorted(kept.items()))


def without_near_duplicates(
    rows: Mapping[int, Row], order: Sequence[int], above: float, dropped: Counter[str]
) -> list[Row]:
    """Rows of which no two are more alike than `above`, unless they are states of one conversation."""
    places = list(rows)
    sets = {place: grams(text_of(rows[place].messages)) for place in places}
    groups: dict[int, set[int]] = defaultdict(set)
    for place, group in zip(places, clusters([sets[place] for place in places], above), strict=True):
        groups[group].add(place)
    rank = {place: position for position, place in enumerate(order)}
    gone: set[int] = set()
    for group_places in groups.values():
        if len(group_places) > 1:
            gone |= _alike_to_kept(sorted(group_places, key=rank.__getitem__), rows, sets, above)
    dropped["near duplicate"] += sum(len(rows[place].samples) for place in gone)
    return [row for place, row in rows.items() if place not in gone]


def _alike_to_kept(
    places: Sequence[int], rows: Mapping[int, Row], sets: Mapping[int, Grams], above: float
) -> set[int]:
    kept: list[tuple[int, bytes]] = []
    gone = set()
    for place in places:
        own = opening_key(rows[place])
        if any(own != key and jaccard(sets[place], sets[other]) > above for other, key in kept):
            gone.add(place)
        else:
            kept.append((place, own))
    return gone


def contaminated(
    rows: Sequence[Row], evaluation: Sequence[tuple[str, str]], above: float
) -> Iterator[Contaminated]:
    """The closest evaluation prompt of every row that resembles one, at any of its answers.

    Args:
        evaluation: Id and text of each evaluation prompt.
        above: Prompts that say exactly the same are found even at 1.
    """
    sets = [grams(text) for _, text in evaluation]
    index = Index(sets)
    exact = {one.tobytes(): place for place, one in reversed(list(enumerate(sets)))}
    for row in rows:
        found: dict[int, float] = {}
        for own in _prompt_sets(row):
            same = exact.get(own.tobytes())
            found |= {} if same is None else {same: 1.0}
            found |= dict(index.alike(own, above))
        if found:
            closest = max(found, key=lambda place: (found[place], -place))
            yield Contaminated(row.id, evaluation[closest][0], found[closest])


def _prompt_sets(row: Row) -> Iterator[Grams]:
    """Grams of what was said up to each user or tool turn: what the target was asked there."""
    hashes = [words(message.content if message.role != "system" else "") for message in row.messages]
    so_far: list[Grams] = []
    for message, own in zip(row.messages, hashes, strict=True):
        so_far.append(own)
        if message.role in ("user", "tool"):
            yield grams_of(np.concatenate(so_far))


def without_contaminated(
    rows: Sequence[Row],
    evaluation: Sequence[tuple[str, str]],
    wanted: Prompts,
    dropped: Counter[str],
) -> list[Row]:
    """Rows that resemble no evaluation prompt; other states of a conversation that does go with it.

    Raises:
        UsageError: `prompts.contaminated` is `refuse`, and there are some.
    """
    found = sorted(contaminated(rows, evaluation, wanted.max_similarity), key=lambda one: -one.value)
    if found and wanted.contaminated == "refuse":
        shown = "; ".join(
            f"{one.evaluation_id} and {one.training_id} {one.value:.2f}" for one in found[:_SHOWN]
        )
        raise UsageError(
            f"{len(found)} pairs of evaluation and training prompts are more alike than "
            f"{wanted.max_similarity:g}: {shown}",
            where="prompts.max_similarity",
            hint="change or remove one of each pair: a draft must not be measured on what it was trained on; "
            "or leave the training ones out (prompts.contaminated: exclude)",
        )
    if not found:
        return list(rows)
    names = {one.training_id for one in found}
    conversations = {opening_key(row) for row in rows if row.id in names}
    kept = [row for row in rows if opening_key(row) not in conversations]
    gone = sum(len(row.samples) for row in rows) - sum(len(row.samples) for row in kept)
    dropped["like an evaluation prompt"] += gone
    return kept
