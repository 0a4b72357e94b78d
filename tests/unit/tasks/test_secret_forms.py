"""A secret in other clothes is found and masked; other texts stay as they are."""

from __future__ import annotations

import base64
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.errors import JobError
from tasks.redaction import MASK, redact
from tasks.secret_forms import holds, mask_forms, views

SECRET = "s3cr/et+Val=ue!42"


@given(
    before=st.binary(max_size=5),
    after=st.binary(max_size=5),
    split=st.integers(min_value=1, max_value=len(SECRET) - 1),
)
def test_any_neighbours_and_any_break(before: bytes, after: bytes, split: int) -> None:
    """In base64 the same bytes look different after one, two or three others."""
    packed = base64.b64encode(before + SECRET.encode() + after).decode()
    for text in (packed, packed.replace("+", "-").replace("/", "_"), f"{packed[:split]}\n{packed[split:]}"):
        assert holds(views(text), SECRET)
        assert not holds(views(mask_forms(text, [SECRET], MASK)), SECRET)


@pytest.mark.parametrize(
    "text",
    [
        f"before {SECRET} after",
        f"before {quote(SECRET, safe='')} after",
        f"before {quote(quote(SECRET, safe=''), safe='').lower()} after",
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
