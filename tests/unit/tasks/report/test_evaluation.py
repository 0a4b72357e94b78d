"""Decision inputs in the report: figures with units, the section on the page, the closing lines."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from xml.etree import ElementTree as ET

import pytest
from deep_evaluation import arms_detail
from load_sweeps import sweep

from tasks.evaluate.models import EvaluationReport, TauEstimate
from tasks.evaluate.worth.models import ContextTau, Figure, Worth
from tasks.report import evaluation_view
from tasks.report.closing import closing_lines
from tasks.report.evaluation_figures import (
    conditional_shares,
    per_drafted_round,
    per_step,
    styles,
    suffix_decay,
    tau_by_domain,
    tau_over_context,
)
from tasks.report.evaluation_load_figures import pareto, speed_up_over_concurrency
from tasks.report.figures import MAX_PNG_BYTES
from tasks.report.page import REPORT, drawings, write_figures, write_report
from tasks.report.record import read_run
from tasks.report.summary import read_summary
from tasks.run_folder import RunFolder

MakeRun = Callable[..., RunFolder]
LABELS = {
    "tau": ("tokens per step of the engine (1.0 = no draft)", "incumbent (replay)"),
    "decay": ("accepted if all before are, %", "position in the block"),
    "context": ("prompt length, tokens", "tokens per round", "10 prompts"),
    "speedup": ("concurrency, requests in flight", "speed-up of output tokens/s", "crossover 17", "ngram"),
    "pareto": ("interactivity, tokens/s/user", "output tokens/s, all users", "plain"),
}


def evaluation_of(run: RunFolder) -> EvaluationReport:
    found = read_run(run).evaluation
    assert found is not None
    return found


def worth_of(run: RunFolder) -> Worth:
    found = evaluation_of(run).worth
    assert found is not None
    return found


def texts(svg: str) -> list[str]:
    root = ET.fromstring(svg.replace("xlink:href", "href"))
    return [element.text or "" for element in root.iter("text")]


@pytest.mark.parametrize("name", LABELS)
def test_figures_have_units_and_are_small(served_run: RunFolder, name: str) -> None:
    drawing = drawings(read_run(served_run))[name]
    assert drawing is not None
    words = texts(drawing.svg())
    assert [label for label in LABELS[name] if label not in words] == []
    png = drawing.png()
    assert png.startswith(b"\x89PNG") and len(png) <= MAX_PNG_BYTES


def test_a_crossover_beyond_the_range_is_written_into_the_figure(make_run: MakeRun) -> None:
    run = make_run(load=sweep(concurrency=(1, 2, 4)))
    drawing = speed_up_over_concurrency(worth_of(run))
    assert drawing is not None
    words = texts(drawing.svg())
    assert "crossover beyond" in words and "the range measured" in words
    assert not any(word.startswith("crossover 1") for word in words)


def test_meaningless_speeds_are_labelled_wherever_they_are_shown(make_run: MakeRun) -> None:
    run = make_run(load=sweep(speed_is_meaningful=False))
    found = drawings(read_run(run))
    for name in ("speedup", "pareto"):
        drawing = found[name]
        assert drawing is not None and "meaningless: Triton's interpreter" in drawing.title
    page = write_report(run).read_text()
    assert page.count("Meaningless: Triton's interpreter") == 3
    assert "acceptance only:" in page and "WORTH IT" not in page


def test_nothing_is_drawn_where_nothing_was_measured(finished_run: RunFolder) -> None:
    worth = worth_of(finished_run)
    assert speed_up_over_concurrency(worth) is None and pareto(worth) is None
    one = ContextTau(at_least=0, below=64, prompts=3, tau=Figure(value=1.5))
    assert tau_over_context((one,)) is None and tau_over_context(()) is None
    assert tau_by_domain({}) is None and suffix_decay({}) is None


def test_conditional_acceptance_ends_where_nothing_was_reached() -> None:
    tau = TauEstimate(value=1.5, prompts=1, rounds=100, accepted=50, per_position=(0.4, 0.1, 0.0, 0.0))
    shares = conditional_shares(tau)
    assert [(round(share, 6), reached) for share, reached in shares] == [(0.4, 100), (0.25, 40), (0.0, 10)]


def test_other_arms_are_drawn_beside_the_draft(served_run: RunFolder) -> None:
    more = {"arms_detail": arms_detail()}
    evaluation = evaluation_of(served_run).model_copy(update=more)
    found, rounds = per_step(evaluation), per_drafted_round(evaluation)
    assert list(found) == list(rounds) == ["replay", "live", "incumbent (replay)", "ngram"]
    drawing = tau_by_domain(found)
    assert drawing is not None and "ngram" in texts(drawing.svg())
    assert found["ngram"].macro.value == 1.12, "a step without a draft counts as one token"
    assert rounds["ngram"].macro.value == 2.05, "along the block only rounds with a draft say something"


def test_arms_are_told_apart_by_colour_or_mark() -> None:
    names = ("replay", "live", "incumbent (replay)", "ngram", "suffix", "mtp", "one", "two", "three", "plain")
    drawn = styles(names)
    assert len({(style.colour, style.mark) for style in drawn.values()}) == len(names)
    assert len({drawn[name].colour for name in ("replay", "live", "incumbent (replay)", "ngram")}) == 4


def test_the_page_opens_its_evaluation_with_the_sentence(served_run: RunFolder) -> None:
    page = (served_run.path / REPORT).read_text()
    sentence = re.search(r'<p class="sentence completed">([^<]+)</p>', page)
    assert sentence is not None and sentence[1].startswith(
        "WORTH IT up to concurrency 15: 2.3x [2.2, 2.4] at 1"
    )
    assert page.index("Is it worth serving?") < page.index("Acceptance per domain")
    for part in (
        "after 0.6 hours of serving", "2.22 reserved, 1.22 used, 12 GPUs", "120 (extrapolated)",
        "10,240 B, at most the last 2,048 tokens", "fp8, by --kv-cache-dtype", "Gains by domain",
        "+0.20 [0.12, 0.28]",
        "not published", "118 to 370 tokens/s, not on the same inputs", "110 to 435 tokens/s/user, 3.95x",
        "TTFT p50, ms, 372 &gt; 300",
    ):  # fmt: skip
        assert part in page, part


def test_published_values_of_the_target_come_first(served_run: RunFolder) -> None:
    found = evaluation_view.decision(read_run(served_run))
    assert found is not None
    assert [one["open"] for one in found["references"]] == [True, True, False]


def test_the_terminal_says_it_first(served_run: RunFolder, finished_run: RunFolder) -> None:
    for run, start in ((served_run, "WORTH IT up to"), (finished_run, "acceptance only: 1.71 [1.67, 1.76]")):
        lines = closing_lines(read_summary(run), run)
        assert lines[1].startswith(f"worth it? {start}")
        assert all(len(line) <= 112 for line in lines[:8])
        assert read_summary(run)["evaluation"]["worth_sentence"].startswith(start)


def test_a_new_price_shows_without_a_new_measurement(make_run: MakeRun) -> None:
    run = make_run(load=sweep())
    before = worth_of(run)
    assert (
        before.break_even is not None and "no evaluate.prices.serving_gpu_hour" in before.break_even.why_not
    )
    profile = run.profile()
    prices = profile.evaluate.prices.model_copy(update={"serving_gpu_hour": 2.0, "gpus_per_server": 8})
    evaluate = profile.evaluate.model_copy(update={"prices": prices})
    (run.path / "profile.json").write_text(
        profile.model_copy(update={"evaluate": evaluate}).model_dump_json()
    )
    after = worth_of(run)
    assert after.break_even is not None and after.break_even.why_not != before.break_even.why_not


def test_figures_are_files_for_mlflow(served_run: RunFolder, make_run: MakeRun) -> None:
    names = [path.name for path in write_figures(served_run)]
    assert names == [f"{name}.png" for name in ("tau", "position", "decay", "context", "speedup", "pareto")]
    assert sorted(path.name for path in (served_run.path / "figures").iterdir()) == sorted(names)
    assert write_figures(make_run(status="failed", stopped_at="train")) == []


def test_a_run_before_decision_inputs_existed_still_has_its_page(make_run: MakeRun) -> None:
    run = make_run()
    manifest = run.path / "05-evaluate/manifest.json"
    stored = json.loads(manifest.read_text())
    del stored["result"]["worth"]
    manifest.write_text(json.dumps(stored))
    page = write_report(run).read_text()
    assert "Is it worth serving?" not in page and "Acceptance per domain" in page
    assert not any(line.startswith("worth it?") for line in closing_lines(read_summary(run), run))
