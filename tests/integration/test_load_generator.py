"""The real generator, vLLM's own benchmark, against a server that streams and counts as vLLM does."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
from loaded import loaded_server

from profiles.load import load_profile
from tasks.evaluate.live import LivePrompt
from tasks.evaluate.load.levels import write_prompts
from tasks.evaluate.load.models import Level
from tasks.evaluate.load.sweep import sweep
from tasks.processes.launcher import LocalLauncher
from tasks.report.progress import SilentProgress
from tasks.run_folder import create_run

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed; run: make setup"),
]


def test_vllms_benchmark_gives_a_point_and_asks_only_what_it_should(tmp_path: Path) -> None:
    run = create_run(tmp_path, "run", load_profile("laptop").profile)
    asked = [LivePrompt(prompt_id=f"p{i}", domain="qa", token_ids=(i, 2, 3)) for i in range(3)]
    prompts = write_prompts(tmp_path / "prompts.jsonl", asked)
    level = Level(concurrency=2, requests=5, max_new_tokens=4, warm_ups=2, timeout_s=300.0)
    folder = run.path / "05-evaluate" / "load"
    folder.parent.mkdir()
    with loaded_server("--draft", "4", key="k") as server:
        (point,) = sweep(server, "draft", [level], prompts, folder, LocalLauncher(), run, SilentProgress())
    log = (run.logs / "load-draft-c2.log").read_text()
    assert point.invalid == "" and point.failed == 0, log[-2000:]
    # Seven requests of four tokens, warm-up included, or the point would be invalid.
    assert point.output_tokens == 20 and point.output_tokens_per_s > 0
    assert point.drafts == 21 and point.draft_tokens == 84 and point.tau == 3.0
    assert point.ttft_ms.p50 is not None and point.itl_ms.p99 is not None and point.tpot_ms.p90 is not None
    assert "Bearer" not in log and point.seconds > 0
