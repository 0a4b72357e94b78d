"""Upstream's command line where there is no accelerator: `python upstream_shims.py COUNTS.json train ...`.

`speculators` 0.9.0 trains on a GPU only. On a machine without one, four of its names are replaced before its
own `main` runs: the trainer's device, the device of its checkpoints, the device type of its autocast, and
the accelerator's synchronisation. Nothing of what it computes, asks or writes is changed, and with an
accelerator nothing at all is replaced. The tokens of every step, which upstream computes for its own
tokens-per-second figure, are added up and written to COUNTS.json.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch

SHIMS = "trainer device, checkpoint device, autocast device, accelerator.synchronize"


def train_on_cpu() -> None:
    """Let upstream's trainer run on the CPU."""
    from speculators.train import checkpointer, trainer

    trainer.get_local_rank = lambda: "cpu"
    checkpointer.get_current_device = lambda: "cpu"
    torch.accelerator.synchronize = lambda *_: None
    set_up = trainer.Trainer.setup_trainer

    def setup_trainer(self: Any) -> None:
        self.device_type = "cpu"
        set_up(self)

    trainer.Trainer.setup_trainer = setup_trainer


def count_tokens(path: Path) -> None:
    """Keep `{"tokens", "steps"}` of all optimizer steps in `path`; needs `--log-freq 1`."""
    from speculators.train import trainer

    counted = {"tokens": 0, "steps": 0}
    profile = trainer._StepTimer.profile

    def counting(self: Any, num_tokens: int) -> Any:
        counted["tokens"] += num_tokens
        counted["steps"] += 1
        path.write_text(json.dumps(counted), encoding="utf-8")
        return profile(self, num_tokens)

    trainer._StepTimer.profile = counting


def main() -> None:
    counts = Path(sys.argv.pop(1))
    if not torch.accelerator.is_available():
        train_on_cpu()
    count_tokens(counts)
    from speculators.cli import app

    app()


if __name__ == "__main__":
    main()
