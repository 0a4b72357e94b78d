"""Names: of requests, and so of the objects that the connector stores for them.

vLLM makes `cmpl-<X-Request-Id>-<index>-<random>` of a request id, our connector adds a digest of the target's
revision and layers, its session and a number, so that no key repeats. A request id is
`<prefix of the run>-<prompt number>-<session>x<attempt>`: one expression finds a run's objects and never
those of another run, whose name may begin with this one's.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable

_BEGIN = "^(chat)?cmpl-"
# Index and random part that vLLM appends; target, session and number of our connector; its error marker.
_END = "(-[0-9]+)?(-[0-9a-f]+){0,4}(:error)?$"
_READY = "ready(x[0-9]+)?"
_OF_ONE_RUN = f"({_READY}|canary(-[0-9]+)?|[0-9]+-[0-9a-f]{{8}}x[0-9]+)"


def _safe(text: str) -> str:
    return re.sub(r"[^a-zA-Z0-9_-]", "_", text)


def request_prefix(run_id: str) -> str:
    """Begin of the request ids of a run, in the letters that a store key may have.

    A run id that holds other letters gets part of its digest: `a.b` and `a_b` stay apart.
    """
    safe = _safe(run_id)
    return safe if safe == run_id else f"{safe}_{hashlib.sha256(run_id.encode()).hexdigest()[:8]}"


def request_id(run_id: str, number: int, session: str, attempt: int) -> str:
    """Id of one attempt at one prompt. It never repeats: a store answers 0 to a put of an existing key.

    Args:
        number: Number of the prompt in the run.
        session: Eight hexadecimal digits that differ between two clients of one run.
        attempt: Counts from 1.
    """
    return f"{request_prefix(run_id)}-{number}-{session}x{attempt}"


def key_pattern(run_id: str) -> str:
    """Regular expression of every key of a run in the store, readiness and canaries included."""
    names = "|".join(sorted({request_prefix(run_id), _safe(run_id)}))
    return f"{_BEGIN}({names})-{_OF_ONE_RUN}{_END}"


def ready_pattern(run_id: str) -> str:
    """Regular expression of what the readiness of a target leaves: objects that nobody reads."""
    names = "|".join(sorted({request_prefix(run_id), _safe(run_id)}))
    return f"{_BEGIN}({names})-{_READY}{_END}"


def request_pattern(request_ids: Iterable[str]) -> str:
    """Regular expression of every key of these requests."""
    return f"{_BEGIN}({'|'.join(request_ids)}){_END}"
