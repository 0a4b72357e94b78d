"""Rows of steps: dropped where they are taken again, and never lost to a kill."""

from __future__ import annotations

from pathlib import Path

from tasks.train.journal import SAMPLES, append_row, keep_rows, note_samples, samples_of_steps


def test_rows_of_steps_that_are_taken_again_are_dropped_with_a_torn_end(tmp_path: Path) -> None:
    for step in range(1, 5):
        note_samples(tmp_path, step, 0, (step, 10 + step))
    path = tmp_path / SAMPLES
    path.write_text(path.read_text() + '{"step": 1, "sam')
    keep_rows(path, lambda row: row["step"] <= 2)
    assert samples_of_steps(tmp_path) == [[1, 11], [2, 12]]
    keep_rows(tmp_path / "missing", lambda row: True)


def test_old_rows_stay_until_the_new_ones_are_complete(tmp_path: Path) -> None:
    """A kill once lost the rows of all steps: the file was emptied before it was written."""
    note_samples(tmp_path, 1, 0, (1,))
    note_samples(tmp_path, 2, 0, (2,))
    with open(tmp_path / SAMPLES, encoding="utf-8") as before:
        keep_rows(tmp_path / SAMPLES, lambda row: row["step"] <= 1)
        assert len(before.readlines()) == 2
    assert samples_of_steps(tmp_path) == [[1]]


def test_values_that_are_not_finite_become_null(tmp_path: Path) -> None:
    append_row(tmp_path / "rows", {"loss": float("nan"), "step": 1})
    assert (tmp_path / "rows").read_text() == '{"loss": null, "step": 1}\n'
