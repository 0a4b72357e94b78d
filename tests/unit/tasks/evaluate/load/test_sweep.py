"""The sweep against servers that stream and count as vLLM does, with real processes on both sides."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from loaded import QuickGenerator, Running, loaded_server

from profiles.load import load_profile
from tasks.evaluate.live import LivePrompt
from tasks.evaluate.load import sweep as module
from tasks.evaluate.load.arm import is_loaded, load_arm, loaded
from tasks.evaluate.load.levels import levels_of, load_sweep, write_prompts
from tasks.evaluate.load.models import Level, LoadPoint
from tasks.evaluate.load.sweep import sweep
from tasks.report.progress import SilentProgress
from tasks.run_folder import create_run

TOKENS = 5


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SETTLE_S", 5.0)


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    asked = [LivePrompt(prompt_id=f"p{i}", domain="qa", token_ids=(i, 2, 3)) for i in range(6)]
    return write_prompts(tmp_path / "prompts.jsonl", asked)


def level(users: int, **changes: object) -> Level:
    base = Level(concurrency=users, requests=10, max_new_tokens=TOKENS, warm_ups=users, timeout_s=60.0)
    return base.model_copy(update=changes)


def measure(
    tmp_path: Path,
    server: Running,
    prompts: Path,
    *levels: Level,
    arm: str = "draft",
    launcher: QuickGenerator | None = None,
    identity: str = "",
) -> tuple[LoadPoint, ...]:
    run = create_run(tmp_path, "run", load_profile("laptop").profile)
    folder = run.path / "05-evaluate" / "load"
    folder.parent.mkdir(exist_ok=True)
    launcher = launcher or QuickGenerator()
    return sweep(server, arm, levels, prompts, folder, launcher, run, SilentProgress(), identity)


def test_a_point_says_what_the_generator_saw_and_what_the_server_counted(
    tmp_path: Path, prompts: Path
) -> None:
    with loaded_server("--draft", "4", "--speed", "2=0.02", key="k") as server:
        (point,) = measure(tmp_path, server, prompts, level(2))
    assert (point.arm, point.concurrency, point.requests, point.failed) == ("draft", 2, 10, 0)
    assert point.usable and point.output_tokens == 10 * TOKENS
    assert point.output_tokens_per_s == pytest.approx(2 / 0.02)
    assert point.tokens_per_s_per_user == pytest.approx(1 / 0.02)
    assert point.ttft_ms.p99 == pytest.approx(20) and point.itl_ms.p50 == pytest.approx(20)
    assert point.tau == 3.0 and point.tokens_per_step == 3.0
    assert point.drafts == 12 * (TOKENS - 1) and point.draft_tokens == 4 * point.drafts


def test_a_server_that_drafts_in_some_steps_is_counted_by_steps(tmp_path: Path, prompts: Path) -> None:
    """A round gives three tokens here, and the step after it one."""
    with loaded_server("--draft", "4", "--every", "2", "--speed", "2=0.02", key="k") as server:
        (point,) = measure(tmp_path, server, prompts, level(2))
    after_first, rounds = TOKENS - 1, (TOKENS - 1) // 4
    assert rounds and point.tau == 3.0
    assert point.tokens_per_step == pytest.approx(after_first / (after_first - 2 * rounds))


def test_a_server_without_a_draft_has_no_tau(tmp_path: Path, prompts: Path) -> None:
    with loaded_server() as server:
        (point,) = measure(tmp_path, server, prompts, level(1), arm="plain")
    assert point.usable and (point.tau, point.drafts, point.draft_tokens) == (None, None, None)


def test_no_answer_text_is_kept(tmp_path: Path, prompts: Path) -> None:
    with loaded_server() as server:
        measure(tmp_path, server, prompts, level(1))
    kept = [path.read_text() for path in (tmp_path / "run/05-evaluate").rglob("*") if path.is_file()]
    assert len(kept) == 3 and not any("secret" in text for text in kept)


def test_each_level_has_its_own_baseline_and_a_stuck_one_does_not_end_the_sweep(
    tmp_path: Path, prompts: Path
) -> None:
    """FC-044: faster at 1 and 4, three times slower at 16; at 8 the server with the draft never answers."""
    plain_speed, draft_speed = "1=0.02,4=0.02,8=0.02,16=0.02", "1=0.01,4=0.015,8=0.01,16=0.06"
    with loaded_server("--speed", plain_speed) as server:
        plain = measure(tmp_path, server, prompts, level(1), level(4), level(8), level(16), arm="plain")
    stuck = level(8, timeout_s=2.0)
    with loaded_server("--draft", "4", "--speed", draft_speed, "--hang", "8") as server:
        draft = measure(tmp_path, server, prompts, level(1), level(4), stuck, level(16))
    ratios = {
        ours.concurrency: ours.output_tokens_per_s / base.output_tokens_per_s
        for base, ours in zip(plain, draft, strict=True)
        if ours.usable
    }
    assert ratios == {1: pytest.approx(2.0), 4: pytest.approx(4 / 3), 16: pytest.approx(1 / 3)}
    assert draft[2].timed_out and draft[2].failed == 10 and draft[2].output_tokens_per_s == 0.0
    assert [point.timed_out for point in plain] == [False] * 4
    notes = load_sweep((*plain, *draft), True).notes
    assert notes == ("load, arm draft, 8 at once: timed out; 10 of 10 requests had no answer",)


def test_a_level_above_the_failure_limit_is_invalid_and_the_others_count(
    tmp_path: Path, prompts: Path
) -> None:
    """FC-039: nine of ten requests fail at concurrency 32, none at 1."""
    with loaded_server("--fail", "32") as server:
        good, bad = measure(tmp_path, server, prompts, level(1), level(32, requests=40, max_failed=0.1))
    assert good.usable and good.failed == 0
    assert bad.failed > 30 and "requests failed (limit 10%): Internal Server Error" in bad.invalid
    assert bad.output_tokens_per_s == 0.0 and bad.tokens_per_s_per_user is None
    rows = [
        json.loads(line) for line in (tmp_path / "run/05-evaluate/metrics.jsonl").read_text().splitlines()
    ]
    assert [(row["step"], row["failed"], row["invalid"]) for row in rows] == [(1, 0, 0), (32, bad.failed, 1)]
    assert "output_tokens_per_s" in rows[0] and "output_tokens_per_s" not in rows[1]


def test_an_engine_that_dies_costs_its_points_and_a_resume_measures_them(
    tmp_path: Path, prompts: Path
) -> None:
    with loaded_server("--die", "2") as server:
        first = measure(tmp_path, server, prompts, level(1), level(2), level(4))
    assert [point.usable for point in first] == [True, False, False]
    assert "does not answer any more" in first[1].invalid and "does not answer" in first[2].invalid
    launcher = QuickGenerator()
    with loaded_server() as server:
        again = measure(tmp_path, server, prompts, level(1), level(2), level(4), launcher=launcher)
    assert [point.usable for point in again] == [True, True, True]
    assert again[0] == first[0] and launcher.started == ["load-draft-c2", "load-draft-c4"]


def test_an_engine_that_hangs_for_good_costs_one_time_limit(
    tmp_path: Path, prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SETTLE_S", 0.2)
    launcher = QuickGenerator()
    with loaded_server("--hang", "2", "--stuck") as server:
        levels = (level(1), level(2, timeout_s=2.0), level(4))
        points = measure(tmp_path, server, prompts, *levels, launcher=launcher)
    assert points[0].usable and points[1].timed_out
    assert "are open and do not end: the engine hangs" in points[2].invalid
    assert launcher.started == ["load-draft-c1", "load-draft-c2"]


def test_points_of_other_prompts_settings_or_drafts_are_not_reused(tmp_path: Path, prompts: Path) -> None:
    launcher = QuickGenerator()
    with loaded_server() as server:
        measure(tmp_path, server, prompts, level(1), launcher=launcher, identity="a")
        measure(tmp_path, server, prompts, level(1), launcher=launcher, identity="a")
        assert len(launcher.started) == 1
        measure(tmp_path, server, prompts, level(1), launcher=launcher, identity="b")
        measure(tmp_path, server, prompts, level(1, requests=11), launcher=launcher, identity="b")
        prompts.write_text('{"prompt": [7]}\n')
        measure(tmp_path, server, prompts, level(1, requests=11), launcher=launcher, identity="b")
    assert len(launcher.started) == 4


def test_requests_of_somebody_else_make_the_point_invalid(tmp_path: Path, prompts: Path) -> None:
    with loaded_server("--foreign") as server:
        (point,) = measure(tmp_path, server, prompts, level(2))
    assert point.invalid == (
        "another client used the server: 24 requests ended and 12 were ours; "
        "120 tokens were generated and 60 were ours"
    )
    assert point.output_tokens_per_s == 0.0


def test_an_arm_is_loaded_as_the_profile_asks_and_its_server_is_needed_once(tmp_path: Path) -> None:
    load = {"concurrency": [1, 2], "min_requests": 2, "requests_per_user": 1, "max_new_tokens": 3}
    profile = load_profile("laptop", {"evaluate": {"load": load}}).profile
    asked = [LivePrompt(prompt_id="p", domain="qa", token_ids=(1, 2))]
    run = create_run(tmp_path, "run", profile)
    stage = run.path / "05-evaluate"
    stage.mkdir()
    assert not is_loaded(profile, "draft", asked, stage, "id")
    with loaded_server("--draft", "4", "--die", "2") as server:
        launcher = QuickGenerator()
        load_arm(profile, server, "draft", asked, stage, launcher, run, SilentProgress(), "id")
    assert not is_loaded(profile, "draft", asked, stage, "id")
    found = loaded(profile, ["draft", "plain"], stage)
    assert found is not None and [point.usable for point in found.points] == [True, False]
    with loaded_server("--draft", "4") as server:
        load_arm(profile, server, "draft", asked, stage, launcher, run, SilentProgress(), "id")
    assert is_loaded(profile, "draft", asked, stage, "id") and not is_loaded(profile, "draft", asked, stage)
    assert launcher.started == ["load-draft-c1", "load-draft-c2", "load-draft-c2"]
    off = load_profile("laptop").profile
    assert is_loaded(off, "draft", asked, stage) and loaded(off, ["draft"], stage) is None


def test_a_rate_level_has_no_limit_of_requests_in_flight(tmp_path: Path, prompts: Path) -> None:
    rate = Level(concurrency=None, request_rate=2.5, requests=4, max_new_tokens=3, timeout_s=60.0)
    with loaded_server() as server:
        (point,) = measure(tmp_path, server, prompts, rate)
    assert point.usable and (point.request_rate, point.requests) == (2.5, 4)
    assert (tmp_path / "run/05-evaluate/load/draft-r2.5.json").is_file()


def test_levels_come_from_the_profile_the_heaviest_last() -> None:
    load = {"concurrency": [4, 1], "request_rates": [0.5], "requests_per_user": 3, "min_requests": 5}
    levels = levels_of(load_profile("laptop", {"evaluate": {"load": load}}).profile)
    assert [(one.label, one.requests, one.warm_ups) for one in levels] == [
        ("c1", 5, 1),
        ("c4", 12, 4),
        ("r0.5", 5, 1),
    ]
    assert levels_of(load_profile("laptop").profile) == ()


def test_speeds_of_the_interpreter_are_marked() -> None:
    point = LoadPoint(
        arm="plain",
        concurrency=1,
        requests=1,
        failed=0,
        seconds=1.0,
        output_tokens=1,
        output_tokens_per_s=1.0,
    )
    marked = load_sweep([point], False)
    assert not marked.speed_is_meaningful and "mean nothing" in marked.notes[0]
    assert load_sweep([point], True).notes == ()
