"""The largest object that a segment holds beside the reserve."""

from __future__ import annotations

import pytest

from tasks.stream.reserve import RESERVE_BYTES, largest_object

MIB = 2**20


@pytest.mark.parametrize(
    ("segment", "largest"),
    [
        (64 * MIB, 60 * MIB),
        (320 * MIB, 288 * MIB),
        (32 * 1024 * MIB, 30 * 1024 * MIB),
        (RESERVE_BYTES + 60 * MIB, 60 * MIB),
        (RESERVE_BYTES, 0),
        (0, 0),
    ],
)
def test_largest_object_is_a_whole_class_of_the_allocator(segment: int, largest: int) -> None:
    assert largest_object(segment) == largest
