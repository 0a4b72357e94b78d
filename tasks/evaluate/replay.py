"""Replay: the acceptance length of a draft on the target's own greedy answers, without serving it.

A program of its own: `python -m tasks.evaluate.replay config.json`. It reads the `evaluate` split of the
hidden-state log, drafts a block at every answer token in one forward pass, and walks.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.errors import StageInputError
from tasks.evaluate.walk import walk
from tasks.stage import write_atomic
from tasks.stream.log import HiddenStateLog, IndexEntry

if TYPE_CHECKING:
    import torch

PROGRESS_EVERY_S = 1.0


def replay_entry(
    model: Any,
    hidden_states: torch.Tensor,
    token_ids: torch.Tensor,
    entry: IndexEntry,
    lengths: Iterable[int],
) -> dict[int, dict[str, Any]]:
    """Walk one answer, once for each of `lengths` (most answer tokens emitted).

    Args:
        hidden_states: `[T, layers, H]`; the last layer is not used by the draft.
        token_ids: `[T]`.

    Returns:
        By length: rounds, accepted, per_position, jumps and tokens (answer tokens emitted).
    """
    import torch

    from tasks.evaluate.draft_model import draft_blocks

    lengths = list(lengths)
    answer = list(entry.answer_ids)
    starts = min(max(lengths), len(answer)) - 1
    drafted: list[list[int]] = []
    if starts > 0:
        anchors = torch.arange(entry.prompt_tokens, entry.prompt_tokens + starts)
        rows = entry.prompt_tokens + starts
        aux = hidden_states[:rows, : len(model.target_layer_ids)].float().flatten(1)
        drafted = draft_blocks(model, aux, token_ids[:rows].long(), anchors).tolist()
    result = {}
    for length in lengths:
        done = walk(drafted, answer, length)
        row = {
            **asdict(done.counts),
            "jumps": done.jumps,
            "tokens": min(length, len(answer)),
        }
        result[length] = row
    return result


def work(config: dict[str, Any]) -> None:
    """Replay a whole log.

    `config`: draft_dir, target_dir, log_dir, out (JSONL, one line a prompt), progress, lengths
    (answer tokens to walk), threads (0 leaves them to torch).

    Raises:
        StageInputError: The log does not fit the draft, or holds no evaluation answers.
    """
    import torch

    from tasks.evaluate.draft_model import load_draft
    from tasks.processes.child import ProgressFile

    if config["threads"]:
        torch.set_num_threads(config["threads"])
    progress = ProgressFile(Path(config["progress"]))
    model = load_draft(Path(config["draft_dir"]), Path(config["target_dir"]))
    log = HiddenStateLog(Path(config["log_dir"]))
    entries = sorted(log.entries("evaluate"), key=lambda entry: entry.i)
    lines, told = [], 0.0
    for done, entry in enumerate(entries, start=1):
        states, ids = log.load(entry)
        check_fits(model, states, config)
        walks = replay_entry(model, states, ids, entry, config["lengths"])
        lines.append(json.dumps(_row(entry, ids, walks)))
        if time.monotonic() - told > PROGRESS_EVERY_S or done == len(entries):
            told = time.monotonic()
            progress.write(done, len(entries), "answers")
    write_atomic(Path(config["out"]), "".join(line + "\n" for line in lines))


def _row(entry: IndexEntry, ids: torch.Tensor, walks: dict[int, dict[str, Any]]) -> dict[str, Any]:
    return {
        "prompt_id": entry.prompt_id,
        "domain": entry.domain,
        "prompt_ids": ids[: entry.prompt_tokens].tolist(),
        "answer_ids": list(entry.answer_ids),
        "walks": {str(length): row for length, row in walks.items()},
    }


def check_fits(model: Any, states: torch.Tensor, config: dict[str, Any]) -> None:
    """Refuse a log whose layers or width are not those that the draft reads.

    Raises:
        StageInputError: They differ.
    """
    layers, width = (
        len(model.target_layer_ids),
        model.fc.in_features // len(model.target_layer_ids),
    )
    if states.shape[1] < layers or states.shape[2] != width:
        raise StageInputError(
            f"the draft reads {layers} layers of width {width}; the log holds {states.shape[1]} "
            f"of width {states.shape[2]}",
            where=str(config["log_dir"]),
            hint="the draft was trained for another target or other layers",
        )


def main() -> None:
    """Entry point of the child process."""
    from tasks.processes.child import child_main

    # The draft and the target are local folders; nothing may be looked up.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    child_main(work)


if __name__ == "__main__":
    main()
