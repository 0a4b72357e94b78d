"""Batches of a growing log: the first epoch in the order of capture, later ones shuffled over all samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from tasks.stream.log import IndexEntry
from tasks.stream.retention import consumed, mark_consumed
from tasks.train.checkpoint import Position
from tasks.train.data import Batch, CaptureReader, Save, Step, make_batch, pack, with_losses
from tasks.train.growing import GrowingLog, Patience
from tasks.train.ordered import OrderedPlan
from tasks.train.prefetch import Prefetch
from tasks.train.settings import Overlap

MEASUREMENTS_IN_ONE_EPOCH = 5


class GrowingBatches:
    """The batches of every epoch, while the samples come in.

    Args:
        log: The growing log.
        reader: Reads samples.
        overlap: What is known of the log in advance.
        prompt_epochs: First epochs whose loss also sees the prompts, but for what all of them begin with.
        prefetch_bytes: Memory for batches that are read ahead; 0 reads none ahead.
        patience: How to wait.
        judge: Looks at the samples of each batch of the first epoch before they are trained; raises to refuse
            one.
    """

    def __init__(
        self,
        log: GrowingLog,
        reader: CaptureReader,
        overlap: Overlap,
        patience: Patience,
        judge: Callable[[Sequence[IndexEntry]], None],
        *,
        batch_tokens: int,
        seed: int,
        epochs: int,
        prompt_epochs: int,
        prefetch_bytes: int = 0,
    ):
        self._log = log
        self._reader = reader
        self._overlap = overlap
        self._patience = patience
        self._judge = judge
        self._batch_tokens = batch_tokens
        self._seed = seed
        self._epochs = epochs
        self._prompt_epochs = prompt_epochs
        self._opening = Opening()
        self._plan = OrderedPlan(batch_tokens, overlap.window_bytes)
        self._marked = 0
        self._completed = False
        self._later: dict[int, list[list[int]]] = {}
        self._ahead: Prefetch[tuple[int, int], Batch] = Prefetch(
            lambda key: make_batch(reader, self._entries(key)),
            lambda key: reader.token_bytes * sum(entry.tokens for entry in self._entries(key)),
            prefetch_bytes,
        )

    @property
    def waited_s(self) -> float:
        return self._ahead.waited_s

    def first(self, wanted: int) -> list[IndexEntry]:
        """The first samples with something to learn, `wanted` or, if the log ends before, all."""
        while len(found := self._trainable()) < wanted and not self._plan.closed:
            if not self._feed():
                self._patience.pause(0, self._overlap.train_prompts * self._epochs)
        return found[:wanted]

    def present(self) -> list[IndexEntry]:
        """Samples with something to learn that no checkpoint has consumed: their files are there."""
        gone = consumed(self._log.folder)
        return [entry for entry in self._trainable() if entry.i not in gone]

    def fits(self, place: Position) -> bool:
        """Plan again what the checkpoint has passed; False if the log holds other samples there."""
        self._feed()
        plan = OrderedPlan(self._batch_tokens, self._overlap.window_bytes, place.cuts)
        self._fill(plan)
        passed = 0
        if place.order_end > 0:
            ends = [batch.end for batch in plan.batches]
            passed = ends.index(place.order_end) + 1 if place.order_end in ends else 0
            if passed == 0 or plan.batches[passed - 1].digest != place.order_digest:
                return False
        if place.epoch == 0 and place.step_in_epoch != passed:
            return False
        if place.epoch > 0 and not (plan.closed and passed == len(plan.batches)):
            # The capture was taken up again, for samples that had been lost: the first epoch goes on.
            if (place.epoch, place.step_in_epoch) != (1, 0):
                return False
            place.epoch, place.step_in_epoch = 0, passed
        self._plan = plan
        self._learn_opening(self._log.train[: place.order_end])
        self.saved(place)  # a kill may have come between that checkpoint and its mark
        return True

    def is_over(self, place: Position, save: Save | None) -> bool:
        if place.epoch > 0:
            return place.step_in_epoch == len(self._shuffled(place.epoch))
        while len(self._plan.batches) <= place.step_in_epoch and not self._plan.closed:
            if self._feed():
                continue
            if save is None:
                return False
            self._wait(place, save)
        return len(self._plan.batches) <= place.step_in_epoch

    def complete(self, place: Position) -> None:
        while not self._plan.closed:
            if not self._feed():
                self._patience.pause(*self.amount(place))
        self._completed = True

    def take(self, place: Position) -> Step:
        key = (place.epoch, place.step_in_epoch)
        entries = self._entries(key)
        if place.epoch == 0:
            self._judge(entries)
        read = self._ahead.take(key, self._after(place))
        if place.epoch > 0:
            batch = with_losses(read, self._with_prompts(entries, place.epoch))
            return Step(batch, _numbers(entries))
        planned = self._plan.batches[place.step_in_epoch]
        self._learn_opening(entries)
        batch = with_losses(read, self._with_prompts(entries, place.epoch))
        due = self._epochs == 1 and self._crosses_mark(place.order_end, planned.end)
        return Step(batch, _numbers(entries), planned.release, due)

    def _entries(self, key: tuple[int, int]) -> list[IndexEntry]:
        """Samples of the batch at (epoch, step); only of one that is planned."""
        epoch, step = key
        if epoch == 0:
            return list(self._plan.batches[step].entries)
        found = self._trainable()
        return [found[k] for k in self._shuffled(epoch)[step]]

    def _after(self, place: Position) -> Iterator[tuple[int, int]]:
        """Places of the batches behind this one in its epoch that are planned already."""
        ends = len(self._plan.batches) if place.epoch == 0 else len(self._shuffled(place.epoch))
        return ((place.epoch, step) for step in range(place.step_in_epoch + 1, ends))

    def advance(self, place: Position) -> None:
        if place.epoch == 0:
            planned = self._plan.batches[place.step_in_epoch]
            place.order_end, place.order_digest = planned.end, planned.digest
            place.cuts = [cut for cut in self._plan.cuts if cut <= planned.end]
        place.step_in_epoch += 1

    def saved(self, place: Position) -> None:
        """Let the writer of a window delete what the checkpoint has consumed."""
        if self._overlap.window_bytes is None or place.order_end <= self._marked:
            return
        mark_consumed(self._log.folder, [entry.i for entry in self._log.train[: place.order_end]])
        self._marked = place.order_end

    def amount(self, place: Position) -> tuple[float, float]:
        """In samples, by the number of prompts: an epoch counts alike, whatever was lost on the way."""
        planned = max(self._overlap.train_prompts, 1)
        if place.epoch == 0:
            share = min(place.order_end / planned, 1.0)
        elif place.epoch < self._epochs:
            share = place.step_in_epoch / max(len(self._shuffled(place.epoch)), 1)
        else:
            share = 0.0
        return round(planned * (place.epoch + share)), planned * self._epochs

    def close(self) -> None:
        self._ahead.close()

    def all_held_out_before(self, place: Position) -> bool:
        """Whether every held-out sample stands in the log before the place that training has reached."""
        if place.epoch > 0 or self._completed:
            return True
        if place.order_end == 0:
            return False
        return self._log.held_before[place.order_end - 1] >= self._overlap.held_out_prompts

    def _feed(self) -> bool:
        """Take in what is new; False if nothing is."""
        changed = self._log.poll()
        if changed:
            self._fill(self._plan)
            self._patience.reset()
        return changed

    def _fill(self, plan: OrderedPlan) -> None:
        for place in range(plan.end, len(self._log.train)):
            plan.add(self._log.train[place], self._log.kept[place])
        if self._log.ended and not plan.closed:
            plan.close()

    def _wait(self, place: Position, save: Save) -> None:
        """Pause; where the writer waits for us, let it have what a checkpoint frees."""
        window = self._overlap.window_bytes
        if window is not None and self._log.is_full(self._marked, window):
            if place.order_end > self._marked:
                save()
                return
            if self._plan.cut():
                return
        self._patience.pause(*self.amount(place))

    def _shuffled(self, epoch: int) -> list[list[int]]:
        if epoch not in self._later:
            lengths = [entry.tokens for entry in self._trainable()]
            self._later[epoch] = pack(lengths, self._batch_tokens, self._seed, epoch)
        return self._later[epoch]

    def _trainable(self) -> list[IndexEntry]:
        return [entry for entry in self._log.train if entry.trainable_tokens > 0]

    def _learn_opening(self, entries: Sequence[IndexEntry]) -> None:
        if self._prompt_epochs == 0:
            return
        for entry in entries:
            if entry.trainable_tokens > 0:
                self._opening.narrow(entry.prompt_ids())

    def _with_prompts(self, entries: list[IndexEntry], epoch: int) -> list[IndexEntry]:
        if epoch >= self._prompt_epochs:
            return entries
        shared = max(len(self._opening.ids or ()), 1)
        return [replace(entry, prompt_tokens=min(entry.prompt_tokens, shared)) for entry in entries]

    def _crosses_mark(self, before: int, after: int) -> bool:
        stride = -(-self._overlap.train_prompts // MEASUREMENTS_IN_ONE_EPOCH) or 1
        return before // stride != after // stride


class Opening:
    """What all prompts so far begin with (the chat template's opening): it teaches nothing.

    Attributes:
        ids: Its tokens; None before the first prompt.
    """

    def __init__(self) -> None:
        self.ids: list[int] | None = None

    def narrow(self, prompt: Sequence[int]) -> None:
        """Take one more prompt into account."""
        if self.ids is None:
            self.ids = list(prompt)
            return
        same = 0
        for ours, theirs in zip(self.ids, prompt, strict=False):
            if ours != theirs:
                break
            same += 1
        self.ids = self.ids[:same]


def _numbers(entries: Sequence[IndexEntry]) -> tuple[int, ...]:
    return tuple(entry.i for entry in entries)
