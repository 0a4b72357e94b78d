"""Does the server that answers (`stream.answers: served`) serve the target? Asked before the first sample.

Another model, revision or generation setting behind `stream.answer_url` gives answers that the target would
not give, and a draft that learns them is accepted less often, without any error. Names prove nothing: the
same weights have many. So both servers answer some of the run's own prompts greedily, and the answers are
compared token for token. Equal weights on other hardware round differently: where the two tokens are tied
under the target's head, the answers may part.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from itertools import count

import torch

from tasks.errors import ServiceError
from tasks.serve.vllm_http import Server
from tasks.stream.asking import Asker
from tasks.stream.backoff import BackOff
from tasks.stream.head import OutputHead
from tasks.stream.probe import FIRST_NUMBER, Probed, Prober
from tasks.stream.sample import GivenAnswer, Request, SampleRejected

PROBES = 4
"""Prompts that both servers answer."""
MAX_NEW_TOKENS = 32
_ATTEMPTS = 3
_NUMBERS_FROM = FIRST_NUMBER + 500_000
"""Numbers of the answering server's probes: apart from the target's, which may be the same server."""
_BOTH_ROUND = 2.0
_WHERE = "stream.answer_url"
_HINT = (
    "serve the same weights, revision, dtype and tokenizer there with `--generation-config vllm`, name the "
    "right model in stream.answer_model, or set stream.answers to generate"
)


@dataclass(frozen=True)
class Served:
    """What a server says about the model under a name; what it does not say is empty or None."""

    name: str
    url: str
    root: str
    max_model_len: int | None

    def __str__(self) -> str:
        said = [f"root {self.root}"] if self.root else []
        said += [f"{self.max_model_len} tokens"] if self.max_model_len is not None else []
        return f"'{self.name}' ({', '.join(said) or 'it says no more'})"


@dataclass(frozen=True)
class Parting:
    """Where an answer leaves the target's."""

    probe: int
    place: int
    """Answer token, from 0."""
    gap: float | None
    """By how much the target's token has the larger logit; None where that is not known."""
    tie: float
    """Largest gap that rounding explains."""

    def __str__(self) -> str:
        by = "" if self.gap is None else f" by a logit gap of {self.gap:.3g}, a tie is up to {self.tie:.2g}"
        return f"probe {self.probe} at answer token {self.place}{by}"


class AnswererCheck:
    """Compares the answering server with the target.

    Args:
        answerer: Asks the answering server.
        prober: Asks the target.
        was_outage: Whether an attempt failed because a server was down; returns once it is up again.
        back_off: Pauses between two attempts.
        head: The target's output head; None where its logits cannot be recomputed.
    """

    def __init__(
        self,
        answerer: Asker,
        prober: Prober,
        was_outage: Callable[[SampleRejected], Awaitable[bool]],
        back_off: BackOff,
        head: OutputHead | None,
    ):
        self._answerer = answerer
        self._prober = prober
        self._was_outage = was_outage
        self._back_off = back_off
        self._head = head

    async def same_answers(self, requests: Sequence[Request], target: Served, answering: Served) -> None:
        """Let both servers answer `requests` greedily, one after the other, and compare.

        Raises:
            ServiceError: At least half of the answers part where nothing is tied; both models are named.
        """
        partings = []
        for number, request in enumerate(requests):
            most = min(MAX_NEW_TOKENS, request.max_new_tokens)
            probed = await self._prober.probe(request.prompt_ids, most)
            greedy = replace(
                request, n=_NUMBERS_FROM + number, max_new_tokens=most, temperature=0.0, top_p=1.0
            )
            parting = parting_of(number, probed, (await self._given(greedy)).ids, self._head)
            partings += [parting] if parting is not None else []
        if 2 * len(partings) >= max(len(requests), 1):
            raise ServiceError(
                f"the server that answers does not serve the target: {len(partings)} of {len(requests)} "
                f"greedy answers are not the target's (first: {partings[0]}); the target is {target}, "
                f"the answers come from {answering}",
                where=f"{_WHERE}: {answering.url}",
                hint=_HINT,
            )

    async def _given(self, request: Request) -> GivenAnswer:
        """The answering server's answer.

        Raises:
            ServiceError: It gives none, however often it is asked.
        """
        failures = 0
        for attempt in count(1):
            try:
                return await self._answerer.ask_without_states(request, attempt)
            except SampleRejected as error:
                last = error
            if attempt > 2 * _ATTEMPTS or not await self._was_outage(last):
                failures += 1
                if last.final or failures >= _ATTEMPTS:
                    break
                await asyncio.sleep(self._back_off.wait_s(failures, last.wait_s))
        raise ServiceError(
            f"the server that answers failed {failures} times before the first sample, at last with {last}",
            where=f"{_WHERE}: {self._answerer.url}",
            hint="it must be a vLLM server that knows return_token_ids; see its log",
        )


def parting_of(
    number: int, probed: Probed, theirs: tuple[int, ...], head: OutputHead | None
) -> Parting | None:
    """Where `theirs` leaves the target's greedy answer; None if it does not, or where the tokens are tied.

    After a tie nothing is compared: the answers have other contexts. Without a head no tie can be told, so
    there an answer is the target's if at least the first half is.
    """
    ours = probed.answer.answer_ids
    same = next(
        (place for place, pair in enumerate(zip(ours, theirs, strict=False)) if pair[0] != pair[1]),
        min(len(ours), len(theirs)),
    )
    if same == len(ours) == len(theirs):
        return None
    if head is None:
        return Parting(number, same, None, 0.0) if 2 * same < len(ours) else None
    if same >= min(len(ours), len(theirs)):
        return Parting(number, same, None, 0.0)  # one has ended and the other has not
    states = probed.states[probed.prompt_tokens - 1 + same, -1][None]
    judged = head.judge(states, torch.tensor([theirs[same]]))
    parting = Parting(number, same, float(judged.gap), _BOTH_ROUND * float(judged.tie))
    return parting if judged.gap > _BOTH_ROUND * judged.tie else None


def served_by(server: Server) -> Served:
    """What a server says of itself; a gateway may say nothing.

    Raises:
        ServiceError: It lists models, and not this one.
    """
    try:
        rows = server.model_rows()
    except (ServiceError, ValueError, AttributeError):
        rows = {}
    if rows and server.served_name not in rows:
        raise ServiceError(
            f"the server serves {', '.join(sorted(rows))}, not '{server.served_name}'",
            where=f"{_WHERE}: {server.url}",
            hint="name its model in stream.answer_model",
        )
    row = rows.get(server.served_name, {})
    length = row.get("max_model_len")
    return Served(
        server.served_name,
        server.url,
        str(row.get("root") or ""),
        length if isinstance(length, int) else None,
    )


def refuse_shorter(answering: Served, needed: int) -> None:
    """Refuse a server whose context is shorter than what the run asks of it.

    Args:
        needed: `target.max_model_len`, tokens.

    Raises:
        ServiceError: With both lengths.
    """
    if answering.max_model_len is not None and answering.max_model_len < needed:
        raise ServiceError(
            f"the server that answers takes {answering.max_model_len} tokens, target.max_model_len is "
            f"{needed}: longer prompts would be refused",
            where=f"{_WHERE}: {answering.url}",
            hint="start it with a larger --max-model-len, or lower target.max_model_len",
        )
