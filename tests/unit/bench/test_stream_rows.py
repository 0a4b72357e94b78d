"""Arithmetic and wiring of the stream stage's rows, from figures that were not measured here."""

from __future__ import annotations

import dataclasses
import inspect
import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"
sys.path.append(str(BENCH))  # last: other folders of tests have modules of the same names

import answer_modes  # noqa: E402
import capture_rate  # noqa: E402
import client_memory  # noqa: E402
import servers  # noqa: E402
import stream_rows  # noqa: E402
import target_work  # noqa: E402
from upstream import Steps, train_share  # noqa: E402

from tasks.stream.index import IndexEntry, TokenIds  # noqa: E402

PAGE = """\
# TYPE vllm:prompt_tokens counter
vllm:prompt_tokens_total{engine="0"} 700.0
vllm:prompt_tokens_total{engine="1"} 300.0
vllm:prompt_tokens_created{engine="0"} 1.7e9
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0"} 0.0
vllm:num_requests_running{engine="1"} 2.0
"""


def ours() -> target_work.OurSteps:
    tokens = servers.TargetTokens(prompt=630, generated=400)
    return target_work.OurSteps(tokens, 3000, 20, 4, 500, {"capture": 20.0, "train": 40.0})


def theirs() -> Steps:
    answering, extracting = servers.TargetTokens(600, 400), servers.TargetTokens(2940, 60)
    return Steps(
        answering, extracting, 2400, {"regenerate-responses": 30.0, "prepare-data": 10.0, "train": 80.0}
    )


def test_target_work_counts_each_trained_token_once() -> None:
    mine, upstream = target_work.work_rows(ours(), theirs(), target_work.WorkSize(epochs=3))
    assert (mine.value, mine.baseline, mine.ratio, mine.goal) == (1030, 1000, 1.03, 1.05)
    assert (upstream.value, upstream.baseline, upstream.ratio) == (4000, 800, 5.0)
    assert upstream.goal is None and "1,000 tokens in regenerate-responses" in upstream.conditions


def test_wall_time_is_from_the_first_request_to_the_checkpoint() -> None:
    row = target_work.wall_row(ours(), theirs(), target_work.WorkSize())
    assert (row.value, row.baseline, row.ratio, row.goal) == (60, 120, 0.5, 0.6)
    assert "prepare-data 10 s" in row.conditions and "shims" in row.conditions


@pytest.mark.parametrize(("rows", "validation"), [(18, 4), (144, 4), (270, 21), (10_007, 4)])
def test_upstream_trains_on_as_many_rows_as_we_do(rows: int, validation: int) -> None:
    """Upstream takes `int(rows * share)` of what its command line says."""
    assert int(rows * float(f"{train_share(rows, validation):.6f}")) == rows - validation


def test_capture_rate_takes_the_median_of_each_side() -> None:
    size = capture_rate.RateSize(cases=((8, 256),))
    speeds = capture_rate.Speeds(plain=[100.0, 10.0, 110.0], capture=[96.0, 200.0, 90.0])
    (rate,) = capture_rate.rate_rows({(8, 256): speeds}, size)
    assert (rate.value, rate.baseline, rate.ratio, rate.goal) == (96, 100, 0.96, 0.95)
    assert "8 at once, one answer of 256 tokens" in rate.conditions and "200" in rate.conditions


def test_the_goals_cases_are_all_measured() -> None:
    sizes: list[tuple[int, int]] = []

    def keep(folder: Path, size: capture_rate.RateSize) -> list[Any]:
        sizes.extend(size.cases)
        return []

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(capture_rate, "rows", keep)
        for what in stream_rows.MODULES.values():
            if what.startswith("capture_rate:"):
                getattr(capture_rate, what.partition(":")[2])(Path())
    assert sorted(sizes) == [(8, 256), (8, 1024), (16, 256), (16, 1024)]
    assert sorted(sizes) == sorted(capture_rate.RateSize().cases)


def test_each_answer_mode_has_its_busy_row() -> None:
    modes = {"generate": [0.010, 0.012, 0.011], "recorded": [0.001] * 3, "served": [0.0132, 0.0132, 0.5]}
    busy = answer_modes.BusySeconds(plain=[0.01, 0.02, 0.011], modes=modes)
    found = answer_modes.busy_rows(busy, answer_modes.ModesSize(case=(8, 16)))
    assert [row.name for row in found] == [f"busy_seconds, {mode}" for mode in answer_modes.MODES]
    assert [row.ratio for row in found] == [1.0, 0.0909, 1.2]
    assert all(row.goal is None and "8 at once, one answer of 16" in row.conditions for row in found)


def captured(*answers: int) -> capture_rate.Captured:
    entries = [
        IndexEntry(
            i=n, prompt_id=f"p-{n}", domain="qa", split="train", tokens=4 + count, prompt_tokens=5,
            answer_tokens=count, answer_at=0, answer_xxh3="", finish_reason="length", bytes=1, xxh3="",
            ids=TokenIds(Path()),
        )
        for n, count in enumerate(answers)
    ]  # fmt: skip
    return capture_rate.Captured(tuple(entries), (), 1.0, 3.0, 1.0)


