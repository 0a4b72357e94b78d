"""What a resume would reuse, from manifests alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from profiles.load import load_profile
from profiles.schema import Profile
from tasks.plan.reuse import last_run, planned_reuse
from tasks.run_folder import RunFolder, create_run
from tasks.stage import canonical, fingerprint
from tasks.stages import STAGES


def finished_run(root: Path, profile: Profile, name: str = "r1") -> RunFolder:
    run = create_run(root, name, profile)
    for stage in STAGES:
        folder = run.path / stage.folder_name
        folder.mkdir()
        (folder / "result.txt").write_text("x")
        stored = json.loads(canonical(fingerprint(stage, profile, {"prompts": "d1"})))
        (folder / "manifest.json").write_text(
            json.dumps({"fingerprint": stored, "files": {"result.txt": "h"}})
        )
    return run


def laptop(**parts: Any) -> Profile:
    return load_profile("laptop", parts).profile


def again(run: RunFolder, profile: Profile, digest: str = "d1") -> dict[str, str]:
    return {row.stage: row.why for row in planned_reuse(profile, run, digest) if not row.reused}


def test_an_unchanged_run_is_reused_whole(tmp_path: Path) -> None:
    run = finished_run(tmp_path, laptop())
    assert again(run, laptop()) == {}
    assert again(run, laptop(train={"threads": 1}), "") == {}  # of the machine: no result depends on it
    assert again(run, laptop(budget={"gpu_hours": 1})) == {}


def test_a_changed_field_is_named_and_what_follows_runs_again(tmp_path: Path) -> None:
    run = finished_run(tmp_path, laptop())
    found = again(run, laptop(train={"lr": 0.001}))
    assert list(found) == ["train", "evaluate", "publish"]
    assert found["train"] == "changed: profile.train.lr: 0.003 -> 0.001"
    assert found["evaluate"].startswith("train run again")
    assert list(again(run, laptop(), "other prompts")) == ["stream", "train", "evaluate", "publish"]


def test_what_was_not_finished_or_is_gone_runs_again(tmp_path: Path) -> None:
    run = finished_run(tmp_path, laptop())
    (run.path / "03-stream" / "result.txt").unlink()
    (run.path / "06-publish" / "manifest.json").unlink()
    found = again(run, laptop())
    assert found["stream"] == "result.txt is missing" and found["publish"] == "was not finished"


def test_the_newest_run_of_the_profile_is_meant(tmp_path: Path) -> None:
    create_run(tmp_path, "20260101-000000-laptop-a", laptop())
    create_run(tmp_path, "20260102-000000-laptop-b", laptop())
    create_run(tmp_path, "20260103-000000-other-c", laptop(name="other"))
    found = last_run(tmp_path, "laptop")
    assert found is not None and found.run_id == "20260102-000000-laptop-b"
    assert last_run(tmp_path, "nobody") is None
