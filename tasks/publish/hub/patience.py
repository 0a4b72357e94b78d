"""How long to keep trying: tries of one request, time of the whole publication, waits in between."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit

from tasks.errors import PublishError

log = logging.getLogger("retrain_dspark")

_LONGEST_WAIT_S = 60.0
_AGAIN = "run it again (`retrain-dspark resume RUN`): what is there already is not sent again"


@dataclass(frozen=True)
class Patience:
    """Limits of one publication; the clock starts when this is made.

    Args:
        attempts: Tries of one request.
        timeout_s: Longest time of everything together, seconds.
        first_wait_s: Wait after the first failed try, seconds; it doubles each time.
    """

    attempts: int
    timeout_s: float
    first_wait_s: float = 1.0
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic
    _began: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._began.append(self.clock())

    @property
    def left_s(self) -> float:
        """Time that is left, seconds; negative when it is used up."""
        return self._began[0] + self.timeout_s - self.clock()

    def check(self, where: str) -> None:
        """Raises PublishError when the time is used up."""
        if self.left_s <= 0:
            raise PublishError(
                f"the publication took longer than {self.timeout_s:g} s (publish.hub.timeout_s)",
                where=where,
                hint=f"{_AGAIN}; allow more time if the files are large",
            )

    def wait(self, tried: int, fault: str, where: str, asked_s: float | None = None) -> None:
        """Wait before the next try.

        Args:
            tried: Tries so far, from 1.
            fault: What went wrong, as a sentence without its end.
            asked_s: Wait that the hub asks for, seconds.

        Raises:
            PublishError: No try is left, or no time for the wait.
        """
        if tried >= self.attempts:
            raise PublishError(f"{fault}; given up after {tried} tries", where=where, hint=_AGAIN)
        seconds = min(self.first_wait_s * 2 ** (tried - 1), _LONGEST_WAIT_S) * random.uniform(0.75, 1.25)
        seconds = max(seconds, asked_s or 0.0)
        if seconds >= self.left_s:
            raise PublishError(
                f"{fault}; the next try would be in {seconds:.0f} s, beyond publish.hub.timeout_s "
                f"({self.timeout_s:g} s)",
                where=where,
                hint=_AGAIN,
            )
        log.info("publish: hub: %s; try %d of %d in %.1f s", fault, tried + 1, self.attempts, seconds)
        self.sleep(seconds)


def asked_wait_s(headers: Mapping[str, str]) -> float | None:
    """Seconds that an answer asks to wait (`Retry-After`, or the end of a used-up rate limit)."""
    from huggingface_hub.utils._http import parse_ratelimit_headers

    limit = parse_ratelimit_headers(headers)
    if limit is not None and limit.remaining == 0:
        return float(limit.reset_in_seconds)
    text = next((value.strip() for name, value in headers.items() if name.lower() == "retry-after"), "")
    if text.isdigit():
        return float(text)
    try:
        return max((parsedate_to_datetime(text) - datetime.now(UTC)).total_seconds(), 0.0)
    except (ValueError, TypeError):  # no date, or one without a zone
        return None


def place_of(url: str) -> str:
    """Host and path of an address: what an error may show. The query may hold a signature."""
    parts = urlsplit(url)
    return f"{parts.netloc.rpartition('@')[2]}{parts.path}"
