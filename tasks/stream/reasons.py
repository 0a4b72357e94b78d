"""Why an attempt at a sample failed: one word each, the same in counters, MLflow, `lost.jsonl` and docs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tasks.errors import StoreError
from tasks.stream.codes import STORE_FULL

SERVER_DOWN = "server_down"
CONNECTION = "connection"
ANSWER_TIMEOUT = "answer_timeout"
OVERLOADED = "overloaded"
SERVER_ERROR = "server_error"
REQUEST_REFUSED = "request_refused"
STORE_FULL_REASON = "store_full"
TRANSFER_FAILED_REASON = "transfer_failed"
TOO_LARGE = "too_large"
WRITER_ERROR = "writer_error"
READ_TIMEOUT = "read_timeout"
OBJECT_GONE = "object_gone"
LEASE_EXPIRED_REASON = "lease_expired"
STORE_DOWN = "store_down"
STORE_READ = "store_read"
WRONG_SIZE = "wrong_size"
CHECKSUM = "checksum"
NOT_FINITE = "not_finite"
NOT_EXPLAINED = "not_explained"

REASONS: Mapping[str, str] = {
    SERVER_DOWN: "the target does not accept connections",
    CONNECTION: "the connection broke before the answer came",
    ANSWER_TIMEOUT: "no answer within the attempt's deadline",
    OVERLOADED: "the target asked to come back later (408, 409, 425, 429, 503)",
    SERVER_ERROR: "the target answered another 5xx",
    REQUEST_REFUSED: "the target refused this prompt (4xx); it is not asked again",
    "bad_answer": "the response is not what `/v1/completions` answers",
    "no_token_ids": "the response holds no token ids",
    "no_handle": "the response names no hidden states",
    "manifest_version": "the transfer manifest has another version",
    "manifest": "the transfer manifest is incomplete or contradicts itself",
    "prompt_changed": "the response belongs to another prompt",
    "aborted": "the target ended the request itself",
    STORE_FULL_REASON: "the writer found no space in the store in time (-200)",
    TRANSFER_FAILED_REASON: "the writer found no segment that takes the sample in time (-800)",
    TOO_LARGE: "the sample has more bytes than a segment can hold; it is not asked again",
    WRITER_ERROR: "the writer reported another error",
    READ_TIMEOUT: "the states were not read within the deadline",
    OBJECT_GONE: "the object vanished before it was read (-704)",
    LEASE_EXPIRED_REASON: "every read outlasted its lease (-707)",
    STORE_DOWN: "the store's master does not answer (-900)",
    STORE_READ: "the store answered another error",
    WRONG_SIZE: "the object's size is not the manifest's",
    CHECKSUM: "the bytes differ from their seal",
    "shape": "rows, layers or width are not the target's",
    "dtype": "the type is not the target's",
    "token_ids": "the states belong to other tokens",
    NOT_FINITE: "a value is NaN or infinite",
    "constant": "a hidden state has one value throughout",
    NOT_EXPLAINED: "the states cannot have made this answer: the target's head finds other tokens likelier",
}
"""Every reason that `CaptureCounters.rejected` may hold, with its meaning."""

_TOLD_BY_WRITER = frozenset({STORE_FULL_REASON, TRANSFER_FAILED_REASON, STORE_DOWN, TOO_LARGE, NOT_FINITE})
ASKED_ONCE = frozenset({TOO_LARGE})
"""Reasons of a writer that another attempt at the same prompt would meet again."""


def reason_of_marker(marker: Mapping[str, Any]) -> str:
    """Why the writer stored an error marker instead of the sample.

    Our writer says it in a word (`tasks.stream.pinned.Reason`); upstream's only in its text.
    """
    told = marker.get("reason")
    if told is None:
        text = str(marker.get("error", ""))
        return STORE_FULL_REASON if f"{STORE_FULL}" in text or "no space" in text else WRITER_ERROR
    return str(told) if told in _TOLD_BY_WRITER else WRITER_ERROR


class StoreDown(StoreError):
    """The store's master does not answer."""
