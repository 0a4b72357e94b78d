"""Runs what takes too long for `make test`, part by part, and writes docs/verified.md.

    make verify                 every part
    make verify PART=kills      one part; the sections of the others stay as they were

A test belongs to a part by its marker: `@pytest.mark.verify("kills")`. Its row shows the first line of its
docstring, its result, its duration, and what it measured (`record_property("tau_macro", 1.62)`).
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import subprocess
import sys
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = ROOT / "docs" / "verified.md"
PARTS = {
    "demo": "The laptop profile as it is, on real engines.",
    "controls": "Results that must come out as they do if the measurement means anything.",
    "hardware": "Doctor, checks and the store's path on this machine.",
    "kills": "What a killed, stopped or interrupted run leaves behind, in every stage.",
    "streaming": "Kills at random moments of a capture and of training; the fake target beside the real one.",
    "streaming_vllm": "Kills while the real target is captured and while its draft trains.",
    "train": "Training on one rank and on two, killed and stopped at random steps, and on two nodes.",
    "evaluate": "Replay against the engine, planted faults, and drafts measured without training.",
    "plan": "Parameter counts against models, and a plan fitted to a pilot against real runs.",
    "arms": "Every arm on real engines, and a server that accepts what it should not.",
    "publish": (
        "A hub that fails and publishers that are killed; secrets that must not get out; "
        "serving what was published."
    ),
    "slurm": "A run on three nodes of an emulated Slurm cluster, and what takes nodes away from it.",
    "prefect": "A real Prefect server, work pool, deployment and worker.",
    "commands": "Every command of the README and of `retrain-dspark --help`.",
    "inputs": "Mistakes of users: one screen, exit code 2, nothing left running.",
    "gate": "How often the decision errs, on rounds of real replays.",
    "ui": "Pages as a user sees them.",
}
HEADER = """# What was verified

Written by `make verify`; a section is replaced when its part runs again. Durations belong to the machine that
the section names.
"""
DEFAULT_TIMEOUT_S = 1800


@dataclass
class Row:
    """One item of a part."""

    what: str
    result: str = "not run"
    seconds: float = 0.0
    measured: dict[str, str] = field(default_factory=dict)


class Recorder:
    """A pytest plugin: keeps the items of one part and remembers how each of them went."""

    def __init__(self, part: str) -> None:
        self.part = part
        self.rows: dict[str, Row] = {}

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        chosen: list[pytest.Item] = []
        for item in items:
            parts = [part for marker in item.iter_markers("verify") for part in marker.args]
            unknown = [part for part in parts if part not in PARTS]
            if unknown or (not parts and item.get_closest_marker("verify")):
                raise pytest.UsageError(
                    f"{item.nodeid}: verify needs one of {', '.join(PARTS)}, not {unknown}"
                )
            if self.part in parts:
                chosen.append(item)
        config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
        items[:] = chosen
        self.rows = {item.nodeid: Row(_description(item)) for item in chosen}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        row = self.rows[report.nodeid]
        row.seconds += report.duration
        row.measured |= {name: str(value) for name, value in report.user_properties}
        if report.when == "call" or report.outcome != "passed":
            row.result = report.outcome
        if report.skipped and isinstance(report.longrepr, tuple):
            row.result = report.longrepr[2].replace("Skipped: ", "skipped: ")


def _description(item: pytest.Item) -> str:
    function = getattr(item, "function", None)
    text = ((function.__doc__ if function else "") or "").strip().splitlines()
    first = text[0].rstrip(".") if text else item.name.removeprefix("test_").replace("_", " ")
    case = re.search(r"\[(.+)\]$", item.name)
    return f"{first} [{case.group(1)}]" if case and text else first


def machine() -> str:
    """Cores, memory and processor; no name that would say whose machine it is."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    info = Path("/proc/cpuinfo")
    names = re.findall(r"model name\s*: (.+)", info.read_text()) if info.exists() else []
    cores = len(os.sched_getaffinity(0))
    return f"{cores} cores, {memory:.0f} GiB, {names[0] if names else platform.machine()}"


def commit() -> str:
    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True).stdout.strip()

    document = DOCUMENT.relative_to(ROOT).as_posix()
    changed = [line for line in git("status", "--porcelain").splitlines() if not line.endswith(document)]
    return (git("rev-parse", "--short=12", "HEAD") or "unknown") + (" with changes" if changed else "")


def section(part: str, rows: list[Row], where: str, source: str, when: datetime) -> str:
    """The part's section: what, where and when, then one line an item."""
    passed = sum(row.result == "passed" for row in rows)
    lines = [
        f"## {part}",
        "",
        f"{PARTS[part]} {passed} of {len(rows)} passed.",
        "",
        f"{when:%Y-%m-%d %H:%M} UTC, commit {source}, {where}, Python {platform.python_version()}",
        "",
        "| item | result | seconds | measured |",
        "|---|---|---|---|",
    ]
    for row in rows:
        measured = ", ".join(f"{name} {value}" for name, value in row.measured.items())
        cells = (row.what, row.result, f"{row.seconds:.1f}", measured)
        lines.append("| " + " | ".join(cell.replace("|", "/").replace("\n", " ") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def replace_section(document: str, part: str, text: str) -> str:
    """Put a part's section into the document, in the order of `PARTS`."""
    found = re.split(r"^## (\w+)$", document, flags=re.MULTILINE)[1:]
    sections = {
        name: f"## {name}{body}".rstrip() + "\n" for name, body in zip(found[::2], found[1::2], strict=True)
    }
    sections[part] = text
    return "\n".join([HEADER, *(sections[name] for name in PARTS if name in sections)])


def verify(part: str, extra: list[str]) -> bool:
    """Run one part; write its section whatever happens; true if all its items passed."""
    recorder = Recorder(part)
    options = [
        "-m",
        "verify",
        "-o",
        f"timeout={DEFAULT_TIMEOUT_S}",
        "--rootdir",
        str(ROOT),
        str(ROOT / "tests"),
    ]
    try:
        status = pytest.main([*options, *extra], plugins=[recorder])
    finally:
        rows = list(recorder.rows.values())
        if rows:
            old = DOCUMENT.read_text(encoding="utf-8") if DOCUMENT.exists() else ""
            text = section(part, rows, machine(), commit(), datetime.now(UTC))
            DOCUMENT.write_text(replace_section(old, part, text), encoding="utf-8")
    if not rows:
        print(f"part '{part}' has no tests", file=sys.stderr)
    return status == pytest.ExitCode.OK and bool(rows)


def main() -> int:
    parser = argparse.ArgumentParser(description="Runs the long checks and writes docs/verified.md.")
    parser.add_argument("--part", action="append", choices=list(PARTS), help="only this part (repeatable)")
    arguments, extra = parser.parse_known_args()
    os.chdir(ROOT)
    results = {part: verify(part, extra) for part in arguments.part or PARTS}
    for part, passed in results.items():
        print(f"{part}: {'passed' if passed else 'FAILED'}")
    return 0 if all(results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
