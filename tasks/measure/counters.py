"""vLLM's speculative-decoding counters: read, summed over engines, and compared as differences.

The counters live as long as the server process and never reset, so a value means something only as the
difference of two scrapes. Every engine (data parallelism) has its own series; a series that falls,
disappears or was created anew belongs to a restarted process, one that appears later to an engine that
joined with a past of its own; the measurement is then invalid.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from tasks.errors import ServiceError

DRAFTS = "vllm:spec_decode_num_drafts"
DRAFT_TOKENS = "vllm:spec_decode_num_draft_tokens"
ACCEPTED = "vllm:spec_decode_num_accepted_tokens"
ACCEPTED_PER_POSITION = "vllm:spec_decode_num_accepted_tokens_per_pos"
GENERATED = "vllm:generation_tokens"
_NAMES = frozenset({DRAFTS, DRAFT_TOKENS, ACCEPTED, ACCEPTED_PER_POSITION, GENERATED})

Series = tuple[str, tuple[tuple[str, str], ...]]
"""Counter name without `_total`, and its sorted labels."""


@dataclass(frozen=True)
class Scrape:
    """One reading of `/metrics`: counter values and creation times (seconds since the epoch) by series."""

    values: Mapping[Series, float]
    created: Mapping[Series, float]

    @property
    def has_speculation(self) -> bool:
        """Whether the server counts drafts at all; a server without a draft does not."""
        return any(name == DRAFTS for name, _ in self.values)


@dataclass(frozen=True)
class SpecDelta:
    """What happened between two scrapes, summed over engines."""

    drafts: int
    """Verification rounds."""
    draft_tokens: int
    accepted: int
    per_position: tuple[int, ...]
    """Rounds in which draft token i was accepted."""
    generated: int
    """Output tokens of all requests, whoever sent them."""
    invalid: str = ""
    """Why the difference cannot be used; empty if it can."""


def parse_scrape(text: str, *, where: str = "") -> Scrape:
    """Read the counters out of a Prometheus text page.

    Raises:
        ServiceError: The page is not in Prometheus' text format.
    """
    try:
        samples = [s for family in text_string_to_metric_families(text) for s in family.samples]
    except ValueError as error:
        raise ServiceError(
            f"the metrics page cannot be read: {error}",
            where=where,
            hint="check that the URL is a vLLM server and that nothing rewrites its /metrics page",
        ) from error
    values: dict[Series, float] = {}
    created: dict[Series, float] = {}
    for sample in samples:
        name, kind = _split(sample.name)
        if name in _NAMES and kind:
            target = values if kind == "total" else created
            target[(name, tuple(sorted(sample.labels.items())))] = float(sample.value)
    return Scrape(values, created)


def delta(before: Scrape, after: Scrape) -> SpecDelta:
    """Difference of two scrapes of one server; `invalid` says if the server restarted in between."""
    return SpecDelta(
        drafts=_difference(before, after, DRAFTS),
        draft_tokens=_difference(before, after, DRAFT_TOKENS),
        accepted=_difference(before, after, ACCEPTED),
        per_position=_per_position(before, after),
        generated=_difference(before, after, GENERATED),
        invalid=_restart(before, after),
    )


def _split(sample: str) -> tuple[str, str]:
    for kind in ("total", "created"):
        if sample.endswith("_" + kind):
            return sample[: -len(kind) - 1], kind
    return sample, ""


def _difference(before: Scrape, after: Scrape, name: str) -> int:
    grown = (
        value - before.values.get(series, 0.0) for series, value in after.values.items() if series[0] == name
    )
    return round(sum(grown))


def _per_position(before: Scrape, after: Scrape) -> tuple[int, ...]:
    by_position: dict[int, float] = {}
    for series, value in after.values.items():
        if series[0] == ACCEPTED_PER_POSITION:
            position = int(dict(series[1])["position"])
            grown = value - before.values.get(series, 0.0)
            by_position[position] = by_position.get(position, 0.0) + grown
    return tuple(round(by_position.get(i, 0.0)) for i in range(max(by_position, default=-1) + 1))


def _restart(before: Scrape, after: Scrape) -> str:
    for series, old in before.values.items():
        new = after.values.get(series)
        if new is None:
            return f"counter {_show(series)} disappeared: the server was restarted while it was measured"
        if new < old:
            return f"counter {_show(series)} fell from {old:g} to {new:g}: the server was restarted"
    for series, born in before.created.items():
        if series in after.created and after.created[series] > born:
            return f"counter {_show(series)} was created again: the server was restarted"
    known = {name for name, _ in before.values}
    for series, value in after.values.items():
        if series[0] in known and series not in before.values and value:
            return f"counter {_show(series)} appeared with {value:g}: another engine joined the server"
    return ""


def _show(series: Series) -> str:
    name, labels = series
    return name + "{" + ", ".join(f'{key}="{value}"' for key, value in labels) + "}"
