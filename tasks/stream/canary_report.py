"""What the canaries of a capture saw; part of its manifest."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict

from tasks.stage import write_atomic


class CanaryReport(BaseModel):
    """Whether captured states were proved to be those that made the answers, and on what."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    checked: bool = False
    """The target's logits were recomputed from captured states, and its own tokens were the largest."""
    not_checked: str = ""
    """Why that could not be done; empty where it was."""
    runs: int = 0
    """Times that the probes were asked."""
    answer_tokens: int = 0
    """Answer positions of the probes, all of them checked if `checked`."""
    largest_gap: float = 0.0
    """Largest logit minus the answer token's, over all positions: 0 but for ties."""
    layer_ids_announced: bool = False
    """The server said which layers it captures. Otherwise their number and the last one were checked."""
    layer_links: tuple[float, ...] = ()
    """Similarity of each captured layer to the next one on the probes; training compares with it."""
    prompt_tokens: int = 0
    """Tokens that the probes cost the target."""
    generated_tokens: int = 0


def read_report(path: Path) -> CanaryReport:
    """The stored report; an empty one if there is none yet."""
    if not path.exists():
        return CanaryReport()
    return CanaryReport.model_validate_json(path.read_text(encoding="utf-8"))


def save_report(path: Path, report: CanaryReport) -> None:
    """Replace the stored report."""
    write_atomic(path, report.model_dump_json())
