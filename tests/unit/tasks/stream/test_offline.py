"""A finished log is an offline data set of upstream's `file` backend, read here by upstream's own classes."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest
import torch
from hs_connectors import FileTransfer, HiddenStatesBackend
from speculators.train.data import ArrowDataset, SampleUnavailable

from tasks.errors import StageInputError
from tasks.stream.log import HiddenStateLog, LogWriter
from tasks.stream.offline import main, write_offline_dataset
from tasks.stream.retention import mark_consumed


def fill(folder: Path, window_bytes: int | None = None) -> LogWriter:
    """Samples 2, 0 and 4, in this order; 1 and 3 were dropped."""
    writer = LogWriter(folder, window_bytes=window_bytes)
    for i, split in ((2, "train"), (0, "held_out"), (4, "evaluate")):
        ids = torch.tensor([1, 2, 3, 10 + i, 20 + i])
        writer.append(
            i=i, prompt_id=f"p-{i}", domain="qa", split=split,  # type: ignore[arg-type]
            prompt_tokens=3, answer_ids=(10 + i, 20 + i, 30 + i), finish_reason="stop",
            hidden_states=torch.full((5, 4, 8), float(i), dtype=torch.bfloat16), token_ids=ids,
        )  # fmt: skip
    return writer


def upstream(rows: Path, log: Path) -> ArrowDataset:
    """The data set as `speculators train` opens it with the `file` backend."""
    transfer = HiddenStatesBackend.registry["file"].from_train_args(argparse.Namespace(hidden_states_path=str(log)), str(rows))
    assert isinstance(transfer, FileTransfer)
    return ArrowDataset(max_len=64, datapath=rows, transfer=transfer, on_missing="skip")


def test_upstreams_own_reader_reads_a_finished_log(tmp_path: Path) -> None:
    log, rows = tmp_path / "log", tmp_path / "rows"
    fill(log).finish()
    assert write_offline_dataset(log, rows) == 3
    data = upstream(rows, log)
    assert len(data) == 5 and data.approx_lengths == [5, 1, 5, 1, 5]
    assert isinstance(data[1], SampleUnavailable) and isinstance(data[3], SampleUnavailable)
    for entry in HiddenStateLog(log).entries():
        sample = data[entry.i]
        states, ids = HiddenStateLog(log).load(entry)
        assert torch.equal(sample["hidden_states"], states[:, :-1].flatten(1))
        assert torch.equal(sample["verifier_last_hidden_states"], states[:, -1])
        assert torch.equal(sample["input_ids"], ids)
        learned = 0 if entry.split == "evaluate" else 1
        assert sample["loss_mask"].tolist() == [0, 0, 0, learned, learned]


def test_an_unfinished_log_and_a_window_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log"
    writer = fill(log, window_bytes=10**6)
    with pytest.raises(StageInputError, match="not finished"):
        write_offline_dataset(log, tmp_path / "rows")
    mark_consumed(log, [2])
    (log / "hs_2.safetensors").unlink()
    writer.finish()
    assert main([str(log), str(tmp_path / "rows")]) == 2
    told = capsys.readouterr().err
    assert "1 of 3 samples have no file, hs_2.safetensors" in told and "retention" in told
    assert not (tmp_path / "rows").exists()
    assert main([]) == 2


def test_the_command_says_what_it_wrote(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(tmp_path / "log").finish()
    assert main([str(tmp_path / "log"), str(tmp_path / "rows")]) == 0
    assert capsys.readouterr().out.startswith("3 samples; rows in ")
