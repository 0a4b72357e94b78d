"""Ask a server one question, and learn from its stream and its counters what was drafted."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from tasks.errors import ServiceError
from tasks.measure.counters import Scrape, delta, parse_scrape
from tasks.publish.serving_rounds import Rounds, Streamed, rounds_of
from tasks.serve.vllm_http import Server, refusal

CHAT = "/v1/chat/completions"
_SETTLE_S = 5.0
_POLL_S = 0.05
_SHORT_S = 30.0
_BROKEN = "\ufffd"


@dataclass(frozen=True)
class Asked:
    """How the answer is made."""

    question: str
    max_tokens: int = 256
    temperature: float = 0.0
    timeout_s: float = 900.0
    """Longest time to the first piece, and between two pieces, seconds."""


@dataclass(frozen=True)
class Answer:
    """An answer with its rounds."""

    pieces: tuple[str, ...]
    """Text of each token; empty where a character is not finished, or the server would not show the token."""
    streamed: Streamed
    rounds: Rounds
    seconds: float

    @property
    def text(self) -> str:
        return "".join(self.pieces) or self.streamed.content


def served_name(server: Server, wanted: str | None) -> str:
    """The model to ask: the one that is wanted, else the first that the server names.

    Raises:
        ServiceError: It does not answer, or has no such model.
    """
    names = list(server.models())
    if wanted is None and names:
        return names[0]
    if wanted in names and wanted is not None:
        return wanted
    raise ServiceError(
        f"the server serves {', '.join(names) or 'nothing'}, not '{wanted}'",
        where=server.url,
        hint="name one of them with --model",
    )


def ask(server: Server, asked: Asked, arrived: Callable[[int], None] = lambda tokens: None) -> Answer:
    """Ask, and find out which tokens were drafted.

    Args:
        arrived: Told the tokens so far, with each chunk.

    Raises:
        ServiceError: It does not answer, refuses, or breaks off.
    """
    before = _scrape(server)
    started = time.monotonic()
    streamed = _stream(server, asked, arrived)
    seconds = time.monotonic() - started
    after = _settled(server, before, len(streamed.tokens))
    return Answer(
        pieces=_pieces(server, streamed),
        streamed=streamed,
        rounds=rounds_of(streamed, delta(before, after)),
        seconds=seconds,
    )


def _scrape(server: Server) -> Scrape:
    return parse_scrape(server.metrics(), where=f"{server.url}/metrics")


def _settled(server: Server, before: Scrape, tokens: int) -> Scrape:
    """The counters once they hold this answer: they are written after the last piece was sent."""
    deadline = time.monotonic() + _SETTLE_S
    while True:
        after = _scrape(server)
        if delta(before, after).generated >= tokens or time.monotonic() > deadline:
            return after
        time.sleep(_POLL_S)


def _stream(server: Server, asked: Asked, arrived: Callable[[int], None]) -> Streamed:
    chunks: list[tuple[int, ...]] = []
    content, finish, listed = "", "", None
    for event in _events(server, asked):
        if error := event.get("error"):
            raise ServiceError(f"the answer broke off: {str(error)[:300]}", where=server.url + CHAT)
        for choice in event.get("choices") or ():
            if ids := choice.get("token_ids"):
                chunks.append(tuple(ids))
                arrived(sum(map(len, chunks)))
            content += (choice.get("delta") or {}).get("content") or ""
            finish = choice.get("finish_reason") or finish
        listed = _listed(event, listed)
    return Streamed(tuple(chunks), listed, finish, content)


def _listed(event: dict[str, Any], before: tuple[int, ...] | None) -> tuple[int, ...] | None:
    """Accepted tokens of each round, where the server reports them in detail (its last event)."""
    said = (event.get("metrics") or {}).get("speculative_decoding") or {}
    steps = said.get("per_step_accepted")
    return tuple(steps) if steps else before


def _events(server: Server, asked: Asked) -> Iterator[dict[str, Any]]:
    body = {
        "model": server.served_name,
        "messages": [{"role": "user", "content": asked.question}],
        "max_tokens": asked.max_tokens,
        "temperature": asked.temperature,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
    }
    with _answering(server, body, asked.timeout_s) as response:
        for line in response.iter_lines():
            if line.startswith("data: ") and line != "data: [DONE]":
                yield json.loads(line.removeprefix("data: "))


@contextmanager
def _answering(server: Server, body: dict[str, Any], timeout_s: float) -> Iterator[httpx.Response]:
    """The response while it arrives; what goes wrong then, also later, is said as ours."""
    where = server.url + CHAT
    try:
        with _client(server, timeout_s) as client, client.stream("POST", CHAT, json=body) as response:
            if response.status_code != httpx.codes.OK:
                response.read()
                key = response.status_code == httpx.codes.UNAUTHORIZED
                hint = "name the variable of its key with --api-key-env" if key else ""
                raise ServiceError(f"the question answered {refusal(response)}", where=where, hint=hint)
            yield response
    except httpx.HTTPError as error:
        raise ServiceError(
            f"the answer broke off ({type(error).__name__})", where=where, hint="see the server's log"
        ) from error


def _client(server: Server, timeout_s: float) -> httpx.Client:
    """One client for many requests: making one takes longer than most of them."""
    headers = {"Authorization": f"Bearer {server.api_key}"} if server.api_key else {}
    return httpx.Client(base_url=server.url, headers=headers, timeout=timeout_s, trust_env=False)


def _pieces(server: Server, streamed: Streamed) -> tuple[str, ...]:
    """Text of each token: what each adds to the text of all before it.

    A token alone has another text than in its place, and a character may take several tokens: its text then
    stands with the last of them. What the server hides, as the mark of the end, is hidden here too.
    """
    shown, pieces = "", []
    ids = streamed.tokens
    texts = _texts(server, [ids[:number] for number in range(1, len(ids) + 1)])
    for number, text in enumerate(texts, start=1):
        if text.endswith(_BROKEN) and number < len(ids):
            pieces.append("")
            continue
        pieces.append(text[len(shown) :])
        shown = text
    if pieces and streamed.content and shown.startswith(streamed.content) and streamed.finish == "stop":
        pieces[-1] = pieces[-1][: len(pieces[-1]) - (len(shown) - len(streamed.content))]
    return tuple(pieces)


def _texts(server: Server, parts: Sequence[tuple[int, ...]]) -> list[str]:
    """Text of each sequence of tokens; empty where the server has no such path."""
    texts = []
    try:
        with _client(server, _SHORT_S) as client:
            for ids in parts:
                body = {"model": server.served_name, "tokens": list(ids)}
                response = client.post("/detokenize", json=body)
                response.raise_for_status()
                texts.append(str(response.json()["prompt"]))
    except (httpx.HTTPError, KeyError, ValueError):
        return []
    return texts
