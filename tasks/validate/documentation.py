"""Writes `docs/hardware.md`: `python -m tasks.validate.documentation > docs/hardware.md`."""

from __future__ import annotations

from tasks.validate.checks import CHECKS

_HEAD = """# What a machine must offer

The *validate* stage runs these checks before anything is started; `retrain-dspark doctor -p PROFILE` runs
them alone. Limits come from the profile's `hardware` section, for each role its own; versions come from
the project's own pins. A check that *fails* stops the run with its remedy, *warn* does not, and *skip* says
why the check does not apply.

A fact that could not be observed never passes a check that needs it. One cause gives one failure: where no
GPU answers, `gpu.count` fails and the checks of GPUs are skipped. `hardware.severity_overrides` takes a
check's outcome for another (`gpu.persistence: skip`). Checks of a *group* look at all nodes at once.

This page is written by `python -m tasks.validate.documentation`.

| Check | Scope | If not met | What it requires | What to do |
|---|---|---|---|---|
"""


def hardware_page() -> str:
    """The page as Markdown, one row a check in the order of their ids."""
    rows = [
        f"| `{id}` | {check.scope} | {check.severity} | {_cell(check.rule)} | {_cell(check.remedy)} |"
        for id, check in sorted(CHECKS.items())
    ]
    return _HEAD + "\n".join(rows) + "\n"


def _cell(text: str) -> str:
    return text[0].upper() + text[1:].replace("|", "\\|")


if __name__ == "__main__":
    print(hardware_page(), end="")
