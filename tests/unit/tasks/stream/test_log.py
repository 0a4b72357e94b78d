"""The hidden-state log keeps samples complete or absent."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tasks.errors import StageInputError
from tasks.stream.log import INDEX, HiddenStateLog, IndexEntry, LogWriter, index_digest


def add(writer: LogWriter, i: int, split: str = "train", tokens: int = 7) -> IndexEntry:
    generator = torch.Generator().manual_seed(i)
    return writer.append(
        i=i,
        prompt_id=f"p-{i}",
        domain="qa",
        split=split,  # type: ignore[arg-type]
        prompt_tokens=4,
        answer_ids=tuple(range(tokens - 3)),
        finish_reason="stop",
        hidden_states=torch.randn(tokens, 3, 8, generator=generator),
        token_ids=torch.arange(tokens),
    )


def test_what_is_written_is_read(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path)
    entry = add(writer, 3)
    add(writer, 1, split="evaluate")
    log = HiddenStateLog(tmp_path)
    assert [e.i for e in log.entries()] == [3, 1]
    assert log.entries("train") == [entry]
    states, ids = log.load(entry)
    assert torch.equal(states, torch.randn(7, 3, 8, generator=torch.Generator().manual_seed(3)))
    assert ids.dtype == torch.int64 and ids.tolist() == list(range(7))
    assert entry.trainable_tokens == 3 and len(entry.answer_ids) == 4


def test_half_written_tail_is_dropped_and_the_rest_kept(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path)
    first, second = add(writer, 0), add(writer, 1)
    writer.close()
    index = tmp_path / INDEX
    index.write_text(index.read_text()[:-20])
    (tmp_path / ".hs_9.tmp").write_bytes(b"half")
    assert HiddenStateLog(tmp_path).entries() == [first]
    again = LogWriter(tmp_path)
    assert list(again.entries) == [0] and again.repaired
    assert not (tmp_path / second.file_name).exists() and not (tmp_path / ".hs_9.tmp").exists()
    add(again, 1)
    assert [e.i for e in HiddenStateLog(tmp_path).entries()] == [0, 1]


def test_line_without_its_file_is_captured_again(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path)
    add(writer, 0)
    (tmp_path / add(writer, 1).file_name).unlink()
    writer.close()
    assert list(LogWriter(tmp_path).entries) == [0]


def test_changed_sample_is_refused(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path)
    entry = add(writer, 0)
    path = tmp_path / entry.file_name
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(StageInputError, match="was changed"):
        HiddenStateLog(tmp_path).load(entry)


def test_damage_in_the_middle_is_an_error(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path)
    add(writer, 0)
    writer.close()
    index = tmp_path / INDEX
    index.write_text("{broken\n" + index.read_text())
    with pytest.raises(StageInputError, match="line 1"):
        HiddenStateLog(tmp_path).entries()


def test_same_number_twice_is_refused(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path)
    add(writer, 0)
    with pytest.raises(ValueError, match="already"):
        add(writer, 0)


def test_digest_does_not_depend_on_order(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path)
    entries = [add(writer, i) for i in range(3)]
    assert index_digest(entries) == index_digest(reversed(entries))
    assert index_digest(entries) != index_digest(entries[:2])
