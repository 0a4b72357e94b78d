"""What a put waits for, how that is counted, and what is said where it does not come."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from tasks.stream.codes import MASTER_AWAY, OBJECT_EXISTS, STORE_FULL, TRANSFER_FAILED
from tasks.stream.patience import OBSTACLES, Patience, PutRefused
from tasks.stream.put_counters import MEANINGS, PutCounters


class Scripted:
    """A put that answers `codes` one after the other, and remembers what waits it was told."""

    def __init__(self, *codes: int):
        self._codes: Iterator[int] = iter(codes)
        self.told: list[int] = []

    def __call__(self, waits: int) -> int:
        self.told.append(waits)
        return next(self._codes)


def patience(counters: PutCounters, is_there: bool = True) -> Patience:
    return Patience(counters, lambda key: is_there, lambda: None)


def counts_of(counters: PutCounters) -> dict[str, float]:
    """Tries that were counted; the seconds of their pauses apart."""
    return {name: amount for name, amount in counters.take().items() if not name.endswith("seconds")}


def test_space_and_a_dead_segment_are_waited_for_and_counted_apart() -> None:
    counters, after_wait = PutCounters(), []
    put = Scripted(STORE_FULL, TRANSFER_FAILED, MASTER_AWAY, STORE_FULL, 0)
    assert Patience(counters, lambda key: True, lambda: after_wait.append(1)).put("k", put, 60.0)
    assert put.told == [0, 1, 1, 1, 2], "the seal counts waits for space only"
    assert counts_of(counters) == {"put_waits": 2, "transfer_waits": 2} and len(after_wait) == 4


def test_pauses_are_counted_with_their_obstacle() -> None:
    counters = PutCounters()
    patience(counters).put("k", Scripted(TRANSFER_FAILED, 0), 60.0)
    seconds = counters.take()
    assert seconds["transfer_wait_seconds"] > 0 and "put_wait_seconds" not in seconds


@pytest.mark.parametrize(
    ("code", "reason", "words"),
    [
        (STORE_FULL, "store_full", "no space for 'k' within"),
        (TRANSFER_FAILED, "transfer_failed", "no segment that takes it for 'k' within"),
        (MASTER_AWAY, "store_down", "no answer of the store's master for 'k' within"),
    ],
)
def test_an_obstacle_that_stays_is_named(code: int, reason: str, words: str) -> None:
    counters = PutCounters()
    with pytest.raises(PutRefused, match=words) as caught:
        patience(counters).put("k", Scripted(code), 0.0)
    assert caught.value.reason == reason and str(code) in caught.value.what and caught.value.hint
    assert counts_of(counters) == {}, "no try after the deadline, so no wait"


def test_the_last_obstacle_gives_the_reason() -> None:
    patient = patience(PutCounters())
    with pytest.raises(PutRefused, match="put answered -800; 1 waits for space") as caught:
        patient.put("k", Scripted(STORE_FULL, TRANSFER_FAILED), 0.001)
    assert (caught.value.reason, caught.value.waits) == ("transfer_failed", 1)


def test_a_code_that_no_wait_mends_is_refused_at_once() -> None:
    put = Scripted(-600)
    with pytest.raises(PutRefused, match="-600: an argument was invalid") as caught:
        patience(PutCounters()).put("k", put, 60.0)
    assert caught.value.reason == "store_code" and put.told == [0]


def test_a_key_that_exists_is_told_to_the_caller() -> None:
    assert not patience(PutCounters()).put("k", Scripted(OBJECT_EXISTS), 60.0)


def test_a_put_that_says_0_after_a_failed_transfer_must_have_stored_something() -> None:
    counters = PutCounters()
    with pytest.raises(PutRefused) as caught:
        patience(counters, is_there=False).put("k", Scripted(TRANSFER_FAILED, 0), 0.001)
    assert caught.value.reason == "transfer_failed"
    assert patience(counters, is_there=False).put("k", Scripted(STORE_FULL, 0), 60.0), (
        "a full store left nothing"
    )


def test_waits_end_with_the_server() -> None:
    patient = patience(PutCounters())
    waiting = threading.Event()

    def put(waits: int) -> int:
        waiting.set()
        return TRANSFER_FAILED

    def end() -> None:
        waiting.wait(60)
        patient.end()

    ender = threading.Thread(target=end)
    ender.start()
    with pytest.raises(PutRefused, match="server ends") as caught:
        patient.put("k", put, 600.0)
    ender.join()
    assert caught.value.reason == "closing"


def test_every_wait_has_a_counter_that_the_server_shows() -> None:
    assert {name for one in OBSTACLES.values() for name in (one.waits, one.seconds)} <= set(MEANINGS)
