"""The fake target in the sizes of the laptop's real one, so that both give the same manifests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from streaming_bench import KEY, SERVED, FakeTarget, Master
from vllm_conversation import Spoken

LENGTH, HIDDEN = 1024, 576
LAYER_IDS = (2, 8, 15, 22, 28, 30)
LAYERS = len(LAYER_IDS)
"""`target.max_model_len`, hidden size and captured layers of the laptop profile."""


@contextmanager
def conforming_fake(folder: Path) -> Iterator[Spoken]:
    """A running fake target with a master of its own."""
    master = Master(folder)
    try:
        target = FakeTarget(
            folder,
            None,
            master,
            layers=LAYERS,
            layer_ids=",".join(map(str, LAYER_IDS)),
            hidden=HIDDEN,
            vocab=1000,
            max_model_len=LENGTH,
        )
        try:
            url = f"http://127.0.0.1:{target.port}"
            yield Spoken(url, SERVED, KEY, master.address, LENGTH)
        finally:
            target.kill()
    finally:
        master.kill()
