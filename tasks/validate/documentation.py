"""Writes `docs/hardware.md`: `python -m tasks.validate.documentation > docs/hardware.md`."""

from __future__ import annotations

from tasks.validate.checks import CHECKS

_HEAD = """# What a machine must offer

The *validate* stage runs these checks before anything is started; `retrain-dspark doctor -p PROFILE` runs
them alone. A fact that could not be observed never passes. Limits come from the profile's
`hardware` section; versions come from the project's own pins. A check that *fails* stops the run with its
remedy; *skip* says why the check does not apply.

This page is written by `python -m tasks.validate.documentation`.

| Check | What it requires | If it fails |
|---|---|---|
"""


def hardware_page() -> str:
    """The page as Markdown, one row a check in the order in which they are reported."""
    rows = [f"| `{id}` | {_cell(CHECKS[id].rule)} | {_cell(CHECKS[id].remedy)} |" for id in sorted(CHECKS)]
    return _HEAD + "\n".join(rows) + "\n"


def _cell(text: str) -> str:
    return text[0].upper() + text[1:].replace("|", "\\|")


if __name__ == "__main__":
    print(hardware_page(), end="")
