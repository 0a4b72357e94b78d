"""The whole laptop flow once, smaller, on real engines: one run, then what it left, then its resume."""

from __future__ import annotations

import json
import re
import sqlite3
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from profiles.load import load_profile, parse_assignments
from tasks.prompts.load import load_prompts
from tasks.stages import STAGE_NAMES

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1500)]
SMALLER = (
    "prompts.train_per_domain=6",
    "prompts.evaluate_per_domain=2",
    "stream.max_new_tokens=28",
    "train.epochs=2",
    "evaluate.replay_max_new_tokens=24",
    "evaluate.live.per_domain=1",
    "evaluate.live.max_new_tokens=16",
)
WORDS = [word for assignment in SMALLER for word in ("--set", assignment)]
DOMAINS = {
    "HumanEval",
    "math_reasoning",
    "qa",
    "question",
    "rag",
    "summarization",
    "tool_call",
    "translation",
    "writing",
}
SUMMARY = {
    "": "run_id profile status seconds stages capture draft evaluation decision publication mlflow prefect",
    "capture": "samples tokens trainable_tokens bytes target_prompt_tokens target_generated_tokens "
    "lost regenerated",
    "draft": "path parameters trained_parameters steps epochs",
    "evaluation": "tau_macro tau tau_live_pooled tau_replay_pooled tokens_per_step lossless "
    "incumbent_tau_macro worth worth_sentence",
    "decision": "promote reasons",
    "publication": "kind location revision serve_command",
    "mlflow": "tracking_uri parent_run_id",
    "prefect": "flow_run_id",
}


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory, command: Callable[..., Any]) -> Any:
    """The run that all tests here look at."""
    finished = command(tmp_path_factory.mktemp("laptop"), "run", "-p", "laptop", *WORDS, timeout_s=1400)
    assert "Traceback" not in finished.output, finished.output[-4000:]
    return finished


@pytest.fixture(scope="module")
def texts() -> list[bytes]:
    """A distinctive piece of many prompts of this run."""
    profile = load_profile("laptop", parse_assignments(SMALLER)).profile
    words = re.compile(r"[A-Za-z0-9 ,.]{40,}")
    found = [words.search(prompt.messages[-1].content) for prompt in load_prompts(profile).prompts]
    pieces = [match.group(0)[:60].strip().encode() for match in found if match]
    assert len(pieces) > 30
    return pieces


def rows(database: Path, query: str) -> list[tuple[Any, ...]]:
    connection = sqlite3.connect(database)
    try:
        return connection.execute(query).fetchall()
    finally:
        connection.close()


def tracked(root: Path) -> dict[str, str]:
    """MLflow run id of each run by name."""
    return {name: run_id for run_id, name in rows(root / "mlflow.db", "select run_uuid, name from runs")}


