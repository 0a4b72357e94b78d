"""docs/streaming.md explains every counter, reason and verdict, and the flow's view stays small."""

from __future__ import annotations

from pathlib import Path

import pytest

from tasks.execute import numbers
from tasks.stream.models import CaptureCounters, CaptureManifest, CaptureSummary
from tasks.stream.reasons import REASONS, reason_of_marker
from tasks.stream.recorded import VERDICTS

TEXT = (Path(__file__).parents[4] / "docs" / "streaming.md").read_text(encoding="utf-8")
MANY = 10**9
FULL = CaptureCounters(
    requests=MANY,
    rejected=dict.fromkeys(REASONS, MANY),
    recorded=dict.fromkeys(VERDICTS, MANY),
    sources=dict.fromkeys(("generated", "recorded", "served"), MANY),
    dropped=dict.fromkeys(("unusable", "too_large", "recorded"), MANY),
)
LOG = {
    "digest": "0" * 64, "samples": 1000, "tokens": MANY, "trainable_tokens": MANY, "distinct_tokens": MANY,
    "bytes": MANY, "splits": {"train": 900, "held_out": 50, "evaluate": 50}, "counters": FULL,
}  # fmt: skip


@pytest.mark.parametrize("words", [REASONS, VERDICTS])
def test_every_word_is_explained_as_in_the_code(words: dict[str, str]) -> None:
    missing = [word for word, meaning in words.items() if f"| `{word}` | {meaning}" not in TEXT]
    assert not missing


def test_every_counter_is_explained() -> None:
    names = set(CaptureCounters.model_fields) - {"rejected", "recorded", "sources", "dropped", "seconds"}
    assert not [name for name in names if f"`{name}`" not in TEXT]


def test_every_counter_reaches_the_stages_metrics() -> None:
    manifest = CaptureManifest(log="log", target="t", layer_ids=(1,), hidden_size=1, dtype="float32", **LOG)
    metrics = numbers(manifest.model_dump(mode="json"))
    assert all(metrics[f"counters/rejected/{reason}"] == MANY for reason in REASONS)
    assert metrics["counters/requests"] == MANY and "counters/swept" in metrics


def test_what_the_flow_reads_of_a_thousand_samples_is_far_below_a_megabyte() -> None:
    summary = CaptureSummary(prompts=1000, consumed=True, lost_shown=("x" * 500,) * 3, **LOG)
    assert len(summary.model_dump_json()) < 10_000


@pytest.mark.parametrize(
    ("marker", "reason"),
    [
        ({"error": "no space for 'k' within 45 s (90 tries)"}, "store_full"),
        ({"error": "x", "reason": "store_full"}, "store_full"),
        ({"error": "x", "reason": "not_finite"}, "not_finite"),
        ({"error": "x", "reason": "too_large"}, "too_large"),
        ({"error": "x", "reason": "transfer_failed"}, "transfer_failed"),
        ({"error": "x", "reason": "store_down"}, "store_down"),
        ({"error": "no space", "reason": "writer_failed"}, "writer_error"),
        ({"error": "put of 'k' answered -200: the store is full"}, "store_full"),
        ({"error": "hidden_states is not finite"}, "writer_error"),
        ({}, "writer_error"),
    ],
)
def test_markers_are_told_apart(marker: dict[str, object], reason: str) -> None:
    assert reason_of_marker(marker) == reason
