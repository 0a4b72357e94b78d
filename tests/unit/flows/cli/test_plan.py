"""`retrain-dspark plan`: what it prints, and when it fails."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from flows.cli.plan import command
from tasks.plan.figures import Figure
from tasks.plan.models import Plan
from tasks.plan.rates import RATE_NAMES, Rates, write_rates
from tasks.run_folder import RUNS_ENV

K3 = ("-p", "gb300-kimi-k3", "--samples", "1000", "--sample-tokens", "8192")


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(RUNS_ENV, str(tmp_path / "runs"))
    return tmp_path


def planned(*words: str) -> Result:
    return CliRunner().invoke(command, [*K3, *words], standalone_mode=False)


def rates_file(root: Path, **changes: Any) -> str:
    rates = {name: Figure(value=2.0, unit="s", source="published", where="a paper") for name in RATE_NAMES}
    path = root / "rates.json"
    write_rates(path, Rates(batch_tokens=8192, packs_per_step=4, train_ranks=4, rates=rates, **changes))
    return str(path)


def test_json_is_the_documented_model(root: Path) -> None:
    done = planned("--json")
    plan = Plan.model_validate_json(done.output)
    assert (
        done.return_value == 0 and plan.version == 1 and plan.model_dump_json(indent=2) + "\n" == done.output
    )
    documented = (Path(__file__).parents[4] / "docs" / "plan.md").read_text()
    assert [name for name in Plan.model_fields if f"`{name}`" not in documented] == []
    assert [name for name in RATE_NAMES if f"`{name}`" not in documented] == []


def test_the_text_begins_with_the_risks_and_fits(root: Path) -> None:
    done = planned("--compare", "1+1,2+1", "--set", "store.rpc_port=50051")
    lines = done.output.splitlines()
    assert lines[0] == "Risks" and max(map(len, lines)) <= 110
    assert "Sets of nodes (serving + training)" in lines and "store.rpc_port: from --set" in lines
    assert "-rpc_port=50051" in done.output and "VLLM_API_KEY=(secret)" in done.output


def test_rates_give_time_cost_and_their_origin(root: Path) -> None:
    done = planned(
        "--json",
        "--rates",
        rates_file(root),
        "--set",
        "evaluate.prices.serving_gpu_hour=3",
        "--compare",
        "2+1",
    )
    plan = json.loads(done.output)
    assert plan["seconds"]["value"] > 0
    assert "published (a paper)" in plan["stages"][2]["seconds"]["where"]
    hours = plan["seconds"]["value"] / 3600
    assert plan["cost"]["gpu_hours"] == pytest.approx(12 * hours)
    assert plan["cost"]["money"] == pytest.approx(36 * hours)
    assert plan["timeline"][-1]["end_s"] <= plan["seconds"]["value"]
    assert plan["comparison"][0]["seconds"]["value"] == pytest.approx(plan["seconds"]["value"])


def test_an_estimate_beyond_the_budget_is_said_beforehand(root: Path) -> None:
    done = planned("--rates", rates_file(root), "--set", "budget.gpu_hours=0.1")
    assert done.return_value == 0
    assert "the run needs more than its budget" in " ".join(done.output.split())
    assert "0.1: not enough" in done.output


def test_a_plan_that_cannot_work_ends_with_2(root: Path) -> None:
    done = planned("--set", "hardware.roles.serve.nodes=1")
    assert done.return_value == 2
    assert "error: 1,561 GB of weights do not fit" in done.output + done.stderr


@pytest.mark.parametrize(
    "words",
    [("--write-rates", "x"), ("--compare", "2"), ("--rates", "nothing-like-this"), ("--run", "no-run")],
)
def test_wrong_words_are_refused(root: Path, words: tuple[str, ...]) -> None:
    assert planned(*words).exception is not None


def test_sample_tokens_need_samples() -> None:
    done = CliRunner().invoke(command, ["--sample-tokens", "5"])
    assert done.exit_code == 2 and "belongs to --samples" in done.output