def test_answers_that_were_never_seen_running_have_no_rate() -> None:
    assert captured(3).seconds == 2.0
    with pytest.raises(AssertionError, match="too short to be measured"):
        _ = dataclasses.replace(captured(3), began=None).seconds


def test_modes_with_other_tokens_are_not_compared() -> None:
    answer_modes.check_tokens("served", captured(3, 5), captured(4, 4))
    with pytest.raises(AssertionError, match="recorded has 5 trainable tokens, not 6"):
        answer_modes.check_tokens("recorded", captured(3, 4), captured(4, 4))


def test_client_memory_is_growth_and_peak() -> None:
    few, many = client_memory.Memory(400 * 2**20, 420 * 2**20), client_memory.Memory(402 * 2**20, 410 * 2**20)
    growth, peak = client_memory.memory_rows(few, many, 840 * 2**20, client_memory.MemorySize())
    assert (growth.value, growth.baseline, growth.ratio, growth.goal) == (402, 400, 1.005, 1.01)
    assert (peak.value, peak.baseline, peak.ratio, peak.goal) == (420, 840, 0.5, 1.0)


def test_metrics_are_summed_over_engines() -> None:
    assert servers.counter(PAGE, "vllm:prompt_tokens_total") == 1000
    assert servers.counter(PAGE, "vllm:num_requests_running") == 2
    assert servers.counter(PAGE, "vllm:generation_tokens_total") == 0


def test_everything_registered_measures_from_a_folder_alone() -> None:
    for what in set(stream_rows.MODULES.values()):
        module, _, function = what.partition(":")
        parameters = inspect.signature(getattr(import_module(module), function or "rows")).parameters.values()
        needed = [p.name for p in parameters if p.default is inspect.Parameter.empty]
        assert needed == ["folder"], what


def test_a_group_chooses_its_rows_and_no_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bench_of_group.py").write_text(
        "from rows import compared\n"
        "def short(folder):\n"
        "    return [compared('short', 1, 1, None, 's', 'none')]\n"
        "def long(folder):\n"
        "    return [compared('long', 1, 1, None, 's', 'none')]\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    modules = {"one_short": "bench_of_group:short", "one_long": "bench_of_group:long", "ones": "missing"}
    monkeypatch.setattr(stream_rows, "MODULES", modules)
    monkeypatch.setattr(stream_rows, "GROUPS", ("one",))
    for names, wanted in ((["one"], ["short", "long"]), (["one_long"], ["long"])):
        assert [row.name for row in stream_rows.measure_stream(names, tmp_path)] == wanted


def test_a_module_of_several_rows_runs_once_in_a_folder_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bench_of_test.py").write_text(
        "from rows import compared\n"
        "def rows(folder):\n"
        "    assert not list(folder.iterdir())\n"
        "    (folder / 'x').touch()\n"
        "    return [compared(name, 2, 4, 0.6, 's', 'none') for name in ('one', 'two')]\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(
        stream_rows, "MODULES", {"one": "bench_of_test", "two": "bench_of_test", "other": "missing"}
    )
    found = stream_rows.measure_stream(["two", "one"], tmp_path)
    assert [(row.name, row.ratio) for row in found] == [("one", 0.5), ("two", 0.5)]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--stages", "stream", "--rows", "nothing"], "invalid choice: 'nothing'"),
        (["--stages", "train", "--rows", "target_work"], "--rows names rows of the stage stream"),
    ],
)
def test_a_row_that_cannot_be_measured_is_refused_at_once(arguments: list[str], said: str) -> None:
    command = [sys.executable, str(BENCH / "run.py"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and said in done.stderr and "Traceback" not in done.stderr


def test_the_shims_replace_names_that_upstream_has(tmp_path: Path) -> None:
    """In a process of its own: the replaced names stay replaced."""
    program = (
        "import sys, torch; sys.path.insert(0, sys.argv[1]); import upstream_shims, pathlib\n"
        "from speculators.train import checkpointer, trainer\n"
        "assert callable(trainer.get_local_rank) and callable(checkpointer.get_current_device)\n"
        "upstream_shims.train_on_cpu()\n"
        "upstream_shims.count_tokens(pathlib.Path(sys.argv[2]))\n"
        "timer = trainer._StepTimer(True)\n"
        "marks = 'start queue pre_h2d fetch fwd pre_clip bwd opt'.split()\n"
        "for mark in marks: timer.mark(mark)\n"
        "assert timer.profile(7)['step_ms'] >= 0 and timer.profile(5)\n"
        "print(trainer.get_local_rank(), checkpointer.get_current_device())\n"
    )
    counts = tmp_path / "counts.json"
    command = [sys.executable, "-c", program, str(BENCH), str(counts)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split() == ["cpu", "cpu"]
    assert json.loads(counts.read_text()) == {"tokens": 12, "steps": 2}
