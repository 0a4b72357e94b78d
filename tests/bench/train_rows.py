"""The rows of `make bench STAGES=train`, by the name that `ROWS` takes.

`forward` stands beside them in `comparisons`. `quality` starts servers for its captures and takes longest;
`warm` is the part of it that begins with an earlier draft.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import train_cost
import train_quality
import train_step
from rows import Row
from train_world import TrainSize, TrainWorld, make_train_world

FORWARD = "forward"
ON_WORLD: dict[str, Callable[[TrainWorld], list[Row]]] = {
    "step": train_step.rows,
    "data_wait": train_cost.data_wait,
    "checkpoint": train_cost.checkpoint,
    "cost": train_cost.cost,
}
"""Name -> rows on the target and the captures of `train_world`, which are made once for all of them."""
QUALITY, WARM = "quality", "warm"
NAMES = (FORWARD, *ON_WORLD, QUALITY, WARM)


def measure_train(names: Sequence[str], folder: Path, size: TrainSize | None = None) -> list[Row]:
    """Rows called `names` (all, if there are none), in the order above; without `forward`."""
    folder.mkdir()
    chosen = [work for name, work in ON_WORLD.items() if not names or name in names]
    found: list[Row] = []
    if chosen:
        world = make_train_world(size or TrainSize(), folder)
        found += [row for work in chosen for row in work(world)]
    if not names or {QUALITY, WARM} & set(names):
        own = folder / QUALITY
        own.mkdir()
        ablations = train_quality.ablations if not names or QUALITY in names else train_quality.warm_rows
        found += train_quality.rows(own, ablations)
    return found
