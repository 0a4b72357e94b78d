"""Facts in files: what a record gives away, which files are refused, and what the stage leaves behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from gb300_facts import SERVE_DOMAIN, bad, fleet, gpus, group, needs, patched, whole
from gb300_scenarios import PREVIEW

from tasks.errors import EXIT_USAGE, UsageError
from tasks.validate.checks import judge
from tasks.validate.facts import NodeFacts
from tasks.validate.models import ValidationReport
from tasks.validate.recording import (
    CHECKS_FILE,
    FACTS_FILE,
    check_place,
    read_files,
    read_records,
    report_of,
    tracked,
    write_files,
    write_records,
)


def report(nodes: tuple[NodeFacts, ...] | None = None) -> ValidationReport:
    nodes = nodes or fleet()
    return report_of(nodes, judge(nodes, needs()))


def test_trays_recorded_one_by_one_are_judged_as_together(tmp_path: Path) -> None:
    """Each tray is a file of its own; with one salt the NVLink domain that they share stays shared."""
    for node in fleet():
        write_records(tmp_path / f"{node.node_id}.json", report((node,)), salt="autumn")
    nodes = read_records(sorted(tmp_path.glob("*.json")))
    assert len({node.node_id for node in nodes}) == 3
    assert bad(nodes, needs()) == bad(fleet(), needs()) == PREVIEW
    text = "".join(path.read_text() for path in tmp_path.glob("*.json"))
    assert SERVE_DOMAIN not in text and "10.0.0.11" not in text and "serve-0" not in text


def test_without_a_common_salt_nobody_can_tell_which_trays_belong_together(tmp_path: Path) -> None:
    for node in fleet():
        write_records(tmp_path / f"{node.node_id}.json", report((node,)))
    nodes = read_records(sorted(tmp_path.glob("*.json")))
    assert bad(nodes, needs()) == {**PREVIEW, "fabric.domain": "fail"}


def test_a_record_tells_no_path_of_the_machine(tmp_path: Path) -> None:
    home = str(Path.home())
    process = {"pid": 4242, "used_mib": 40_000, "name": f"{home}/secret-project/bin/python3"}
    (node,) = patched(
        fleet()[:1],
        "all",
        gpus(only=[1], processes=[process]),
        whole(programs={"mooncake_master": f"{home}/venv/bin/mooncake_master"}),
        whole(errors={"host.weights_present": f"{home}/models: permission denied"}),
        group("host", lscpu=f"{home}/bin/lscpu"),
    )
    path = tmp_path / "facts.json"
    write_records(path, report((node,)))
    text = path.read_text()
    assert home not in text and "secret-project" not in text
    (back,) = read_records([path])
    assert back.programs == {"mooncake_master": "mooncake_master"} and back.host.lscpu == "lscpu"
    assert [one.name for one in (back.gpus or ())[1].processes or ()] == ["python3"]
    assert back.errors == {"host.weights_present": "~/models: permission denied"}
    assert path.stat().st_mode & 0o777 == 0o600


def test_what_the_round_trip_says_is_salted_too(tmp_path: Path) -> None:
    store = {"ran": True, "cause_id": "closed_port", "cause": "10.0.0.10:50051 could not be dialled"}
    (node,) = patched(fleet()[:1], "all", whole(store=store))
    write_records(tmp_path / "a.json", report((node,)))
    (back,) = read_records([tmp_path / "a.json"])
    assert "could not be dialled" in back.store.cause and "10.0.0.10" not in back.store.cause


def cut(text: str) -> str:
    return text[: len(text) // 2]


def other_schema(text: str) -> str:
    return text.replace('"schema_version": 1', '"schema_version": 99')


BAD: dict[str, tuple[Any, str]] = {
    "cut": (cut, "no complete JSON"),
    "another schema": (other_schema, "schema_version is 99, this program reads 1"),
    "not JSON": (lambda text: "name: laptop\n", "no complete JSON"),
    "empty": (lambda text: "", "no complete JSON"),
    "another document": (lambda text: '{"name": "laptop"}', "schema_version is none"),
    "endless brackets": (lambda text: "[" * 200_000, "no complete JSON"),
    "a long text": (lambda text: json.dumps({"schema_version": "x" * 10_000}), "schema_version is xxx"),
}


@pytest.mark.parametrize("case", BAD)
def test_files_that_cannot_be_used_are_refused(case: str, tmp_path: Path) -> None:
    damage, why = BAD[case]
    path = tmp_path / "serve-0.json"
    write_records(path, report(fleet()[:1]))
    path.write_text(damage(path.read_text()))
    with pytest.raises(UsageError) as caught:
        read_records([path])
    text = str(caught.value)
    assert why in text and str(path) in text and "doctor --record" in text and len(text) < 900
    assert caught.value.exit_code == EXIT_USAGE


def test_a_missing_file_a_folder_and_bytes_are_refused(tmp_path: Path) -> None:
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    for name in ("none.json", ".", "bytes"):
        with pytest.raises(UsageError, match="cannot be read"):
            read_records([tmp_path / name])


def test_one_node_given_twice_is_refused(tmp_path: Path) -> None:
    first, second = tmp_path / "a.json", tmp_path / "b.json"
    write_records(first, report(fleet()[:1]), salt="s")
    write_records(second, report(fleet()), salt="s")
    with pytest.raises(UsageError, match="two records are of the node 'node-") as caught:
        read_records([first, second])
    assert f"{first}, {second}" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("no/such/facts.json", "the folder is not there"),
        ("folder", "is no record of facts, so it is not overwritten"),
        ("notes.txt", "is no record of facts, so it is not overwritten"),
        ("notes.txt/facts.json", "the folder is not there"),
    ],
)
def test_places_where_no_record_is_written(name: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match=why) as caught:
        check_place(tmp_path / name)
    assert str(tmp_path / name) in str(caught.value)
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_record_may_be_replaced_by_a_newer_one(tmp_path: Path) -> None:
    path = tmp_path / "facts.json"
    check_place(path)
    assert list(tmp_path.iterdir()) == [], "looking leaves nothing behind"
    write_records(path, report(fleet()[:1]))
    check_place(path)


def test_the_stages_files_can_be_judged_again(tmp_path: Path) -> None:
    write_files(tmp_path, report())
    nodes = read_records([tmp_path / FACTS_FILE])
    assert [node.node_id for node in nodes] == ["serve-0", "serve-1", "train-0"]
    assert bad(nodes, needs()) == PREVIEW
    checks = json.loads((tmp_path / CHECKS_FILE).read_text())
    assert len(checks) > 100 and checks[0]["id"] == "cuda.toolkit" and checks[0]["remedy"]
    write_files(tmp_path, report(fleet()[:1]))
    assert len(read_records([tmp_path / FACTS_FILE])) == 1


def test_the_stages_files_are_its_report(tmp_path: Path) -> None:
    """Also without a manifest: a refused machine has none."""
    assert read_files(tmp_path) is None
    for written in (report(), report(fleet()[:1])):
        write_files(tmp_path, written)
        assert read_files(tmp_path) == written
    (tmp_path / CHECKS_FILE).write_text("[")
    assert read_files(tmp_path) is None


def test_parameters_by_which_runs_are_found() -> None:
    mixed = patched(fleet(), "train-0", group("driver", kmd_version="615.71.09"))
    values = tracked(report(mixed))
    assert values["checks"]["count_fail"] > 0 and values["checks"]["worst"] == "fail"
    assert "driver.loaded" in values["checks"]["failed"]
    machine = values["machine"]
    assert (machine["nodes"], machine["gpu"], machine["driver"]) == (
        3, "NVIDIA GB300", "610.57.04, 615.71.09",
    )  # fmt: skip
    assert machine["toolkit_channel"] == "preview" and machine["page_size_bytes"] == "65536"
