"""MLflow by `MlflowClient` only: one parent run per pipeline run, one child per stage, found again by key.

The key is the tag `dspark.key = <run id>[:<stage>]`. Run ids are passed explicitly, never through MLflow's
active run, which knows one thread and forgets everything when a process is killed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from filelock import FileLock

from tasks.processes.identity import boot_id, host_name, is_running, start_time
from tasks.redaction import redact
from tasks.run_folder import RunFolder
from tasks.stage import write_atomic
from tasks.tracking_queue import Operation, Refused, Tracker
from tasks.tracking_registry import register, set_aliases

KEY = "dspark.key"
OWNER = "dspark.owner"
URI_ENV = "MLFLOW_TRACKING_URI"
_DATABASE_S = 120.0
"""Longest time for another process to make or migrate the database on a busy machine."""
_NEVER = {"INVALID_PARAMETER_VALUE", "BAD_REQUEST", "RESOURCE_DOES_NOT_EXIST", "RESOURCE_ALREADY_EXISTS"}


def tracking_uri(root: Path) -> str:
    """`MLFLOW_TRACKING_URI`, else the SQLite file in the run root."""
    return os.environ.get(URI_ENV) or f"sqlite:///{root / 'mlflow.db'}"


def is_tracked(root: Path) -> bool:
    """Whether anything has been tracked: a server is named, or the run root has a database."""
    return bool(os.environ.get(URI_ENV)) or (root / "mlflow.db").exists()


def open_tracker(
    run: RunFolder, experiment: str, tags: Mapping[str, str], say: Callable[[str], None]
) -> Tracker:
    """A tracker of this run that sends to MLflow; nothing is sent before its `open`."""
    return Tracker(run, tags, say, MlflowSink(experiment, run.path.parent))


def owner_tag() -> str:
    """Names this process, which keeps the run alive: host, boot, process id, start time in clock ticks."""
    return f"{host_name()} {boot_id()} {os.getpid()} {start_time(os.getpid())}"


def owner_is_gone(owner: str) -> bool:
    """True if the process named by `owner` ran on this host and has ended; False if that cannot be known."""
    host, _, rest = owner.partition(" ")
    parts = rest.split(" ")
    if host != host_name() or len(parts) != 3:
        return False
    boot, pid, ticks = parts
    return boot != boot_id() or not is_running(int(pid), int(ticks))


class MlflowSink:
    """Sends one operation to MLflow. Used from one thread."""

    def __init__(self, experiment: str, root: Path) -> None:
        self._experiment_name = experiment
        self._root = root
        self._client: Any = None
        self._experiment_id = ""
        self._ids: dict[str, str] = {}
        self._artifacts = True

    def __call__(self, operation: Operation) -> str | None:
        """Carry out one operation.

        Returns:
            The MLflow run id for `open`, a line for the user if there is something to say, else None.

        Raises:
            Refused: MLflow will never take it. Any other error means that MLflow does not answer now.
        """
        from mlflow.exceptions import MlflowException

        try:
            self._connect()
            note: str | None = getattr(self, f"_{operation['op']}")(operation)
            return note
        except MlflowException as error:
            if error.error_code in _NEVER:
                raise Refused(redact(str(error)).splitlines()[0][:200]) from error
            raise

    def _connect(self) -> None:
        if self._client is not None:
            return
        client = mlflow_client(self._root)
        found = client.get_experiment_by_name(self._experiment_name)
        self._experiment_id = found.experiment_id if found else self._make_experiment(client)
        self._client = client

    def _make_experiment(self, client: Any) -> str:
        from mlflow.exceptions import MlflowException

        place = None if os.environ.get(URI_ENV) else (self._root / "mlartifacts").as_uri()
        try:
            return str(client.create_experiment(self._experiment_name, artifact_location=place))
        except MlflowException as error:
            # Another run that started at the same time may have made it meanwhile.
            found = client.get_experiment_by_name(self._experiment_name)
            if error.error_code != "RESOURCE_ALREADY_EXISTS" or found is None:
                raise
            return str(found.experiment_id)

    def _id(self, key: str) -> str:
        if key not in self._ids:
            runs = self._client.search_runs([self._experiment_id], f"tags.`{KEY}` = '{key}'", max_results=1)
            if not runs:
                raise Refused(f"there is no tracked run {key}")
            self._ids[key] = runs[0].info.run_id
        return self._ids[key]

    def _open(self, operation: Operation) -> str:
        """Reopen the run with this key, or create it."""
        key, tags = operation["key"], dict(operation["tags"])
        found = self._client.search_runs([self._experiment_id], f"tags.`{KEY}` = '{key}'", max_results=1)
        if found:
            run_id: str = found[0].info.run_id
            attempts = int(found[0].data.tags.get("dspark.attempts", "1")) + 1
            self._client.update_run(run_id, status="RUNNING")
            for name, value in {**tags, "dspark.attempts": str(attempts)}.items():
                self._client.set_tag(run_id, name, value)
        else:
            if operation.get("parent"):
                tags["mlflow.parentRunId"] = self._id(operation["parent"])
            run_id = self._client.create_run(
                self._experiment_id, tags={**tags, KEY: key}, run_name=operation["name"]
            ).info.run_id
        self._ids[key] = run_id
        return run_id

    def _params(self, operation: Operation) -> None:
        """Log parameters that are new; a changed one becomes a tag, since MLflow writes parameters once."""
        from mlflow.entities import Param

        run_id = self._id(operation["key"])
        known = self._client.get_run(run_id).data.params
        changed = {k: v for k, v in operation["params"].items() if k in known and known[k] != v}
        new = [Param(k, v) for k, v in operation["params"].items() if k not in known]
        for start in range(0, len(new), 100):
            self._client.log_batch(run_id, params=new[start : start + 100])
        for name, value in changed.items():
            self._client.set_tag(run_id, f"dspark.changed.{name}"[:250], value)

    def _metrics(self, operation: Operation) -> None:
        from mlflow.entities import Metric

        rows = [Metric(name, value, at_ms, step) for name, value, at_ms, step in operation["rows"]]
        for start in range(0, len(rows), 1000):
            self._client.log_batch(self._id(operation["key"]), metrics=rows[start : start + 1000])

    def _tags(self, operation: Operation) -> None:
        for name, value in operation["tags"].items():
            self._client.set_tag(self._id(operation["key"]), name, value)

    def _data(self, operation: Operation) -> None:
        """The data set that a stage used, named by the digest of its captures."""
        from mlflow.entities import Dataset, DatasetInput, InputTag

        dataset = Dataset(
            name=operation["name"],
            digest=operation["digest"][:36],
            source_type="local",
            source=f'{{"uri": "{operation["source"]}"}}',
        )
        tags = [InputTag("mlflow.data.context", "training")]
        self._client.log_inputs(self._id(operation["key"]), datasets=[DatasetInput(dataset, tags)])

    def _file(self, operation: Operation) -> str | None:
        path = Path(operation["path"])
        if not self._artifacts or not path.is_file():
            return None
        run_id = self._id(operation["key"])
        try:
            self._client.log_artifact(run_id, str(path), operation.get("folder") or None)
        except OSError as error:
            return f"MLflow did not store {path.name}: {error}"
        return None

    def _probe(self, operation: Operation) -> str | None:
        """Write and list a small file, so that an unusable artifact store is known before any work."""
        from mlflow.exceptions import MlflowException

        run_id = self._id(operation["key"])
        try:
            self._client.log_text(run_id, "written at start\n", "probe.txt")
            listed = {item.path for item in self._client.list_artifacts(run_id)}
            fault = "" if "probe.txt" in listed else "a file that was written is not listed"
        except (MlflowException, OSError) as error:
            fault = redact(str(error)).splitlines()[0][:200]
        self._artifacts = not fault
        place = self._client.get_run(run_id).info.artifact_uri
        return (
            f"MLflow cannot store files in {place} ({fault}); they stay in the run folder" if fault else None
        )

    def _register(self, operation: Operation) -> None:
        """A candidate in the registry; its run is made if an outage kept it from being tracked."""
        key = operation["key"]
        try:
            run_id = self._id(key)
        except Refused:
            run_id = self._open({"key": key, "name": key, "tags": {"dspark.run_id": key}})
            self._client.set_terminated(run_id, "FINISHED")
        register(self._client, self._experiment_id, run_id, operation, self._artifacts)

    def _aliases(self, operation: Operation) -> str | None:
        """Aliases as the pointer files say, and a note beside these that it was done."""
        missing = set_aliases(self._client, operation)
        if missing:
            return f"the registry does not know {', '.join(missing)} of {operation['name']}"
        write_atomic(Path(operation["confirm"]), json.dumps(operation["aliases"]) + "\n")
        return None

    def _end(self, operation: Operation) -> None:
        self._client.set_terminated(self._id(operation["key"]), operation["status"], operation["at_ms"])


def send_now(root: Path, experiment: str, operations: Iterable[Operation]) -> list[str]:
    """Send operations of no open run, at once.

    Returns:
        Lines for the user: what could not be sent, and why. Nothing is raised: the caller's work is done.
    """
    if not is_tracked(root):
        return []
    sink, lines = MlflowSink(experiment, root), list[str]()
    try:
        for operation in operations:
            if (note := sink(operation)) is not None:
                lines.append(note)
    except Refused as refusal:
        lines.append(f"MLflow refused a record: {refusal}")
    except Exception as error:
        lines.append(f"MLflow cannot be reached ({type(error).__name__}); the next start of a run tells it")
    return lines


def close_runs(root: Path, run_id: str, status: str) -> list[str]:
    """End every MLflow run of one pipeline run that is still marked running; hooks of other processes do."""
    runs = [run for run in _running_runs(root) if run.data.tags[KEY].partition(":")[0] == run_id]
    if runs:
        client = mlflow_client(root)
        for run in runs:
            client.set_terminated(run.info.run_id, status)
    return [run.data.tags[KEY] for run in runs]


def repair_runs(root: Path, change: bool = True) -> list[str]:
    """End MLflow runs that a dead process of this host left running; never those of a live one.

    Args:
        change: False only lists them.

    Returns:
        Keys of the runs that were (or would be) ended.
    """
    runs = [run for run in _running_runs(root) if owner_is_gone(run.data.tags.get(OWNER, ""))]
    if runs and change:
        client = mlflow_client(root)
        for run in runs:
            client.set_tag(run.info.run_id, "dspark.repaired", "its process had ended")
            client.set_terminated(run.info.run_id, "KILLED")
    return [run.data.tags[KEY] for run in runs]


def _running_runs(root: Path) -> Iterator[Any]:
    """MLflow runs of this project that are marked running."""
    if not is_tracked(root):
        return
    client = mlflow_client(root)
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    token = None
    while True:
        page = client.search_runs(experiments, "attributes.status = 'RUNNING'", page_token=token)
        yield from (run for run in page if KEY in run.data.tags)
        token = page.token
        if not token:
            return


def mlflow_client(root: Path) -> Any:
    """A client whose calls give up after seconds, not minutes."""
    for name, value in {
        "MLFLOW_HTTP_REQUEST_TIMEOUT": "5",
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
        "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_LOGGING_LEVEL": "WARNING",
    }.items():
        os.environ.setdefault(name, value)
    root.mkdir(parents=True, exist_ok=True, mode=0o700)
    from mlflow import MlflowClient

    if os.environ.get(URI_ENV):
        return MlflowClient(tracking_uri=tracking_uri(root))
    # The first use makes the database; two first uses at once leave one that nothing can open again.
    with FileLock(root / ".mlflow.lock", timeout=_DATABASE_S):
        client = MlflowClient(tracking_uri=tracking_uri(root))
        client.search_experiments(max_results=1)
    return client
