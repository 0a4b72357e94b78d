"""Results as people read them: what says the same is said once, and nothing is lost."""

from __future__ import annotations

from typing import Any

import pytest
from gb300_facts import fleet, gpus, group, needs, patched

from tasks.validate.checks import judge
from tasks.validate.models import CheckResult, ValidationReport
from tasks.validate.recording import report_of
from tasks.validate.summary import count_text, counts, summary_lines, title


def result(id: str, subject: str = "a", **values: Any) -> CheckResult:
    known: dict[str, Any] = {"status": "pass", "observed": "o", "required": "r", "message": ""}
    return CheckResult(id=id, subject=subject, **{**known, **values})


def test_a_check_that_says_the_same_of_all_nodes_is_one_line() -> None:
    checks = [result("os.release", name) for name in ("a", "b", "c")]
    (line,) = summary_lines(checks)
    assert (line.name, line.where, line.observed) == ("os.release", "all nodes", "o")


def test_failures_that_differ_stay_apart_and_come_first() -> None:
    bad = {"status": "fail", "remedy": "mend it"}
    checks = [
        result("gpu.ecc", "a"),
        result("gpu.ecc", "b", message="GPU1", **bad),
        result("gpu.ecc", "c", message="GPU3", **bad),
        result("gpu.idle", "c", status="warn", message="busy", remedy="stop it"),
    ]
    lines = summary_lines(checks)
    assert [(line.status, line.where, line.message) for line in lines] == [
        ("fail", "b", "GPU1"),
        ("fail", "c", "GPU3"),
        ("warn", "c", "busy"),
        ("pass", "a", ""),
    ]


def test_a_pass_names_the_different_values_of_its_nodes() -> None:
    checks = [result("host.memory", f"n{number}", observed=f"{900 + number} GiB") for number in range(5)]
    (line,) = summary_lines(checks)
    assert line.observed == "900 GiB | 901 GiB | 902 GiB and 2 more"


def test_skipped_checks_stand_beside_their_common_reason() -> None:
    none = {"status": "skip", "message": "no GPU enumerated; see gpu.count"}
    checks = [result("gpu.ecc", **none), result("gpu.idle", **none), result("x", status="skip", message="y")]
    assert [(line.name, line.message) for line in summary_lines(checks)] == [
        ("gpu.ecc, gpu.idle", none["message"]),
        ("x", "y"),
    ]


@pytest.mark.parametrize(
    ("subjects", "where"),
    [
        (["a"], ""),
        (["serve", "train"], "serving nodes, training nodes"),
        (["plan"], ""),
    ],
)
def test_one_node_is_not_named_and_roles_are(subjects: list[str], where: str) -> None:
    scope: Any = "node" if subjects == ["a"] else "group"
    checks = [result("x", "a")] + [result("y", subject, scope=scope) for subject in subjects]
    assert summary_lines(checks)[1].where == where


def test_many_nodes_are_counted() -> None:
    checks = [result("x", f"n{i:02d}", status="fail", remedy="r") for i in range(7)] + [result("x", "z")]
    assert summary_lines(checks)[0].where == "n00, n01, n02, n03 and 3 more"


def test_no_result_of_three_trays_is_lost() -> None:
    nodes = patched(fleet(), "serve-1", gpus(only=[1], ecc_current=False), group("os", page_size_bytes=4096))
    checks = judge(nodes, needs())
    told = {(line.status, id) for line in summary_lines(checks) for id in line.ids}
    assert told == {(check.status, check.id) for check in checks}
    assert sum(counts(checks).values()) == len(checks) > 100
    text = title(report_of(nodes, checks))
    assert text.startswith("Checks before the start on 3 nodes: 1 failed, ") and text.endswith(": gpu.ecc")


def test_counts_in_words() -> None:
    one = [result("a", status="warn"), result("b"), result("c")]
    assert count_text(one) == "1 warning, 2 passed"
    assert count_text([*one, result("d", status="warn"), result("e", status="fail")]) == (
        "1 failed, 2 warnings, 2 passed"
    )
    assert count_text([]) == "no check"
    report = ValidationReport(facts={}, checks=tuple(one), worst="warn")
    assert title(report) == "Checks before the start: 1 warning, 2 passed"
