"""Captured answers replayed with a draft, and decoded again by the live arm with the same draft."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx

from profiles.schema import Profile
from tasks.evaluate import replay
from tasks.evaluate.draft_check import TrainingRecord
from tasks.evaluate.replay_detail import replay_config
from tasks.measure.acceptance import PromptCounts, pool
from tasks.measure.counters import delta, parse_scrape
from tasks.serve.arms import ArmEndpoint
from tasks.serve.vllm_http import Server
from tasks.stream.log import HiddenStateLog

_LONGEST_S = 1800.0


@dataclass(frozen=True)
class Asked:
    """One prompt with the answer that was captured, as far as it is decoded again."""

    prompt_id: str
    ids: list[int]
    answer: tuple[int, ...]


@dataclass(frozen=True)
class Decoded:
    """One pass over all prompts."""

    seconds: float
    counts: PromptCounts
    differing: tuple[str, ...] = ()
    """Prompts whose live answer is not the captured one."""

    @property
    def tau(self) -> float:
        return 1 + self.counts.accepted / self.counts.rounds


def asked_of(log: Path, per_domain: int | None, length: int) -> list[Asked]:
    """The first evaluation prompts of each domain, their answers cut at `length` tokens."""
    store, taken, found = HiddenStateLog(log), dict[str, int](), []
    for entry in sorted(store.entries("evaluate"), key=lambda one: one.i):
        taken[entry.domain] = taken.get(entry.domain, 0) + 1
        if per_domain is None or taken[entry.domain] <= per_domain:
            ids = store.load(entry)[1][: entry.prompt_tokens].tolist()
            found.append(Asked(entry.prompt_id, ids, tuple(entry.answer_ids[:length])))
    return found


def replayed(
    profile: Profile,
    folder: Path,
    *,
    target: Path,
    log: Path,
    draft: Path,
    asked: Sequence[Asked],
    length: int,
    record: TrainingRecord | None = None,
) -> Decoded:
    """Replay in this process as the evaluate stage does; the counts are those of `asked`."""
    folder.mkdir(parents=True, exist_ok=True)
    out = folder / "replay.jsonl"
    config = {
        "draft_dir": str(draft),
        "target_dir": str(target),
        "log_dir": str(log),
        "out": str(out),
        "progress": str(folder / "progress.jsonl"),
        "lengths": [length],
        "threads": 0,
        **replay_config(profile.evaluate.replay, record),
    }
    started = time.perf_counter()
    replay.work(config)
    seconds = time.perf_counter() - started
    wanted = {one.prompt_id for one in asked}
    rows = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    walks = [row["walks"][str(length)] for row in rows if row["prompt_id"] in wanted]
    counts = [PromptCounts(one["rounds"], one["accepted"], tuple(one["per_position"])) for one in walks]
    return Decoded(seconds, pool(counts))


def decoded(arm: ArmEndpoint, asked: Sequence[Asked], concurrency: int) -> Decoded:
    """Greedy answers of as many tokens as were captured, some requests at once."""
    server = Server(arm.url, arm.served_name, arm.api_key)
    before = parse_scrape(server.metrics())
    started = time.perf_counter()
    answers = asyncio.run(_ask(arm, asked, concurrency))
    seconds = time.perf_counter() - started
    counted = delta(before, parse_scrape(server.metrics()))
    differing = tuple(one.prompt_id for one in asked if answers[one.prompt_id] != one.answer)
    return Decoded(seconds, PromptCounts(counted.drafts, counted.accepted, counted.per_position), differing)


async def _ask(arm: ArmEndpoint, asked: Sequence[Asked], concurrency: int) -> dict[str, tuple[int, ...]]:
    waiting, answers = list(reversed(asked)), dict[str, tuple[int, ...]]()
    headers = {"Authorization": f"Bearer {arm.api_key}"}
    async with httpx.AsyncClient(timeout=_LONGEST_S, trust_env=False, headers=headers) as client:

        async def worker() -> None:
            while waiting:
                one = waiting.pop()
                body = {
                    "model": arm.served_name,
                    "prompt": one.ids,
                    "max_tokens": len(one.answer),
                    "temperature": 0.0,
                    "return_token_ids": True,
                    "add_special_tokens": False,
                }
                response = await client.post(f"{arm.url}/v1/completions", json=body)
                response.raise_for_status()
                answers[one.prompt_id] = tuple(response.json()["choices"][0]["token_ids"])

        async with asyncio.TaskGroup() as group:
            for _ in range(concurrency):
                group.create_task(worker())
    return answers
