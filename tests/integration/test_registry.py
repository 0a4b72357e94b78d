"""The registry in a real MLflow database, and the commands that move the champion."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from finished_run import finished_run, profile_with_target

from flows.cli.main import run_cli
from flows.settling import settle, settle_all
from tasks.publish.core import publish as decide_and_publish
from tasks.publish.registry import CONFIRMED, is_settled, register_operation
from tasks.publish.versions import read_pointer
from tasks.run_folder import RUNS_ENV, RunFolder
from tasks.tracking import URI_ENV, mlflow_client, send_now
from tasks.tracking_queue import Tracker
from tests.unit.tasks.publish import drafts

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]
EXPERIMENT = "retrain-dspark"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A run root with a tracked database and two published versions, the second of them champion."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("registry") / "runs"
        patch.delenv(URI_ENV, raising=False)
        patch.setenv(RUNS_ENV, str(folder))
        mlflow_client(folder)
        for number, run_id in enumerate(("r1", "r2"), start=1):
            better = drafts.better_than("v0001") if number == 2 else {}
            publication(folder, run_id, **better)
        yield folder


def publication(folder: Path, run_id: str, **changes: Any) -> None:
    """Publish as the stage does, without a tracker."""
    profile = profile_with_target(folder.parent / "target")
    run = finished_run(folder, run_id, profile)
    inputs = drafts.publish_inputs(folder.parent, run_id, profile=profile)
    decide_and_publish(**{**inputs, "run": run, "evaluation": drafts.evaluation(**changes)})


def client(root: Path) -> Any:
    return mlflow_client(root)


def aliases(root: Path) -> dict[str, str]:
    """Alias -> version folder, as the registry says."""
    found = client(root).search_model_versions("name = 'tiny'")
    model = client(root).get_registered_model("tiny")
    folders = {str(one.version): one.tags.get("dspark.version", "") for one in found}
    return {alias: folders[str(version)] for alias, version in model.aliases.items()}


def test_the_registry_follows_commands_and_forgets_nothing(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An outage at publication, then commands: aliases and pointers agree, and each version is there once."""
    place = root / "published" / "tiny"
    assert not is_settled(place)
    assert settle_all(root, change=False) == ["registry of tiny: follows the pointer files"]
    assert len(settle_all(root)) == 1 and settle_all(root) == []
    assert aliases(root) == {"champion": "v0002", "previous": "v0001"}

    assert run_cli(["rollback"]) == 0
    said = capsys.readouterr().out
    assert "tiny: rolled back to v0001 from v0002" in said
    assert f"servers must load: {place / 'v0001'}" in said and "no server with v0002 is known" in said
    assert aliases(root) == {"champion": "v0001"} and is_settled(place)

    assert run_cli(["rollback"]) == 2
    assert "no champion before v0001" in capsys.readouterr().err
    assert run_cli(["promote", "v0002", "--by", "someone", "--why", "it was the prompt"]) == 0
    assert aliases(root) == {"champion": "v0002", "previous": "v0001"}
    assert len(client(root).search_model_versions("name = 'tiny'")) == 2


def test_everything_names_everything(root: Path) -> None:
    settle(root / "published" / "tiny", root)
    version = next(
        one
        for one in client(root).search_model_versions("name = 'tiny'")
        if one.tags["dspark.version"] == "v0002"
    )
    wanted = {
        "dspark.run_id": "r2",
        "dspark.git_commit": "abc123",
        "dspark.captures": "d" * 64,
        "dspark.location": str(root / "published" / "tiny" / "v0002"),
        "dspark.decision": "promoted",
        "dspark.incumbent": "v0001",
    }
    assert {name: version.tags.get(name) for name in wanted} == wanted
    run = client(root).get_run(version.run_id)
    assert run.data.tags["dspark.key"] == "r2"
    assert run.data.tags["dspark.registered"] == f"models:/tiny/{version.version}"
    model = client(root).get_logged_model(version.tags["dspark.model_id"])
    assert (model.source_run_id, model.tags["dspark.version"]) == (version.run_id, "v0002")
    stored = {path.name for path in Path(model.artifact_location.removeprefix("file://")).rglob("*")}
    assert "manifest.json" in stored and "model.safetensors" not in stored, "weights are named, not pushed"


