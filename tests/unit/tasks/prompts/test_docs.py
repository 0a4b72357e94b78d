"""Every example of `docs/prompts.md` is read as it stands there."""

from __future__ import annotations

import json
import re
from pathlib import Path

import yaml

from profiles.prompting import Prompts
from tasks.prompts.prompt import RecordedAnswer
from tasks.prompts.rows import Row, row_of

TEXT = (Path(__file__).parents[4] / "docs" / "prompts.md").read_text("utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", TEXT, flags=re.DOTALL)


def rows() -> dict[str, Row]:
    lines = [line for block in blocks("jsonl") for line in block.splitlines()]
    found = [row_of(json.loads(line), "doc", number) for number, line in enumerate(lines, start=1)]
    return {row.id: row for row in found}


def test_rows_give_the_samples_that_the_text_promises() -> None:
    found = rows()
    assert len(found) == 10
    samples = {name: [sample.id for sample in row.samples] for name, row in found.items()}
    assert samples["talk"] == ["talk.t1", "talk.t2"] and len(samples["cold"]) == 2
    assert all(len(names) == 1 for name, names in samples.items() if name not in ("talk", "cold"))
    assert found["doc-2"].domain == "writing" and len(found["doc-3"].messages) == 3
    assert found["cold"].tools and found["r5"].tools
    answers = {name: found[name].samples[0].recorded for name in ("r1", "r2", "r3", "r4", "r5")}
    assert {answer.text for answer in answers.values() if answer} == {
        "Hello!"
    } and None not in answers.values()
    assert answers["r1"] == RecordedAnswer(
        "Hello!", "A greeting.", (), "org/model", None, None, True, "stop", 9, 5
    )


def test_fields_are_all_there_and_valid() -> None:
    (block,) = blocks("yaml")
    values = yaml.safe_load(block)
    Prompts.model_validate(values)
    assert set(values) == set(Prompts.model_fields)
