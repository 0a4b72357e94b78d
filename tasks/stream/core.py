"""The stream stage: capture answers and hidden states of every prompt into the hidden-state log."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from profiles.schema import Profile
from profiles.streaming import in_flight_bytes, put_timeout_s
from tasks.errors import JobError, UsageError
from tasks.processes.job import nothing, run_job
from tasks.processes.launcher import Launcher, ProcessSpec
from tasks.prompts.load import PromptSet, load_prompts
from tasks.report.progress import Progress
from tasks.run_folder import RunFolder
from tasks.serve.models import TargetEndpoint, TargetIdentity
from tasks.stage import canonical, sha256_text, write_atomic
from tasks.stream.canary_report import read_report
from tasks.stream.models import CaptureManifest, CaptureSummary
from tasks.stream.settings import (
    ANSWER_KEY_ENV,
    API_KEY_ENV,
    CLIENT_ENVIRONMENT,
    AnswerSettings,
    CaptureFiles,
    CaptureSettings,
    SamplingSettings,
)

JOB_NAME = "capture"
CLAIMS = ".captures"
"""Folder in the run root: which captures live."""
_LOG_FORMAT = 1
_SWEEP_S = 60.0
_AFTER_PUT_S = 15.0
"""A put that waits as long as it may ends this much later: a call takes seconds while the master is away."""


def capture(
    profile: Profile,
    run: RunFolder,
    folder: Path,
    endpoint: TargetEndpoint,
    identity: TargetIdentity,
    target_dir: Path,
    launcher: Launcher,
    progress: Progress,
    watch: Callable[[], None],
    on_fault: Callable[[], None] = nothing,
) -> CaptureManifest:
    """Capture every prompt; continues a log that the same target and prompts began.

    Args:
        folder: The stage folder; the log is `log/` in it.
        endpoint: The live target.
        identity: Which target answers; captures of another one are not continued.
        target_dir: Folder of the target, for its tokenizer and chat template.
        watch: Raises when the target makes no progress; called while the client runs.
        on_fault: Called when the client failed or is to be ended, before it gets its time to end.

    Raises:
        UsageError: Prompts that cannot be used.
        ServiceError: The target is gone.
        JobError: More samples were lost than `stream.max_lost` allows, or the client died.
    """
    prompts = load_prompts(profile)
    files = CaptureFiles(folder)
    files.work.mkdir(parents=True, exist_ok=True, mode=0o700)
    settings = settings_for(profile, run, folder, endpoint, identity, target_dir)
    _continue_or_clear(files, origin_of(settings, prompts, identity))
    _put_log_on_its_node(profile, run, files)
    rows = [json.dumps(prompt.record()) for prompt in prompts.prompts]
    write_atomic(files.prompts, "".join(f"{row}\n" for row in rows))
    write_atomic(files.settings, settings.model_dump_json(indent=2))
    run_job(
        launcher,
        ProcessSpec(
            name=JOB_NAME,
            stage="stream",
            role="train",
            argv=(sys.executable, "-m", "tasks.stream.capture", str(files.settings)),
            env=CLIENT_ENVIRONMENT,
            secret_env=_keys(profile, endpoint),
        ),
        run,
        progress=progress,
        progress_file=Path(settings.progress_file),
        stall_timeout_s=profile.serve.progress_timeout_s,
        watch=watch,
        on_fault=on_fault,
    )
    summary = read_summary(files)
    _check(profile, files, summary)
    return manifest_of(files, summary, identity, profile.stream.known_temperature)


def _keys(profile: Profile, endpoint: TargetEndpoint) -> dict[str, str]:
    """Keys of the servers that the client asks; they travel by environment only.

    Raises:
        UsageError: The variable that should hold a key is not set.
    """
    keys = {API_KEY_ENV: endpoint.api_key} if endpoint.api_key else {}
    name = profile.stream.answer_api_key_env
    if name is not None:
        if not os.environ.get(name):
            raise UsageError(
                f"the environment variable {name} is not set",
                where="stream.answer_api_key_env",
                hint=f"export {name}=... before the run",
            )
        keys[ANSWER_KEY_ENV] = os.environ[name]
    return keys


def settings_for(
    profile: Profile,
    run: RunFolder,
    folder: Path,
    endpoint: TargetEndpoint,
    identity: TargetIdentity,
    target_dir: Path,
) -> CaptureSettings:
    """What the capture client needs to know; the key is not in it."""
    stream, store = profile.stream, profile.store
    training = SamplingSettings(
        max_new_tokens=stream.max_new_tokens,
        temperature=stream.temperature,
        top_p=stream.top_p,
        seed=stream.seed,
    )
    greedy = SamplingSettings(
        max_new_tokens=profile.evaluate.replay_max_new_tokens, temperature=0.0, top_p=1.0, seed=stream.seed
    )
    return CaptureSettings(
        run_id=run.run_id,
        url=endpoint.url,
        served_name=endpoint.served_name,
        tokenizer=str(target_dir),
        trust_remote_code=profile.target.trust_remote_code,
        thinking=profile.prompts.thinking,
        max_model_len=profile.target.max_model_len,
        max_bad_rows=profile.prompts.max_bad_rows,
        layers=len(identity.layer_ids),
        layer_ids=identity.layer_ids,
        tap_point=identity.tap_point,
        hidden_size=identity.hidden_size,
        dtype=identity.dtype,
        sampling={"train": training, "held_out": training, "evaluate": greedy},
        store_master=endpoint.store_master,
        store_host=endpoint.store_host or store.host,
        store_protocol=store.protocol,
        store_device=store.device,
        store_local_buffer_bytes=store.local_buffer_bytes,
        store_gid_index=store.gid_index,
        store_interface=store.interface,
        concurrency=stream.concurrency,
        in_flight_bytes=in_flight_bytes(stream, store),
        max_attempts=stream.max_attempts,
        max_lost=stream.max_lost,
        read_timeout_s=stream.read_timeout_s,
        answer_timeout_s=profile.serve.progress_timeout_s,
        sample_timeout_s=stream.sample_timeout_s,
        sweep_limit_s=max(_SWEEP_S, put_timeout_s(stream) + _AFTER_PUT_S),
        server_wait_s=stream.server_wait_s,
        canary_every=stream.canary_every,
        answers=_answer_settings(profile, endpoint, identity),
        window_bytes=stream.window_bytes if stream.retention == "window" else None,
        claims=str(run.path.parent / CLAIMS),
        folder=str(folder),
        progress_file=str(run.progress / f"{JOB_NAME}.jsonl"),
    )


def _answer_settings(profile: Profile, endpoint: TargetEndpoint, identity: TargetIdentity) -> AnswerSettings:
    stream = profile.stream
    return AnswerSettings(
        answers=stream.answers,
        recorded_else=stream.recorded_else,
        target_names=tuple(dict.fromkeys((endpoint.served_name, profile.target.model))),
        target_revision=identity.revision,
        template_digest=identity.template_digest,
        answer_url=stream.answer_url,
        answer_model=stream.answer_model or endpoint.served_name,
    )


def origin_of(settings: CaptureSettings, prompts: PromptSet, identity: TargetIdentity) -> str:
    """Digest of everything that makes samples of two sessions interchangeable."""
    sampling = {split: one.model_dump() for split, one in settings.sampling.items()}
    return sha256_text(
        canonical(
            [
                _LOG_FORMAT,
                prompts.digest,
                [identity.model_digest, identity.tokenizer_digest, identity.template_digest],
                [list(identity.layer_ids), identity.dtype, *_tap(identity)],
                sampling,
                [settings.thinking, settings.max_model_len],
                [settings.answers.answers, settings.answers.recorded_else],
            ]
        )
    )


def _tap(identity: TargetIdentity) -> list[str]:
    """The tap point, where the target has a choice: logs of other targets keep their origin."""
    return [] if identity.tap_point is None else [identity.tap_point]


def _continue_or_clear(files: CaptureFiles, origin: str) -> None:
    """Keep what an earlier session captured, unless its samples would differ from ours."""
    known = json.loads(files.origin.read_text("utf-8")) if files.origin.exists() else None
    if known != origin:
        if files.log.is_symlink():
            files.log.unlink()
        shutil.rmtree(files.log, ignore_errors=True)
        for path in (
            files.counters,
            files.lost,
            files.dropped,
            files.set_aside,
            files.token_counts,
            files.canary,
        ):
            path.unlink(missing_ok=True)
    files.summary.unlink(missing_ok=True)
    write_atomic(files.origin, json.dumps(origin))


def _put_log_on_its_node(profile: Profile, run: RunFolder, files: CaptureFiles) -> None:
    """Let the log be a link to the training node's own disk, where the profile names a folder there.

    The name is a new one each time, so that what an earlier log left on that disk is never continued by
    mistake. The launcher makes the folder on the node.
    """
    if profile.launch.scratch and not files.log.is_symlink() and not files.log.exists():
        files.log.symlink_to(Path(profile.launch.scratch) / f"{run.run_id}-{secrets.token_hex(4)}")


def read_summary(files: CaptureFiles) -> CaptureSummary:
    """What the client handed over; all that the flow sees of the captures.

    Raises:
        JobError: It ended without saying what it captured.
    """
    try:
        return CaptureSummary.model_validate_json(files.summary.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise JobError(
            f"the capture client ended and left no readable summary ({type(error).__name__})",
            where=str(files.summary),
            hint="resume the run; if it happens again, see the client's log",
        ) from None


def _check(profile: Profile, files: CaptureFiles, summary: CaptureSummary) -> None:
    """Refuse captures of which too much is lost.

    Objects die with their producer, so nothing may be left unread when the target ends after this.

    Raises:
        JobError: More samples were lost than allowed.
    """
    lost = summary.counters.lost
    if lost > profile.stream.max_lost * summary.prompts:
        raise JobError(
            f"{lost} of {summary.prompts} samples were lost, after up to {profile.stream.max_attempts} "
            f"attempts each: {'; '.join(summary.lost_shown)}",
            where=str(files.lost),
            hint="see the target's log and docs/streaming.md; a resume asks for them again; stream.max_lost "
            "allows a share",
        )


def manifest_of(
    files: CaptureFiles, summary: CaptureSummary, identity: TargetIdentity, temperature: float | None
) -> CaptureManifest:
    """Describe a finished log.

    Args:
        temperature: Of the training answers; None where they are not all sampled by this run.
    """
    return CaptureManifest(
        log=files.log.name,
        digest=summary.digest,
        target=identity.model_digest,
        layer_ids=identity.layer_ids,
        tap_point=identity.tap_point,
        hidden_size=identity.hidden_size,
        dtype=identity.dtype,
        samples=summary.samples,
        tokens=summary.tokens,
        trainable_tokens=summary.trainable_tokens,
        distinct_tokens=summary.distinct_tokens,
        bytes=summary.bytes,
        splits=summary.splits,
        temperature=temperature,
        canary=read_report(files.canary),
        counters=summary.counters,
    )
