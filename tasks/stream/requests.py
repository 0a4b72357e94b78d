"""Prompts in tokens, on disk: a client with a million prompts holds only those that it asks just now."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Container, Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from itertools import count, islice
from pathlib import Path
from typing import Any

from tasks.errors import UsageError
from tasks.prompts.prompt import Prompt, prompt_of_record
from tasks.prompts.render import Dropped, Rendered, prompt_text, refuse_too_many, render
from tasks.stream.reasons import TOO_LARGE
from tasks.stream.recorded import KEPT, opens_reasoning, refuse_stripped, tokens_of, verdict_on
from tasks.stream.sample import GivenAnswer, Request, Shape
from tasks.stream.settings import CaptureFiles, CaptureSettings

_AT_ONCE = 256
_SEED_STEP = 1_000_003
UNUSABLE = "unusable"
RECORDED = "recorded"


@dataclass
class Prepared:
    """What became of the prompts.

    Attributes:
        prompts: Rows read.
        requests: Prompts that will be asked.
        dropped: Why others will not -> how many.
        recorded: Verdict on the recorded answers -> how many.
        largest_bytes: Most bytes that one sample may need in the store.
    """

    prompts: int = 0
    requests: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    recorded: Counter[str] = field(default_factory=Counter)
    largest_bytes: int = 0


def prepare(settings: CaptureSettings, files: CaptureFiles, tokenizer: Any) -> Prepared:
    """Write `requests.jsonl` and `dropped.jsonl` from `prompts.jsonl`.

    A prompt is dropped before it reaches the target if the template refuses it, prompt and answer exceed
    the context, or its sample could not lie in the store.

    Raises:
        UsageError: Too many prompts cannot be asked, or none can; the log was stripped of its reasoning.
    """
    prepared = Prepared()
    unusable: list[Dropped] = []
    shape = Shape(settings.layers, settings.hidden_size, settings.dtype)
    temporary = files.requests.with_suffix(".tmp")
    with (
        open(files.prompts, encoding="utf-8") as source,
        open(temporary, "w", encoding="utf-8") as requests,
        open(files.dropped, "w", encoding="utf-8") as dropped,
    ):
        for outcome in _read_outcomes(settings, shape, source, tokenizer, prepared):
            if isinstance(outcome, Request):
                prepared.requests += 1
                size = shape.expected_bytes(outcome.most_rows)
                prepared.largest_bytes = max(prepared.largest_bytes, size)
                requests.write(_line(outcome) + "\n")
                continue
            kind, row = outcome
            prepared.dropped[kind] += 1
            dropped.write(json.dumps({"prompt_id": row.prompt_id, "reason": row.reason}) + "\n")
            if kind != RECORDED:
                unusable.append(row)
    temporary.replace(files.requests)
    refuse_stripped(prepared.recorded, settings.max_bad_rows)
    refuse_too_many(unusable, prepared.prompts, settings.max_bad_rows)
    _require_some(prepared)
    return prepared


def _read_outcomes(
    settings: CaptureSettings, shape: Shape, source: Iterable[str], tokenizer: Any, prepared: Prepared
) -> Iterator[Request | tuple[str, Dropped]]:
    """What becomes of each line of `prompts.jsonl`; a few hundred are in memory at once."""
    for first in count(0, _AT_ONCE):
        prompts = [prompt_of_record(json.loads(line)) for line in islice(source, _AT_ONCE)]
        if not prompts:
            return
        prepared.prompts += len(prompts)
        yield from _outcomes(settings, shape, prompts, first, tokenizer, prepared)


def _outcomes(
    settings: CaptureSettings,
    shape: Shape,
    prompts: list[Prompt],
    first: int,
    tokenizer: Any,
    prepared: Prepared,
) -> Iterator[Request | tuple[str, Dropped]]:
    """A request for each usable prompt, and why there is none for the others."""
    numbers = {prompt.id: first + place for place, prompt in enumerate(prompts)}
    rendered, refused = render(
        prompts,
        tokenizer,
        thinking=settings.thinking,
        max_new_tokens={split: one.max_new_tokens for split, one in settings.sampling.items()},
        max_model_len=settings.max_model_len,
    )
    yield from ((UNUSABLE, row) for row in refused)
    for one in rendered:
        request = _request(settings, one, numbers[one.prompt.id])
        if settings.answers.answers == "recorded" and one.prompt.split != "evaluate":
            verdict, given = _recorded(settings, one, tokenizer)
            prepared.recorded[verdict] += 1
            if given is not None:
                request = replace(request, source="recorded", given=given)
            elif settings.answers.recorded_else == "drop":
                yield RECORDED, Dropped(one.prompt.id, f"its recorded answer: {verdict}")
                continue
        size = shape.expected_bytes(request.most_rows)
        if size > settings.in_flight_bytes:
            reason = (
                f"its sample may need {size:,} bytes, more than the {settings.in_flight_bytes:,} in flight"
            )
            yield TOO_LARGE, Dropped(one.prompt.id, reason)
        else:
            yield request


def _request(settings: CaptureSettings, one: Rendered, number: int) -> Request:
    sampling = settings.sampling[one.prompt.split]
    # Evaluation answers are the target's own, always: replay walks them.
    served = settings.answers.answers == "served" and one.prompt.split != "evaluate"
    return Request(
        n=number,
        prompt_id=one.prompt.id,
        domain=one.prompt.domain,
        split=one.prompt.split,
        prompt_ids=one.prompt_ids,
        max_new_tokens=one.max_new_tokens,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        seed=(sampling.seed * _SEED_STEP + number) % 2**31,
        source="served" if served else "generated",
    )


def _recorded(settings: CaptureSettings, one: Rendered, tokenizer: Any) -> tuple[str, GivenAnswer | None]:
    """Verdict on a prompt's recorded answer, and its tokens if it is kept."""
    recorded, thinking = one.prompt.recorded, settings.thinking
    text = prompt_text(one.prompt, tokenizer, thinking=thinking) if recorded is not None else ""
    verdict = verdict_on(recorded, settings.answers, thinking=thinking, always_thinks=opens_reasoning(text))
    if verdict != KEPT:
        return verdict, None
    given = tokens_of(one, tokenizer, thinking=thinking, max_model_len=settings.max_model_len)
    return (given, None) if isinstance(given, str) else (KEPT, given)


def _require_some(prepared: Prepared) -> None:
    if prepared.requests == 0:
        why = {**prepared.dropped, **{f"recorded: {name}": n for name, n in prepared.recorded.items()}}
        raise UsageError(
            f"none of {prepared.prompts} prompts can be captured ({why})",
            where="prompts, stream.recorded_else",
            hint="see dropped.jsonl of the stage; `regenerate` lets the target answer where the log cannot",
        )


def _line(request: Request) -> str:
    return json.dumps(asdict(request), separators=(",", ":"))


def read_requests(path: Path, finished: Container[int]) -> Iterator[Request]:
    """Requests that are not in `finished`, one at a time, in the order of the prompts."""
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            if row["n"] in finished:
                continue
            given = row["given"]
            row["prompt_ids"] = tuple(row["prompt_ids"])
            row["given"] = given and GivenAnswer(tuple(given["ids"]), given["finish_reason"])
            yield Request(**row)
