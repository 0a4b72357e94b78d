"""How training is asked to stop, and what says where it runs and how far it is."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from types import FrameType

import torch

from tasks.errors import StageInputError

Report = Callable[[float, float, Mapping[str, float], str], None]


class Stopped(Exception):
    """A signal asked to stop; the state has been saved."""


class StopFlag:
    """Turns SIGTERM and SIGINT into a flag that the loop reads between steps."""

    def __init__(self) -> None:
        self.raised = False

    def install(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._raise)

    def _raise(self, _number: int, _frame: FrameType | None) -> None:
        self.raised = True


def choose_device(wanted: str, local_rank: int = 0) -> torch.device:
    """Device named by the profile; `auto` takes a GPU if there is one.

    Args:
        local_rank: Number of this process on its node: of several GPUs each rank takes its own.
    """
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if wanted == "cpu" or (wanted == "auto" and gpus == 0):
        return torch.device("cpu")
    if gpus == 0:
        raise StageInputError(
            "train.device is cuda, but torch sees no GPU",
            where="train.device",
            hint="use auto or cpu, or run on a machine with a GPU",
        )
    if local_rank >= gpus:
        raise StageInputError(
            f"rank {local_rank} of this node needs a GPU of its own, but torch sees {gpus}",
            where="train.scale.ranks",
            hint=f"set train.scale.ranks to {gpus} at most, or train.device to cpu",
        )
    return torch.device("cuda", local_rank) if local_rank else torch.device("cuda")
