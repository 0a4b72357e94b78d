"""A number of a plan together with how it is known."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

Source = Literal["measured", "published", "estimated", "profile", "unknown"]
"""`measured`: in the run that `where` names. `published`: by others. `estimated`: by the rule in `where`.
`profile`: the profile says so. `unknown`: there is no number."""


class Figure(BaseModel):
    """A value and its origin; an unknown one is None, never a guess."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    value: float | None = None
    unit: str = ""
    source: Source = "unknown"
    where: str = ""

    @property
    def origin(self) -> str:
        """For a table: `measured (run ...)`."""
        return f"{self.source} ({self.where})" if self.where else self.source


def estimated(value: float | None, unit: str, where: str) -> Figure:
    """An estimate by the rule `where`; unknown where there is no value."""
    if value is None:
        return Figure(unit=unit)
    return Figure(value=value, unit=unit, source="estimated", where=where)
