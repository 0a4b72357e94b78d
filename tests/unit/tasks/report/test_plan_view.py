"""The report begins with the plan, and says beside it what became of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from profiles.load import load_profile
from tasks.plan.core import examine_plan
from tasks.plan.keep import PLAN, keep_plan, plan_of_run, rates_path, stored_rates
from tasks.plan.rates import Rates
from tasks.plan.render import plan_markdown
from tasks.plan.work import assumed_work
from tasks.report.page import REPORT, write_report
from tasks.run_folder import RunFolder, create_run
from tasks.stage import write_atomic


def with_plan(run: RunFolder) -> RunFolder:
    profile = load_profile("gb300-kimi-k3", {"budget": {"gpu_hours": 100}}).profile
    plan = examine_plan(profile, work=assumed_work(profile, 1000, 8192))
    write_atomic(run.path / PLAN, plan.model_dump_json())
    write_atomic(run.path / "held.json", '{"node_hours": 1.5, "gpu_hours": 6.0}')
    return run


def test_the_page_begins_with_the_plan(make_run: Any) -> None:
    run = with_plan(make_run(status="completed"))
    write_report(run)
    html = (run.path / REPORT).read_text()
    assert 0 < html.index("<h2>Plan</h2>") == html.index("<h2>"), "it is the first section"
    assert "price of a GPU-hour" in html and "<dd>?</dd>" in html, "what is not known is not invented"
    assert "GPU-hours held, all attempts" in html and "<dd>6.00</dd>" in html
    assert "an address for documentation" in html
    assert "20,000" not in html or "tokens_per_s" in html


def test_a_run_without_a_plan_has_no_such_section(make_run: Any) -> None:
    run = make_run(status="completed")
    write_report(run)
    assert "<h2>Plan</h2>" not in (run.path / REPORT).read_text()


def test_what_prefect_shows_has_figures_risks_and_stages_but_no_paths() -> None:
    profile = load_profile("gb300-kimi-k3").profile
    plan = examine_plan(profile, work=assumed_work(profile, 1000, 8192))
    text = plan_markdown(plan)
    assert text.startswith("## Plan of gb300-kimi-k3\n")
    assert "| GPU-hours | ? |" in text and "| warning | store.host is 192.0.2.1" in text
    assert "| stream | 1000 answers of up to 4096 tokens" in text
    assert "vllm.entrypoints" not in text and str(Path.cwd()) not in text


def test_a_plan_that_cannot_be_made_changes_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    profile = load_profile("h200-qwen3-8b", {"hardware": {"target": {"num_hidden_layers": None}}}).profile
    run = create_run(tmp_path, "r1", profile)
    assert keep_plan(run, profile) is None and plan_of_run(run.path) is None
    assert "the run has no plan: there is no target folder" in caplog.text


def test_rates_of_a_pilot_are_found_and_damaged_ones_are_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert stored_rates(tmp_path, "laptop") is None
    path = rates_path(tmp_path, "laptop")
    path.parent.mkdir()
    rates = Rates(batch_tokens=512, rates={})
    path.write_text(rates.model_dump_json())
    assert stored_rates(tmp_path, "laptop") == rates
    path.write_text("{")
    assert stored_rates(tmp_path, "laptop") is None and "rates of the last pilot are left out" in caplog.text