def files(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*")) if path.is_file())


def test_every_stage_completed_and_the_exit_code_tells_the_decision(done: Any) -> None:
    summary = done.summary
    assert [stage["name"] for stage in summary["stages"]] == list(STAGE_NAMES), done.output[-4000:]
    assert {stage["status"] for stage in summary["stages"]} == {"completed"}
    assert all(stage["seconds"] > 0 for stage in summary["stages"])
    promoted = summary["decision"]["promote"]
    assert summary["status"] == ("completed" if promoted else "held")
    assert done.code == (0 if promoted else 1)
    assert summary["decision"]["reasons"]
    assert all(reason.strip() for reason in summary["decision"]["reasons"])


def test_summary_has_the_keys_that_scripts_rely_on(done: Any) -> None:
    summary = done.summary
    for part, names in SUMMARY.items():
        assert set(summary[part] if part else summary) == set(names.split()), part
    assert all(set(stage) == {"name", "status", "seconds"} for stage in summary["stages"])
    assert set(summary["evaluation"]["tau"]) == DOMAINS
    for domain in summary["evaluation"]["tau"].values():
        assert set(domain) == {"value", "low", "high", "prompts"}
    assert summary["run_id"] == done.run.run_id
    assert summary["profile"] == "laptop"


def test_summary_agrees_with_the_stages(done: Any) -> None:
    summary, evaluation = done.summary, done.stage_result("05-evaluate")
    captures, draft = done.stage_result("03-stream"), done.stage_result("04-train")
    assert summary["capture"]["samples"] == captures["samples"] == 9 * (6 + 2)
    assert summary["capture"]["tokens"] == captures["tokens"] > captures["trainable_tokens"] > 0
    assert summary["capture"]["bytes"] == captures["bytes"]
    assert summary["draft"]["steps"] == draft["steps"] > 0
    assert summary["draft"]["epochs"] == 2
    taus = [domain["value"] for domain in summary["evaluation"]["tau"].values()]
    assert summary["evaluation"]["tau_macro"] == pytest.approx(sum(taus) / len(taus))
    assert summary["evaluation"]["tau_macro"] == evaluation["replay"]["macro"]["value"]
    assert {domain["prompts"] for domain in summary["evaluation"]["tau"].values()} == {2}
    assert sum(stage["seconds"] for stage in summary["stages"]) <= summary["seconds"] <= done.seconds
    assert Path(summary["publication"]["location"], "model.safetensors").is_file()
    assert Path(summary["draft"]["path"], "model.safetensors").is_file()


def test_no_sample_was_lost(done: Any) -> None:
    assert done.summary["capture"]["lost"] == 0
    index = (done.run.path / "03-stream" / "log" / "index.jsonl").read_text().splitlines()
    assert len(index) == done.summary["capture"]["samples"]


def test_target_computed_no_token_only_to_verify_it(done: Any) -> None:
    log = (done.run.path / "logs" / "target.log").read_text(encoding="utf-8")
    assert "generation throughput" in log, "vLLM reports its work there"
    assert "SpecDecoding metrics" not in log


def test_live_agrees_with_replay_and_the_output_is_lossless(done: Any) -> None:
    evaluation = done.stage_result("05-evaluate")
    assert evaluation["lossless"] == done.summary["evaluation"]["lossless"] == "identical"
    assert len(evaluation["comparisons"]) == 9
    assert all(comparison["equal"] for comparison in evaluation["comparisons"])
    assert evaluation["common_prompts"] == 9
    assert evaluation["live_valid"]
    assert evaluation["live_gap"] <= done.run.profile().evaluate.max_live_gap
    assert 1.0 <= evaluation["live"]["pooled"]["value"] <= evaluation["block_size"] + 1
    assert {arm["name"] for arm in evaluation["arms"]} >= {"plain", "draft"}
    assert {arm["failed"] for arm in evaluation["arms"]} == {0}


def test_report_needs_nothing_but_itself(done: Any) -> None:
    page = (done.run.path / "report.html").read_text(encoding="utf-8")
    assert not re.findall(r"""(?:src|href)=["'](?!data:|#)[^"']*["']""", page)
    assert not re.findall(r"url\((?![\"']?(?:data:|#))|@import", page)
    assert "viewport" in page
    assert all(domain in page for domain in DOMAINS)


def test_mlflow_has_one_parent_and_six_finished_children(done: Any) -> None:
    database, runs = done.root / "mlflow.db", tracked(done.root)
    assert set(runs) == {done.run.run_id, *STAGE_NAMES}
    assert {status for (status,) in rows(database, "select status from runs")} == {"FINISHED"}
    parents = dict(rows(database, "select run_uuid, value from tags where key = 'mlflow.parentRunId'"))
    parent = done.summary["mlflow"]["parent_run_id"]
    assert runs[done.run.run_id] == parent
    assert parents == {runs[stage]: parent for stage in STAGE_NAMES}
    measured = rows(database, "select distinct run_uuid from latest_metrics")
    assert {run_id for (run_id,) in measured} >= {runs[stage] for stage in STAGE_NAMES}
    digest = done.stage_result("03-stream")["digest"]
    used = "select i.destination_id, d.digest from inputs i join datasets d on d.dataset_uuid = i.source_id"
    assert (runs["train"], digest[:36]) in rows(database, used)
    found = dict(rows(database, f"select key, value from params where run_uuid = '{runs['validate']}'"))
    assert found["checks.count_fail"] == "0" and found["machine.kernel"]


def test_prefect_has_a_completed_flow_run_with_six_tasks_and_their_artifacts(done: Any) -> None:
    database = done.root / ".prefect" / "prefect.db"
    flow_runs = rows(database, "select id, state_type, state_name from flow_run")
    expected = "Completed" if done.code == 0 else "Held"
    assert [run[1:] for run in flow_runs] == [("COMPLETED", expected)]
    assert flow_runs[0][0].replace("-", "") == done.summary["prefect"]["flow_run_id"].replace("-", "")
    tasks = rows(database, "select name, state_type from task_run order by start_time")
    assert tasks == [(name, "COMPLETED") for name in STAGE_NAMES]
    keys = {key for (key,) in rows(database, "select distinct key from artifact where key is not null")}
    assert all(any(key.startswith(f"{name}-") for key in keys) for name in (*STAGE_NAMES, "plan")), keys


def test_run_folder_is_private(done: Any) -> None:
    for folder in (done.run.path, done.root / ".prefect", *sorted(done.run.path.glob("0*"))):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700, folder


def test_nothing_is_left_running(done: Any, left_running: Callable[[Any], list[str]]) -> None:
    assert any("mooncake_master" in name for name in done.watched.names)
    assert any("vllm" in name for name in done.watched.names)
    assert left_running(done) == []
    assert list(done.run.services.glob("*.json")) == []


def test_every_server_was_on_loopback(done: Any) -> None:
    """All but the transfer engine of Mooncake's clients, which has no option for its address."""
    assert len(done.watched.addresses) >= 3
    assert {ip for ip, _ in done.watched.addresses} <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}
    # Two for each client; an end of the path test is two clients, one for each placement.
    assert all(len(ports) <= 4 for ports in done.watched.transfer_ports.values())


