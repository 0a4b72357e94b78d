"""Published values from `profiles/references/`: shown beside a run's own results, with source and conditions.

They say what others measured, elsewhere and otherwise. Nothing decides by them, and two of them are never put
into one ratio unless one source measured both on the same inputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from typing import Annotated

import yaml
from pydantic import Field, ValidationError, model_validator

from profiles.part import Part, Positive
from profiles.text import DuplicateKey, NotAMapping, parse_source

FOLDER = "references"


class Published(Part):
    """One published value; None is "not published", never a guess."""

    name: Annotated[str, Field(min_length=1)]
    """What was measured."""
    value: float | None
    """The value as published; empty where the source does not give it."""
    unit: Annotated[str, Field(min_length=1)]
    """Unit, for example `tokens per round`."""
    without_draft: float | None = None
    """The same figure without a draft, if the source gives it."""
    same_inputs: bool = False
    """Both figures come from the same inputs, so that their ratio is a speed-up."""
    conditions: str = ""
    """Conditions of this value beyond those of the whole reference."""

    @property
    def speed_up(self) -> float | None:
        """Ratio of both figures of this source; None unless it measured them on the same inputs."""
        if self.value is None or not self.without_draft or not self.same_inputs:
            return None
        return self.value / self.without_draft


class Table(Part):
    """A published table: one row for each target and drafter."""

    columns: Annotated[tuple[str, ...], Field(min_length=1)]
    """Names of the columns."""
    unit: str
    """Unit of all values."""
    rows: dict[str, dict[str, tuple[float, ...]]]
    """Target -> drafter -> one value for each column."""

    @model_validator(mode="after")
    def _rows_fit(self) -> Table:
        for target, drafters in self.rows.items():
            for drafter, values in drafters.items():
                if len(values) != len(self.columns):
                    raise ValueError(
                        f"rows.{target}.{drafter} has {len(values)} values for {len(self.columns)} columns"
                    )
        return self

    def macro(self, target: str, drafter: str) -> float:
        """Unweighted mean over the columns."""
        values = self.rows[target][drafter]
        return sum(values) / len(values)

    def gain(self, target: str, drafter: str, over: str) -> float:
        """Gain of one drafter's macro average over another's, as a share: 0.163 is 16.3 %."""
        return self.macro(target, drafter) / self.macro(target, over) - 1


class Reference(Part):
    """What one source published about one draft."""

    title: Annotated[str, Field(min_length=1)]
    """The draft and the target."""
    targets: Annotated[tuple[str, ...], Field(min_length=1)]
    """Parts of a target's name for which this reference is shown first, in lower case."""
    source: Annotated[str, Field(min_length=1)]
    """Where it was published."""
    date: Annotated[str, Field(pattern=r"^\d{4}-\d{2}(-\d{2})?$")]
    """When it was published: year and month, and the day where it is known."""
    conditions: dict[str, str | int | float | None]
    """How it was measured; an empty value is "not published"."""
    block_size: Positive | None = None
    """Draft tokens of a round, if published."""
    values: tuple[Published, ...] = ()
    """Values."""
    table: Table | None = None
    """Table of the source."""
    notes: tuple[str, ...] = ()
    """What a reader must know to read the values."""

    def concerns(self, target: str) -> bool:
        """Whether this reference is about a target of this name."""
        name = target.lower()
        return any(part in name for part in self.targets)


def load_references() -> tuple[Reference, ...]:
    """Every published reference, newest first.

    Raises:
        ValueError: A file that is not one, with its name; the project's own tests read them all.
    """
    folder = resources.files("profiles") / FOLDER
    files = sorted((item for item in folder.iterdir() if item.name.endswith(".yaml")), key=lambda f: f.name)
    found = [_parsed(item.read_text(encoding="utf-8"), item.name) for item in files]
    return tuple(sorted(found, key=lambda one: one.date, reverse=True))


def _parsed(text: str, name: str) -> Reference:
    try:
        return Reference.model_validate(parse_source(text, name).values)
    except (ValidationError, DuplicateKey, NotAMapping, yaml.YAMLError) as error:
        raise ValueError(f"profiles/{FOLDER}/{name} is not a reference: {error}") from error


def for_target(references: Sequence[Reference], target: str) -> tuple[Reference, ...]:
    """References about this target first, then the others; the order within each stays."""
    return tuple(sorted(references, key=lambda one: not one.concerns(target)))
