"""Nothing of a run stays in the store, and nothing of another run is touched."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tasks.errors import StoreError
from tasks.stream.keys import request_id
from tasks.stream.sweeping import Sweeper


class MemoryStore:
    """Keys only. `later` appear one by one, each at the next look."""

    def __init__(self, *keys: str):
        self.keys = set(keys)
        self.later: list[str] = []
        self.is_down = False

    def remove(self, key: str) -> bool:
        self._look()
        return key in self.keys and not self.keys.remove(key)  # type: ignore[func-returns-value]

    def remove_matching(self, regex: str) -> int:
        self._look()
        found = {key for key in self.keys if re.match(regex, key)}
        self.keys -= found
        return len(found)

    def _look(self) -> None:
        if self.is_down:
            raise StoreError("down")
        if self.later:
            self.keys.add(self.later.pop(0))


def sweeper(store: Any, *idle: bool, quiet_s: float = 0.0) -> Sweeper:
    answers = list(idle)
    return Sweeper(store, "run", lambda: answers.pop(0) if len(answers) > 1 else answers[0], quiet_s)


def name(number: int) -> str:
    return request_id("run", number, "0a1b2c3d", 1)


def key(number: int) -> str:
    return f"cmpl-{name(number)}-0-abc"


def test_an_object_that_was_read_is_removed_and_forgotten() -> None:
    store = MemoryStore(key(1), key(2))
    one = sweeper(store, True)
    one.forget(name(1), key(1))
    assert store.keys == {key(2)} and one.swept == 0 and not one.orphans


def test_an_object_without_a_known_handle_is_found_by_its_request() -> None:
    store = MemoryStore(key(1), key(11))
    one = sweeper(store, True)
    one.forget(name(1), None)
    assert store.keys == {key(11)} and one.swept == 1 and not one.orphans


def test_an_object_that_comes_late_is_swept_while_others_are_asked() -> None:
    store = MemoryStore()
    one = sweeper(store, True)
    one.forget(name(1), key(1))
    one.forget(name(2), None)
    store.keys = {key(2), key(3)}
    one.sweep_orphans()
    assert store.keys == {key(3)} and list(one.orphans) == [name(1)] and one.swept == 1


def test_the_end_waits_for_what_the_engine_may_still_write() -> None:
    store = MemoryStore("cmpl-other-1-0a1b2c3dx1-0-abc")
    one = sweeper(store, False, False, True)
    one.forget(name(1), None)
    store.later = ["cmpl-other-2-0a1b2c3dx1-0-abc", key(1)]
    assert one.finish(limit_s=30.0) is True
    assert store.keys == {"cmpl-other-1-0a1b2c3dx1-0-abc", "cmpl-other-2-0a1b2c3dx1-0-abc"}
    assert one.swept == 1


def test_without_given_up_requests_the_engine_is_not_asked() -> None:
    store = MemoryStore(key(1))
    one = Sweeper(store, "run", lambda: pytest.fail("asked"), 60.0)  # type: ignore[arg-type]
    assert one.finish(limit_s=30.0) is True and not store.keys


def test_a_busy_engine_is_not_waited_for_without_end() -> None:
    one = sweeper(MemoryStore(), False)
    one.forget(name(1), None)
    assert one.finish(limit_s=0.0) is False


def test_objects_that_keep_appearing_are_an_error_with_their_number() -> None:
    store = MemoryStore()
    store.later = [key(number) for number in range(1000)]
    with pytest.raises(StoreError, match="1 objects of this run"):
        sweeper(store, True).finish(limit_s=0.0)


def test_leftovers_of_an_earlier_session_are_counted_and_the_readiness_object_is_not() -> None:
    store = MemoryStore("cmpl-run-ready-0-abc", key(1), "cmpl-run-1-ready-0-abc")
    one = sweeper(store, True)
    one.clear()
    assert store.keys == {"cmpl-run-1-ready-0-abc"} and one.swept == 1


def test_a_store_that_is_down_keeps_the_request_in_mind() -> None:
    store = MemoryStore(key(1))
    store.is_down = True
    one = sweeper(store, True)
    one.forget(name(1), key(1))
    store.is_down = False
    assert list(one.orphans) == [name(1)]
    assert one.finish(limit_s=5.0) is True and not store.keys
