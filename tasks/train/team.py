"""All ranks as one: the leader says what to do, and every rank does it with its own learner."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from tasks.train import adapter
from tasks.train.checkpoint import Checkpoints, Position
from tasks.train.data import Batch
from tasks.train.learner import Learner, Pack, Update
from tasks.train.loss import MetricSums
from tasks.train.saving import Saver
from tasks.train.steps import Share, deal
from tasks.train.stopping import StopFlag


class Team:
    """The leader's side.

    Args:
        learner: Its own part.
        checkpoints: Where all ranks save to.
        folder: The stage's folder.
        stop: Asks this rank to stop; a signal to any rank stops all.
    """

    def __init__(self, learner: Learner, checkpoints: Checkpoints, folder: Path, stop: StopFlag):
        self.learner = learner
        self.ranks = learner.ranks
        self.checkpoints = checkpoints
        self.saver = Saver(checkpoints)
        self.stop = stop
        self._folder = folder

    @property
    def model(self) -> nn.Module:
        """The draft for measuring and export, with the weights that it was last given."""
        return self.learner.model

    def autocast(self) -> AbstractContextManager[Any]:
        return self.learner.autocast()

    def update(self, packs: Sequence[Batch], step: int, factor: float) -> Update:
        """One optimizer step over packs that the ranks share out among themselves."""
        shares = deal([pack.tokens for pack in packs], self.ranks.size)
        self.ranks.tell(("update", step, factor, shares))
        for rank, own in enumerate(shares):
            for share in own if rank else ():
                self.ranks.send_batch(packs[share.pack].to(self.learner.device), rank)
        mine = [Pack(share.pack, packs[share.pack], share.counts) for share in shares[0]]
        return self.learner.update(mine, step, factor, self.ranks.size > 1 and self.stop.raised)

    def take_sums(self) -> MetricSums:
        """Sums of the metrics since the last call, over all ranks."""
        self.ranks.tell(("sums",))
        total = MetricSums()
        for sums in self.ranks.gather(self.learner.take_sums()):
            for one in sums:
                total.add(one)
        return total

    def weights(self) -> dict[str, Tensor]:
        """A copy of all trained weights."""
        self.ranks.tell(("weights",))
        found = self.learner.whole_weights()
        assert found is not None, "this is the leader"
        return found

    def show_newest(self) -> None:
        """Let `model` hold the newest weights."""
        if not self.learner.shares_model:
            self.learner.show_weights(self.weights())

    def shown(self) -> dict[str, Tensor]:
        """Trained weights that `model` holds; live tensors."""
        return adapter.trained_state(self.model)

    def save(self, position: Position) -> None:
        """Have a checkpoint written beside training."""
        self.ranks.tell(("save", position))
        self.saver.save(position, self.learner.state())

    def load(self, step: int) -> None:
        """Continue from a checkpoint."""
        self.ranks.tell(("load", step))
        self.learner.load(self.checkpoints, step)

    def keep_bad_packs(self, step: int) -> None:
        """Have the packs of a step that was not finite written, for inspection."""
        self.ranks.tell(("keep", step))
        self.learner.keep_bad_packs(self._folder, step)

    def end(self) -> None:
        """Let the followers finish what they write, and go."""
        self.ranks.tell(("end",))


def follow(learner: Learner, checkpoints: Checkpoints, folder: Path, stop: StopFlag) -> None:
    """A follower's side: do what the leader says until it says that training has ended.

    Raises:
        JobError: This rank could not write its part of a checkpoint.
    """
    saver = Saver(checkpoints)
    while True:
        word, *values = learner.ranks.hear()
        if word == "update":
            _update(learner, stop, *values)
        elif word == "sums":
            learner.ranks.gather(learner.take_sums())
        elif word == "weights":
            learner.whole_weights()
        elif word == "save":
            saver.save(values[0], learner.state())
        elif word == "load":
            learner.load(checkpoints, values[0])
        elif word == "keep":
            learner.keep_bad_packs(folder, values[0])
        else:
            saver.wait()
            return
        saver.complete()


def _update(
    learner: Learner, stop: StopFlag, step: int, factor: float, shares: Sequence[Sequence[Share]]
) -> None:
    own = shares[learner.ranks.rank]
    packs = [Pack(share.pack, learner.ranks.receive_batch(learner.device), share.counts) for share in own]
    learner.update(packs, step, factor, stop.raised)
