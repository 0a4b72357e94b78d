"""Questions to a server that speaks vLLM's HTTP and speculates: what is marked, and when nothing is."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from flows.cli.ask import command
from tasks.errors import ServiceError, UsageError
from tasks.publish.serving_ask import Answer, Asked, ask, served_name
from tasks.serve.vllm_http import Server

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "fakes"))
from speculating_engine import Engine
from speculating_server import Server as Fake

KEY = "canary-key-7"


@contextmanager
def serving(fault: str = "none", *, tokens: int = 4, detailed: bool = False) -> Iterator[tuple[str, Engine]]:
    engine = Engine(fault, tokens)
    with Fake(("127.0.0.1", 0), engine, "m", "/model", KEY, detailed) as fake:
        threading.Thread(target=fake.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{fake.server_address[1]}", engine
        fake.shutdown()


def asked(fault: str = "none", max_tokens: int = 23, **options: bool) -> tuple[Answer, Engine]:
    with serving(fault, **options) as (url, engine):
        return ask(Server(url, "m", KEY), Asked("hello", max_tokens)), engine


def drafted(answer: Answer) -> list[str]:
    """Tokens that are said to be accepted draft tokens."""
    return [
        piece for one in answer.rounds.rounds for piece in answer.pieces[one.first : one.first + one.accepted]
    ]


@pytest.mark.parametrize("detailed", [False, True])
@pytest.mark.parametrize("max_tokens", [5, 12, 23, 40])
def test_every_accepted_token_is_found_and_no_other(max_tokens: int, detailed: bool) -> None:
    """Compared with the draft itself: an accepted token is one that it proposes after the text before it."""
    answer, engine = asked(max_tokens=max_tokens, detailed=detailed)
    ids = answer.streamed.tokens
    assert answer.rounds.doubt == "" and len(ids) == max_tokens == len(answer.pieces)
    prompt = [ord(letter) for letter in "hello"]
    for one in answer.rounds.rounds:
        for place in range(one.first, one.first + one.accepted):
            assert ids[place] == engine.guess([*prompt, *ids[:place]])
    assert "".join(answer.pieces) == answer.streamed.content == answer.text
    assert len(drafted(answer)) > 0
    assert ("the response's list" in answer.rounds.agreed) == detailed


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("merges", "pieces are not rounds"),
        ("foreign", "answers others too"),
        ("miscounts", "pieces are not rounds"),
        ("no-drafts", "nothing was drafted"),
    ],
)
def test_nothing_is_marked_where_the_witnesses_disagree(
    fault: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tasks.publish.serving_ask._SETTLE_S", 0.2)
    answer, _ = asked(fault)
    assert words in answer.rounds.doubt and drafted(answer) == []
    assert len(answer.streamed.tokens) == 23


def test_merged_pieces_are_told_apart_by_the_servers_own_list() -> None:
    answer, _ = asked("merges", detailed=True)
    plain, _ = asked()
    assert answer.rounds.rounds == plain.rounds.rounds and answer.rounds.doubt == ""


def test_the_command_asks_a_server_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", KEY)
    with serving() as (url, _):
        words = ["hello", "--url", f"{url}/v1", "--api-key-env", "MY_KEY", "--max-tokens", "12"]
        done = CliRunner().invoke(command, words)
        refused = CliRunner().invoke(command, [*words[:3], "--model", "other", "--api-key-env", "MY_KEY"])
    assert done.exit_code == 0, done.output
    first, _, figures = done.output.partition("\n\n")
    assert first.count("⟨") == first.count("⟩") > 0 and first.startswith("w")
    assert "12 tokens in" in figures and "tau" in figures and "agreed: the stream's chunks" in figures
    assert KEY not in done.output
    assert isinstance(refused.exception, ServiceError) and "not 'other'" in str(refused.exception)


def test_a_key_that_is_missing_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    with serving() as (url, _):
        done = CliRunner().invoke(command, ["hello", "--url", url])
    assert isinstance(done.exception, ServiceError) and "--api-key-env" in str(done.exception)


def test_a_server_that_runs_has_its_own_draft() -> None:
    done = CliRunner().invoke(command, ["hello", "laptop", "--url", "http://127.0.0.1:9"])
    assert isinstance(done.exception, UsageError) and "--url" in str(done.exception)


def test_a_server_that_is_away_is_named() -> None:
    with pytest.raises(ServiceError, match="does not answer"):
        served_name(Server("http://127.0.0.1:9", ""), None)
