"""The live client against a small server that counts as vLLM does, over real HTTP."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from profiles.schema import Profile
from tasks.errors import ServiceError
from tasks.evaluate.arms import arm_fingerprint, by_domain, stored_arm
from tasks.evaluate.live import Answer, ArmClient, ArmRecord, DomainCounts, LivePrompt, ask_domains
from tasks.stage import write_atomic

FAILS, HANGS, SHARED, RESTARTS = 66, 77, 88, 99
"""First prompt tokens that make the server misbehave."""


class Speculating(ThreadingHTTPServer):
    """Counters of two engines that start high; n tokens take n - 1 rounds, one accepted in each."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.rounds, self.tokens, self.created = [1000, 5000], 700, 1.0
        self.lock, self.ended = threading.Lock(), threading.Event()
        self.bodies: list[dict[str, Any]] = []
        self.says = True
        self.resets_after = 0
        """Counters fall to zero once, when they have been read after so many answers."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that gave up is expected here."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def page(self) -> str:
        lines = []
        for engine, rounds in enumerate(self.rounds):
            label = f'engine="{engine}",model_name="m"'
            for name in ("num_drafts", "num_accepted_tokens"):
                lines.append(f"# TYPE vllm:spec_decode_{name}_total counter")
                lines.append(f"vllm:spec_decode_{name}_total{{{label}}} {float(rounds)}")
            position = f'{label},position="0"'
            lines.append(f"vllm:spec_decode_num_accepted_tokens_per_pos_total{{{position}}} {float(rounds)}")
        lines.append(f'vllm:generation_tokens_total{{engine="0",model_name="m"}} {float(self.tokens)}')
        if self.resets_after and len(self.bodies) == self.resets_after:
            self.rounds, self.tokens, self.resets_after = [0, 0], 0, 0
        return "\n".join(lines) + "\n"


class Handler(BaseHTTPRequestHandler):
    server: Speculating

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self.reply(200, self.server.page())

    def do_POST(self) -> None:
        self.reply(*self.answer())

    def answer(self) -> tuple[int, str]:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        first, count = body["prompt"][0], body["max_tokens"]
        if self.headers.get("Authorization") != "Bearer key":
            return 401, "no"
        if first == HANGS:
            self.server.ended.wait(30)
            return 503, "ended"
        if first == FAILS:
            return 500, "broken"
        with self.server.lock:
            self.server.bodies.append(body)
            self.server.rounds[len(self.server.bodies) % 2] += count - 1
            self.server.tokens += count + (5 if first == SHARED else 0)
            if first == RESTARTS:
                self.server.rounds = [rounds - 900 for rounds in self.server.rounds]
        step = {f"token_id:{first}": -0.1, "token_id:7": -0.3}
        choice = {"token_ids": [first] * count, "finish_reason": "length"}
        if body.get("logprobs"):
            choice["logprobs"] = {"top_logprobs": [step] * count}
        said = {"acceptance_histogram": [0, count - 1], "num_spec_steps": count - 1}
        metrics = {"metrics": {"speculative_decoding": said}} if self.server.says else {}
        return 200, json.dumps({"choices": [choice], **metrics})

    def reply(self, status: int, text: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())


@pytest.fixture
def server() -> Iterator[Speculating]:
    with Speculating() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        yield running
        running.ended.set()
        running.shutdown()


def prompts(*firsts: int, domain: str = "a") -> list[LivePrompt]:
    return [
        LivePrompt(prompt_id=f"{domain}{i}", domain=domain, token_ids=(first, 1, 2))
        for i, first in enumerate(firsts)
    ]


def ask(
    server: Speculating, asked: list[LivePrompt], stall_s: float = 30.0, logprobs: bool = False
) -> tuple[dict[str, Answer], dict[str, DomainCounts], bool]:
    client = ArmClient(server.url, "m", "key", 6, logprobs)
    return asyncio.run(ask_domains(client, by_domain(asked), 2, stall_s, lambda answer: None))


def test_counters_are_differences_by_domain_without_the_warm_up(server: Speculating) -> None:
    answers, counts, speculates = ask(server, prompts(10, 11, 12) + prompts(20, domain="b"))
    assert speculates and len(server.bodies) == 5
    assert (counts["a"].rounds, counts["a"].accepted, counts["a"].answered) == (15, 15, 18)
    assert (counts["b"].rounds, counts["b"].per_position) == (5, (5,))
    assert answers["a1"].token_ids == (11,) * 6
    assert not counts["a"].invalid and not counts["b"].invalid


def test_requests_are_greedy_and_made_of_tokens(server: Speculating) -> None:
    ask(server, prompts(10))
    body = server.bodies[-1]
    assert (body["temperature"], body["prompt"], body["return_token_ids"]) == (0.0, [10, 1, 2], True)
    assert "logprobs" not in body


def test_log_probabilities_are_read_by_token_id(server: Speculating) -> None:
    answers, _, _ = ask(server, prompts(10), logprobs=True)
    assert answers["a0"].top_logprobs[0] == {10: -0.1, 7: -0.3}


def test_acceptance_of_each_response_is_read(server: Speculating) -> None:
    answers, _, _ = ask(server, prompts(10))
    assert answers["a0"].acceptance == (0, 5)
    server.says = False
    answers, _, _ = ask(server, prompts(10))
    assert answers["a0"].acceptance is None


def test_a_failed_request_is_counted_and_the_others_go_on(server: Speculating) -> None:
    answers, counts, _ = ask(server, prompts(10, FAILS, 12))
    assert answers["a1"].error == "HTTP 500: broken"
    assert answers["a2"].token_ids
    assert counts["a"].rounds == 10
    assert (counts["a"].requests, counts["a"].failed) == (3, 1)


def test_a_client_without_the_key_fails_each_request(server: Speculating) -> None:
    client = ArmClient(server.url, "m", None, 6)
    answers, _, _ = asyncio.run(ask_domains(client, by_domain(prompts(10)), 1, 30.0, lambda answer: None))
    assert answers["a0"].error.startswith("HTTP 401")


def test_tokens_of_another_client_make_a_domain_invalid(server: Speculating) -> None:
    _, counts, _ = ask(server, prompts(10) + prompts(SHARED, domain="b"))
    assert not counts["a"].invalid
    assert "another client" in counts["b"].invalid


def test_a_domain_in_which_the_server_restarts_twice_is_invalid_alone(server: Speculating) -> None:
    _, counts, _ = ask(server, prompts(10) + prompts(RESTARTS, domain="b") + prompts(12, domain="c"))
    assert "restarted" in counts["b"].invalid and counts["b"].measured_again
    assert not counts["a"].invalid and not counts["c"].invalid


def test_a_restart_between_two_domains_is_noticed_and_pollutes_none(server: Speculating) -> None:
    server.resets_after = 3  # the warm-up, a and b
    _, counts, _ = ask(server, prompts(10) + prompts(11, domain="b") + prompts(12, domain="c"))
    assert [one.restarted_before for one in counts.values()] == [False, False, True]
    assert [one.rounds for one in counts.values()] == [5, 5, 5]
    assert not any(one.invalid for one in counts.values())
    assert len(server.bodies) == 5  # warmed up again


def test_a_server_that_makes_no_token_is_given_up(server: Speculating) -> None:
    with pytest.raises(ServiceError, match="made no token"):
        ask(server, prompts(10) + prompts(HANGS, domain="b"), stall_s=0.2)


def test_a_server_that_is_gone_is_an_error() -> None:
    client = ArmClient("http://127.0.0.1:9", "m", "key", 6)
    with pytest.raises(ServiceError, match="counters cannot be read"):
        asyncio.run(ask_domains(client, by_domain(prompts(10)), 1, 1.0, lambda answer: None))


def test_a_stored_arm_is_reused_only_for_the_same_inputs(tmp_path: Path) -> None:
    profile = Profile.model_validate({"name": "t", "target": {"model": "m", "aux_layer_ids": [1]}})
    fingerprint = arm_fingerprint(profile, "target", {"model.safetensors": "aa"}, prompts(1))
    record = ArmRecord(
        name="draft",
        fingerprint=fingerprint,
        argv=(),
        engine="e",
        answers={"a0": Answer(prompt_id="a0", token_ids=(1, 2), top_logprobs=({5: -0.5},))},
        domains={},
        speculates=True,
        seconds=1.0,
    )
    write_atomic(tmp_path / "draft.json", record.model_dump_json())
    assert stored_arm(tmp_path, "draft", fingerprint) == record
    assert stored_arm(tmp_path, "plain", fingerprint) is None
    other = arm_fingerprint(profile, "target", {"model.safetensors": "bb"}, prompts(1))
    assert stored_arm(tmp_path, "draft", other) is None
    (tmp_path / "draft.json").write_text("{half")
    assert stored_arm(tmp_path, "draft", fingerprint) is None
