"""What importing the flow loads. Names of modules, not seconds: a test of seconds fails on a busy machine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HEAVY = {"torch", "vllm", "mooncake", "mlflow", "transformers", "speculators", "matplotlib", "numba"}


def loaded_by(statement: str) -> set[str]:
    program = (
        f"import json, sys; {statement}; print(json.dumps(sorted(m.split('.')[0] for m in sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return set(json.loads(done.stdout.strip().splitlines()[-1]))


@pytest.mark.parametrize(
    "statement", ["import flows.retrain_dspark", "import flows.cli", "import flows.prefect_plugin"]
)
def test_the_flow_loads_nothing_heavy(statement: str) -> None:
    assert loaded_by(statement) & HEAVY == set()


def test_a_profile_needs_only_pydantic_and_yaml() -> None:
    assert loaded_by("import profiles.schema, profiles.load") & (HEAVY | {"prefect", "httpx"}) == set()
