"""What the stage leaves besides its result: files, parameters and tags, whether or not a check fails."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from profiles.load import load_profile
from tasks.execute import RunContext, execute_stage, small_files
from tasks.processes.launcher import LocalLauncher
from tasks.report.progress import SilentProgress
from tasks.run_folder import create_run
from tasks.stages import VALIDATE
from tasks.validate.recording import CHECKS_FILE, FACTS_FILE, read_records
from tasks.validate.task import _work


class Recorder:
    """Remembers what was tracked."""

    def __init__(self) -> None:
        self.params: dict[str, Any] = {}
        self.tags: dict[str | None, dict[str, str]] = {}
        self.kept: list[str] = []

    def start(self, stage: str, params: Any) -> None: ...
    def follow(self, stage: str, metrics_file: Path) -> None: ...
    def log_data(self, stage: str, name: str, digest: str, source: str) -> None: ...
    def send(self, operation: dict[str, Any]) -> None: ...

    def log_params(self, stage: str, params: Any) -> None:
        self.params[stage] = params

    def tag(self, stage: str | None, tags: Any) -> None:
        self.tags[stage] = dict(tags)

    def finish(self, stage: str, status: str, metrics: Any, files: tuple[Path, ...]) -> None:
        self.kept = [path.name for path in files]


def test_facts_and_results_are_files_and_parameters_of_its_run(tmp_path: Path) -> None:
    profile = load_profile("laptop", {"hardware": {"min_memory_gib": 10**6}}).profile
    tracker = Recorder()
    run = create_run(tmp_path, "r", profile)
    ctx = RunContext(run, profile, tracker, SilentProgress(), LocalLauncher())
    report = execute_stage(ctx, VALIDATE, {}, lambda folder: _work(ctx, folder))
    folder = run.path / VALIDATE.folder_name
    assert report.worst == "fail"
    assert {FACTS_FILE, CHECKS_FILE, "manifest.json"} <= set(tracker.kept)
    assert {path.name for path in small_files(folder)} == set(tracker.kept)
    (node,) = read_records([folder / FACTS_FILE])
    assert node.os.kernel_release == tracker.params["validate"]["machine"]["kernel"]
    assert tracker.params["validate"]["checks"]["failed"] == "host.memory"
    assert tracker.tags["validate"]["dspark.checks"] == "fail"
    assert tracker.tags[None] == {"dspark.toolkit_channel": report.toolkit_channel}
