"""Loads a server that runs, level after level, and keeps each point as soon as it is measured.

Nothing that the server does ends the sweep: a level that never finishes, an engine that dies, hangs or
answers late costs its own point. Nothing here starts, restarts or ends a server.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pydantic import BaseModel, ConfigDict, ValidationError

from tasks.errors import ServiceError
from tasks.evaluate.load.generator import ENVIRONMENT, KEY_ENV, Measured, generator_argv, read_result
from tasks.evaluate.load.models import Level, LoadPoint
from tasks.evaluate.load.traffic import Ours, Reading, change, read_idle
from tasks.measure.acceptance import decoding_steps, tau
from tasks.measure.counters import SpecDelta
from tasks.processes.launcher import Launcher, ProcessSpec
from tasks.processes.service import running
from tasks.report.progress import Progress
from tasks.run_folder import RunFolder
from tasks.serve.vllm_http import Server
from tasks.stage import canonical, sha256_file, sha256_text, write_atomic

SETTLE_S = 30.0
"""How long an engine may take to give up the requests of a generator that was ended."""
_POLL_S = 0.1
_TELL_EVERY_S = 2.0


class Endpoint(Protocol):
    """Where a server answers; `ArmEndpoint` and `AttachedArm` are such."""

    @property
    def url(self) -> str: ...
    @property
    def served_name(self) -> str: ...
    @property
    def api_key(self) -> str | None: ...


class StoredPoint(BaseModel):
    """A point on disk, with the digest of what it was made from."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    fingerprint: str
    point: LoadPoint
    final: bool = True
    """False for one that a server which was gone prevented: it is worth another attempt."""


@dataclass(frozen=True)
class _Sweep:
    """What the steps of a sweep share."""

    endpoint: Endpoint
    arm: str
    prompts: Path
    folder: Path
    launcher: Launcher
    run: RunFolder
    progress: Progress

    @property
    def server(self) -> Server:
        return Server(self.endpoint.url, self.endpoint.served_name, self.endpoint.api_key)

    def file(self, level: Level, suffix: str = ".json") -> Path:
        return point_file(self.folder, self.arm, level, suffix)


def sweep(
    endpoint: Endpoint,
    arm: str,
    levels: Sequence[Level],
    prompts_file: Path,
    folder: Path,
    launcher: Launcher,
    run: RunFolder,
    progress: Progress,
    identity: str = "",
) -> tuple[LoadPoint, ...]:
    """Measure one arm that answers now at every level; points that are stored already are reused.

    Args:
        endpoint: The server. It serves no one else meanwhile, or the point is invalid.
        arm: Its name, also the start of the points' file names.
        levels: From `levels_of`, in this order.
        prompts_file: From `write_prompts`; the same file for all arms.
        folder: Where points are stored, `load/` in the stage's folder. Each new point also becomes a row of
            `metrics.jsonl` beside it, which the tracker follows.
        identity: Digest of what the arm serves (`arm_fingerprint`): points of another one are not reused.

    Returns:
        One point for each level. A server that is gone or hangs gives invalid points, which another sweep
        measures again.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    here = _Sweep(endpoint, arm, prompts_file, folder, launcher, run, progress)
    points = []
    for number, level in enumerate(levels, start=1):
        progress.update(done=number - 1, total=len(levels), unit="levels", note=_note(here, level))
        fingerprint = point_fingerprint(arm, level, prompts_file, identity)
        point = final_point(here.file(level), fingerprint)
        if point is None:
            point, final = _measure(here, level)
            stored = StoredPoint(fingerprint=fingerprint, point=point, final=final)
            write_atomic(here.file(level), stored.model_dump_json(indent=1))
            _tell_tracker(folder.parent / "metrics.jsonl", point)
        points.append(point)
    return tuple(points)


def point_fingerprint(arm: str, level: Level, prompts_file: Path, identity: str) -> str:
    """Digest of everything that a point is made from."""
    parts = [level.model_dump(mode="json"), sha256_file(prompts_file), arm, identity]
    return sha256_text(canonical(parts))


def point_file(folder: Path, arm: str, level: Level, suffix: str = ".json") -> Path:
    """Where a point, or with another suffix what belongs to it, is stored."""
    return folder / f"{arm}-{level.label}{suffix}"


def read_point(file: Path) -> StoredPoint | None:
    """The point in `file`, whatever it was made from; None if there is none that can be read."""
    try:
        return StoredPoint.model_validate_json(file.read_text(encoding="utf-8"))
    except (OSError, ValidationError):
        return None


def final_point(file: Path, fingerprint: str) -> LoadPoint | None:
    """The point in `file` if it was made from the same inputs and needs no other attempt."""
    stored = read_point(file)
    return stored.point if stored and stored.final and stored.fingerprint == fingerprint else None


def _measure(here: _Sweep, level: Level) -> tuple[LoadPoint, bool]:
    """One point, and whether it is final: what a server that was gone prevented is worth another attempt."""
    try:
        before = read_idle(here.server, SETTLE_S)
    except ServiceError as error:
        return _lost(here, level, f"the server does not answer: {error.what}"), False
    if before.open:
        why = f"{before.open} requests are open and do not end: the engine hangs, or another client uses it"
        return _lost(here, level, why), False
    result = here.file(level, ".requests.json")
    result.unlink(missing_ok=True)
    status, seconds = _generate(here, level, result)
    if status is None:
        return _timed_out(here, level, before, seconds), True
    try:
        measured = read_result(result)
    except ValueError:
        why = f"the load generator ended with status {status} and left no result; see its log in logs/"
        return _lost(here, level, why), False
    try:
        after = read_idle(here.server, SETTLE_S)
    except ServiceError as error:
        gone = f"the server does not answer any more: {error.what}"
        return _point(here, level, measured, None, gone), False
    grown, foreign = change(before, after, _ours(level, measured))
    return _point(here, level, measured, grown, foreign), True


def _generate(here: _Sweep, level: Level, result: Path) -> tuple[int | None, float]:
    """Run the generator; its exit status, None if the level's time was up, and the seconds that it took."""
    spec = ProcessSpec(
        name=f"load-{here.arm}-{level.label}",
        stage="evaluate",
        role="serve",
        argv=generator_argv(here.endpoint.url, here.endpoint.served_name, level, here.prompts, result),
        env=ENVIRONMENT,
        secret_env={KEY_ENV: here.endpoint.api_key} if here.endpoint.api_key else {},
        grace_s=2.0,
    )
    started = told = time.monotonic()
    with running(here.launcher, spec, here.run) as handle:
        while (status := handle.poll()) is None:
            now = time.monotonic()
            if now - started > level.timeout_s:
                return None, now - started
            if now - told > _TELL_EVERY_S:
                told = now
                here.progress.update(done=round(now - started), total=None, unit="s", note=_note(here, level))
            time.sleep(_POLL_S)
    return status, time.monotonic() - started


