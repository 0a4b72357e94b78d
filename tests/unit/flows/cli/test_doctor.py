"""`retrain-dspark doctor` on recorded facts: exit codes, what is printed, and what is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gb300_facts import Patch, fleet, link, patched, whole
from gb300_scenarios import SCENARIOS

from flows.cli.doctor_notes import Notes
from flows.cli.doctor_text import NARROWEST, Screen, report_text, screen
from flows.cli.main import run_cli
from tasks.validate import core
from tasks.validate.collect.recorded import to_text
from tasks.validate.collect.salting import Salt
from tasks.validate.models import CheckResult, ValidationReport

Answer = tuple[int, str, str]
ANSI = re.compile(r"\x1b\[[0-9;]*m")
BROKEN = [scenario for scenario in SCENARIOS if "fail" in scenario[4].values() and not scenario[3]]


@pytest.fixture
def trays(tmp_path: Path) -> Callable[..., list[str]]:
    """Files of the three trays, some of them patched."""

    def write(on: str = "all", *patches: Patch) -> list[str]:
        salt, paths = Salt(b"s"), []
        for node in patched(fleet(), on, *patches):
            path = tmp_path / f"{node.node_id}.json"
            path.write_text(to_text([node], salt))
            paths.append(str(path))
        return paths

    return write


@pytest.fixture
def doctor(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Answer]:
    """Exit code, output and complaints; a machine that is read fails the test."""
    monkeypatch.setattr(core, "own_requirements", list)
    monkeypatch.setattr(core, "collect_plan", lambda *a, **k: pytest.fail("this machine was read"))

    def run(*words: str) -> Answer:
        code = run_cli(["doctor", *words])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


GB300 = ("-p", "gb300-kimi-k3")


def test_healthy_trays_pass(doctor: Callable[..., Answer], trays: Callable[..., list[str]]) -> None:
    code, out, err = doctor(*GB300, "--facts", *trays())
    assert (code, err) == (0, "")
    first, *_, last = out.splitlines()
    assert first.startswith("warn  cuda.toolkit") and "fail" not in out.split("\n\n")[0].split()
    assert re.fullmatch(
        r"3 warnings, \d+ passed, \d+ skipped: recorded facts of 3 nodes for the profile gb300-kimi-k3", last
    )
    assert "\x1b" not in out, "no terminal, no colour"


def test_long_names_and_a_repeated_option_mean_the_same(
    doctor: Callable[..., Answer], trays: Callable[..., list[str]]
) -> None:
    files = trays()
    apart = [word for path in files for word in ("--facts", path)]
    assert doctor(*GB300, "--facts", *files) == doctor("--profile", "gb300-kimi-k3", *apart)


def test_a_broken_tray_fails_with_its_name_and_remedy_first(
    doctor: Callable[..., Answer], trays: Callable[..., list[str]]
) -> None:
    files = trays("serve-1", link(2, 7, state="inactive"))
    code, out, _ = doctor(*GB300, "--facts", *files)
    assert code == 1
    lines = out.splitlines()
    assert lines[0].startswith("fail  nvlink.links") and "1 of 4 GPUs not as required (required: " in lines[0]
    name = json.loads(Path(files[1]).read_text())["node_id"]
    assert f"{name}: 1 of 4" in lines[0] and "GPU2: link 7 is inactive" in lines[1] + lines[2]
    assert any(line.strip().startswith("to do: reset the GPU") for line in lines[:5])
    assert lines[-1].startswith("1 failed, ")
    assert doctor(*GB300, "--facts", *reversed(files))[1] == out, "the order of the files does not matter"


@pytest.mark.parametrize("scenario", BROKEN, ids=[scenario[0] for scenario in BROKEN])
def test_every_broken_scenario_ends_with_1(
    scenario: Any, doctor: Callable[..., Answer], trays: Callable[..., list[str]]
) -> None:
    _, on, patches, _, expected = scenario
    code, out, _ = doctor(*GB300, "--facts", *trays(on, *patches))
    failed = {line.split()[1] for line in out.splitlines() if line.startswith("fail ")}
    assert code == 1 and failed == {id for id, status in expected.items() if status == "fail"}


def test_records_without_a_round_trip_do_not_pass_unless_it_is_left_out(
    doctor: Callable[..., Answer], trays: Callable[..., list[str]]
) -> None:
    files = trays("all", whole(store={}))
    code, out, _ = doctor(*GB300, "--facts", *files)
    assert code == 1 and out.startswith("fail  store.roundtrip")
    assert "--set hardware.store_roundtrip=false" in out
    code, out, _ = doctor(*GB300, "--set", "hardware.store_roundtrip=false", "--facts", *files)
    assert code == 0 and "hardware.store_roundtrip is off" in out


def test_another_failure_explains_a_missing_round_trip(
    doctor: Callable[..., Answer], trays: Callable[..., list[str]]
) -> None:
    _, out, _ = doctor(*GB300, "--facts", *trays("all", whole(store={}), link(0, 0, state="inactive")))
    assert {line.split()[1] for line in out.splitlines() if line.startswith("fail ")} == {"nvlink.links"}
    assert re.search(r"skip  store\.roundtrip +another check failed before it", out)


def test_the_report_as_json(doctor: Callable[..., Answer], trays: Callable[..., list[str]]) -> None:
    code, out, _ = doctor(*GB300, "--json", "--facts", *trays("serve-1", link(2, 7, state="inactive")))
    report = ValidationReport.model_validate_json(out)
    assert (code, report.worst, report.toolkit_channel) == (1, "fail", "preview")
    assert len(report.records) == 3 and report.checks[0].id == "nvlink.links"
    assert report.checks[0].evidence and report.checks[0].remedy


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--facts", "{0}", "--record", "new.json"), "--facts reads no machine"),
        (("--facts", "{0}", "--role", "serve"), "--facts reads no machine"),
        (("--salt", "word"), "--salt belongs to --record"),
        (("{0}",), "files of facts follow --facts"),
        (("--facts",), "requires an argument"),
        (("--facts", "{0}", "none.json"), "none.json cannot be read"),
        (("--facts", "{0}", "{0}"), "two records are of the node"),
        (("--role", "both", "--record", "no/such/folder.json"), "the folder is not there"),
        (
            ("--facts", "{0}", "--set", "hardware.severity_overrides={gpu.ecx: warn}"),
            "did you mean 'gpu.ecc'",
        ),
    ],
)
def test_mistakes_end_with_2_before_anything_is_read(
    words: tuple[str, ...], says: str, doctor: Callable[..., Answer], trays: Callable[..., list[str]]
) -> None:
    files = trays()
    code, out, err = doctor(*GB300, *(word.replace("{0}", files[0]) for word in words))
    assert (code, out) == (2, "") and says in err and len(err.splitlines()) <= 6


def test_a_role_of_this_machine_is_judged_as_that_role(
    doctor: Callable[..., Answer], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The machine stands for the training tray: nothing is asked of it that only serving nodes need."""
    tray = fleet()[2]
    asked = []

    def collect(nodes: Any, requests: Any, *rest: Any) -> tuple[Any, ...]:
        asked.extend(request.role for request in requests)
        return (tray.model_copy(update={"role": requests[0].role}),)

    monkeypatch.setattr(core, "collect_plan", collect)
    path = tmp_path / "train-0.json"
    code, out, _ = doctor(*GB300, "--role", "train", "--record", str(path), "--salt", "word")
    assert asked == ["train"] and code == 1
    failed = {line.split()[1] for line in out.splitlines() if line.startswith("fail ")}
    assert failed == {"fleet.nodes"}
    record = json.loads(path.read_text())
    assert record["role"] == "train" and record["node_id"] not in (tray.node_id, "")


