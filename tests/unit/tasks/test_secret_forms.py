"""A secret in other clothes is found and masked; other texts stay as they are."""

from __future__ import annotations

import base64
import logging
from urllib.parse import quote

import pytest

from flows.logs import mask_records
from profiles.load import load_profile
from tasks.errors import JobError, ProfileError
from tasks.profile_secrets import refuse_secrets
from tasks.redaction import MASK, mask_error, redact
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


def test_a_profile_that_repeats_a_secret_names_the_field_only(monkeypatch: pytest.MonkeyPatch) -> None:
    profile = load_profile("laptop", {"serve": {"environment": {"HOUSE": f"x {SECRET}"}}}).profile
    refuse_secrets(profile)
    monkeypatch.setenv("A_TOKEN", SECRET)
    with pytest.raises(ProfileError) as caught:
        refuse_secrets(profile)
    assert caught.value.where == "serve.environment.HOUSE" and SECRET not in str(caught.value)


def test_a_library_error_and_its_causes_are_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_TOKEN", SECRET)
    inner, outer = ValueError(f"inner {SECRET}"), KeyError(f"outer {SECRET}", 7)
    outer.__cause__ = inner
    inner.__context__ = outer  # a ring, as `raise ... from` can leave it
    mask_error(outer)
    assert (str(inner), outer.args) == (f"inner {MASK}", (f"outer {MASK}", 7))


def test_records_of_every_library_are_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_TOKEN", SECRET)
    before = logging.getLogRecordFactory()
    try:
        mask_records()
        mask_records()  # a second run in one process
        make = logging.getLogRecordFactory()
        record = make("x", logging.INFO, "f", 1, "say %s %d", (SECRET, 3), None)
        assert record.getMessage() == f"say {MASK} 3"
        assert make("x", logging.INFO, "f", 1, "%d of it", ("no number",), None).args == ("no number",)
        error = ValueError(SECRET)
        assert make("x", logging.ERROR, "f", 1, "failed", (), (ValueError, error, None)).exc_info
        assert str(error) == MASK
    finally:
        logging.setLogRecordFactory(before)
