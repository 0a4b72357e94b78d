"""A draft is loaded once in a process of its own, as a server would load it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tasks.errors import StageInputError
from tasks.evaluate.draft_load import work


def test_a_whole_draft_loads_and_a_damaged_one_says_why(
    tmp_path: Path, draft_dir: Path, target_dir: Path
) -> None:
    progress = tmp_path / "progress.jsonl"
    config = {"draft_dir": str(draft_dir), "target_dir": str(target_dir), "progress": str(progress)}
    work(config)
    assert json.loads(progress.read_text().splitlines()[-1])["done"] == 1
    damaged = Path(shutil.copytree(draft_dir, tmp_path / "damaged"))
    (damaged / "config.json").unlink()
    with pytest.raises(StageInputError, match="the draft cannot be loaded"):
        work({**config, "draft_dir": str(damaged)})
