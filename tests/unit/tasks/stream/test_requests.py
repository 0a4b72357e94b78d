"""Prompts in tokens on disk: nothing reaches the target that it cannot answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import PreTrainedTokenizerFast

from tasks.errors import UsageError
from tasks.stream.requests import prepare, read_requests
from tasks.stream.settings import CaptureFiles, CaptureSettings

SAMPLING = {"max_new_tokens": 5, "temperature": 0.0, "top_p": 1.0, "seed": 0}


def tokenizer() -> Any:
    model = Tokenizer(WordLevel({"user": 0, "assistant": 1, "one": 2}, unk_token="one"))
    model.pre_tokenizer = Whitespace()
    fast = PreTrainedTokenizerFast(tokenizer_object=model)
    fast.chat_template = "{% for m in messages %}{{ m.role }} {{ m.content }} {% endfor %}assistant"
    return fast


def settings(folder: Path, **changes: Any) -> CaptureSettings:
    values: dict[str, Any] = {
        "run_id": "run", "url": "http://127.0.0.1:1", "served_name": "t", "tokenizer": "", "thinking": False,
        "trust_remote_code": False, "max_model_len": 64, "max_bad_rows": 0.5, "layers": 2, "hidden_size": 4,
        "dtype": "float32", "sampling": dict.fromkeys(("train", "held_out", "evaluate"), SAMPLING),
        "store_master": "127.0.0.1:1", "store_host": "127.0.0.1", "store_protocol": "tcp", "store_device": "",
        "store_local_buffer_bytes": 1 << 20, "concurrency": 2, "in_flight_bytes": 1 << 20, "max_attempts": 2,
        "read_timeout_s": 1.0, "answer_timeout_s": 1.0, "folder": str(folder), "progress_file": "p",
    }  # fmt: skip
    return CaptureSettings.model_validate({**values, **changes})


def files_with(folder: Path, *texts: str, recorded: dict[str, Any] | None = None) -> CaptureFiles:
    files = CaptureFiles(folder)
    files.work.mkdir(parents=True)
    rows = [
        {"id": f"p-{i}", "domain": "qa", "split": "train", "messages": [{"role": "user", "content": text}],
         "recorded": recorded}
        for i, text in enumerate(texts)
    ]  # fmt: skip
    files.prompts.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    return files


def test_requests_come_back_as_they_were_and_finished_ones_do_not(tmp_path: Path) -> None:
    files = files_with(tmp_path, *("one" for _ in range(600)), "line\u2028separator")
    prepared = prepare(settings(tmp_path), files, tokenizer())
    assert (prepared.prompts, prepared.requests) == (601, 601) and not prepared.dropped
    left = list(read_requests(files.requests, set(range(1, 600))))
    assert [request.n for request in left] == [0, 600] and left[0].prompt_ids == (0, 2, 1)
    assert left[0].seed != left[1].seed and left[0].given is None and left[0].source == "generated"


def test_prompt_beyond_the_context_never_reaches_the_target(tmp_path: Path) -> None:
    files = files_with(tmp_path, "one", "one " * 80, "one")
    prepared = prepare(settings(tmp_path), files, tokenizer())
    assert prepared.dropped == {"unusable": 1}
    assert [request.n for request in read_requests(files.requests, ())] == [0, 2]
    (row,) = [json.loads(line) for line in files.dropped.read_text().splitlines()]
    assert row["prompt_id"] == "p-1" and "max_model_len" in row["reason"]


def test_sample_that_cannot_lie_in_the_store_is_dropped_with_both_sizes(tmp_path: Path) -> None:
    files = files_with(tmp_path, "one", "one " * 40, "one")
    prepared = prepare(settings(tmp_path, in_flight_bytes=1024), files, tokenizer())
    assert prepared.dropped == {"too_large": 1} and 0 < prepared.largest_bytes <= 1024
    assert "more than the 1,024 in flight" in files.dropped.read_text()


def test_too_many_unusable_prompts_stop_before_the_first_request(tmp_path: Path) -> None:
    files = files_with(tmp_path, "one", "one " * 80, "one " * 90)
    with pytest.raises(UsageError, match="2 of 3 prompts"):
        prepare(settings(tmp_path), files, tokenizer())


def test_answers_of_others_are_dropped_if_the_profile_says_so(tmp_path: Path) -> None:
    files = files_with(tmp_path, "one", recorded={"text": "one", "model": "other", "finish_reason": "stop"})
    answers = {"answers": "recorded", "recorded_else": "drop", "target_names": ["t"], "template_digest": "d"}
    with pytest.raises(UsageError, match=r"recorded: model.*1"):
        prepare(settings(tmp_path, answers=answers), files, tokenizer())
    other = {**answers, "recorded_else": "regenerate"}
    prepared = prepare(settings(tmp_path, answers=other), files, tokenizer())
    assert prepared.recorded == {"model": 1} and prepared.requests == 1
