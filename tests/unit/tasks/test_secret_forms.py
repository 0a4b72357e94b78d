"""A secret in other clothes is found and masked; other texts stay as they are."""

from __future__ import annotations

import base64
from urllib.parse import quote

import pytest

from tasks.errors import JobError
from tasks.redaction import MASK, redact
from tasks.secret_forms import holds, mask_forms, views

SECRET = "s3cr/et+Val=ue!42"


@pytest.mark.parametrize("before", [b"", b"u", b"u:", b"us:", b"\xff\xfe"])
@pytest.mark.parametrize("after", [b"", b"\n", b"@h", b"end"])
def test_any_neighbours_and_any_break(before: bytes, after: bytes) -> None:
    """In base64 the same bytes look different after one, two or three others."""
    packed = base64.b64encode(before + SECRET.encode() + after).decode()
    broken = [f"{packed[:split]}\n  {packed[split:]}" for split in range(1, len(packed))]
    for text in (packed, packed.replace("+", "-").replace("/", "_"), *broken):
        assert holds(views(text), SECRET), text
        assert not holds(views(mask_forms(text, [SECRET], MASK)), SECRET), text


@pytest.mark.parametrize(
    "text",
    [
        f"before {SECRET} after",
        f"before {quote(SECRET, safe='')} after",
        f"before {quote(quote(SECRET, safe=''), safe='').replace('2F', '2f')} after",
        f"before {SECRET[:4]}\n      {SECRET[4:]} after",
        f'before "{SECRET[:4]}"\n + "{SECRET[4:]}" after',
        f"before {SECRET[:4]}\\n{SECRET[4:]} after",
        f"before {SECRET.replace('+', chr(92) + 'u002b')} after",
        f"before {SECRET.encode().hex()} after",
    ],
)
def test_the_mask_takes_the_place_of_the_secret_only(text: str) -> None:
    masked = mask_forms(text, [SECRET], MASK)
    assert masked.startswith("before ") and masked.endswith(" after") and MASK in masked
    assert not holds(views(masked), SECRET)


def test_other_texts_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_TOKEN", SECRET)
    text = 'lines\n  that "break", and 100%25 of\\n{"json": "too"}'
    assert redact(text) == text


def test_errors_mask_encoded_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_TOKEN", SECRET)
    packed = base64.b64encode(f"user:{SECRET}".encode()).decode()
    error = JobError(f"refused {packed}", where=quote(SECRET, safe=""), log_tail=(f"x {SECRET}",))
    assert not holds(views(str(error)), SECRET)
