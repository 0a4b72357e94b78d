"""The publish stage with a hub: the folder first, the hub second, the champion last."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from publishing_hub import READER, WRITER, RunningHub, hasty, settings

from tasks.errors import PublishError, UsageError
from tasks.processes.environment import child_environment
from tasks.publish.core import publish
from tasks.publish.hub.publisher import HubPublisher
from tasks.publish.models import Publication
from tasks.publish.verify import verify_folder
from tasks.publish.versions import read_pointer, versions
from tasks.redaction import redact
from tests.unit.tasks.publish.drafts import evaluation, export, measurement, profile, publish_inputs


def staged(root: Path, run: str = "r1", **changes: Any) -> Publication:
    ours = settings(attempts=2)
    publisher = HubPublisher(ours, WRITER, verify_folder, hasty(ours))
    return publish(**publish_inputs(root, run, **changes), publisher=publisher)


def test_a_promoted_draft_is_in_the_folder_and_on_the_hub(hub: RunningHub, tmp_path: Path) -> None:
    done = staged(tmp_path)
    assert (done.kind, done.location, done.revision) == ("hub", "lab/draft", "v0001")
    assert done.hub is not None and done.hub.commit == hub.head("refs/tags/v0001")
    place = tmp_path / "runs" / "published" / "tiny"
    assert read_pointer(place, "champion") == "v0001" and str(place / "v0001") in done.serve_command
    assert staged(tmp_path) == done
    assert WRITER not in done.model_dump_json() and hub.url not in done.model_dump_json()
    assert not any((tmp_path / "runs" / "r1" / "06-publish" / ".hub").glob("*"))


def test_a_held_draft_does_not_go_to_the_hub(hub: RunningHub, tmp_path: Path) -> None:
    done = staged(tmp_path, evaluation=evaluation(replay=measurement(1.02, 1.0)))
    assert (done.kind, done.hub) == ("local", None) and not hub.requests("/commit/")


def test_a_failure_keeps_the_version_and_the_champion_and_a_resumed_run_ends_well(
    hub: RunningHub, tmp_path: Path
) -> None:
    place = tmp_path / "runs" / "published" / "tiny"
    hub.fail({"on": "POST .*/tag/", "do": "cut", "when": "after", "times": -1})
    with pytest.raises(PublishError, match="given up after 2 tries") as caught:
        staged(tmp_path)
    assert "retrain-dspark resume RUN" in caught.value.hint
    assert versions(place) == ["v0001"] and read_pointer(place, "champion") is None
    hub.fail()
    assert staged(tmp_path).revision == "v0001"  # sees its own commit and tag
    assert read_pointer(place, "champion") == "v0001" and not hub.requests("/commit/release")


def test_numbers_go_on_where_the_hub_is(hub: RunningHub, tmp_path: Path) -> None:
    staged(tmp_path / "one")
    done = staged(tmp_path / "another", "r2")  # a machine that never published before
    assert (done.revision, hub.version()) == ("v0002", "v0002")
    assert done.hub is not None and done.hub.previous == "v0001"


def test_a_number_that_the_hub_gave_to_another_draft_is_given_up(hub: RunningHub, tmp_path: Path) -> None:
    publish(**publish_inputs(tmp_path / "one", "r1"))  # made, but never sent
    staged(tmp_path / "another", "r2")
    done = staged(tmp_path / "one", "r1")
    assert (done.revision, hub.version()) == ("v0002", "v0002")


def test_the_token_of_a_variable_or_a_secret_block_is_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    from tasks.publish import task

    monkeypatch.setenv("HUB_ACCESS", "variable-canary-31")  # its name does not tell that it is a secret
    assert task.hub_token(settings(token_env="HUB_ACCESS")) == "variable-canary-31"
    monkeypatch.setattr(task, "secret", {"hub": "block-canary-32\n"}.get)
    assert task.hub_token(settings(token_secret="hub")) == "block-canary-32"
    assert redact("variable-canary-31 block-canary-32") == "*** ***"
    assert "HUB_ACCESS" not in child_environment(os.environ, {}, {})
    monkeypatch.delenv("HUB_ACCESS")
    with pytest.raises(UsageError, match="the environment variable HUB_ACCESS is empty or not set"):
        task.hub_token(settings(token_env="HUB_ACCESS"))


def test_no_run_starts_with_a_token_that_may_not_write(
    hub: RunningHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tasks.publish.task import check_hub

    settings_of = profile(kind="hub", hub={"repo": "lab/draft"})
    monkeypatch.setenv("HF_TOKEN", READER)
    with pytest.raises(UsageError, match="the token of lab may only read"):
        check_hub(settings_of)
    check_hub(profile())  # without a hub nothing is asked


def test_what_came_back_is_loaded_in_a_process_of_its_own(tmp_path: Path) -> None:
    from types import SimpleNamespace

    from tasks.processes.launcher import LocalLauncher
    from tasks.publish.hub.loading import load_in_child
    from tasks.report.progress import LineProgress
    from tasks.run_folder import create_run

    run = create_run(tmp_path / "runs", "r1", profile())
    ctx: Any = SimpleNamespace(run=run, launcher=LocalLauncher(), progress=LineProgress(print))
    folder = export(tmp_path / "work" / "abc")
    with pytest.raises(PublishError, match="what came back from the hub does not load: the draft cannot be"):
        load_in_child(ctx, folder, tmp_path)
