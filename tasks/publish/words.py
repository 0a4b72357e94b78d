"""What people say about a draft: kept in its run, so that every later decision about it hears them."""

from __future__ import annotations

from typing import Literal

from pydantic import ValidationError

from tasks.errors import UsageError
from tasks.publish.models import Word
from tasks.publish.records import now
from tasks.redaction import redact
from tasks.run_folder import RunFolder

_FACT = "words"


def new_word(kind: Literal["approval", "force"], by: str, why: str, yes: bool = True) -> Word:
    """A person's word of now.

    Raises:
        UsageError: It does not say who or why.
    """
    try:
        return Word(kind=kind, yes=yes, by=redact(by), why=redact(why), at=now())
    except ValidationError:
        missing = [f"--{name}" for name, text in (("by", by), ("why", why)) if not text.strip()]
        raise UsageError(
            "a person's word needs a name and a reason",
            where=" and ".join(missing) or "--by, --why",
            hint='say who and why: --by NAME --why "TEXT", at most 2000 characters each',
        ) from None


def speak(run: RunFolder, word: Word) -> None:
    """Keep a word with its run. The same word said twice is one."""
    known = words_of(run)
    if not any(_said(one) == _said(word) for one in known[-1:]):
        run.remember(**{_FACT: [*(one.model_dump() for one in known), word.model_dump()]})


def words_of(run: RunFolder) -> tuple[Word, ...]:
    """Every word about a run's draft, oldest first."""
    return tuple(Word.model_validate(word) for word in run.facts().get(_FACT, ()))


def _said(word: Word) -> tuple[str, bool, str, str]:
    return word.kind, word.yes, word.by, word.why
