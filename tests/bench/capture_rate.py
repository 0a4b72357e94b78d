"""Rows `capture_rate`: output tokens/s of a capture against plain generation by the same server without it.

Same prompts as token ids, same number of requests at once, answers of the same length: the end token of the
target is renamed, so that every answer reaches its length. The servers take turns, one start each a run.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
from rows import Row, compared, machine
from servers import Busy, Workplace, extracting, patient, plain, workplace

from profiles.load import load_profile
from tasks.prompts.load import load_prompts
from tasks.serve.target_folder import resolve_target
from tasks.serve.vllm_http import Server
from tasks.stream.log import INDEX, HiddenStateLog

GOAL = 0.95
MODES = ("generate",)
"""Answer modes whose busy seconds are shown; one more row for each that the profile knows."""
_NEVER_GENERATED = "<jupyter_script>"
_END = "<|im_end|>"
LONGEST_PROMPT = 512
_LONGEST_ANSWER_S = 3600.0

Case = tuple[int, int]
"""Requests at once, answer length in tokens."""
Over = dict[str, Any]


@dataclass(frozen=True)
class RateSize:
    """What is captured in each run, for each concurrency and each length."""

    concurrencies: tuple[int, ...] = (8, 16)
    lengths: tuple[int, ...] = (256, 1024)
    """Answer lengths, tokens; prompts come on top."""
    turns: int = 1
    """Requests for each place: 1 lets all answers end together, the hardest case for the reader."""
    runs: int = 3
    modes: tuple[str, ...] = MODES

    def cases(self) -> Iterator[Case]:
        """Every concurrency with every length."""
        for concurrency in self.concurrencies:
            for length in self.lengths:
                yield concurrency, length


@dataclass
class Speeds:
    """Figures of one case: a value for each run, `capture` by mode."""

    plain: list[float] = field(default_factory=list)
    """Output tokens/s."""
    plain_busy: list[float] = field(default_factory=list)
    """Busy seconds per output token."""
    capture: dict[str, list[float]] = field(default_factory=dict)
    capture_busy: dict[str, list[float]] = field(default_factory=dict)
    """Busy seconds per trainable token."""


@dataclass(frozen=True)
class Asked:
    """One request of the plain side, as the capture had it."""

    prompt_ids: tuple[int, ...]
    max_tokens: int


def rows(folder: Path, size: RateSize | None = None) -> list[Row]:
    """A row for each case, then one for each answer mode."""
    size = size or RateSize()
    endless = endless_target(folder)
    speeds = {case: Speeds() for case in size.cases()}
    asked: dict[Case, list[Asked]] = {}
    for number in range(size.runs):
        for mode in size.modes:
            with workplace(folder, f"bench-{mode}-{number}", overrides(folder, endless, size, mode)) as place:
                _captures(place, size, mode, speeds, asked)
        with workplace(folder, f"bench-plain-{number}", overrides(folder, endless, size)) as place:
            _plain_runs(place, speeds, asked)
    return [*rate_rows(speeds, size), *busy_rows(speeds, size)]


def overrides(folder: Path, endless: Path, size: RateSize, mode: str = "", case: Case | None = None) -> Over:
    """Fields over the laptop profile: of the servers, which all cases share, and of one case's client."""
    concurrency, length = case or (max(size.concurrencies), max(size.lengths))
    train, one = _prompt_files(folder, concurrency * size.turns)
    chosen = answer_mode(mode)["stream"] if mode else {}
    return {
        "target": {
            "model": str(endless),
            "source": {"kind": "path", "distribution": "", "version": "", "file": "", "sha256": ""},
            "max_model_len": max(size.lengths) + LONGEST_PROMPT,
        },
        "prompts": {
            "train": [str(train)],
            "evaluate": [str(one)],
            "train_per_domain": None,
            "evaluate_per_domain": None,
        },
        "stream": {"concurrency": concurrency, "max_new_tokens": length, **chosen},
        "evaluate": {"replay_max_new_tokens": 2},
    }


