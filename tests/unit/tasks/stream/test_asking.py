"""What the target is asked, and what its refusals mean; against a small server on loopback."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tasks.errors import ServiceError, UsageError
from tasks.stream.asking import Asker, ServerUnreachable
from tasks.stream.sample import GivenAnswer, Request, SampleRejected
from tasks.stream.versions import own_versions

REQUEST = Request(3, "p", "qa", "train", (5, 6, 7), 4, 0.7, 0.9, 11)
MANIFEST = {"handle": "k", "version": 1, "metadata": {"versions": dict(own_versions())}}
GOOD = {"choices": [{"token_ids": [1, 2], "finish_reason": "stop"}], "kv_transfer_params": MANIFEST}
Reply = tuple[int, Any, dict[str, str]]


class Fake:
    """Answers every completion with `reply`; remembers requests and connections."""

    def __init__(self, reply: Reply = (200, GOOD, {})):
        self.reply = reply
        self.bodies: list[dict[str, Any]] = []
        self.names: list[str] = []
        self.connections = 0


@contextmanager
def serving(fake: Fake) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def setup(self) -> None:
            fake.connections += 1
            super().setup()

        def log_message(self, format: str, *args: Any) -> None:
            pass

        def do_GET(self) -> None:
            self.send(200, b"", {})

        def do_POST(self) -> None:
            fake.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            fake.names.append(self.headers["X-Request-Id"])
            status, value, headers = fake.reply
            if status == 0:
                self.close_connection = True
                return
            data = value if isinstance(value, bytes) else json.dumps(value).encode()
            self.send(status, data, headers)

        def send(self, status: int, data: bytes, headers: dict[str, str]) -> None:
            self.send_response(status)
            for name, text in {**headers, "Content-Length": str(len(data))}.items():
                self.send_header(name, text)
            self.end_headers()
            self.wfile.write(data)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def asking(url: str, work: Callable[[Asker], Any], concurrency: int = 2) -> Any:
    async def scenario() -> Any:
        async with Asker(
            url, "t", None, run_id="run", session="0a1b2c3d", concurrency=concurrency, timeout_s=20.0
        ) as asker:
            return await work(asker)

    return asyncio.run(scenario())


def test_one_answer_with_ids_and_no_stop_strings() -> None:
    fake = Fake()
    with serving(fake) as url:
        answer = asking(f"{url}/v1", lambda asker: asker.ask(REQUEST, 2))
    (body,) = fake.bodies
    assert answer.answer_ids == (1, 2) and fake.names == ["run-3-0a1b2c3dx2"]
    assert body["n"] == 1 and body["return_token_ids"] is True and body["prompt"] == [5, 6, 7]
    assert body["max_tokens"] == 4 and (body["temperature"], body["top_p"], body["seed"]) == (0.7, 0.9, 11)
    assert body["kv_transfer_params"] == {"include_output_tokens": True}
    assert not {"stop", "stop_token_ids"} & body.keys()


def test_given_answer_is_read_without_its_last_token() -> None:
    fake = Fake()
    request = Request(*list(REQUEST.__dict__.values())[:9], "recorded", GivenAnswer((8, 9, 2), "stop"))
    with serving(fake) as url:
        answer = asking(url, lambda asker: asker.ask(request, 1))
    (body,) = fake.bodies
    assert body["prompt"] == [5, 6, 7, 8, 9] and body["max_tokens"] == 1
    assert answer.answer_ids == (8, 9, 2) and answer.finish_reason == "stop"


def test_plain_answer_asks_for_no_states() -> None:
    fake = Fake((200, {"choices": GOOD["choices"]}, {}))
    with serving(fake) as url:
        given = asking(url, lambda asker: asker.ask_without_states(REQUEST, 1))
    assert given == GivenAnswer((1, 2), "stop") and "kv_transfer_params" not in fake.bodies[0]


def test_connections_are_used_again() -> None:
    fake = Fake()

    async def many(asker: Asker) -> None:
        async def one() -> None:
            for attempt in range(1, 21):
                await asker.ask(REQUEST, attempt)

        await asyncio.gather(*(one() for _ in range(3)))

    with serving(fake) as url:
        asking(url, many, concurrency=3)
    assert len(fake.bodies) == 60 and fake.connections <= 4


@pytest.mark.parametrize(
    ("reply", "reason", "final", "wait_s"),
    [
        ((400, {"error": "too long"}, {}), "request_refused", True, 0.0),
        ((422, {"error": "no"}, {}), "request_refused", True, 0.0),
        ((429, {}, {"Retry-After": "7"}), "overloaded", False, 7.0),
        ((503, {}, {"Retry-After": "Mon, 30 Nov 2026 00:00:00 GMT"}), "overloaded", False, 0.0),
        ((500, {}, {}), "server_error", False, 0.0),
        ((200, b"{", {}), "bad_answer", False, 0.0),
        ((200, [], {}), "bad_answer", False, 0.0),
        ((200, {"choices": [*GOOD["choices"], *GOOD["choices"]]}, {}), "bad_answer", False, 0.0),
        ((200, {"choices": GOOD["choices"]}, {}), "no_handle", False, 0.0),
        ((200, {"choices": [{"token_ids": [1], "finish_reason": "abort"}]}, {}), "aborted", False, 0.0),
    ],
)
def test_refusals_are_told_apart(reply: Reply, reason: str, final: bool, wait_s: float) -> None:
    with serving(Fake(reply)) as url, pytest.raises(SampleRejected) as caught:
        asking(url, lambda asker: asker.ask(REQUEST, 1))
    assert (caught.value.reason, caught.value.final, caught.value.wait_s) == (reason, final, wait_s)


@pytest.mark.parametrize("status", [401, 403, 404])
def test_what_every_request_would_meet_ends_the_capture(status: int) -> None:
    with serving(Fake((status, {}, {}))) as url, pytest.raises(ServiceError, match=str(status)):
        asking(url, lambda asker: asker.ask(REQUEST, 1))


@pytest.mark.parametrize("metadata", [None, {}, {"versions": {**own_versions(), "format": "1"}}])
def test_a_server_of_other_versions_ends_the_capture(metadata: Any) -> None:
    reply = {**GOOD, "kv_transfer_params": {**MANIFEST, "metadata": metadata}}
    with serving(Fake((200, reply, {}))) as url, pytest.raises(UsageError) as caught:
        asking(url, lambda asker: asker.ask(REQUEST, 1))
    assert url in caught.value.where


def test_broken_connection_and_absent_server_are_told_apart() -> None:
    with serving(Fake((0, None, {}))) as url, pytest.raises(ServerUnreachable) as caught:
        asking(url, lambda asker: asker.ask(REQUEST, 1))
    assert caught.value.reason == "connection"
    with pytest.raises(ServerUnreachable) as absent:
        asking(url, lambda asker: asker.ask(REQUEST, 1))
    assert absent.value.reason == "server_down"
    assert asking(url, lambda asker: asker.is_up()) is False
