"""A target and a draft in a few lines, that speculate, count and err as a vLLM server might.

The target's next token depends on the whole text before it. Its two best tokens are 3.0 apart in
log-probability, and at every seventh text equally likely: a tie. The draft guesses the target's best token
two times in three, else its second. Faults change what the server does with that; see `FAULTS`.
"""

from __future__ import annotations

import json
import random
import threading
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

FAULTS = {
    "none": "",
    "accept-all": "every drafted token is accepted, verified or not",
    "wrong-token": "one answer in four has a wrong token at place 3",
    "ties": "takes the second token where both are equally likely",
    "noisy": "as ties, every second time that a prompt is asked",
    "loops": "repeats one word after eight tokens, and accepts everything",
    "fails": "nine requests of ten get HTTP 500 while more than two are open",
    "no-drafts": "speculation is on and nothing is ever drafted",
    "sparse": "drafts in every third step only, as n-gram decoding that finds little",
    "silent": "responses say nothing of acceptance",
    "restarts": "counters fall to zero once, after --count answers",
    "falls": "counters fall to zero in every request after --count answers",
    "foreign": "another client's tokens are counted too, after --count answers",
    "miscounts": "counters lose a round of every answer",
    "dies": "the process ends after --count answers",
    "merges": "a chunk of a stream carries two steps",
    "hangs": "no answer after --count answers, status pages go on",
}
BEST, SECOND, RARE = -0.2, -3.2, -12.0
EVERYTHING = 1_000_000
"""Where the counters start: they are as old as the server."""


@dataclass
class Engine:
    """One engine's settings, counters and state."""

    fault: str = "none"
    tokens: int = 0
    """Draft tokens of each round; 0 speculates not at all."""
    count: int = 0
    engines: int = 2
    answered: int = 0
    requests: int = 0
    asked: Counter[tuple[int, ...]] = field(default_factory=Counter)
    """How often each prompt was asked."""
    open: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)
    counters: list[dict[str, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.reset(EVERYTHING)

    def reset(self, value: int) -> None:
        names = ("drafts", "draft_tokens", "accepted", "generated", *map(str, range(self.tokens)))
        self.counters = [dict.fromkeys(names, value) for _ in range(self.engines)]

    def best(self, text: Sequence[int]) -> tuple[int, int, bool]:
        """The two best tokens after a text, and whether they are equally likely."""
        mixed = zlib.crc32(json.dumps(list(text)).encode())
        first = 100 + mixed % 700
        return first, first + 1, mixed % 7 == 0

    def logprob(self, text: Sequence[int], token: int) -> float:
        first, second, tied = self.best(text)
        return BEST if token == first or (tied and token == second) else SECOND if token == second else RARE

    def guess(self, text: Sequence[int]) -> int:
        """What the draft proposes after a text."""
        first, second, _ = self.best(text)
        return second if zlib.crc32(json.dumps(["draft", *text]).encode()) % 3 == 0 else first

    def choose(self, text: Sequence[int], sample: random.Random | None, ties: bool) -> int:
        """The target's token: the best, or one that is sampled."""
        first, second, tied = self.best(text)
        if sample is not None:
            return sample.choices((first, second, first + 2), (0.5, 0.3, 0.2))[0]
        return second if tied and ties else first

    def answer(self, prompt: Sequence[int], most: int, sample: random.Random | None) -> dict[str, Any]:
        """One answer with its rounds: tokens, and accepted draft tokens of each round."""
        with self.lock:
            self.requests += 1
            self.asked[tuple(prompt)] += 1
            again = self.asked[tuple(prompt)] % 2 == 0
            ties = self.fault == "ties" or (self.fault == "noisy" and again)
        tokens = [self.choose(prompt, sample, ties)]
        rounds: list[int] = []
        sizes = [1]
        steps = 0
        while len(tokens) < most:
            skipped = self.fault == "no-drafts" or (self.fault == "sparse" and steps % 3)
            drafts = 0 if skipped else self.tokens
            steps += 1
            accepted = 0
            while accepted < drafts:
                text = [*prompt, *tokens]
                guessed, right = self.guess(text), self.choose(text, sample, ties)
                if guessed != right and self.fault not in ("accept-all", "loops"):
                    break
                tokens.append(guessed)
                accepted += 1
            tokens.append(self.choose([*prompt, *tokens], sample, ties))
            rounds += [accepted] if drafts else []
            sizes.append(accepted + 1)
        tokens = tokens[:most]
        if self.fault == "wrong-token" and prompt[0] % 4 == 0 and len(tokens) > 3:
            tokens[3] = 99
        if self.fault == "loops":
            tokens = [*tokens[:8], *[55] * (len(tokens) - 8)]
        return {"tokens": tokens, "rounds": rounds, "steps": steps, "sizes": sizes}

    def chunks(self, one: dict[str, Any]) -> list[list[int]]:
        """An answer's tokens as a stream carries them: those of each step."""
        left, chunks = list(one["tokens"]), []
        for size in one["sizes"]:
            chunks += [left[:size]] if left[:size] else []
            left = left[size:]
        if self.fault == "merges":
            chunks = [
                [*first, *second] for first, second in zip_longest(chunks[::2], chunks[1::2], fillvalue=[])
            ]
        return chunks

    def record(self, answers: Sequence[dict[str, Any]]) -> None:
        """Count what was answered, as the fault has it."""
        with self.lock:
            self.answered += 1
            counters = self.counters[self.answered % self.engines]
            for one in answers:
                rounds = one["rounds"][1:] if self.fault == "miscounts" else one["rounds"]
                counters["drafts"] += len(rounds)
                counters["draft_tokens"] += self.tokens * len(rounds)
                counters["accepted"] += sum(rounds)
                counters["generated"] += len(one["tokens"])
                for place in range(self.tokens):
                    counters[str(place)] += sum(accepted > place for accepted in rounds)
            if self.fault == "foreign" and self.answered > self.count:
                counters["generated"] += 7
            if self.fault == "restarts" and self.answered == self.count + 1:
                self.reset(0)
            if self.fault == "falls" and self.answered > self.count:
                self.reset(EVERYTHING // (self.answered + 1))

    def page(self) -> str:
        """The metrics page."""
        lines = []
        names = {"generated": "vllm:generation_tokens"}
        if self.tokens:
            names |= {
                "drafts": "vllm:spec_decode_num_drafts",
                "draft_tokens": "vllm:spec_decode_num_draft_tokens",
                "accepted": "vllm:spec_decode_num_accepted_tokens",
            }
        for key, name in names.items():
            lines.append(f"# TYPE {name} counter")
            for number, counters in enumerate(self.counters):
                lines.append(f'{name}_total{{engine="{number}",model_name="m"}} {counters[key]}.0')
        lines += self._positions()
        lines.append(f'vllm:num_requests_running{{engine="0"}} {self.open}.0')
        return "\n".join(lines) + "\n"

    def _positions(self) -> list[str]:
        name = "vllm:spec_decode_num_accepted_tokens_per_pos"
        rows = [
            f'{name}_total{{engine="{number}",model_name="m",position="{place}"}} {counters[str(place)]}.0'
            for number, counters in enumerate(self.counters)
            for place in range(self.tokens)
        ]
        return [f"# TYPE {name} counter", *rows] if rows else []
