"""Loads a draft once, in a process of its own: `python -m tasks.evaluate.draft_load CONFIG.json`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any


def work(config: dict[str, Any]) -> None:
    """Load the draft of `draft_dir` for the target of `target_dir`, and write one line of progress.

    Raises:
        StageInputError: It does not load, or lacks a tensor.
    """
    from tasks.evaluate.draft_model import load_draft
    from tasks.processes.child import ProgressFile

    progress = ProgressFile(Path(config["progress"]))
    load_draft(Path(config["draft_dir"]), Path(config["target_dir"]))
    progress.write(1, 1, "drafts")


def main() -> None:
    """Entry point of the child process."""
    from tasks.processes.child import child_main

    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    child_main(work)


if __name__ == "__main__":
    main()
