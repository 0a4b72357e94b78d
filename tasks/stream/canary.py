"""Canaries: proof, on short greedy answers, that the captured states are the ones that made the answer.

Wrong layers, rows moved by one, another request's states, or a broken extraction of a hybrid model all have
the right shape. They do not have logits under which the answer's tokens are the largest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tasks.errors import ServiceError
from tasks.prompts.render import load_tokenizer
from tasks.stream.announced import require_same_revision, require_same_tap
from tasks.stream.canary_cause import cause_of
from tasks.stream.canary_report import read_report, save_report
from tasks.stream.continuity import layer_links, mean_links
from tasks.stream.explain import QuickCheck, answer_rows
from tasks.stream.head import OutputHead, open_head
from tasks.stream.probe import Probed, Prober
from tasks.stream.sample import Answer, Request
from tasks.stream.settings import CaptureSettings

TEXTS = (
    "Monday, Tuesday, Wednesday, Thursday,",
    "A short recipe for pancakes. You need flour, milk and",
    "def add(a, b):\n    return a + b\n\n\ndef subtract(a, b):\n",
)
"""Beginnings that a language model goes on with; no chat template, so that none can be wrong."""
MAX_NEW_TOKENS = 16


class Canary:
    """Asks the probes at the start and after every `every` samples, and looks at each sample for a moment.

    Args:
        prober: Asks.
        prompts: Token ids of the probes; none switches the canary off.
        max_new_tokens: Longest answer of a probe.
        head: The target's output head; None where its logits cannot be recomputed.
        why_not: The reason for that.
        layer_ids: Captured layers; compared with the server's, if it says which they are.
        revision: Commit of the target; compared with the server's, if both are known.
        tap_point: Where the states of a target with Attention Residuals are taken; must be the server's.
        every: Samples between two runs of the probes.
        path: Where the report is kept.
    """

    def __init__(
        self,
        *,
        prober: Prober,
        prompts: Sequence[tuple[int, ...]],
        max_new_tokens: int,
        head: OutputHead | None,
        why_not: str,
        layer_ids: tuple[int, ...],
        revision: str | None,
        every: int,
        path: Path,
        tap_point: str | None = None,
    ):
        self._prober = prober
        self._prompts = prompts
        self._max_new_tokens = max_new_tokens
        self._head = head
        self._why_not = why_not
        self._quick = QuickCheck(head) if head is not None and prompts else None
        self._layer_ids = layer_ids
        self._revision = revision
        self._tap_point = tap_point
        self._every = every
        self._path = path
        self._samples = 0
        self._ended = False
        self._due = asyncio.Event()

    def sample(self, states: Tensor, request: Request, answer: Answer) -> None:
        """Check one captured sample quickly; `states [T, L, H]`.

        Raises:
            SampleRejected: These states did not make this answer.
        """
        if self._quick is not None:
            # How a log's answer was sampled is not known.
            temperature = None if request.source == "recorded" else request.temperature
            self._quick(states, len(request.prompt_ids), answer.answer_ids, temperature)

    def sample_done(self) -> None:
        """One more prompt is finished."""
        self._samples += 1
        if self._prompts and self._samples % self._every == 0:
            self._due.set()

    async def beside(self, work: Coroutine[Any, Any, None]) -> None:
        """Do `work` and ask the probes whenever they are due; the first failure ends both.

        Probes that are under way when `work` ends are waited for: what they leave unread stays in the store.
        """
        working, watching = asyncio.create_task(work), asyncio.create_task(self._watch())
        try:
            done, _ = await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            self._ended = True
            self._due.set()
            await watching
        finally:
            for task in (working, watching):
                task.cancel()
            await asyncio.gather(working, watching, return_exceptions=True)

    async def _watch(self) -> None:
        while True:
            await self._due.wait()
            self._due.clear()
            if self._ended:
                return
            await self.check()

    async def check(self) -> None:
        """Ask all probes at once, and judge them.

        Raises:
            ServiceError: The states are not those of the answers, or not of the layers asked for.
        """
        if not self._prompts:
            return
        asked = (self._prober.probe(ids, self._max_new_tokens) for ids in self._prompts)
        done = await asyncio.gather(*asked, return_exceptions=True)
        probed = [one for one in done if isinstance(one, Probed)]
        for one in done:
            if isinstance(one, BaseException):
                raise one
        announced = [self._same_target(one) for one in probed]
        gap = await asyncio.to_thread(self._largest_gap, probed)
        self._record(probed, gap, all(announced))

    def _same_target(self, one: Probed) -> bool:
        """Whether the server says which layers it captures: ours then, as must be revision and tap point."""
        require_same_revision(one.answer.manifest, self._revision)
        require_same_tap(one.answer.manifest, self._tap_point)
        told = one.answer.manifest.get("metadata", {}).get("layer_ids")
        if told is not None and tuple(told) != self._layer_ids:
            raise ServiceError(
                f"the server captures layers {list(told)}, the profile needs {list(self._layer_ids)}",
                where="target.aux_layer_ids",
                hint="set target.aux_layer_ids to the server's (the last layer is always added)",
            )
        return told is not None

    def _largest_gap(self, probed: Sequence[Probed]) -> float:
        """Largest gap over all answer positions.

        Raises:
            ServiceError: It is no tie.
        """
        if self._head is None:
            return 0.0
        rows = [answer_rows(one.states, one.prompt_tokens, one.answer.answer_ids, None) for one in probed]
        states, tokens = (
            torch.cat(parts) for parts in zip(*((r.states, r.tokens) for r in rows), strict=True)
        )
        judged = self._head.judge(states, tokens)
        start = 0
        for number, one in enumerate(rows):
            end = start + len(one.tokens)
            wrong = (~judged.greedy[start:end]).nonzero().flatten().tolist()
            if wrong:
                worst = start + wrong[0]
                raise ServiceError(
                    "the last captured layer does not explain the target's greedy answer: another token has "
                    f"a larger logit at {len(wrong)} of {len(one.tokens)} positions of probe {number} (first "
                    f"at answer token {wrong[0]}: by {float(judged.gap[worst]):.3g}, a tie is up to "
                    f"{float(judged.tie[worst]):.2g})",
                    where="the target's hidden states",
                    hint=cause_of(self._head, number, probed),
                )
            start = end
        return float(judged.gap.max())

    def _record(self, probed: Sequence[Probed], gap: float, announced: bool) -> None:
        old = read_report(self._path)
        report = old.model_copy(
            update={
                "checked": self._head is not None,
                "not_checked": self._why_not,
                "runs": old.runs + 1,
                "answer_tokens": old.answer_tokens + sum(len(one.answer.answer_ids) for one in probed),
                "largest_gap": max(old.largest_gap, gap),
                "layer_ids_announced": announced,
                "layer_links": mean_links([layer_links(one.states) for one in probed]),
                "prompt_tokens": old.prompt_tokens + sum(one.prompt_tokens for one in probed),
                "generated_tokens": old.generated_tokens + sum(len(one.answer.answer_ids) for one in probed),
            }
        )
        save_report(self._path, report)
        if self._head is None and not old.runs:
            print(f"NOT CHECKED: whether hidden states explain the answers: {self._why_not}", flush=True)


def open_canary(settings: CaptureSettings, prober: Prober, path: Path) -> Canary:
    """The canary that the settings ask for; `canary_every` 0 gives one that does nothing."""
    target = Path(settings.tokenizer)
    prompts: list[tuple[int, ...]] = []
    head, why_not = None, "the canary is switched off"
    if settings.canary_every:
        tokenizer = load_tokenizer(target, trust_remote_code=settings.trust_remote_code)
        prompts = [tuple(tokenizer.encode(text))[: settings.max_model_len // 2] for text in TEXTS]
        head, why_not = open_head(target, settings.dtype)
    return Canary(
        prober=prober,
        prompts=prompts,
        max_new_tokens=min(MAX_NEW_TOKENS, settings.max_model_len // 2),
        head=head,
        why_not=why_not,
        layer_ids=settings.layer_ids,
        revision=settings.answers.target_revision,
        every=settings.canary_every,
        path=path,
        tap_point=settings.tap_point,
    )
