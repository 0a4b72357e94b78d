"""`publish` and `promote` of a finished run, through Prefect, the gate, real folders and a real registry."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from finished_run import finished_run, profile_with_target
from observing import until
from prefect.settings import PREFECT_API_URL, temporary_settings

from flows.approving import ASKS, answer_paused
from profiles.schema import Profile
from tasks.publish.versions import read_pointer, versions
from tasks.publish.words import new_word, words_of
from tasks.tracking import mlflow_client
from tests.unit.tasks.publish import drafts

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]


@pytest.fixture
def command(pages: Any, tmp_path: Path) -> Any:
    """Runs a command line with the session's Prefect API; (exit code, output)."""

    def run(*words: str) -> tuple[int, str]:
        inherited = {n: v for n, v in os.environ.items() if not n.startswith(("PREFECT_", "MLFLOW_"))}
        env = {**inherited, "PREFECT_API_URL": str(pages.api), "RETRAIN_DSPARK_RUNS": str(tmp_path / "runs")}
        done = subprocess.run(
            (sys.executable, "-c", "from flows.cli.main import main; main()", *words),
            env=env,
            capture_output=True,
            text=True,
            timeout=500,
        )
        return done.returncode, done.stdout + done.stderr

    return run


def asking(tmp_path: Path) -> Profile:
    return profile_with_target(tmp_path / "target", approval={"required": True})


def test_held_then_agreed_to_then_published_once(command: Any, tmp_path: Path) -> None:
    """A draft of which the gate is not sure: held, no agreement helps, force does, and once."""
    weak = drafts.evaluation(replay=drafts.measurement(1.02, 1.0))
    run = finished_run(tmp_path / "runs", "r1", profile_with_target(tmp_path / "target"), weak)
    place = tmp_path / "runs" / "published" / "tiny"
    code, text = command("promote", "r1", "--by", "someone", "--why", "I like it")
    assert code == 1 and "not above 1.020" in text and "Traceback" not in text, text
    assert versions(place) == []

    code, text = command("publish", "r1", "--force", "--by", "someone", "--why", "it was tried by hand")
    assert code == 0, text
    assert read_pointer(place, "champion") == "v0001"
    assert [(word.kind, word.by) for word in words_of(run)] == [("approval", "someone"), ("force", "someone")]
    card = (place / "v0001" / "README.md").read_text()
    assert "although the gate held it" in card and "someone" not in card

    assert command("publish", "r1")[0] == 0
    assert versions(place) == ["v0001"]
    client = mlflow_client(tmp_path / "runs")
    (version,) = client.search_model_versions("name = 'tiny'")
    assert version.tags["dspark.version"] == "v0001"
    assert version.tags["dspark.force"] == "yes, someone: it was tried by hand"
    assert version.tags["dspark.flow_run_id"] in run.facts()["flow_run_ids"]
    assert client.get_registered_model("tiny").aliases == {"champion": version.version}
    summary = json.loads((run.path / "summary.json").read_text())
    assert [row["status"] for row in summary["stages"]] == ["reused"] * 6 and summary["decision"]["promote"]


def test_a_draft_that_waits_for_a_word(command: Any, tmp_path: Path) -> None:
    """The gate lets it through, the profile wants a person: held until somebody says yes."""
    run = finished_run(tmp_path / "runs", "r1", asking(tmp_path))
    place = tmp_path / "runs" / "published" / "tiny"
    code, text = command("publish", "r1")
    assert code == 1 and "waits for a person's word" in text, text
    code, text = command("promote", "r1", "--by", "someone", "--why", "the answers read well")
    assert code == 0, text
    assert read_pointer(place, "champion") == "v0001"
    assert words_of(run)[0].why == "the answers read well"


def test_a_changed_margin_decides_anew(command: Any, tmp_path: Path) -> None:
    finished_run(tmp_path / "runs", "r1", profile_with_target(tmp_path / "target"))
    code, text = command("publish", "r1", "-s", "publish.margin=0.9")
    assert code == 1 and "not above 1.900" in text, text
    assert command("publish", "r1", "-s", "publish.margin=0.1")[0] == 0


def test_force_does_not_override_a_refusal(command: Any, tmp_path: Path) -> None:
    run = finished_run(tmp_path / "runs", "r1", profile_with_target(tmp_path / "target"))
    draft = run.path / "04-train" / "draft"
    path = run.path / "04-train" / "manifest.json"
    manifest = json.loads(path.read_text())
    settings = json.loads((draft / "config.json").read_text())
    del settings["sample_from_anchor"]
    (draft / "config.json").write_text(json.dumps(settings))
    manifest["result"] = drafts.checkpoint(draft).model_dump(mode="json")
    path.write_text(json.dumps(manifest))
    code, text = command("publish", "r1", "--force", "--by", "someone", "--why", "now")
    assert code == 1 and "sample_from_anchor" in text and "Traceback" not in text, text
    assert versions(tmp_path / "runs" / "published" / "tiny") == []


@pytest.mark.parametrize(
    "answer",
    [
        "promote",
        *(pytest.param(answer, marks=pytest.mark.verify("prefect")) for answer in ("hold", "nobody")),
    ],
)
def test_a_run_that_is_paused_hears_the_command_or_the_form(
    command: Any, pages: Any, tmp_path: Path, answer: str
) -> None:
    """The flow run pauses with a form; a command, the form's own values, or its time end that."""
    hours = 0.002 if answer == "nobody" else 0.2
    asked = profile_with_target(tmp_path / "target", approval={"required": True, "timeout_hours": hours})
    run = finished_run(tmp_path / "runs", "r1", asked)
    process = subprocess.Popen(
        (sys.executable, str(Path(__file__).parents[1] / "fakes" / "asking_flow.py"), "r1"),
        env={**os.environ, "PREFECT_API_URL": str(pages.api), "RETRAIN_DSPARK_RUNS": str(tmp_path / "runs")},
    )
    try:
        until(lambda: run.facts().get(ASKS) or process.poll() is not None, 300)
        if answer == "promote":
            code, text = command("promote", "r1", "--by", "someone", "--why", "reads well")
            assert code == 0 and "goes on with this word" in text, text
        elif answer == "hold":
            with temporary_settings({PREFECT_API_URL: str(pages.api)}):
                assert answer_paused(run, new_word("approval", "someone", "too terse", yes=False))
        assert process.wait(300) == 0
    finally:
        process.kill()
        process.wait()
    promoted = read_pointer(tmp_path / "runs" / "published" / "tiny", "champion")
    assert promoted == ("v0001" if answer == "promote" else None)
    assert [word.yes for word in words_of(run)] == {"promote": [True], "hold": [False], "nobody": []}[answer]
    reasons = json.loads((run.path / "summary.json").read_text())["decision"]["reasons"]
    words = {"promote": "agreed", "hold": "said no", "nobody": "waits for a person's word"}[answer]
    assert words in "; ".join(reasons)
