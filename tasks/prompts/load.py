"""The prompts of a run: read, filtered, limited, split, and checked against leaks."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from profiles.schema import Profile
from tasks.errors import UsageError
from tasks.prompts.rows import BadRow, Message, Row, Skipped, files_of, read_rows
from tasks.prompts.similarity import closest
from tasks.stage import canonical, sha256_text

__all__ = ["Message", "Prompt", "PromptSet", "load_prompts"]

MIN_HELD_OUT = 4
"""Held-out conversations that a run needs at least: fewer cannot tell one training step from another."""
_SALT = "retrain-dspark held-out 1"
_SHOWN = 5


@dataclass(frozen=True)
class Prompt:
    """One conversation that ends with a user turn, which the target will answer."""

    id: str
    domain: str
    split: Literal["train", "held_out", "evaluate"]
    messages: tuple[Message, ...]

    @property
    def text(self) -> str:
        """What the conversation says, for comparisons."""
        return "\n".join(message.content for message in self.messages if message.role != "system")

    def turns(self) -> list[dict[str, str]]:
        """Messages as chat templates want them."""
        return [{"role": message.role, "content": message.content} for message in self.messages]


@dataclass(frozen=True)
class PromptSet:
    """All prompts of a run; training ones first, in the order of the files."""

    prompts: tuple[Prompt, ...]
    skipped: tuple[Skipped, ...]
    digest: str
    """SHA-256 over ids, domains, splits and messages: what a fingerprint needs."""

    def split(self, name: str) -> list[Prompt]:
        return [prompt for prompt in self.prompts if prompt.split == name]


def load_prompts(profile: Profile) -> PromptSet:
    """Read the prompts that a profile names.

    Raises:
        UsageError: A file is missing, empty or not JSONL; too many rows are bad; an id occurs twice too
            often; nothing is left to hold out; an evaluation prompt resembles a training prompt.
    """
    wanted = profile.prompts
    seen: set[str] = set()
    train, skipped_train = _read(wanted.train, "prompts.train", wanted.max_bad_rows, seen)
    evaluate, skipped_evaluate = _read(wanted.evaluate, "prompts.evaluate", wanted.max_bad_rows, seen)
    train = _first_of_each_domain(train, wanted.train_per_domain)
    evaluate = _first_of_each_domain(evaluate, wanted.evaluate_per_domain)
    held_out = _held_out(train, wanted.held_out)
    prompts = [
        Prompt(row.id, row.domain, "held_out" if row.id in held_out else "train", row.messages)
        for row in train
    ] + [Prompt(row.id, row.domain, "evaluate", row.messages) for row in evaluate]
    _refuse_similar(prompts, wanted.max_similarity)
    digest = sha256_text(
        canonical([[prompt.id, prompt.domain, prompt.split, prompt.turns()] for prompt in prompts])
    )
    return PromptSet(tuple(prompts), (*skipped_train, *skipped_evaluate), digest)


def _read(
    sources: Sequence[str], field: str, max_bad_rows: float, seen: set[str]
) -> tuple[list[Row], list[Skipped]]:
    rows: list[Row] = []
    skipped: list[Skipped] = []
    for path in dict.fromkeys(file for source in sources for file in files_of(source, field)):
        for number, row in read_rows(path, field):
            if isinstance(row, BadRow):
                skipped.append(Skipped(path.name, number, str(row)))
            elif row.id in seen:
                skipped.append(Skipped(path.name, number, f"the id '{row.id}' occurs a second time"))
            else:
                seen.add(row.id)
                rows.append(row)
    total = len(rows) + len(skipped)
    if not rows or len(skipped) > max_bad_rows * total:
        shown = "; ".join(str(row) for row in skipped[:_SHOWN])
        raise UsageError(
            f"{len(skipped)} of {total} rows cannot be used: {shown}"
            + ("; ..." if len(skipped) > _SHOWN else ""),
            where=field,
            hint=f"mend these rows, or raise prompts.max_bad_rows (now {max_bad_rows:g})",
        )
    return rows, skipped


def _first_of_each_domain(rows: Sequence[Row], limit: int | None) -> list[Row]:
    if limit is None:
        return list(rows)
    taken: Counter[str] = Counter()
    kept = []
    for row in rows:
        if taken[row.domain] < limit:
            taken[row.domain] += 1
            kept.append(row)
    return kept


def conversation_hash(messages: Sequence[Message]) -> str:
    """Hash that decides the split: equal conversations always fall on the same side."""
    turns = canonical([[message.role, message.content] for message in messages])
    return hashlib.sha256(f"{_SALT}\n{turns}".encode()).hexdigest()


def _held_out(rows: Sequence[Row], share: float) -> set[str]:
    """Ids of held-out rows: those whose hash falls below `share`, or the lowest few of a small set."""
    hashes = {row.id: conversation_hash(row.messages) for row in rows}
    distinct = sorted(set(hashes.values()))
    if share <= 0 or len(distinct) < 2 * MIN_HELD_OUT:
        raise UsageError(
            f"prompts.held_out {share:g} of {len(distinct)} training conversations leaves too few to judge "
            f"training by; at least {MIN_HELD_OUT} are held out, and as many must remain",
            where="prompts.held_out",
            hint="give more training prompts (prompts.train_per_domain), or raise prompts.held_out",
        )
    bound = f"{int(share * 2**64):016x}"
    chosen = {value for value in distinct if value[:16] < bound} | set(distinct[:MIN_HELD_OUT])
    return {identity for identity, value in hashes.items() if value in chosen}


def _refuse_similar(prompts: Sequence[Prompt], limit: float) -> None:
    evaluation = {prompt.id: prompt.text for prompt in prompts if prompt.split == "evaluate"}
    training = ((prompt.id, prompt.text) for prompt in prompts if prompt.split != "evaluate")
    alike = sorted(closest(evaluation, training, limit), key=lambda pair: -pair.value)
    if alike:
        shown = "; ".join(
            f"{pair.evaluation_id} and {pair.training_id} {pair.value:.2f}" for pair in alike[:_SHOWN]
        )
        raise UsageError(
            f"{len(alike)} pairs of evaluation and training prompts are more alike than {limit:g}: {shown}",
            where="prompts.max_similarity",
            hint="change or remove one of each pair: a draft must not be measured on what it was trained on",
        )