@pytest.mark.parametrize(
    ("terminal", "term", "shown"), [(True, "xterm", True), (True, "dumb", False), (False, "xterm", False)]
)
def test_the_current_step_is_for_terminals_and_is_removed(
    terminal: bool, term: str, shown: bool, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: terminal)
    monkeypatch.setenv("TERM", term)
    notes = Notes()
    notes.update(done=0, total=4, unit="steps", note="waiting for the NVLink fabric of serve-1")
    notes.clear()
    printed = capfd.readouterr()
    assert printed.out == ""
    assert ("waiting for the NVLink fabric" in printed.err) is shown is (len(printed.err) > 0)


def report(*checks: CheckResult) -> ValidationReport:
    return ValidationReport(facts={}, checks=checks, worst=checks[0].status)


FAILED = CheckResult(
    id="gpu.count", status="fail", observed="3", required="4 GPUs", message="GPU 3 is lost", remedy="reboot"
)
PASSED = CheckResult(id="os.release", status="pass", observed="ubuntu 24.04", required="any", message="")


def test_columns_are_aligned_and_nothing_is_wider_than_the_screen() -> None:
    long = FAILED.model_copy(update={"message": "a long story " * 30, "remedy": "do this " * 30})
    for width in (NARROWEST, 80, 120):
        text = report_text(report(long, PASSED), "this machine", Screen(width, False))
        lines = text.splitlines()
        assert max(map(len, lines[:-1])) <= width
        column = lines[0].index("3 (required")
        body = lines[: lines.index("")]
        assert all(line[column] != " " for line in body), "everything begins in one column"
    assert text.endswith("1 failed, 1 passed: this machine")


def test_colours_only_add_to_the_text() -> None:
    plain = report_text(report(FAILED, PASSED), "x", Screen(80, False))
    coloured = report_text(report(FAILED, PASSED), "x", Screen(80, True))
    assert "\x1b[31m" in coloured and "\x1b[32m" in coloured and "\x1b" not in plain
    assert ANSI.sub("", coloured) == plain


@pytest.mark.parametrize(
    ("terminal", "environment", "colour"),
    [
        (True, {}, True),
        (True, {"NO_COLOR": ""}, True),
        (True, {"NO_COLOR": "1"}, False),
        (True, {"TERM": "dumb"}, False),
        (False, {}, False),
    ],
)
def test_colour_is_for_terminals_that_want_it(
    terminal: bool, environment: dict[str, str], colour: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: terminal)
    assert screen(environment).colour is colour
