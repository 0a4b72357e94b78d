"""Tracking that never holds up a stage: small operations in a queue, sent in order by one background thread.

If the tracker does not answer, operations stay queued, and what is left at the end is written to
`mlflow-spool.jsonl` in the run folder and sent when the run is opened again.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tasks.run_folder import RunFolder
from tasks.tracking_text import clean_name, clean_params, finite

SPOOL = "mlflow-spool.jsonl"
Operation = dict[str, Any]
Sink = Callable[[Operation], str | None]


class Refused(Exception):
    """An operation that the tracker will never take."""


class Tracker:
    """Tracks one pipeline run.

    Args:
        run: Its folder; the keys are `<run id>` and `<run id>:<stage>`.
        tags: Tags of the parent run and of each child.
        say: Called with one line when something about tracking must be known.
        sink: Sends one operation; `Refused` means that it can never succeed, any other error "not now".
        answer_s: Longest wait at start and at the end, seconds.
    """

    def __init__(
        self,
        run: RunFolder,
        tags: Mapping[str, str],
        say: Callable[[str], None],
        sink: Sink,
        answer_s: float = 30.0,
    ) -> None:
        self.run = run
        self.ids: dict[str, str] = {}
        self._say = say
        self._sink = sink
        self._answer_s = answer_s
        self._queue: deque[Operation] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._late = False
        self._refused = 0
        self._nonfinite: dict[str, int] = {}
        self._followers: dict[str, _Follower] = {}
        self._tags = dict(tags)
        self._thread = threading.Thread(target=self._send_all, name="mlflow", daemon=True)

    def open(self, params: Mapping[str, Any], profile_file: Path) -> None:
        """Open or reopen the parent run, send what an earlier attempt could not, probe the artifact store."""
        for operation in _take_spool(self.run):
            self._put(operation)
        key = self.run.run_id
        self._put({"op": "open", "key": key, "name": key, "tags": self._tags})
        self._put({"op": "params", "key": key, "params": clean_params(params)})
        self._put({"op": "probe", "key": key})
        self._put({"op": "file", "key": key, "path": str(profile_file), "folder": "config"})
        self._thread.start()
        if not self._drain(self._answer_s):
            self._say("MLflow does not answer; the run goes on and sends its records later")

    def start(self, stage: str, params: Mapping[str, Any]) -> None:
        """Open (or reopen) a stage's child run."""
        key = self._key(stage)
        tags = {**self._tags, "dspark.stage": stage}
        self._put({"op": "open", "key": key, "name": stage, "tags": tags, "parent": self.run.run_id})
        self.log_params(stage, params)

    def log_params(self, stage: str, params: Mapping[str, Any]) -> None:
        """Add parameters that became known while the stage ran."""
        self._put({"op": "params", "key": self._key(stage), "params": clean_params(params)})

    def log_metrics(
        self, stage: str, step: int, metrics: Mapping[str, float], at_ms: int | None = None
    ) -> None:
        """Record one step. Values that are not finite are counted, not sent."""
        good, bad = finite(metrics)
        if bad:
            self._nonfinite[stage] = self._nonfinite.get(stage, 0) + len(bad)
        at_ms = at_ms if at_ms is not None else int(time.time() * 1000)
        rows = [[clean_name(name), value, at_ms, step] for name, value in good.items()]
        if rows:
            self._put({"op": "metrics", "key": self._key(stage), "rows": rows})

    def log_data(self, stage: str, name: str, digest: str, source: str) -> None:
        """Name the data set that a stage read or made, by its digest."""
        self._put({"op": "data", "key": self._key(stage), "name": name, "digest": digest, "source": source})

    def log_file(self, stage: str | None, path: Path, folder: str = "") -> None:
        self._put({"op": "file", "key": self._key(stage), "path": str(path), "folder": folder})

    def tag(self, stage: str | None, tags: Mapping[str, str]) -> None:
        self._put({"op": "tags", "key": self._key(stage), "tags": dict(tags)})

    def send(self, operation: Operation) -> None:
        """Send an operation that another module has put together, in turn."""
        self._put(operation)

    def follow(self, stage: str, metrics_file: Path) -> None:
        """Send the rows that are appended to `metrics_file` until the stage ends."""
        follower = _Follower(metrics_file, lambda step, row, at: self.log_metrics(stage, step, row, at))
        self._followers[stage] = follower
        follower.start()

    def finish(self, stage: str, status: str, metrics: Mapping[str, float], files: tuple[Path, ...]) -> None:
        """End a stage's child run as FINISHED, FAILED or KILLED."""
        follower = self._followers.pop(stage, None)
        if follower is not None:
            follower.stop()
        self.log_metrics(stage, 0, metrics)
        for path in files:
            self.log_file(stage, path)
        self._end(self._key(stage), status, self._nonfinite.pop(stage, 0))

    def close(self, status: str) -> None:
        """End the parent run, wait a bounded time for the queue, and spool what is left."""
        for stage in list(self._followers):
            self.finish(stage, status, {}, ())
        self._end(self.run.run_id, status, 0)
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if not self._thread.is_alive() and self._thread.ident is None:
            self._thread.start()
        self._thread.join(self._answer_s)
        with self._changed:
            left = list(self._queue)
            self._queue.clear()
        if left:
            with open(self.run.path / SPOOL, "a", encoding="utf-8") as stream:
                stream.writelines(json.dumps(operation) + "\n" for operation in left)
            self._say(
                f"MLflow did not take {len(left)} records; they are in {SPOOL} and go out on the next resume"
            )
        if self._refused:
            self._say(f"MLflow refused {self._refused} records; everything is in the run folder")

    def _key(self, stage: str | None) -> str:
        return self.run.run_id if stage is None else f"{self.run.run_id}:{stage}"

    def _end(self, key: str, status: str, nonfinite: int) -> None:
        if nonfinite:
            self._put({"op": "tags", "key": key, "tags": {"dspark.nonfinite_metrics": str(nonfinite)}})
        self._put({"op": "end", "key": key, "status": status, "at_ms": int(time.time() * 1000)})

    def _put(self, operation: Operation) -> None:
        with self._changed:
            self._queue.append(operation)
            self._changed.notify_all()

    def _drain(self, wait_s: float) -> bool:
        """Wait until the queue is empty; False if it still is not after `wait_s`."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._queue, wait_s)

    def _send_all(self) -> None:
        """The thread: send in order, keep what cannot be sent now, give up on nothing but refusals."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._closing)
                if not self._queue:
                    return
                operation = _merge_metrics(self._queue)
            if self._send(operation):
                self._forget(operation)
            elif not self._wait_to_retry():
                return

    def _forget(self, operation: Operation) -> None:
        with self._changed:
            if self._queue and self._queue[0] is operation:
                self._queue.popleft()
                self._changed.notify_all()

    def _wait_to_retry(self) -> bool:
        """Pause after a failed attempt; False if the queue is closing, so that there is no other one."""
        with self._changed:
            if self._closing:
                return False
            self._changed.wait(5.0)
            return True

    def _send(self, operation: Operation) -> bool:
        try:
            note = self._sink(operation)
        except Refused as refusal:
            self._refused += 1
            if self._refused <= 3:
                self._say(f"MLflow refused a record: {refusal}")
            return True
        except Exception as error:
            if not self._late:
                self._say(f"MLflow cannot be reached ({type(error).__name__}); records wait in memory")
            self._late = True
            return False
        if self._late:
            self._say("MLflow answers again")
        self._late = False
        if operation["op"] == "open" and note:
            self.ids[operation["key"]] = note
        elif note:
            self._say(note)
        return True


