"""Does an exported draft compute what the trained one computes? Both get the same random captures."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tasks.errors import JobError
from tasks.train import adapter
from tasks.train.data import Batch

_DOCUMENTS = (7, 12)
_BLOCKS_EACH = 2
# Relative to the largest logit; the same sums in the same order differ by nothing, so this is generous.
_TOLERANCE = 1e-5


@dataclass(frozen=True)
class Probe:
    """Random captures of two documents, and blocks in both."""

    batch: Batch
    anchors: Tensor

    @classmethod
    def of(cls, model: Any) -> Probe:
        """Captures of the shape that `model` reads; the same ones each time."""
        random = torch.Generator().manual_seed(0)
        block, hidden = model.block_size, model.config.transformer_layer_config.hidden_size
        lengths = [length + block for length in _DOCUMENTS]
        total = sum(lengths)
        positions = torch.cat([torch.arange(length) for length in lengths])
        starts = torch.tensor([0, lengths[0]])
        anchors = (starts[:, None] + torch.arange(1, 1 + _BLOCKS_EACH) * 3).reshape(-1)
        vocabulary = model.config.transformer_layer_config.vocab_size
        batch = Batch(
            token_ids=torch.randint(0, vocabulary, (total,), generator=random),
            aux_states=torch.randn(total, model.fc.in_features, generator=random),
            last_states=torch.randn(total, hidden, generator=random),
            loss_mask=torch.ones(total, dtype=torch.bool),
            position_ids=positions,
            document_ids=torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths)),
        )
        return cls(batch, anchors)

    def logits(self, model: Any) -> dict[str, Tensor]:
        """What `model` (float32, on the CPU) proposes, and how confident it is where it has that head."""
        training = model.training
        model.eval()
        tokens, confidence = adapter.block_logits(model, self.batch, self.anchors)
        model.train(training)
        return {"logits": tokens} | ({} if confidence is None else {"confidence": confidence})

    def check(self, folder: Path, target_dir: Path, wanted: dict[str, Tensor]) -> None:
        """Load the draft in `folder` and compare.

        Args:
            wanted: `logits` of the trained draft.

        Raises:
            JobError: It computes something else, or cannot be loaded.
        """
        try:
            loaded = adapter.load_draft(folder, target_dir, torch.float32)
        except (OSError, ValueError, KeyError, RuntimeError) as error:
            raise _broken(folder, f"it cannot be loaded: {error}") from error
        found = self.logits(loaded)
        if found.keys() != wanted.keys():
            raise _broken(folder, f"it has {sorted(found)}, the trained draft {sorted(wanted)}")
        for name, value in wanted.items():
            apart = float((found[name] - value).abs().max())
            if not apart <= _TOLERANCE * max(1.0, float(value.abs().max())):
                raise _broken(
                    folder, f"its {name} are up to {apart:.3g} away from those of the trained draft"
                )


def _broken(folder: Path, what: str) -> JobError:
    return JobError(
        f"the exported draft is not the trained one: {what}",
        where=str(folder),
        hint="train again with resume --from train; if it repeats, the versions of the trainer do not fit",
    )