def test_keys_of_the_servers_are_written_nowhere(done: Any) -> None:
    assert done.watched.keys
    for path in files(done.root):
        content = path.read_bytes()
        assert not [key for key in done.watched.keys if key.encode() in content], path


def test_no_prompt_leaves_the_run_folder(done: Any, texts: list[bytes]) -> None:
    names = {path.name for path in files(done.root / "mlartifacts")}
    assert {"manifest.json", "report.html", "summary.json", "facts.json", "checks.json"} <= names
    assert not [name for name in names if re.search(r"prompts|answers|index|requests", name)], names
    outside = [*files(done.root / "mlartifacts"), *done.root.glob("mlflow.db*"), done.root / "output.txt"]
    for path in [*outside, *(done.root / ".prefect").glob("prefect.db*")]:
        content = path.read_bytes()
        assert not [text for text in texts if text in content], path
        assert not re.search(rb'"(answer_ids|prompt_ids|token_ids)"\s*:\s*\[', content), path


def test_closing_lines_say_what_to_do_next(done: Any) -> None:
    tail = unquote("\n".join(done.output.splitlines()[-25:]))
    for word in ("report.html", "serve.sh", "HumanEval", "identical", str(done.run.path)):
        assert word in tail, tail


@pytest.fixture(scope="module")
def resumed(done: Any, command: Callable[..., Any]) -> tuple[dict[str, str], Any]:
    before = tracked(done.root)
    return before, command(done.root, "resume", done.run.run_id, timeout_s=300)


def test_resume_reuses_every_stage_and_starts_no_server(done: Any, resumed: tuple[Any, Any]) -> None:
    _, again = resumed
    assert {stage["status"] for stage in again.summary["stages"]} == {"reused"}, again.output
    assert again.code == done.code
    started = [n for n in again.watched.names if re.search(r"vllm|mooncake|tasks\.(train|evaluate)", n)]
    assert started == []


def test_resume_reopens_the_same_mlflow_runs(done: Any, resumed: tuple[Any, Any]) -> None:
    before, again = resumed
    assert tracked(done.root) == before
    statuses = rows(done.root / "mlflow.db", "select status from runs")
    assert {status for (status,) in statuses} == {"FINISHED"}
    attempts = "select run_uuid, value from tags where key = 'dspark.attempts'"
    assert dict(rows(done.root / "mlflow.db", attempts))[before[again.run.run_id]] == "2"


def test_resume_says_why_a_stage_runs_again(
    done: Any, resumed: tuple[Any, Any], command: Callable[..., Any]
) -> None:
    again = command(done.root, "resume", done.run.run_id, "--set", "publish.margin=0.9", timeout_s=300)
    stages = {stage["name"]: stage["status"] for stage in again.summary["stages"]}
    assert stages == {**dict.fromkeys(STAGE_NAMES, "reused"), "publish": "completed"}
    assert "profile.publish.margin: 0.02 -> 0.9" in again.output
    assert again.summary["status"] == "held"
    assert again.code == 1
    assert json.loads((again.run.path / "profile.json").read_text())["publish"]["margin"] == 0.9
