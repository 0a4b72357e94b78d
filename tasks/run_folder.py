"""Where runs live: the run root and the folder of one run, private to the user."""

from __future__ import annotations

import json
import os
import re
import tempfile
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from profiles.schema import Profile
from tasks.errors import UsageError
from tasks.stage import Stage, StageFolder, write_atomic

RUNS_ENV = "RETRAIN_DSPARK_RUNS"
_RUN_ID = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")


def run_root() -> Path:
    """Folder of all runs: `RETRAIN_DSPARK_RUNS`, else `runs` in the working directory."""
    return Path(os.environ.get(RUNS_ENV) or "runs").expanduser().absolute()


def private_run_root() -> Path:
    """The run root, made if it is missing: only for this user.

    Raises:
        UsageError: It cannot be made or written.
    """
    root = run_root()
    hint = f"name a folder that you can write with {RUNS_ENV}"
    try:
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryFile(dir=root):
            pass
    except FileExistsError:
        raise UsageError("the run root is not a folder", where=str(root), hint=hint) from None
    except OSError as error:
        reason = error.strerror or error
        raise UsageError(f"the run root cannot be written: {reason}", where=str(root), hint=hint) from None
    return root


def new_run_id(profile_name: str, suffix: str, now: datetime | None = None) -> str:
    """A sortable id, e.g. `20261130-0214-laptop-1f3a9c2e`; `suffix` is the flow run's id."""
    now = now or datetime.now()
    return f"{now:%Y%m%d-%H%M%S}-{profile_name}-{suffix[:8]}"


@dataclass(frozen=True)
class RunFolder:
    """Folder of one run.

    `profile.json`, `01-validate/` ... `06-publish/`, `services/` (process registry), `logs/`,
    `progress/`, `report.html`, `summary.json`, `run.json` (ids of this run elsewhere).
    """

    path: Path

    @property
    def run_id(self) -> str:
        return self.path.name

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def services(self) -> Path:
        return self.path / "services"

    @property
    def progress(self) -> Path:
        return self.path / "progress"

    def stage(self, stage: Stage[Any]) -> StageFolder[Any]:
        return StageFolder(stage, self.path / stage.folder_name)

    def facts(self) -> dict[str, Any]:
        """What `run.json` knows: flow run id, MLflow parent run id, created_at, overrides."""
        path = self.path / "run.json"
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}

    def remember(self, **facts: Any) -> None:
        self.replace_facts({**self.facts(), **facts})

    def replace_facts(self, facts: dict[str, Any]) -> None:
        """Let `run.json` hold exactly these facts."""
        write_atomic(self.path / "run.json", json.dumps(facts, indent=2))

    def profile(self) -> Profile:
        return Profile.model_validate_json((self.path / "profile.json").read_text(encoding="utf-8"))


def create_run(root: Path, run_id: str, profile: Profile) -> RunFolder:
    """Make (or open again) the folder of a run and write its profile."""
    if not _RUN_ID.match(run_id):
        raise UsageError(f"'{run_id}' cannot be a run id", where="run_id", hint="use letters, digits, . _ -")
    run = RunFolder(root / run_id)
    root.mkdir(parents=True, exist_ok=True, mode=0o700)
    run.path.mkdir(exist_ok=True, mode=0o700)
    for folder in (run.logs, run.services, run.progress):
        folder.mkdir(exist_ok=True, mode=0o700)
    write_atomic(run.path / "profile.json", profile.model_dump_json(indent=2))
    return run


def open_run(root: Path, run_id: str) -> RunFolder:
    """Folder of an existing run.

    Raises:
        UsageError: No such run; the message lists the newest ones.
    """
    path = root / run_id
    if not _RUN_ID.match(run_id) or not (path / "profile.json").is_file():
        known = sorted((p.parent.name for p in root.glob("*/profile.json")), reverse=True)[:5]
        raise UsageError(
            f"there is no run '{run_id}'",
            where=str(root),
            hint="newest runs: " + (", ".join(known) or "none yet"),
        )
    return RunFolder(path)
