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
check's outcome for another (`gpu.persistence: skip`). Checks of a *group* look at all nodes at once. A node
that does not answer is the fault of `node.reachable` alone, and an NVLink fabric whose registration is in
progress is waited for, at most `hardware.retry.fabric_s` seconds.

## Nodes that cannot be reached from here

Record each node, then judge all records together, on any machine. The same `--salt` on every node keeps equal
what nodes share, such as their NVLink domain; host names, addresses, serial numbers and UUIDs are replaced.

    retrain-dspark doctor -p PROFILE --role serve --salt WORD --record serve-0.json
    retrain-dspark doctor -p PROFILE --facts serve-0.json serve-1.json train-0.json

Records hold a round trip through the store only where one was possible: on a plan of one node.
`--set hardware.store_roundtrip=false` judges them without it. The `01-validate/facts.json` of a run can be
judged the same way, but names its nodes. Exit codes: 0 no check fails, 1 one does, 2 bad input.

## Checks

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
