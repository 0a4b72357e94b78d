"""The stream stage: capture answers and hidden states of every prompt into the hidden-state log."""

from __future__ import annotations

import json
import shutil
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from profiles.schema import Profile
from tasks.errors import JobError
from tasks.processes.job import run_job
from tasks.processes.launcher import Launcher, ProcessSpec
from tasks.prompts.load import PromptSet, load_prompts
from tasks.report.progress import Progress
from tasks.run_folder import RunFolder
from tasks.serve.models import TargetEndpoint, TargetIdentity
from tasks.stage import canonical, sha256_text, write_atomic
from tasks.stream.canary_report import read_report
from tasks.stream.log import index_digest, read_index
from tasks.stream.models import CaptureCounters, CaptureManifest
from tasks.stream.settings import (
    API_KEY_ENV,
    CaptureFiles,
    CaptureSettings,
    PromptRow,
    SamplingSettings,
)
from tasks.stream.tally import read_counters
from tasks.stream.token_counts import ALL, read_token_counts

JOB_NAME = "capture"
_LOG_FORMAT = 1


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
) -> CaptureManifest:
    """Capture every prompt; continues a log that the same target and prompts began.

    Args:
        folder: The stage folder; the log is `log/` in it.
        endpoint: The live target.
        identity: Which target answers; captures of another one are not continued.
        target_dir: Folder of the target, for its tokenizer and chat template.
        watch: Raises when the target makes no progress; called while the client runs.

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
    rows = [PromptRow.of(prompt).model_dump_json() for prompt in prompts.prompts]
    write_atomic(files.prompts, "".join(f"{row}\n" for row in rows))
    write_atomic(files.settings, settings.model_dump_json(indent=2))
    run_job(
        launcher,
        ProcessSpec(
            name=JOB_NAME,
            stage="stream",
            role="train",
            argv=(sys.executable, "-m", "tasks.stream.capture", str(files.settings)),
            env={"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"},
            secret_env={API_KEY_ENV: endpoint.api_key} if endpoint.api_key else {},
        ),
        run,
        progress=progress,
        progress_file=Path(settings.progress_file),
        stall_timeout_s=profile.serve.progress_timeout_s,
        watch=watch,
    )
    _check_lost(profile, files, len(prompts.prompts))
    return manifest_of(files, identity, profile.stream.temperature)


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
        hidden_size=identity.hidden_size,
        dtype=identity.dtype,
        sampling={"train": training, "held_out": training, "evaluate": greedy},
        store_master=endpoint.store_master,
        store_host=endpoint.store_host or store.host,
        store_protocol=store.protocol,
        store_device=store.device,
        store_local_buffer_bytes=store.local_buffer_bytes,
        concurrency=stream.concurrency,
        in_flight_bytes=stream.in_flight_bytes,
        max_attempts=stream.max_attempts,
        read_timeout_s=stream.read_timeout_s,
        answer_timeout_s=profile.serve.progress_timeout_s,
        canary_every=stream.canary_every,
        folder=str(folder),
        progress_file=str(run.progress / f"{JOB_NAME}.jsonl"),
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
                [list(identity.layer_ids), identity.dtype],
                sampling,
                [settings.thinking, settings.max_model_len],
            ]
        )
    )


def _continue_or_clear(files: CaptureFiles, origin: str) -> None:
    """Keep what an earlier session captured, unless its samples would differ from ours."""
    known = json.loads(files.origin.read_text("utf-8")) if files.origin.exists() else None
    if known != origin:
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
    write_atomic(files.origin, json.dumps(origin))


def _check_lost(profile: Profile, files: CaptureFiles, total: int) -> None:
    lost = [json.loads(line) for line in files.lost.read_text("utf-8").splitlines()]
    if len(lost) > profile.stream.max_lost * total:
        shown = "; ".join(f"{row['prompt_id']}: {row['reasons'][-1]}" for row in lost[:3])
        raise JobError(
            f"{len(lost)} of {total} samples were lost after {profile.stream.max_attempts} attempts: {shown}",
            where=str(files.lost),
            hint="see the target's log; a resume asks for them again; stream.max_lost allows a share",
        )


def manifest_of(
    files: CaptureFiles, identity: TargetIdentity, temperature: float | None = None
) -> CaptureManifest:
    """Describe a finished log from its index."""
    entries = read_index(files.log)
    counters: CaptureCounters = read_counters(files.counters)
    return CaptureManifest(
        log=files.log.name,
        digest=index_digest(entries),
        target=identity.model_digest,
        layer_ids=identity.layer_ids,
        hidden_size=identity.hidden_size,
        dtype=identity.dtype,
        samples=len(entries),
        tokens=sum(entry.tokens for entry in entries),
        trainable_tokens=sum(entry.trainable_tokens for entry in entries if entry.split == "train"),
        distinct_tokens=len(read_token_counts(files.token_counts)[ALL]),
        bytes=sum(entry.bytes for entry in entries),
        splits=dict(Counter(entry.split for entry in entries)),
        temperature=temperature,
        canary=read_report(files.canary),
        counters=counters,
    )
