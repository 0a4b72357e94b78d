"""Rates of a run's parts: the small document that a pilot is fitted to and that a plan reads.

    {"format": 1, "profile": "laptop", "runs": ["20261201-..."], "samples": 36, "steps": 10, "servers": 1,
     "train_ranks": 1, "packs_per_step": 1, "batch_tokens": 512, "concurrency": 8,
     "rates": {"serve_start_s": {"value": 46.2, "unit": "s", "source": "measured", "where": "run ..."}, ...}}

`docs/plan.md` says what each rate is. A document may be written by hand with published figures.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from profiles.schema import Profile
from tasks.errors import UsageError
from tasks.plan.figures import Figure
from tasks.run_folder import run_root
from tasks.stage import write_atomic

RateName = Literal[
    "validate_s",
    "serve_start_s",
    "capture_start_s",
    "capture_tokens_per_s",
    "store_bytes_per_s",
    "sample_tokens",
    "train_start_s",
    "step_s",
    "step_fill",
    "held_out_sample_s",
    "arm_start_s",
    "replay_answer_s",
    "live_token_s",
    "publish_s",
    "around_s",
]
UNITS: dict[str, str] = {
    "capture_tokens_per_s": "tokens/s of one server",
    "store_bytes_per_s": "B/s",
    "sample_tokens": "tokens",
    "step_fill": "share of batch_tokens",
    "held_out_sample_s": "s a sample and measurement",
    "replay_answer_s": "s an answer",
    "live_token_s": "s an output token",
    "arm_start_s": "s a start",
    "step_s": "s a step",
}


class Rates(BaseModel):
    """What the parts of a run take, and of how large a run that is known."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal[1] = 1
    profile: str = ""
    runs: tuple[str, ...] = ()
    """Runs that were measured; empty for published or estimated rates."""
    samples: int = Field(0, ge=0)
    """Captured samples of that run: far beyond them a plan extrapolates."""
    steps: int = Field(0, ge=0)
    servers: int = Field(1, ge=1)
    """Servers that captured together."""
    train_ranks: int = Field(1, ge=1)
    packs_per_step: int = Field(1, ge=1)
    batch_tokens: int = Field(ge=1)
    concurrency: int = Field(1, ge=1)
    """Requests in flight at one server."""
    load_levels: int = Field(0, ge=0)
    """Levels of load that each arm was measured at: their time is part of `arm_start_s`."""
    max_new_tokens: int | None = Field(None, ge=1)
    """Longest answer of that run: with another one, samples have another length."""
    draft_vocab_size: int | None = Field(None, ge=1)
    """Of the draft that was trained: a small pilot sees fewer tokens than the profile allows."""
    rates: dict[RateName, Figure]

    @field_validator("rates")
    @classmethod
    def _rates_are_numbers(cls, rates: dict[RateName, Figure]) -> dict[RateName, Figure]:
        for name, rate in rates.items():
            if rate.value is None or not 0 <= rate.value < float("inf"):
                raise ValueError(f"rates.{name} needs a value of 0 or more; leave an unknown one out")
            if rate.source == "unknown":
                raise ValueError(f"rates.{name} must say whether it is measured, published or estimated")
        return rates

    def get(self, name: RateName) -> Figure:
        """The rate, or an unknown figure."""
        return self.rates.get(name) or Figure(unit=UNITS.get(name, "s"))

    def value(self, name: RateName) -> float | None:
        return self.get(name).value


RATE_NAMES: tuple[str, ...] = get_args(RateName)


def levels_of(profile: Profile) -> int:
    """Levels of load that every arm is measured at."""
    return len(profile.evaluate.load.concurrency) + len(profile.evaluate.load.request_rates)


def write_rates(path: Path, rates: Rates) -> None:
    """Write the document; readers see the old one or the new one."""
    write_atomic(path, rates.model_dump_json(indent=2) + "\n")


def read_rates(path: Path) -> Rates:
    """Read a document.

    Raises:
        UsageError: It cannot be read, or is not one.
    """
    try:
        return Rates.model_validate_json(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the rates cannot be read: {error}", where=str(path), hint=_HINT) from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"])
        raise UsageError(
            f"this is not a document of rates: {field}: {first['msg']}", where=str(path), hint=_HINT
        ) from None


_HINT = f"give a run of this run root, or a file as docs/plan.md describes it; rates: {', '.join(RATE_NAMES)}"


def rates_of(spec: str) -> Rates:
    """Rates from a file, or fitted to a finished run: its id, or its folder.

    Raises:
        UsageError: There is neither, or the run cannot be fitted.
    """
    from tasks.plan.fit import fit_run
    from tasks.run_folder import RunFolder, open_run

    path = Path(spec).expanduser()
    if path.is_file():
        return read_rates(path)
    if (path / "profile.json").is_file():
        return fit_run(RunFolder(path.absolute()))
    return fit_run(open_run(run_root(), spec))
