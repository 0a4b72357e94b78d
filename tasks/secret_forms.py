"""A secret in other clothes: base64, hexadecimal, URL-encoded, escaped, or broken over lines.

Whoever copies a secret into a file does not always copy it as it is: a header holds it in base64, an address
URL-encoded, a wrapped log line in two parts. Each of them can be turned back by anybody.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable
from functools import lru_cache

_BREAK = r"[\"'\\,+ \t#>|]*(?:\r?\n|\\r\\n|\\n)[\"'\\,+ \t#>|]*"
"""A line break, real or escaped, with what stands around it in quoted, commented or listed text."""
_PERCENT = re.compile(r"%(?:25)*([0-9A-Fa-f]{2})")
_ESCAPED = re.compile(r"\\u00([0-9A-Fa-f]{2})")
_BREAKS = re.compile(_BREAK)
_SHORTEST_FORM = 8
"""A shorter piece of base64 or hexadecimal would be found in innocent text."""
_BASE64_HEAD = {0: 0, 1: 2, 2: 3}
_BASE64_TAIL = {0: 0, 1: 3, 2: 2}


@lru_cache(maxsize=256)
def forms(secret: str) -> tuple[str, ...]:
    """Texts of which one stands in everything that holds the secret, line breaks and escapes apart."""
    return tuple(dict.fromkeys((secret, *_encoded(secret))))


def _encoded(secret: str) -> Iterable[str]:
    data = secret.encode()
    for before in range(3):  # what stands before it in the same base64 shifts it by 0, 1 or 2 bytes
        whole = base64.b64encode(b"\0" * before + data).decode()
        core = whole[_BASE64_HEAD[before] : len(whole) - _BASE64_TAIL[(before + len(data)) % 3]]
        if len(core) >= _SHORTEST_FORM:
            yield core
            yield core.translate(str.maketrans("+/", "-_"))
    if len(data) * 2 >= _SHORTEST_FORM:
        yield data.hex()
        yield data.hex().upper()


def views(text: str) -> tuple[str, ...]:
    """The text as it is, and with escapes undone and its lines joined."""
    found = [text]
    if "%" in text or "\\u00" in text:
        found.append(_ESCAPED.sub(_character, _PERCENT.sub(_character, text)))
    if "\n" in text or "\\n" in text:
        found += [_BREAKS.sub("", one) for one in found]
    return tuple(dict.fromkeys(found))


def _character(match: re.Match[str]) -> str:
    code = int(match[1], 16)
    return chr(code) if 32 <= code < 127 else match[0]


def holds(text_views: Iterable[str], secret: str) -> bool:
    """Whether a text, given by its `views`, holds the secret in any form."""
    wanted = forms(secret)
    return any(form in view for view in text_views for form in wanted)


def mask_forms(text: str, secrets: Iterable[str], mask: str) -> str:
    """The text with `mask` in place of every form of every secret; the longest secrets first."""
    seen = views(text)
    for secret in secrets:
        if secret and holds(seen, secret):
            text = _pattern(secret).sub(mask, text)
            seen = views(text)
    return text


@lru_cache(maxsize=256)
def _pattern(secret: str) -> re.Pattern[str]:
    """Every form, its characters escaped in any way, with a line break between any two of them."""
    wanted = (f"(?:{_BREAK})?".join(map(_one, form)) for form in forms(secret))
    return re.compile("|".join(wanted))


def _one(character: str) -> str:
    """A character as it is, and where it is ASCII also URL-encoded (once or more) or escaped as in JSON."""
    plain = re.escape(character)
    if not character.isascii():
        return plain
    code = f"{ord(character):02x}"
    return rf"(?:{plain}|%(?:25)*(?i:{code})|\\u00(?i:{code}))"
