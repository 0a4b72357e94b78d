"""Runs the commands of README in order, on this machine: `make verify PART=commands`."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from profiles.load import load_profile
from tasks.serve.target_folder import resolve_target

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BIN = Path(sys.executable).parent
# What makes the example small enough to run here; the command lines themselves stay as README has them.
SMALL: dict[str, dict[str, Any]] = {
    "hardware": {"mode": "none", "min_memory_gib": 8},
    "prompts": {"train_per_domain": 6, "evaluate_per_domain": 4},
    "stream": {"max_new_tokens": 32, "concurrency": 16},
    "evaluate": {
        "replay_max_new_tokens": 32,
        "live": {"per_domain": 1, "max_new_tokens": 16, "triton_interpreter": True},
    },
}
# These stay until they are stopped, or are run by the tests of deployments and set-up; `rollback` needs two
# versions, and `evaluate` a hub, a published draft or servers, which their own tests bring.
ELSEWHERE = {("serve",), ("ui",), ("rollback",)}
MAY_HOLD = ("run", "resume", "publish", "promote")
"""A draft this small may be held, which ends with 1."""


def example(folder: Path) -> None:
    """Write `my.yaml`: README's profile with a target that is here, shortened."""
    match = re.search(r"```yaml\n(.*?)```", README, flags=re.DOTALL)
    assert match is not None
    profile = yaml.safe_load(match.group(1))
    laptop = load_profile("laptop").profile
    profile["target"] |= {"model": str(resolve_target(laptop)), "dtype": "float32", "max_model_len": 1024}
    profile["train"] |= {"epochs": 1}
    profile["train"]["draft"] |= {"vocab_size": 512}
    profile["serve"] = {"kv_cache_gib": 2}
    del profile["prompts"]
    for part, values in SMALL.items():
        profile[part] = {**profile.get(part, {}), **values}
    (folder / "my.yaml").write_text(yaml.safe_dump(profile))


def lines() -> list[list[str]]:
    text = "\n".join(re.findall(r"```bash\n(.*?)```", README, flags=re.DOTALL))
    return [shlex.split(line) for line in text.splitlines() if line.startswith("retrain-dspark ")]


@pytest.mark.verify("commands")
@pytest.mark.timeout(1800)
def test_commands_of_the_readme_run(tmp_path: Path) -> None:
    example(tmp_path)
    root = tmp_path / "runs"
    env = {**os.environ, "RETRAIN_DSPARK_RUNS": str(root)}
    for words in lines():
        if tuple(words[1:]) in ELSEWHERE or words[1] == "evaluate":
            continue
        newest = max((p.parent.name for p in root.glob("*/profile.json")), default="")
        argv = [str(BIN / words[0]), *(newest if word == "RUN" else word for word in words[1:])]
        done = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=900)
        # Bad input and crashes are never accepted.
        allowed = {0, 1} if words[1] in MAY_HOLD and "--force" not in words else {0}
        assert done.returncode in allowed, f"{words}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        assert "Traceback" not in done.stdout + done.stderr
        if words[1] == "run":
            assert next(root.glob("*/report.html")).stat().st_size > 10_000
            assert list(root.glob("*/06-publish/manifest.json")), done.stdout[-3000:]


@pytest.mark.verify("commands")
def test_newest_published_draft_can_be_served(tmp_path: Path) -> None:
    """`retrain-dspark serve` finds the newest draft of the run root; without one it says what to do."""
    env = {**os.environ, "RETRAIN_DSPARK_RUNS": str(tmp_path)}
    argv = [str(BIN / "retrain-dspark"), "serve", "--print"]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and "nothing was published yet" in done.stderr
