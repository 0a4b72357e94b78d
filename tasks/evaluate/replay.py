"""Replay: the acceptance length of a draft on the target's own greedy answers, without serving it.

A program of its own: `python -m tasks.evaluate.replay config.json`. It reads the `evaluate` split of the
hidden-state log, drafts a block at every answer token in one pass over a prompt, and walks: for every number
of draft tokens and every answer length that is asked for. Beside the rows it leaves the slots
(`replay_slots`) and what it thinks of the draft (`draft_check_try`).
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Collection, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.errors import StageInputError
from tasks.evaluate.walk import Walk, walk
from tasks.stage import write_atomic
from tasks.stream.log import HiddenStateLog, IndexEntry

if TYPE_CHECKING:
    import torch

    from tasks.evaluate.replay_pass import Blocks, Document
    from tasks.evaluate.replay_target import TargetHead

PROGRESS_EVERY_S = 1.0


def check_file(replay: Path) -> Path:
    """The verdict on the draft, beside a replay's JSONL."""
    return replay.with_name(f"{replay.stem}.check.json")


def slots_file(replay: Path) -> Path:
    """The slots, beside a replay's JSONL."""
    return replay.with_name(f"{replay.stem}.slots.safetensors")


def document_of(
    model: Any, states: torch.Tensor, ids: torch.Tensor, entry: IndexEntry, length: int
) -> Document:
    """What a pass over one answer needs.

    Args:
        states: `[T, layers, H]`, the auxiliary layers and then the last one.
        ids: `[T]`.
        length: Answer tokens that are walked at most.
    """
    import torch

    from tasks.evaluate.replay_pass import Document

    answer = torch.tensor(entry.answer_ids, dtype=torch.long)
    starts = max(0, min(length, len(answer)) - 1)
    rows = entry.prompt_tokens + max(starts - 1, 0)  # a block sees what lies strictly before its anchor
    return Document(
        aux=states[:rows, : len(model.target_layer_ids)],
        last=states[:, -1],
        ids=torch.cat([ids[: entry.prompt_tokens].long(), answer]),
        prompt_tokens=entry.prompt_tokens,
        starts=starts,
    )


def walks_of(
    drafted: Sequence[Sequence[int]],
    fewer: Sequence[Sequence[Sequence[int]]],
    answer: Sequence[int],
    lengths: Collection[int],
) -> tuple[dict[str, dict[str, Any]], Walk]:
    """Walk one answer for each of `lengths` (most answer tokens emitted) and each number of draft tokens.

    Args:
        drafted: Whole blocks, one for each anchor.
        fewer: Blocks of 1, 2, ... K-1 tokens, or nothing: then whole blocks are cut.

    Returns:
        By length: rounds, accepted, per_position, jumps, tokens (answer tokens emitted) and by_tokens; and
        the longest walk over whole blocks.
    """
    result, longest = {}, walk((), ())
    most = len(drafted[0]) if drafted else 0
    for length in sorted(lengths):
        longest = walk(drafted, answer, length)
        cut = [walk(blocks, answer, length) for blocks in fewer] or [
            walk(drafted, answer, length, tokens) for tokens in range(1, most)
        ]
        result[str(length)] = {
            **asdict(longest.counts),
            "jumps": longest.jumps,
            "tokens": min(length, len(answer)),
            "by_tokens": [asdict(one.counts) for one in [*cut, longest][: max(most, 1)]],
        }
    return result, longest


def row_of(
    entry: IndexEntry, ids: torch.Tensor, walks: dict[str, Any], longest: Walk, blocks: Blocks | None
) -> dict[str, Any]:
    """One line of the JSONL."""
    return {
        "prompt_id": entry.prompt_id,
        "domain": entry.domain,
        "prompt_ids": ids[: entry.prompt_tokens].tolist(),
        "answer_ids": list(entry.answer_ids),
        "walks": walks,
        "rounds": [longest.anchors, longest.accepted],
        "overlap": None if blocks is None or blocks.overlap is None else overlap_sums(blocks),
    }


