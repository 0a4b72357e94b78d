"""A finished log as an offline data set for upstream: `python -m tasks.stream.offline LOG FOLDER`.

`speculators` reads `hs_<row>.safetensors` for each row of an Arrow data set. The log's files already have these
names, so only the rows are written: number i of the log is row i. Train with them by

    speculators train ... --data-path FOLDER --hidden-states-path LOG --on-missing skip

Rows without a sample (prompts that were dropped) hold one token, and `skip` passes over them. Evaluation
answers are in the data set without a loss, so that nothing is learned from them.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from tasks.errors import StageInputError
from tasks.stream.log import END, HiddenStateLog, IndexEntry


def write_offline_dataset(log_folder: Path, folder: Path) -> int:
    """Write the rows of a finished log with all its files; return how many rows hold a sample.

    Raises:
        StageInputError: The log is not finished, or retention deleted files of it.
    """
    from datasets import Dataset

    entries = {entry.i: entry for entry in HiddenStateLog(log_folder).entries()}
    _require_whole(log_folder, entries)
    rows = [_row(entries.get(number)) for number in range(max(entries, default=-1) + 1)]
    data = Dataset.from_list(rows)
    data.set_format(type="torch")
    data.save_to_disk(str(folder))
    return len(entries)


def _require_whole(log_folder: Path, entries: dict[int, IndexEntry]) -> None:
    if not (log_folder / END).exists():
        raise StageInputError(
            "the hidden-state log is not finished",
            where=str(log_folder / END),
            hint="resume the run until stage stream is complete",
        )
    gone = [entry for entry in entries.values() if not (log_folder / entry.file_name).exists()]
    if gone:
        raise StageInputError(
            f"{len(gone)} of {len(entries)} samples have no file, {gone[0].file_name} is the first",
            where=str(log_folder),
            hint="an offline data set needs a log that was captured with stream.retention: all",
        )


def _row(entry: IndexEntry | None) -> dict[str, Any]:
    if entry is None:
        return {"input_ids": [0], "loss_mask": [0], "seq_len": 1}
    # The last generated token was never an input, so it has no hidden state.
    ids = [*entry.prompt_ids(), *entry.answer_ids][: entry.tokens]
    learned = 0 if entry.split == "evaluate" else 1
    mask = [0] * entry.prompt_tokens + [learned] * entry.trainable_tokens
    return {"input_ids": ids, "loss_mask": mask, "seq_len": entry.tokens}


def main(arguments: list[str]) -> int:
    """Command line; returns its exit code."""
    if len(arguments) != 2:
        print("usage: python -m tasks.stream.offline LOG FOLDER", file=sys.stderr)
        return 2
    try:
        count = write_offline_dataset(Path(arguments[0]), Path(arguments[1]))
    except StageInputError as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{count} samples; rows in {arguments[1]}, hidden states in {arguments[0]}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
