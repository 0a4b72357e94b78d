"""Upstream's command line with a record of its steps: `python step_recorder.py OUT.json FOLDER train ...`.

OUT.json gets one row a step: seconds of its forward pass, backward pass with clipping, and optimizer, by
upstream's own timer, its tokens and its loss; and the seconds that this file itself took inside them. FOLDER,
unless it is `-`, gets each step's batch and anchors. Without an accelerator `upstream_shims` lets it run.
"""

from __future__ import annotations

import atexit
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from upstream_shims import train_on_cpu

_TENSORS = (
    "hidden_states", "input_ids", "loss_mask", "verifier_last_hidden_states", "document_ids", "position_ids",
)  # fmt: skip


class Recorder:
    """What upstream's trainer does, step after step.

    Args:
        out: Gets the rows when the process ends.
        folder: Gets batches and anchors, or None.
    """

    def __init__(self, out: Path, folder: Path | None):
        self._out = out
        self._folder = folder
        self._rows: list[dict[str, float]] = []
        self._anchors: tuple[torch.Tensor, torch.Tensor] | None = None
        self._loss: torch.Tensor | None = None
        self._own_s = 0.0

    def install(self) -> None:
        """Stand between the trainer and its model, its choice of anchors and its timer."""
        from speculators.models.dflash import core
        from speculators.models.dspark import DSparkDraftModel
        from speculators.train import trainer

        choose, forward = core.select_anchors, DSparkDraftModel.forward
        profile = trainer._StepTimer.profile

        def choosing(*arguments: Any) -> Any:
            self._anchors = choose(*arguments)
            return self._anchors

        def running(model: Any, *arguments: Any, **batch: Any) -> Any:
            result = forward(model, *arguments, **batch)
            if model.training:
                self._measured(lambda: self._keep(batch, result[1]))
            return result

        def profiling(timer: Any, tokens: int) -> Any:
            found = profile(timer, tokens)
            self._rows[-1] |= {
                "forward_s": found["fwd_ms"] / 1000,
                "backward_s": found["bwd_ms"] / 1000,
                "optimizer_s": found["opt_ms"] / 1000,
                "wait_s": found["fetch_ms"] / 1000,
                "tokens": tokens,
            }
            return found

        core.select_anchors, DSparkDraftModel.forward = choosing, running
        trainer._StepTimer.profile = profiling
        atexit.register(self._write)

    def _measured(self, work: Callable[[], None]) -> None:
        started = time.perf_counter()
        work()
        self._own_s += time.perf_counter() - started

    def _keep(self, batch: dict[str, Any], loss: torch.Tensor) -> None:
        if self._folder is not None:
            assert self._anchors is not None, "the forward pass chose them"
            kept = {name: batch[name].clone() for name in _TENSORS}
            kept |= {"anchors": self._anchors[0], "chosen": self._anchors[1]}
            torch.save(kept, self._folder / f"{len(self._rows)}.pt")
        self._rows.append({"loss": float(loss.detach())})

    def _write(self) -> None:
        row = {"steps": self._rows, "own_s": self._own_s}
        self._out.write_text(json.dumps(row), encoding="utf-8")


def main() -> None:
    out, folder = Path(sys.argv.pop(1)), sys.argv.pop(1)
    if not torch.accelerator.is_available():
        train_on_cpu()
    Recorder(out, None if folder == "-" else Path(folder)).install()
    from speculators.cli import app

    app()


if __name__ == "__main__":
    main()