def test_a_held_draft_is_a_candidate_and_becomes_a_version_once(root: Path) -> None:
    decision = drafts_decision(promote=False)
    operation = register_operation("held", "r9", "a" * 64, root, decision, {"dspark.run_id": "r9"})
    assert send_now(root, EXPERIMENT, [operation, operation]) == []
    (version,) = client(root).search_model_versions("name = 'held'")
    assert (version.tags["dspark.decision"], version.tags["dspark.reasons"]) == ("held", "not better")
    assert client(root).get_registered_model("held").aliases == {"candidate": version.version}

    forced = register_operation(
        "held", "r9", "a" * 64, root, drafts_decision(True), {"dspark.version": "v0001"}
    )
    follow = {"op": "aliases", "name": "held", "aliases": {"champion": "v0001", "previous": None},
              "confirm": str(root / CONFIRMED)}  # fmt: skip
    assert send_now(root, EXPERIMENT, [forced, follow]) == []
    (version,) = client(root).search_model_versions("name = 'held'")
    assert version.tags["dspark.decision"] == "promoted"
    assert client(root).get_registered_model("held").aliases == {"champion": version.version}
    assert json.loads((root / CONFIRMED).read_text()) == {"champion": "v0001", "previous": None}


def drafts_decision(promote: bool) -> Any:
    from tasks.publish.models import Decision

    return Decision(
        promote=promote,
        reasons=("not better",),
        candidate_tau_macro=1.5,
        candidate_low=1.4,
        incumbent_tau_macro=1.5,
        margin=0.02,
    )


def test_a_registry_that_is_away_loses_nothing(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing listens at the tracker's address: the command works and says so, and the next start repairs."""
    place = root / "published" / "tiny"
    settle(place, root)
    before = aliases(root)["champion"]
    monkeypatch.setenv(URI_ENV, "http://127.0.0.1:9")
    other = "v0001" if before == "v0002" else "v0002"
    assert run_cli(["promote", other, "--by", "someone", "--why", "outage"]) == 0
    assert "MLflow cannot be reached" in capsys.readouterr().out
    monkeypatch.delenv(URI_ENV)
    assert aliases(root)["champion"] == before and read_pointer(place, "champion") == other
    assert len(settle_all(root)) == 1
    assert aliases(root)["champion"] == other


def test_the_queue_carries_registrations(root: Path) -> None:
    """Through a run's own tracker, in order, and into its spool where MLflow is away."""
    profile = profile_with_target(root.parent / "target", name="queued")
    run: RunFolder = finished_run(root, "r7", profile)
    said: list[str] = []

    def away(operation: dict[str, Any]) -> str | None:
        raise ConnectionError("nobody there")

    tracker = Tracker(run, {}, said.append, away, answer_s=0.5)
    tracker.open({}, run.path / "profile.json")
    tracker.send(register_operation("queued", "r7", "b" * 64, root, drafts_decision(False), {}))
    tracker.close("FINISHED")
    from tasks.tracking import MlflowSink

    again = Tracker(run, {}, said.append, MlflowSink(EXPERIMENT, root), answer_s=60.0)
    again.open({}, run.path / "profile.json")
    again.close("FINISHED")
    (version,) = client(root).search_model_versions("name = 'queued'")
    assert client(root).get_run(version.run_id).data.tags["dspark.key"] == "r7"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["promote", "v0009", "--by", "a", "--why", "b"], 2, "tiny has no version v0009"),
        (["promote", "v0001"], 2, "needs a name and a reason"),
        (["promote", "v0001", "--by", "a", "--why", " "], 2, "where: --why"),
        (["promote", "nothing", "--by", "a", "--why", "b"], 2, "there is no run 'nothing'"),
        (["promote", "r1", "--by", "a", "--why", "b", "--name", "tiny"], 2, "--name belongs to a version"),
        (["rollback", "nothing"], 2, "no draft called 'nothing'"),
        (["rollback", "tiny", "--to", "v0009"], 2, "versions: v0001, v0002"),
        (["publish", "nothing"], 2, "there is no run 'nothing'"),
        (["publish", "r1", "--force"], 2, "needs a name and a reason"),
        (["publish", "r1", "--by", "a", "--why", "b"], 2, "add --force"),
        (["publish", "r1", "-s", "train.epochs=3"], 2, "train.epochs belongs to what was measured"),
        (["publish", "r1", "-s", "publish.nothing=3"], 2, "publish.nothing"),
        (["publish", "half"], 2, "has not finished stage serve"),
        (["publish", "changed"], 2, "config.json is changed"),
    ],
)
def test_bad_input_is_said_in_a_few_lines(
    root: Path, capsys: pytest.CaptureFixture[str], words: list[str], code: int, said: str
) -> None:
    profile = profile_with_target(root.parent / "target")
    if words[1] == "half":
        run = finished_run(root, "half", profile)
        (run.path / "02-serve" / "manifest.json").unlink()
    if words[1] == "changed":
        run = finished_run(root, "changed", profile)
        (run.path / "04-train" / "draft" / "config.json").write_text("{}")
    assert run_cli(words) == code
    text = capsys.readouterr().err
    assert said in text and "Traceback" not in text and len(text.splitlines()) <= 6