def overlap_sums(blocks: Blocks) -> dict[str, Any]:
    """Sums over anchors, by position: survival (product of overlaps so far), overlap, how many are known."""
    overlap = blocks.overlap
    assert overlap is not None
    survival = overlap.double().cumprod(dim=1)
    return {
        "survival": survival.where(blocks.known, 0.0).sum(dim=0).tolist(),
        "overlap": overlap.double().where(blocks.known, 0.0).sum(dim=0).tolist(),
        "known": blocks.known.sum(dim=0).tolist(),
    }


class Replaying:
    """One draft, loaded, over the documents of a log.

    Args:
        config: As for `work`.
    """

    def __init__(self, config: dict[str, Any]):
        from tasks.evaluate.draft_check_weights import check_weights
        from tasks.evaluate.draft_model import load_draft, most_tokens
        from tasks.evaluate.replay_target import target_head

        draft, target = Path(config["draft_dir"]), Path(config["target_dir"])
        self.notes = check_weights(draft, target)
        self.model = load_draft(draft, target)
        self.tokens = most_tokens(self.model)
        self.lengths: list[int] = config["lengths"]
        self.options: dict[str, Any] = config["options"]
        self.head: TargetHead | None = target_head(self.model, target) if self.options["overlap"] else None

    def blocks(self, document: Document) -> tuple[Blocks | None, list[Any]]:
        """Whole blocks, and those of fewer tokens if they are drafted anew; None where nothing is drafted."""
        from tasks.evaluate.replay_pass import replay_document

        limit = self.options["max_bytes"]
        if document.starts < 1:
            return None, []
        blocks = replay_document(self.model, document, self.head, limit)
        counts = range(1, self.tokens) if self.options["own_blocks"] else ()
        fewer = [
            replay_document(self.model, document, None, limit, count).tokens.tolist() for count in counts
        ]
        return blocks, fewer


def work(config: dict[str, Any]) -> None:
    """Replay a whole log.

    `config`: draft_dir, target_dir, log_dir, out (JSONL, one line a prompt), progress, lengths
    (answer tokens to walk), threads (0 leaves them to torch), options (`evaluate.replay` of the profile),
    record (`TrainingRecord` or null).

    Raises:
        StageInputError: The log does not fit the draft, or the draft does not fit the target.
    """
    import torch

    from tasks.processes.child import ProgressFile

    if config["threads"]:
        torch.set_num_threads(config["threads"])
    progress = ProgressFile(Path(config["progress"]))
    replaying = Replaying(config)
    log = HiddenStateLog(Path(config["log_dir"]))
    replay_log(replaying, log, config, progress)


def replay_log(replaying: Replaying, log: HiddenStateLog, config: dict[str, Any], progress: Any) -> None:
    """Write rows, slots and verdict; the rows appear last."""
    from tasks.evaluate.draft_check_try import Diagnoser
    from tasks.evaluate.replay_slots import SlotsWriter

    out = Path(config["out"])
    entries = sorted(log.entries("evaluate"), key=lambda entry: entry.i)
    diagnoser = Diagnoser(replaying.model, config)
    partial, told = out.with_name(f".{out.name}.part"), 0.0
    with (
        SlotsWriter(slots_file(out), replaying.tokens) as slots,
        open(partial, "w", encoding="utf-8") as lines,
    ):
        for row, entry in enumerate(entries):
            states, ids = log.load(entry)
            check_fits(replaying.model, states, config)
            document = document_of(replaying.model, states, ids, entry, max(replaying.lengths))
            blocks, fewer = replaying.blocks(document)
            drafted = [] if blocks is None else blocks.tokens.tolist()
            walks, longest = walks_of(drafted, fewer, entry.answer_ids, replaying.lengths)
            lines.write(json.dumps(row_of(entry, ids, walks, longest, blocks)) + "\n")
            if blocks is not None:
                slots.add(row, blocks, longest.anchors)
                diagnoser.add(document, blocks)
            if time.monotonic() - told > PROGRESS_EVERY_S or row + 1 == len(entries):
                told = time.monotonic()
                progress.write(row + 1, len(entries), "answers")
        slots.finish()
    verdict = diagnoser.verdict()
    verdict["notes"] = [*replaying.notes, *verdict["notes"]]
    write_atomic(check_file(out), json.dumps(verdict, indent=1))
    os.replace(partial, out)


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
