"""HTTP to the hub: every request is bounded, and repeated only where that cannot publish twice."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import httpx2
from huggingface_hub import set_client_factory
from huggingface_hub.utils._http import default_client_factory
from huggingface_hub.utils.tqdm import (
    are_progress_bars_disabled,
    disable_progress_bars,
    enable_progress_bars,
)

from tasks.errors import PublishError
from tasks.publish.hub.patience import Patience, asked_wait_s, place_of

_COMMIT = re.compile(r"/api/models/[^/]+/[^/]+/commit/")
_REFUSED = (429,)
_FAILED = (408, 500, 502, 503, 504)
_NOT_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)
_BROKEN = (httpx2.TimeoutException, httpx2.NetworkError, httpx2.RemoteProtocolError)
_CONNECT_S = 20.0
_SILENCE_S = 120.0
_TRUE = ("1", "ON", "YES", "TRUE")


class Unsure(Exception):
    """A commit failed on the way: the hub may have it, or may still get it. Look before doing it again."""


class UploadFailed(Exception):
    """A file did not arrive whole. Its body must be opened again, which is not done here."""

    def __init__(self, fault: str, asked_s: float | None) -> None:
        super().__init__(fault)
        self.asked_s = asked_s


class PatientClient(httpx2.Client):
    """A client of `huggingface_hub` that keeps to a `Patience`.

    A commit is never repeated here, nor an upload: its body is a file that only its sender can rewind.
    """

    patience: Patience

    def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        where = place_of(str(request.url))
        for tried in count(1):
            self.patience.check(where)
            request.extensions["timeout"] = limits(self.patience.left_s)
            try:
                response = super().send(request, **options)
            except _BROKEN as error:
                fault, asked = f"the connection to the hub failed ({type(error).__name__})", None
                if request.method == "PUT":
                    raise UploadFailed(fault, asked) from error
                if is_commit(request) and not isinstance(error, _NOT_SENT):
                    raise Unsure(fault) from error
            else:
                if response.status_code not in (*_REFUSED, *_FAILED):
                    return response
                fault = f"the hub answered {response.status_code}"
                asked = asked_wait_s(response.headers)
                response.close()
                if request.method == "PUT":
                    raise UploadFailed(fault, asked)
                if is_commit(request) and response.status_code in _FAILED:
                    raise Unsure(fault)
            self.patience.wait(tried, fault, where, asked)
        raise AssertionError("unreachable")


def is_commit(request: httpx2.Request) -> bool:
    return request.method == "POST" and bool(_COMMIT.match(request.url.path))


def limits(left_s: float) -> dict[str, float]:
    """Timeouts of one request, seconds: a silent hub is given up, a slow one is not."""
    silence = max(min(_SILENCE_S, left_s), 0.1)
    return {"connect": min(_CONNECT_S, silence), "read": silence, "write": silence, "pool": silence}


@contextmanager
def patient_requests(patience: Patience) -> Iterator[None]:
    """Let all requests of `huggingface_hub` in this process keep to `patience`.

    Raises:
        PublishError: The process may not ask a hub.
    """
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in _TRUE:
        raise PublishError(
            "HF_HUB_OFFLINE is set, so nothing can be published on a hub",
            where="HF_HUB_OFFLINE",
            hint="unset it, or publish into a folder (publish.kind: local)",
        )

    def client() -> httpx2.Client:
        made = PatientClient(follow_redirects=True)
        made.patience = patience
        return made

    shown = not are_progress_bars_disabled()
    disable_progress_bars()  # they would write over the run's own display
    set_client_factory(client)
    try:
        yield
    finally:
        set_client_factory(default_client_factory)
        if shown:
            enable_progress_bars()