def _ours(level: Level, measured: Measured) -> Ours:
    """The most that our requests account for. A request that failed may have ended in the engine too."""
    lost = (measured.failed + level.warm_ups) * level.max_new_tokens
    return Ours(level.requests + level.warm_ups, measured.output_tokens + lost)


def _point(
    here: _Sweep, level: Level, measured: Measured, grown: SpecDelta | None, foreign: str
) -> LoadPoint:
    """The point of a generator that came to its end; without speeds if they may not be compared."""
    invalid = "; ".join(reason for reason in (_failures(level, measured), foreign) if reason)
    point = LoadPoint(
        arm=here.arm,
        concurrency=level.concurrency or measured.most_in_flight,
        request_rate=level.request_rate,
        requests=level.requests,
        failed=measured.failed,
        invalid=invalid,
        seconds=measured.seconds,
        output_tokens=measured.output_tokens,
        output_tokens_per_s=0.0,
    )
    if invalid or grown is None:
        return point
    drafted = grown.drafts > 0
    return point.model_copy(
        update={
            "output_tokens_per_s": measured.output_tokens_per_s,
            "tokens_per_s_per_user": measured.tokens_per_s_per_user,
            "ttft_ms": measured.ttft_ms,
            "itl_ms": measured.itl_ms,
            "tpot_ms": measured.tpot_ms,
            "tau": tau(grown.drafts, grown.accepted),
            "tokens_per_step": _tokens_per_step(level, measured, grown) if drafted else None,
            "drafts": grown.drafts if drafted else None,
            "draft_tokens": grown.draft_tokens if drafted else None,
        }
    )


def _tokens_per_step(level: Level, measured: Measured, grown: SpecDelta) -> float | None:
    """Over all decoding steps of the level, those of its warm-up included as in the counters."""
    answers = level.requests + level.warm_ups - measured.failed
    return tau(decoding_steps(grown.generated, answers, grown.drafts, grown.accepted), grown.accepted)


def _failures(level: Level, measured: Measured) -> str:
    if measured.failed <= level.max_failed * level.requests and measured.completed:
        return ""
    reason = f": {measured.first_error}" if measured.first_error else ""
    return f"{measured.failed} of {level.requests} requests failed (limit {level.max_failed:.0%}){reason}"


def _timed_out(here: _Sweep, level: Level, before: Reading, seconds: float) -> LoadPoint:
    """The point of a level that never finished; the server says how many requests it ended meanwhile."""
    try:
        after = read_idle(here.server, SETTLE_S)
        grown = change(before, after, Ours(level.requests + level.warm_ups, 0))[0]
        answered = min(level.requests, max(0, round(after.finished - before.finished) - level.warm_ups))
        tokens = grown.generated
    except ServiceError:
        answered = tokens = 0
    return LoadPoint(
        arm=here.arm,
        concurrency=level.concurrency or 0,
        request_rate=level.request_rate,
        requests=level.requests,
        failed=level.requests - answered,
        timed_out=True,
        seconds=seconds,
        output_tokens=max(0, tokens),
        output_tokens_per_s=0.0,
    )


def _lost(here: _Sweep, level: Level, why: str) -> LoadPoint:
    """The point that could not be measured at all."""
    return LoadPoint(
        arm=here.arm,
        concurrency=level.concurrency or 0,
        request_rate=level.request_rate,
        requests=level.requests,
        failed=level.requests,
        invalid=why,
        seconds=0.0,
        output_tokens=0,
        output_tokens_per_s=0.0,
    )


def _note(here: _Sweep, level: Level) -> str:
    return f"load on arm {here.arm}, {level.words}"


def _tell_tracker(file: Path, point: LoadPoint) -> None:
    """One row: figures of a sweep over concurrency have the concurrency as step, of rates requests/minute."""
    rate = point.request_rate
    row = {
        "step": point.concurrency if rate is None else round(60 * rate),
        "split": f"load_{point.arm}" if rate is None else f"load_rate_{point.arm}",
        "requests": point.requests,
        "failed": point.failed,
        "timed_out": int(point.timed_out),
        "invalid": int(bool(point.invalid)),
        "output_tokens_per_s": point.output_tokens_per_s if point.usable else None,
        "tokens_per_s_per_user": point.tokens_per_s_per_user,
        "ttft_p50_ms": point.ttft_ms.p50,
        "itl_p50_ms": point.itl_ms.p50,
        "tokens_per_step": point.tokens_per_step,
        "tau_per_drafted_round": point.tau,
    }
    with open(file, "a", encoding="utf-8") as stream:
        stream.write(json.dumps({name: value for name, value in row.items() if value is not None}) + "\n")
