"""Facts in files: records that a user names, and what the stage leaves in its folder and in MLflow."""

from __future__ import annotations

import copy
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import Any

from tasks.errors import UsageError
from tasks.stage import write_atomic
from tasks.validate.collect.recorded import read, to_text
from tasks.validate.collect.salting import Salt
from tasks.validate.driver_checks import worst_channel
from tasks.validate.facts import NodeFacts
from tasks.validate.models import CheckResult, ValidationReport
from tasks.validate.registry import worst
from tasks.validate.summary import counts

FACTS_FILE, CHECKS_FILE = "facts.json", "checks.json"
_LONGEST = 400
"""Characters of a reason: a file of another kind must not fill the screen."""


def read_records(paths: Sequence[Path]) -> tuple[NodeFacts, ...]:
    """Records of all files, for a plan of as many nodes.

    Raises:
        UsageError: A file is missing or no record of facts, or two records are of one node.
    """
    origin: dict[str, Path] = {}
    nodes: list[NodeFacts] = []
    for path in paths:
        for node in read(path):
            if why := node.errors.get("recorded"):
                raise _unusable(path, why)
            if node.node_id in origin:
                raise UsageError(
                    f"two records are of the node '{node.node_id}'",
                    where=f"{origin[node.node_id]}, {path}",
                    hint="give each node once; records made with one --salt keep different nodes apart",
                )
            origin[node.node_id] = path
            nodes.append(node)
    return tuple(nodes)


def _unusable(path: Path, why: str) -> UsageError:
    text = why if len(why) <= _LONGEST else why[:_LONGEST] + " ..."
    hint = "name a file that `retrain-dspark doctor --record FILE` wrote, or a run's 01-validate/facts.json"
    return UsageError(f"no usable facts: {text}", where=str(path), hint=hint)


def check_place(path: Path) -> None:
    """Refuse a place for a record before anything is read.

    Raises:
        UsageError: The folder is missing or closed, or something other than a record is there.
    """
    try:
        if not path.parent.is_dir():
            raise UsageError("the folder is not there", where=str(path), hint="make it, or name another file")
        if path.exists() and not _replaceable(path):
            what = "what is there is no record of facts, so it is not overwritten"
            raise UsageError(what, where=str(path), hint="name another file, or remove this one")
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise _not_written(path, error) from None


def _replaceable(path: Path) -> bool:
    return path.is_file() and not any("recorded" in node.errors for node in read(path))


def _not_written(path: Path, error: OSError) -> UsageError:
    reason = error.strerror or error
    return UsageError(f"it cannot be written: {reason}", where=str(path), hint="name another file")


def write_records(path: Path, report: ValidationReport, salt: str | None = None) -> None:
    """Write the facts of a report, identifiers replaced, readable by this user only.

    Args:
        salt: Word that nodes of one plan share; None takes a random one.

    Raises:
        UsageError: The file cannot be written.
    """
    nodes = [NodeFacts.model_validate(_without_paths(record)) for record in report.records]
    text = to_text(nodes, Salt(salt.encode() if salt is not None else None))
    try:
        write_atomic(path, text)
        path.chmod(0o600)
    except OSError as error:
        raise _not_written(path, error) from None


def _without_paths(record: dict[str, Any]) -> dict[str, Any]:
    """Programs by name: checks ask whether they are there, and a path tells whose machine it is."""
    document = copy.deepcopy(record)
    document["programs"] = {name: _name(path) for name, path in document["programs"].items()}
    document["host"]["lscpu"] = _name(document["host"]["lscpu"])
    for gpu in document["gpus"] or ():
        for process in gpu["processes"] or ():
            process["name"] = _name(process["name"])
    home = str(Path.home())
    document["errors"] = {path: why.replace(home, "~") for path, why in document["errors"].items()}
    return document


def _name(path: str | None) -> str | None:
    """The last part of a program's path; None if there is no program."""
    return PurePath(path).name if path else path


def write_files(folder: Path, report: ValidationReport) -> None:
    """Facts and results as files of the stage; `doctor --facts` reads the facts again."""
    records = report.records
    facts: Any = records[0] if len(records) == 1 else list(records)
    write_atomic(folder / FACTS_FILE, json.dumps(facts, indent=2) + "\n")
    checks = [check.model_dump(mode="json") for check in report.checks]
    write_atomic(folder / CHECKS_FILE, json.dumps(checks, indent=2) + "\n")


def read_files(folder: Path) -> ValidationReport | None:
    """The report that `write_files` wrote, without what it says of the input; None if there is none."""
    try:
        facts = json.loads((folder / FACTS_FILE).read_text(encoding="utf-8"))
        checks = json.loads((folder / CHECKS_FILE).read_text(encoding="utf-8"))
        nodes = [NodeFacts.model_validate(one) for one in (facts if isinstance(facts, list) else [facts])]
        return report_of(nodes, tuple(CheckResult.model_validate(one) for one in checks))
    except (OSError, ValueError, TypeError, IndexError):
        return None


def report_of(
    nodes: Sequence[NodeFacts], results: tuple[CheckResult, ...], inputs: dict[str, Any] | None = None
) -> ValidationReport:
    """The report about some nodes, at least one."""
    documents = tuple(node.model_dump(mode="json") for node in nodes)
    return ValidationReport(
        facts={**documents[0], "inputs": inputs or {}},
        nodes=documents if len(documents) > 1 else (),
        checks=results,
        worst=worst(results),
        toolkit_channel=worst_channel(node.cuda.toolkit for node in nodes),
    )


def tracked(report: ValidationReport) -> dict[str, Any]:
    """Parameters by which runs are told apart and found: outcome, and what the machines are."""
    return {
        "checks": {
            "worst": report.worst,
            "failed": ", ".join(sorted({one.id for one in report.checks if one.status == "fail"})),
            **{f"count_{status}": number for status, number in counts(report.checks).items()},
        },
        "machine": {"nodes": len(report.records), "toolkit_channel": report.toolkit_channel}
        | {name: _seen(report, path) for name, path in _MACHINE.items()},
    }


_MACHINE = {
    "kernel": ("os", "kernel_release"),
    "architecture": ("os", "machine"),
    "page_size_bytes": ("os", "page_size_bytes"),
    "driver": ("driver", "kmd_version"),
    "driver_api": ("cuda", "driver_api"),
    "toolkit": ("cuda", "toolkit"),
    "gpu": ("gpus", "name"),
}
"""Parameter -> where the fact stands in a record."""


def _seen(report: ValidationReport, path: tuple[str, str]) -> str:
    """The values of all nodes, once each; empty if none was observed."""
    found: dict[str, None] = {}
    for record in report.records:
        group = record.get(path[0]) or {}
        for part in group if isinstance(group, list) else [group]:
            if part.get(path[1]) is not None:
                found[str(part[path[1]])] = None
    return ", ".join(found)
