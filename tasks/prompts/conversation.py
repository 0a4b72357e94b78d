"""Hashes of conversations: they decide what is the same, which is kept, and on which side it falls."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from tasks.prompts.prompt import Message, Tools, text_of
from tasks.prompts.rows import Row
from tasks.stage import canonical

_SALT = "retrain-dspark held-out 1"


def conversation_hash(messages: Sequence[Message], seed: int = 0) -> str:
    """Hash that decides split and choice: equal conversations always fall on the same side.

    Returns:
        64 hexadecimal digits, evenly spread, and others for each seed.
    """
    turns = canonical([message.key() for message in messages])
    salt = _SALT if seed == 0 else f"{_SALT} {seed}"
    return hashlib.sha256(f"{salt}\n{turns}".encode()).hexdigest()


def prompt_key(messages: Sequence[Message], tools: Tools | None) -> bytes:
    """Equal for prompts that ask the target exactly the same."""
    text = canonical([[message.key() for message in messages], tools])
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def opening_of(row: Row) -> tuple[Message, ...]:
    """System turn and first user turn. A log repeats them with every later request of the conversation."""
    first = next(place for place, message in enumerate(row.messages) if message.role == "user")
    return row.messages[: first + 1]


def opening_key(row: Row) -> bytes:
    """Equal for rows that are states of one conversation."""
    return prompt_key(opening_of(row), row.tools)


def opening_text(row: Row) -> str:
    """What the first user turn says."""
    return text_of(opening_of(row))
