"""The health mask: two-bit states that look broken when they are read as single bits."""

from __future__ import annotations

import pytest

from tasks.validate.fabric_health import FIELDS, decode, encode, problems, reports_nothing


@pytest.mark.parametrize("mask", [0x1AA, 0x11AA, 0x51AA])
def test_masks_of_healthy_gpus_are_clean(mask: int) -> None:
    assert problems(mask) == []
    assert not reports_nothing(mask)


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        (0x1A9, ["degraded bandwidth"]),
        (0x1A6, ["route recovery in progress"]),
        (0x19A, ["route unhealthy"]),
        (0x16A, ["access timeout recovery"]),
        (0x5AA, ["insufficient NVLinks"]),
        (0x21AA, ["no partition assigned"]),
        (0x81AA, ["fabric manager disconnected"]),
        (0x1AB, ["degraded bandwidth: unknown value 3"]),
        (0x9AA, ["incorrect configuration: unknown value 9"]),
    ],
)
def test_each_fault_is_named(mask: int, words: list[str]) -> None:
    assert problems(mask) == words


def test_every_mask_decodes_and_only_good_ones_are_clean() -> None:
    clean = 0
    for mask in range(2**16):
        found = decode(mask)
        assert len(found) == len(FIELDS)
        clean += not problems(mask)
    assert clean == 2 ** len(FIELDS), "each field is good or not reported, in every combination"


def test_bits_above_the_known_fields_are_ignored() -> None:
    assert problems(0x1AA | 1 << 20) == []
    assert reports_nothing(0)


def test_words_make_the_same_mask() -> None:
    fields = [field.name for field in FIELDS]
    assert encode(dict.fromkeys(fields[:5], True)) == 0x1AA
    assert encode(dict.fromkeys(fields, True)) == 0x51AA
    assert encode({**dict.fromkeys(fields[:5], True), "degraded bandwidth": False}) == 0x1A9
    assert problems(encode({"incorrect configuration": "invalid location"})) == ["invalid location"]
    assert problems(encode({"incorrect configuration": "words of a newer driver"})) != []
    assert encode({"route unhealthy": None}) == 0
