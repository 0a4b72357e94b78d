"""Token counts for the draft vocabulary."""

from __future__ import annotations

from pathlib import Path

import torch

from tasks.stream.log import LogWriter
from tasks.stream.token_counts import read_token_counts, write_token_counts


def test_only_the_train_split_counts_and_the_last_answer_token_too(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path / "log")
    for i, split in enumerate(("train", "evaluate")):
        writer.append(
            i=i,
            prompt_id=split,
            domain="qa",
            split=split,  # type: ignore[arg-type]
            prompt_tokens=2,
            answer_ids=(7, 7, 9),
            finish_reason="stop",
            hidden_states=torch.randn(4, 2, 4),
            token_ids=torch.tensor([5, 7, 7, 7]),
        )
    write_token_counts(tmp_path / "log", tmp_path / "counts.json")
    counts = read_token_counts(tmp_path / "counts.json")
    assert counts["answer"] == {7: 2, 9: 1}
    assert counts["all"] == {5: 1, 7: 3, 9: 1}
