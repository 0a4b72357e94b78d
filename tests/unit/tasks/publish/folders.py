"""Whole published folders for the tests of refusals, made once and copied before a test damages them."""

from __future__ import annotations

import atexit
import dataclasses
import json
import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from drafts import captures, checkpoint, evaluation, export, identity, profile, validation

from tasks.evaluate.arm_models import ArmDetail, ArmsDetail
from tasks.evaluate.conditions import Conditions
from tasks.evaluate.models import EvaluationReport
from tasks.publish.models import Decision
from tasks.publish.package import Package
from tasks.publish.refusals.models import Material


def decision() -> Decision:
    return Decision(
        promote=True,
        reasons=("first draft",),
        candidate_tau_macro=1.7,
        candidate_low=1.5,
        incumbent_tau_macro=1.0,
        margin=0.02,
    )


def package(root: Path, **changes: Any) -> Package:
    """A good draft, about to be packed; `changes` replace parts of it."""
    draft_dir = changes.pop("draft_dir", None) or export(root / "draft")
    values: dict[str, Any] = {
        "profile": profile(),
        "run_id": "r1",
        "draft": checkpoint(draft_dir),
        "draft_dir": draft_dir,
        "target_dir": Path("/secret/place/target"),
        "decision": decision(),
        "evaluation": evaluation(),
        "identity": identity(),
        "captures": captures(),
        "validation": validation(),
        "lineage": {"run_id": "r1"},
        "private_folders": (root,),
    }
    return Package(**{**values, **changes})


@cache
def _whole() -> Path:
    root = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    place = root / "whole"
    place.mkdir()
    package(root).build(place, "v0001")
    return root


def material(root: Path, **changes: Any) -> Material:
    """A whole folder that may be damaged, and what it was made from; `changes` replace parts of that."""
    shutil.copytree(_whole() / "whole", root / "whole")
    draft_dir = Path(shutil.copytree(_whole() / "draft", root / "draft"))
    made = package(root, draft_dir=draft_dir)
    found = Material(
        folder=root / "whole",
        profile=made.profile,
        draft=made.draft,
        draft_dir=draft_dir,
        evaluation=made.evaluation,
        validation=made.validation,
        private_folders=(root,),
    )
    return dataclasses.replace(found, **changes)


def conditions(**changes: Any) -> Conditions:
    """Of a measurement on a GPU; `changes` replace some."""
    values = {
        "engine": "vllm 0.32.0",
        "runner": "v2",
        "interpreter": False,
        "target": "m" * 64,
        "dtype": "bfloat16",
        "method": "dspark",
        "concurrency": 4,
        "max_num_seqs": 8,
        "max_new_tokens": 48,
        "prompts": "0" * 64,
        "rejection_sample_method": "standard",
        "num_speculative_tokens": 8,
        "toolkit_channel": "release",
    }
    return Conditions.model_validate({**values, **changes})


def with_arm(told: Conditions, **changes: Any) -> EvaluationReport:
    """An evaluation on real kernels whose draft was measured under these conditions."""
    arm = ArmDetail(name="draft", status="measured", required=True, conditions=told)
    arms = tuple(one.model_copy(update={"speed_is_meaningful": True}) for one in evaluation().arms)
    detail = ArmsDetail(arms=(arm,), order=("draft",), starts=1)
    return evaluation(**{"arms": arms, "arms_detail": detail, **changes})


def edit(path: Path, change: Callable[[Any], Any]) -> None:
    """Change a JSON file."""
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value, indent=2))
