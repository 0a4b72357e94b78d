"""What Prefect and MLflow show of each stage."""

from __future__ import annotations

from collections.abc import Callable

from gb300_facts import fleet, link, needs, patched

from tasks.report.artifacts import StageArtifact, stage_artifacts
from tasks.report.limits import PREVIEW_TOOLKIT
from tasks.report.record import STAGE_NAMES, read_run
from tasks.run_folder import RunFolder
from tasks.validate.checks import judge
from tasks.validate.recording import report_of

MakeRun = Callable[..., RunFolder]
FIELDS = dict(
    zip(STAGE_NAMES, ("validation", "target", "captures", "draft", "evaluation", "publication"), strict=True)
)


def artifacts(run: RunFolder) -> dict[str, list[StageArtifact]]:
    record = read_run(run)
    return {name: stage_artifacts(name, getattr(record, FIELDS[name]), run) for name in STAGE_NAMES}


def test_every_stage_has_one_artifact_of_a_key_at_most(make_run: MakeRun) -> None:
    found = artifacts(make_run())
    for name, items in found.items():
        keys = [item.key for item in items]
        assert keys and len(set(keys)) == len(keys), name
        assert all(item.description for item in items)
    keys = [item.key for item in found["evaluate"]]
    assert keys == ["markdown", "table", "image", "image-position", "image-decay", "image-context"]
    assert [item.key for item in found["train"]] == ["markdown", "image"]


def test_the_evaluation_begins_with_the_sentence(served_run: RunFolder) -> None:
    first, *others = artifacts(served_run)["evaluate"]
    assert first.key == "markdown" and first.description.startswith("WORTH IT up to concurrency 15")
    text = first.content
    assert isinstance(text, str) and text.startswith(f"## {first.description}\n")
    assert "| 8 | 772.2 | 1,060.9 | 1.4x [1.3, 1.4] |" in text
    assert "| with the draft | 1,398 (measured at concurrency 16) |" in text
    assert "| Break-even | after " in text
    assert {"image-speedup", "image-pareto"} <= {item.key for item in others}
    images = [item.content for item in others if item.kind == "image"]
    assert all(isinstance(image, bytes) and len(image) <= 200_000 for image in images)


def test_contents(make_run: MakeRun) -> None:
    found = artifacts(make_run())
    checks = found["validate"][0].content
    assert isinstance(checks, list) and checks[0]["status"] == "warn"
    assert {"what": "Lost samples", "value": "0"} in found["stream"][0].content
    assert found["evaluate"][1].description == "Macro tau 1.71 [1.67, 1.76], identical"
    image = found["evaluate"][2].content
    assert isinstance(image, bytes) and image.startswith(b"\x89PNG") and len(image) <= 200_000
    text = found["publish"][0].content
    assert isinstance(text, str) and text.startswith("## Promoted v0001") and "serve.sh" in text


def test_the_table_of_checks_has_failures_first_with_their_remedies(make_run: MakeRun) -> None:
    nodes = patched(fleet(), "serve-1", link(2, 7, state="inactive"))
    report = report_of(nodes, judge(nodes, needs()))
    (table,) = stage_artifacts("validate", report, make_run())
    assert isinstance(table.content, list)
    first, *others = table.content
    assert (first["status"], first["check"], first["where"]) == ("fail", "nvlink.links", "serve-1")
    assert first["to do"] and "GPU2: link 7 is inactive" in first["why"]
    order = [row["status"] for row in others]
    assert order == sorted(order, key=["fail", "warn", "pass", "skip"].index)
    assert {id for row in table.content for id in row["check"].split(", ")} == {c.id for c in report.checks}
    assert "on 3 nodes: 1 failed" in table.description and table.description.endswith(PREVIEW_TOOLKIT)


def test_a_draft_without_curves_still_has_its_text(make_run: MakeRun) -> None:
    run = make_run()
    (run.path / "04-train/metrics.jsonl").unlink()
    assert [item.kind for item in artifacts(run)["train"]] == ["markdown"]
