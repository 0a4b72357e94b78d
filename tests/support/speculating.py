"""Arms on fake engines: as real processes, or in a thread of the test, both over real HTTP."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from profiles.load import load_profile
from profiles.schema import Profile
from tasks.evaluate.arm_conditions import Machine
from tasks.evaluate.arm_plan import DraftFolder, PlannedArm, plan_arms
from tasks.evaluate.arm_record import LivePrompt
from tasks.evaluate.arm_report import Basis, arms_detail
from tasks.evaluate.arm_series import MeasuredArms, measure_arms
from tasks.evaluate.arms import ArmsWork
from tasks.evaluate.models import ArmsDetail
from tasks.measure.intervals import Bootstrap
from tasks.processes.launcher import Handle, LocalLauncher, ProcessSpec
from tasks.report.progress import SilentProgress
from tasks.run_folder import RunFolder, create_run
from tasks.serve.arms import ArmEndpoint

FAKES = Path(__file__).parents[1] / "fakes"
sys.path.insert(0, str(FAKES))

Faults = Mapping[str, tuple[str, int]]
"""Fault and its count by arm."""
DOMAINS = ("code", "qa", "writing")


@dataclass
class FakeEngines(LocalLauncher):
    """Starts the fake program where the pipeline starts vLLM."""

    faults: Faults = field(default_factory=dict)
    started: list[str] = field(default_factory=list)

    def start(self, spec: ProcessSpec, run: RunFolder) -> Handle:
        self.started.append(spec.name)
        fault, count = self.faults.get(spec.name.removeprefix("arm-"), ("none", 0))
        argv = (sys.executable, str(FAKES / "speculating_server.py"), *spec.argv[3:])
        return super().start(
            replace(spec, argv=(*argv, "--fault", fault, "--count", str(count)), grace_s=1.0), run
        )


@dataclass(frozen=True)
class ThreadedWork(ArmsWork):
    """Arms served by a thread of the test: as quick as a test should be."""

    faults: Faults = field(default_factory=dict)
    served: list[str] = field(default_factory=list)

    @contextmanager
    def serve(self, arm: PlannedArm) -> Iterator[ArmEndpoint]:
        from speculating_engine import Engine
        from speculating_server import Server

        self.served.append(arm.name)
        fault, count = self.faults.get(arm.name, ("none", 0))
        tokens = int((arm.speculation.config or {}).get("num_speculative_tokens", 0))
        with Server(("127.0.0.1", 0), Engine(fault, tokens, count), "m", "/model", "key") as server:
            thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
            thread.start()
            url = f"http://127.0.0.1:{server.server_address[1]}"
            yield ArmEndpoint(url, "m", "key", ("python",), "fake 1.0", None)  # type: ignore[arg-type]
            server.shutdown()


def small_profile(live: Mapping[str, Any] | None = None, stall_s: float = 60.0) -> Profile:
    """The laptop's profile with short answers; the target alone and the draft, unless more is asked for."""
    settings = {"arms": ["plain", "draft"], "max_new_tokens": 12, "concurrency": 4, **(live or {})}
    return load_profile(
        "laptop",
        {
            "evaluate": {"live": settings, "bootstrap_samples": 200},
            "serve": {"progress_timeout_s": stall_s},
        },
    ).profile


def small_prompts(per_domain: int = 4) -> list[LivePrompt]:
    return [
        LivePrompt(prompt_id=f"{domain}-{i}", domain=domain, token_ids=(4 * d + i, 7, 9))
        for d, domain in enumerate(DOMAINS)
        for i in range(per_domain)
    ]


def threaded(
    tmp_path: Path, profile: Profile, per_domain: int = 4, **faults: tuple[str, int]
) -> ThreadedWork:
    """Work whose arms `faults` names misbehave; `again` and other hyphens as underscores."""
    return ThreadedWork(
        profile=profile,
        run=create_run(tmp_path / "runs", "r", profile),
        folder=tmp_path / "arms",
        prompts=small_prompts(per_domain),
        target_dir=tmp_path,
        target_digest="t",
        launcher=FakeEngines(),
        progress=SilentProgress(),
        machine=Machine("2 cores", "none"),
        faults={name.replace("_", "-"): fault for name, fault in faults.items()},
    )


def planned(work: ArmsWork, incumbent: DraftFolder | None = None) -> tuple[PlannedArm, ...]:
    draft = DraftFolder(Path("/drafts/candidate"), {"model.safetensors": "aa"})
    return plan_arms(work.profile, work.target_dir, draft, incumbent, "no draft has been published before")


def measure(work: ArmsWork, incumbent: DraftFolder | None = None) -> tuple[MeasuredArms, ArmsDetail]:
    """Measure every arm of the plan and report on it."""
    found = measure_arms(work, planned(work, incumbent))
    return found, detail_of(work, found)


def detail_of(work: ArmsWork, found: MeasuredArms) -> ArmsDetail:
    how = Bootstrap(200, 0.9, 0)
    basis = Basis(work.profile, {prompt.prompt_id: prompt.domain for prompt in work.prompts}, how)
    return arms_detail(basis, found, DOMAINS)
