"""The prompts that come with the project: each is asked, none twice, and none resembles another."""

from __future__ import annotations

from collections import Counter
from importlib.resources import files

from profiles.load import load_profile
from tasks.prompts.load import load_prompts


def test_every_prompt_of_the_project_is_asked() -> None:
    folder = files("profiles") / "prompts"
    rows = [
        line
        for side in ("train", "evaluate")
        for file in (folder / side).iterdir()
        for line in file.read_text(encoding="utf-8").splitlines()
        if line.strip()
    ]
    whole = {"prompts": {"train_per_domain": None, "evaluate_per_domain": None}}
    found = load_prompts(load_profile("laptop", whole).profile)
    dropped = Counter(found.counts.train.dropped) + Counter(found.counts.evaluate.dropped)
    assert not dropped, "duplicates, near duplicates and prompts like an evaluation prompt are left out"
    assert len(found.prompts) == len(rows) and not found.skipped
    assert len(load_prompts(load_profile("laptop").profile).prompts) == 9 * (64 + 12)