def _prompt_files(folder: Path, count: int) -> tuple[Path, Path]:
    """The first `count` training prompts of the laptop profile over all domains, and one to evaluate."""
    train, one = folder / f"first-{count}.jsonl", folder / "one.jsonl"
    if not train.exists():
        prompts = load_prompts(load_profile("laptop").profile).prompts
        chosen = [prompt for prompt in prompts if prompt.split == "train"]
        step = max(1, len(chosen) // count)
        lines = [
            json.dumps({"id": prompt.id, "domain": prompt.domain, "messages": prompt.turns()})
            for prompt in chosen[::step][:count]
        ]
        train.write_text("\n".join(lines) + "\n", encoding="utf-8")
        one.write_text('{"id": "one", "domain": "qa", "prompt": "Say hello."}\n', encoding="utf-8")
    return train, one


def endless_target(folder: Path) -> Path:
    """A copy of the laptop's target whose end token never comes; the weights are links.

    The chat template goes on writing the old end token, which from now on is a token like any other.
    """
    source, copy = resolve_target(load_profile("laptop").profile), folder / "endless"
    copy.mkdir()
    for file in source.iterdir():
        if file.suffix == ".safetensors":
            (copy / file.name).symlink_to(file)
        elif file.is_file():
            shutil.copyfile(file, copy / file.name)
    identity = _token_id(copy)
    for name in ("config.json", "generation_config.json"):
        _change(copy / name, eos_token_id=identity)
    _change(copy / "tokenizer_config.json", eos_token=_NEVER_GENERATED)
    if (copy / "special_tokens_map.json").exists():
        _change(copy / "special_tokens_map.json", eos_token=_NEVER_GENERATED)
    return copy


def _token_id(target: Path) -> int:
    tokens = json.loads((target / "tokenizer.json").read_text(encoding="utf-8"))["added_tokens"]
    found = [int(token["id"]) for token in tokens if token["content"] == _NEVER_GENERATED]
    if not found:
        raise AssertionError(f"the target has no token {_NEVER_GENERATED} to take the end token's place")
    return found[0]


def _change(path: Path, **values: object) -> None:
    if path.exists():
        known = json.loads(path.read_text(encoding="utf-8"))
        path.write_text(json.dumps({**known, **values}), encoding="utf-8")


def answer_mode(mode: str) -> dict[str, Any]:
    """Fields of the profile that choose an answer mode."""
    return {"stream": {"answers": mode}}


def _captures(
    place: Workplace, size: RateSize, mode: str, speeds: dict[Case, Speeds], asked: dict[Case, list[Asked]]
) -> None:
    """Every case through our connector and client, on one start of the server."""
    root = place.run.path
    with extracting(place) as target:
        for case, found in speeds.items():
            over = overrides(root.parent.parent, place.target, size, mode, case)
            profile = patient(over)
            client = replace(target, place=replace(place, profile=profile))
            folder = root / f"stream-{case[0]}-{case[1]}"
            with Busy(target.server) as busy:
                captures = client.capture(folder)
            log = HiddenStateLog(folder / captures.log)
            entries = log.entries()
            # A sample is in the log with its line of the index; what the client does after the last is no
            # capture any more.
            ended = (log.folder / INDEX).stat().st_mtime
            generated = sum(len(entry.answer_ids) for entry in entries)
            trainable = sum(entry.trainable_tokens for entry in entries)
            found.capture.setdefault(mode, []).append(generated / (ended - _began(busy)))
            found.capture_busy.setdefault(mode, []).append(busy.seconds / trainable)
            asked.setdefault(
                case,
                [
                    Asked(tuple(log.load(entry)[1][: entry.prompt_tokens].tolist()), len(entry.answer_ids))
                    for entry in sorted(entries, key=lambda entry: entry.i)
                ],
            )


def _plain_runs(place: Workplace, speeds: dict[Case, Speeds], asked: dict[Case, list[Asked]]) -> None:
    """Every case against the server without extraction, with the prompts and lengths of the captures."""
    name = place.profile.serve.served_name
    with plain(place, name) as server:
        for case, found in speeds.items():
            with Busy(server) as busy:
                generated = asyncio.run(_generate(server, asked[case], case[0]))
                ended = time.time()
            found.plain.append(generated / (ended - _began(busy)))
            found.plain_busy.append(busy.seconds / generated)


def _began(busy: Busy) -> float:
    if busy.began is None:
        raise AssertionError("no request was ever seen running: the answers are too short to be measured")
    return busy.began


async def _generate(server: Server, asked: Sequence[Asked], concurrency: int) -> int:
    """Ask for all, `concurrency` at once; returns the tokens generated.

    Raises:
        AssertionError: An answer has another length than the capture's.
    """
    waiting, total = list(reversed(asked)), 0
    limits = httpx.Limits(max_connections=concurrency)
    async with httpx.AsyncClient(timeout=_LONGEST_ANSWER_S, trust_env=False, limits=limits) as client:

        async def worker() -> None:
            nonlocal total
            while waiting:
                one = waiting.pop()
                body = {
                    "model": server.served_name,
                    "prompt": list(one.prompt_ids),
                    "max_tokens": one.max_tokens,
                    "temperature": 0.0,
                    "return_token_ids": True,
                    "add_special_tokens": False,
                }
                response = await client.post(f"{server.url}/v1/completions", json=body)
                response.raise_for_status()
                got = len(response.json()["choices"][0]["token_ids"])
                if got != one.max_tokens:
                    raise AssertionError(f"{got} tokens generated, the capture had {one.max_tokens}")
                total += got

        async with asyncio.TaskGroup() as group:
            for _ in range(concurrency):
                group.create_task(worker())
    return total


def rate_rows(speeds: dict[Case, Speeds], size: RateSize) -> list[Row]:
    """Output tokens/s of capture (first mode) over plain generation, medians over the runs."""
    mode = size.modes[0]
    return [
        compared(
            f"capture_rate, {concurrency} x {length}",
            statistics.median(found.capture[mode]),
            statistics.median(found.plain),
            GOAL,
            "output tokens/s",
            f"at least {GOAL}; {concurrency} at once, answers of {length} tokens, "
            f"{concurrency * size.turns} prompts, medians of {size.runs} runs in turns "
            f"(capture {_shown(found.capture[mode])}; plain {_shown(found.plain)}); {machine()}",
        )
        for (concurrency, length), found in speeds.items()
    ]


def busy_rows(speeds: dict[Case, Speeds], size: RateSize) -> list[Row]:
    """Busy seconds of the target per trainable token by answer mode, beside plain generation per token."""
    case = (max(size.concurrencies), min(size.lengths))
    found = speeds[case]
    return [
        compared(
            f"busy s of the target, {mode}",
            statistics.median(found.capture_busy[mode]),
            statistics.median(found.plain_busy),
            None,
            "s/trainable token",
            f"no goal; {case[0]} at once, answers of {case[1]} tokens; baseline: plain, s/output token",
        )
        for mode in size.modes
    ]


def _shown(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.4g}" for value in values)
