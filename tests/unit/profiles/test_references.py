"""Published values: what the sources say, with their conditions, and nothing invented."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from profiles.references import Published, Reference, Table, _parsed, for_target, load_references

ROOT = Path(__file__).resolve().parents[3]


def named(part: str) -> Reference:
    return next(one for one in load_references() if part in one.title)


def value(reference: Reference, name: str, conditions: str) -> Published:
    return next(v for v in reference.values if v.name == name and conditions in v.conditions)


def test_the_papers_claims_follow_from_its_table() -> None:
    """16 to 18 % over DFlash and 27 to 31 % over EAGLE-3, on Qwen3 and there alone."""
    paper = named("DFlash and EAGLE-3")
    table = paper.table
    assert table is not None
    for claim in paper.values:
        target = claim.conditions.split(",")[0]
        over = claim.name.removeprefix("gain over ")
        assert round(100 * table.gain(target, "DSpark", over), 1) == claim.value, (target, over)
    qwen = [target for target in table.rows if target.startswith("Qwen3")]
    assert len(qwen) == 3 and len(paper.values) == 6
    assert [round(100 * table.gain(t, "DSpark", "DFlash")) for t in qwen] == [16, 18, 18]
    assert [round(100 * table.gain(t, "DSpark", "EAGLE-3")) for t in qwen] == [31, 27, 30]
    assert round(100 * table.gain("Gemma4-12B", "DSpark", "EAGLE-3"), 1) == 6.6
    assert not any("Gemma" in claim.conditions for claim in paper.values)


def test_k3_values_are_those_published_and_the_others_are_unknown() -> None:
    k3 = named("RedHatAI")
    lengths = {v.conditions: v.value for v in k3.values if v.name == "acceptance length"}
    known = [number for number in lengths.values() if number is not None]
    assert known == [4.11, 6.42, 4.96, 4.65]
    assert sum(number is None for number in lengths.values()) == 6
    single = value(k3, "interactivity", "single stream")
    assert (single.without_draft, single.value) == (110, 435)
    assert single.speed_up == pytest.approx(3.95, abs=0.01)
    assert value(k3, "output throughput", "concurrency 1,").value == 177
    assert value(k3, "output throughput", "concurrency 2, 4 and 8").value is None
    assert value(k3, "output throughput", "concurrency 16").value == 683
    assert value(k3, "longest acceptance", "378K").value == 5.31
    assert k3.conditions["temperature"] is None


def test_speeds_of_different_inputs_make_no_ratio() -> None:
    other = value(named("Inferact"), "decoding speed", "concurrency 1")
    assert (other.without_draft, other.value) == (118, 370)
    assert other.speed_up is None


def test_every_reference_has_source_date_and_conditions() -> None:
    found = load_references()
    assert len(found) >= 3
    for one in found:
        assert one.source and one.conditions and one.date >= "2026"
        assert all(v.value is None or v.value > 0 for v in one.values)


def test_those_of_the_target_come_first() -> None:
    found = load_references()
    assert "Kimi K3" in for_target(found, "models/kimi-k3")[0].title
    assert "Qwen3" in for_target(found, "models/qwen3-8b")[0].title
    assert len(for_target(found, "smollm2")) == len(found)


def imported(module: str, seen: set[str]) -> set[str]:
    """Modules of ours that `module` reaches through imports."""
    path = ROOT / f"{module.replace('.', '/')}.py"
    if module in seen or not path.is_file():
        return seen
    seen.add(module)
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            imported(node.module, seen)
            for alias in node.names:
                imported(f"{node.module}.{alias.name}", seen)
    return seen


def test_the_gate_does_not_read_references() -> None:
    """Published values are shown, and nothing is decided by them: neither the gate nor the sentence."""
    for decides in ("tasks.publish.gate", "tasks.publish.core", "tasks.evaluate.worth.conclude"):
        reached = imported(decides, set())
        assert len(reached) > 5 and "profiles.references" not in reached
    assert "profiles.references" in imported("tasks.report.evaluation_view", set())


@pytest.mark.parametrize(
    ("text", "part"),
    [("title: x\n", "targets"), ("- a\n", "not a reference"), ("a: 1\na: 2\n", "not a reference")],
)
def test_a_file_that_is_no_reference_is_named(text: str, part: str) -> None:
    with pytest.raises(ValueError, match=r"profiles/references/x\.yaml is not a reference") as caught:
        _parsed(text, "x.yaml")
    assert part in str(caught.value)


def test_a_row_of_a_table_has_a_value_for_each_column() -> None:
    with pytest.raises(ValueError, match="1 values for 2 columns"):
        Table(columns=("a", "b"), unit="x", rows={"t": {"d": (1.0,)}})
