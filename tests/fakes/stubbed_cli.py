"""`retrain-dspark` with six small stages, for tests of what surrounds them.

Environment: STUB_HANG=<stage> makes that stage start a real child process and wait for it; STUB_FAIL=<stage>
makes it fail; STUB_CRASH=<stage> raises an error that nobody foresaw; STUB_HOLD=1 holds the draft. The file
that STUB_FILE names may hold the same settings as JSON: it can change while a worker lives. A line `<stage>`
is appended to STUB_TRACE whenever a stage really works. STUB_LEAK=<variable> makes every stage repeat the
value of that variable, in all the forms of `tests/support/leaking.py`, wherever a library might.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flows.cli.environment import prepare_environment
from tasks.errors import JobError
from tasks.evaluate.models import EvaluationReport, Measurement, TauEstimate
from tasks.execute import RunContext, execute_stage
from tasks.processes.launcher import ProcessSpec
from tasks.processes.service import running
from tasks.publish.models import Decision, Publication
from tasks.serve.models import TargetIdentity
from tasks.stage import Stage
from tasks.stages import EVALUATE, PUBLISH, SERVE, STREAM, TRAIN, VALIDATE
from tasks.stream.models import CaptureCounters, CaptureManifest
from tasks.train.models import DraftCheckpoint
from tasks.validate.models import ValidationReport


def setting(name: str) -> str:
    """Value of STUB_<name> now."""
    path = Path(os.environ.get("STUB_FILE", os.devnull))
    given = json.loads(path.read_text()) if path.is_file() else {}
    return str(given.get(f"STUB_{name}", os.environ.get(f"STUB_{name}", "")))


def results(profile: Any) -> dict[str, Any]:
    """A small valid result of each stage."""
    tau = TauEstimate(value=1.5, low=1.3, high=1.7, prompts=1, rounds=2, accepted=1)
    measured = Measurement(domains={"qa": tau}, macro=tau, pooled=tau)
    promote = not setting("HOLD")
    return {
        "validate": ValidationReport(facts={}, checks=(), worst="pass"),
        "serve": TargetIdentity(
            served_name="m", model_digest="d", revision=None, architecture="a", hidden_size=1, vocab_size=2,
            num_hidden_layers=1, dtype="float32", layer_ids=(1,), tokenizer_digest="t", template_digest="t",
            engine="e", connector="c", argv=("a",),
        ),
        "stream": CaptureManifest(
            log="log", digest="0" * 64, target="d", layer_ids=(1,), hidden_size=1, dtype="float32", samples=1,
            tokens=2, trainable_tokens=1, distinct_tokens=2, bytes=8, splits={"train": 1},
            counters=CaptureCounters(),
        ),
        "train": DraftCheckpoint(
            path="draft", files={}, step=1, steps=1, epochs=profile.train.epochs, parameters=1,
            trained_parameters=1, draft_vocab_size=2, block_size=2, held_out_eal=1.5, metrics={"loss": 0.5},
            config={},
        ),
        "evaluate": EvaluationReport(
            replay=measured, live=measured, common_replay_pooled=1.5, live_gap=0.0, lossless="identical",
            comparisons=(), arms=(), block_size=2, draft_sample_method="greedy",
            rejection_sample_method="standard",
        ),
        "publish": Publication(
            decision=Decision(
                promote=promote, reasons=("stub",), candidate_tau_macro=1.5, candidate_low=1.3,
                incumbent_tau_macro=1.0, margin=0.05,
            ),
            kind="local", location="here", revision="v0001", serve_command="sh serve.sh", files={},
        ),
    }  # fmt: skip


def leak(variable: str) -> str:
    """Log what the variable holds in every form, also as an error's text; returns all of it."""
    if not variable:
        return ""
    sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
    from leaking import say_secrets

    return ": " + say_secrets(os.environ[variable])


def stub(stage: Stage[Any]) -> Callable[..., Any]:
    """A Prefect task like the real one, with nothing heavy in it."""
    from tasks.report.task import show_artifacts, stage_task

    def work(ctx: RunContext, folder: Path) -> Any:
        with open(os.environ.get("STUB_TRACE", os.devnull), "a", encoding="utf-8") as trace:
            trace.write(f"{stage.name}\n")
        ctx.progress.update(done=1, total=2, unit="steps", metrics={"loss": 0.5})
        leaked = leak(setting("LEAK"))
        if setting("FAIL") == stage.name:
            raise JobError(f"the stub was asked to fail{leaked}", where=stage.name, hint="unset STUB_FAIL")
        if setting("CRASH") == stage.name:
            raise ZeroDivisionError(f"a fault of our own{leaked}")
        if setting("HANG") == stage.name:
            argv = (sys.executable, "-c", "import time; time.sleep(600)")
            with running(ctx.launcher, ProcessSpec("hanging", stage.name, "train", argv), ctx.run) as handle:
                while handle.poll() is None:
                    time.sleep(0.05)
        (folder / "metrics.jsonl").write_text('{"step": 1, "split": "train", "loss": 0.5}\n')
        return results(ctx.profile)[stage.name]

    @stage_task(stage)
    def task(ctx: RunContext, *inputs: Any) -> Any:
        depends = {str(i): value.model_dump_json() for i, value in enumerate(inputs) if hasattr(value, "log")}
        result = execute_stage(ctx, stage, depends, lambda folder: work(ctx, folder))
        show_artifacts(ctx, stage, result)
        return result

    return task


def install() -> None:
    """Put the small stages into the flow's module."""
    import flows.retrain_dspark as module

    for stage in (VALIDATE, SERVE, STREAM, TRAIN, EVALUATE, PUBLISH):
        setattr(module, stage.name, stub(stage))


if __name__ == "__main__":
    prepare_environment()
    from flows.cli.environment import quiet_console
    from flows.cli.main import run_cli
    from tasks.run_folder import private_run_root

    quiet_console()
    private_run_root()  # the real command makes it before Prefect is imported
    if sys.argv[1] in ("run", "resume"):
        install()
    sys.exit(run_cli(sys.argv[1:]))
