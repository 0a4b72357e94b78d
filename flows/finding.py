"""Finds run folders: by flow run, and those whose process has ended without closing them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tasks.run_folder import RunFolder
from tasks.tracking import owner_is_gone


def runs_of(root: Path) -> Iterator[RunFolder]:
    """Every run under the root, newest first."""
    for path in sorted(root.glob("*/run.json"), reverse=True):
        if (path.parent / "profile.json").is_file():
            yield RunFolder(path.parent)


def run_of_flow_run(root: Path, flow_run_id: str) -> RunFolder | None:
    """The run that this flow run made or resumed last; None if it has not made one yet."""
    for run in runs_of(root):
        if flow_run_id and flow_run_id in (
            run.facts().get("flow_run_id"),
            *run.facts().get("flow_run_ids", []),
        ):
            return run
    return None


def is_live(run: RunFolder) -> bool:
    """Whether a process may still be working on this run."""
    facts = run.facts()
    return "ended_at" not in facts and not owner_is_gone(str(facts.get("owner", "")))


def abandoned(root: Path) -> Iterator[RunFolder]:
    """Runs that were not closed and whose process has ended."""
    for run in runs_of(root):
        facts = run.facts()
        if "ended_at" not in facts and owner_is_gone(str(facts.get("owner", ""))):
            yield run
