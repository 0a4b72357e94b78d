"""Rows `busy_seconds`: seconds in which the target is busy, for each trainable token, by answer mode.

`generate` answers and captures in one pass. `recorded` reads a log of the same answers, ids included.
`served` has the answer from a server without capture and reads it: here the target itself gives it first,
asked without hidden states, so that its time is counted where it arises. The same prompts and lengths
throughout.
"""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from capture_rate import Captured, capture_once, plain_once, warm_up
from endless import Case, Over, endless_target, overrides, prompt_files
from rows import Row, compared, machine
from servers import Extracting, extracting, plain, workplace

from tasks.prompts.render import load_tokenizer

MODES = ("generate", "recorded", "served")
_KEY_ENV = "RETRAIN_DSPARK_BENCH_KEY"
_POLL_S = 0.05
"""Reading alone takes a second or two."""


@dataclass(frozen=True)
class ModesSize:
    """What is captured in each mode and run."""

    case: Case = (16, 256)
    runs: int = 3


@dataclass
class BusySeconds:
    """Busy seconds per token, a value for each run."""

    plain: list[float] = field(default_factory=list)
    """Per output token."""
    modes: dict[str, list[float]] = field(default_factory=dict)
    """Per trainable token."""


def rows(folder: Path, size: ModesSize | None = None) -> list[Row]:
    """A row for each mode, all beside plain generation."""
    size = size or ModesSize()
    endless, found = endless_target(folder), BusySeconds()
    over = overrides(folder, endless, size.case, size.case[1])
    with (
        workplace(folder, "bench-modes", over) as place,
        extracting(place) as target,
        plain(place, place.profile.serve.served_name) as server,
    ):
        for run in range(size.runs):
            captured = None
            for mode in MODES:
                stream = stream_fields(mode, folder, target, captured, size.case)
                fields = overrides(folder, endless, size.case, size.case[1], stream)
                one = capture_once(target, place.run.path / f"stream-{run}-{mode}", fields, _POLL_S)
                captured = captured or one
                check_tokens(mode, one, captured)
                found.modes.setdefault(mode, []).append(one.busy_s / one.trainable)
            assert captured is not None
            if run == 0:
                warm_up(server, captured.asked, size.case[0])
            generated, _, busy_s = plain_once(server, captured.asked, size.case[0], _POLL_S)
            found.plain.append(busy_s / generated)
    return busy_rows(found, size)


def stream_fields(mode: str, folder: Path, target: Extracting, captured: Captured | None, case: Case) -> Over:
    """Fields of `stream`, and of `prompts`, that choose a mode."""
    if mode == "served":
        os.environ[_KEY_ENV] = target.endpoint.api_key or ""
        return {
            "answers": mode,
            "answer_url": target.server.url,
            "answer_api_key_env": _KEY_ENV if target.endpoint.api_key else None,
        }
    if mode == "generate" or captured is None:
        return {"answers": mode}
    log = write_answer_log(folder, target, captured, case)
    return {"answers": mode, "recorded_else": "drop", "prompts": {"train": [str(log)]}}


def write_answer_log(folder: Path, target: Extracting, captured: Captured, case: Case) -> Path:
    """The prompts of `case` with the answers of a capture, as a gateway would have logged them."""
    place, log = target.place, folder / "answered.jsonl"
    tokenizer = load_tokenizer(place.target)
    answers = {
        entry.prompt_id: (entry, asked.prompt_ids)
        for entry, asked in zip(captured.entries, captured.asked, strict=True)
    }
    lines = []
    for line in prompt_files(folder, case[0])[0].read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        entry, prompt_ids = answers[row["id"]]
        choice = {
            "message": {"role": "assistant", "content": tokenizer.decode(entry.answer_ids)},
            "finish_reason": entry.finish_reason,
            "token_ids": list(entry.answer_ids),
        }
        logged = {
            "id": row["id"],
            "domain": row["domain"],
            "request": {"model": target.endpoint.served_name, "messages": row["messages"]},
            "response": {"choices": [choice], "prompt_token_ids": list(prompt_ids)},
            "target": {
                "revision": target.identity.revision,
                "template_digest": target.identity.template_digest,
                "thinking": place.profile.prompts.thinking,
            },
        }
        lines.append(json.dumps(logged) + "\n")
    log.write_text("".join(lines), encoding="utf-8")
    return log


def check_tokens(mode: str, one: Captured, generated: Captured) -> None:
    """All modes train on the same number of tokens, or their seconds could not be compared.

    Raises:
        AssertionError: With both numbers.
    """
    if one.trainable != generated.trainable:
        raise AssertionError(f"{mode} has {one.trainable} trainable tokens, not {generated.trainable}")


def busy_rows(found: BusySeconds, size: ModesSize) -> list[Row]:
    """Medians over the runs."""
    concurrency, length = size.case
    return [
        compared(
            f"busy_seconds, {mode}",
            statistics.median(values),
            statistics.median(found.plain),
            None,
            "s/trainable token",
            f"no goal; {concurrency} at once, one answer of {length} tokens each; medians of "
            f"{size.runs} runs in turns ({_shown(values)}); canary included, to {_POLL_S} s; "
            f"baseline: the same answers from the server without extraction, s/output token; {machine()}",
        )
        for mode, values in found.modes.items()
    ]


def _shown(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.3g}" for value in values)