class _Follower:
    """Reads rows that a child appends to its metrics file, every two seconds."""

    def __init__(self, path: Path, emit: Callable[[int, Mapping[str, float], int | None], None]) -> None:
        self._path = path
        self._emit = emit
        self._offset = path.stat().st_size if path.exists() else 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name=f"follow {path.name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join(5.0)
        self._read()

    def _watch(self) -> None:
        while not self._ended.wait(2.0):
            self._read()

    def _read(self) -> None:
        if not self._path.exists():
            return
        # A resumed trainer cuts off the lines of steps that it takes again.
        self._offset = min(self._offset, self._path.stat().st_size)
        with open(self._path, "rb") as stream:
            stream.seek(self._offset)
            text = stream.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._offset += len(whole)
        for line in whole.splitlines():
            row = _row(line)
            if row is not None:
                self._emit(*row)


def _row(line: bytes) -> tuple[int, dict[str, float], int | None] | None:
    """Step, metrics named `<split>/<name>`, and time in ms of one line of a metrics file; None if torn."""
    try:
        values = json.loads(line)
    except ValueError:
        return None
    if not isinstance(values, dict):
        return None
    step = int(values.pop("step", 0))
    at = values.pop("t", None)
    split = values.pop("split", "")
    values.pop("epoch", None)
    metrics = {
        f"{split}/{name}" if split else name: float(value)
        for name, value in values.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
    return step, metrics, int(at * 1000) if isinstance(at, int | float) and math.isfinite(at) else None


def _merge_metrics(queue: deque[Operation], limit: int = 1000) -> Operation:
    """The first operation; metrics of the same run that follow are moved into it, up to MLflow's limit."""
    first = queue[0]
    while first["op"] == "metrics" and len(queue) > 1:
        second = queue[1]
        same = second["op"] == "metrics" and second["key"] == first["key"]
        if not same or len(first["rows"]) + len(second["rows"]) > limit:
            break
        first["rows"] += second["rows"]
        del queue[1]
    return first


def _take_spool(run: RunFolder) -> list[Operation]:
    """Operations that an earlier attempt left, and remove the file: they are in memory again."""
    path = run.path / SPOOL
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").splitlines()
    path.unlink()
    return [json.loads(line) for line in lines if line.strip()]
