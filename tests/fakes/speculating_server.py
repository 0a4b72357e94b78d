"""A program that speaks vLLM's HTTP and speculates: `python speculating_server.py --port P --fault NAME`.

Answers /health, /version, /v1/models, /metrics, /detokenize, /v1/completions and streamed
/v1/chat/completions as vLLM 0.32 does (token ids, `n`, acceptance in each response, log-probabilities of
named tokens), checks the key in VLLM_API_KEY, takes `--speculative-config`, refuses per-request metrics
without it as vLLM does, and ignores other flags. What it answers, and its faults, are in
`speculating_engine.py`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from speculating_engine import FAULTS, Engine


def words_of(tokens: list[int]) -> str:
    """Text of some tokens: a word for each."""
    return " ".join(f"w{token}" for token in tokens)


class Server(ThreadingHTTPServer):
    """The HTTP side of one engine."""

    daemon_threads = True

    def __init__(
        self,
        address: tuple[str, int],
        engine: Engine,
        name: str,
        model: str,
        key: str | None,
        detailed: bool = False,
    ):
        super().__init__(address, Handler)
        self.detailed = detailed
        self.engine, self.served_name, self.model, self.key = engine, name, model, key

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that gave up is expected here."""


class Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        if self.path == "/health":
            self.send(200, "")
        elif self.path == "/metrics":
            self.send(200, self.server.engine.page())
        elif self.path == "/version":
            self.send(200, json.dumps({"version": "0.32.0"}))
        else:
            row = {"id": self.server.served_name, "root": self.server.model, "max_model_len": 2048}
            self.send(200, json.dumps({"object": "list", "data": [row]}))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.server.key and self.headers.get("Authorization") != f"Bearer {self.server.key}":
            self.send(401, '{"error": "Unauthorized"}')
            return
        engine = self.server.engine
        if self.path == "/detokenize":
            self.send(200, json.dumps({"prompt": words_of(body["tokens"])}))
            return
        with engine.lock:
            engine.open += 1
            crowded = engine.open > 2
        try:
            self.misbehave(engine)
            if engine.fault == "fails" and crowded and engine.requests % 10:
                engine.requests += 1
                self.send(500, '{"error": {"message": "broken"}}')
                return
            if body.get("stream"):
                self.stream(engine, body)
            else:
                self.send(200, json.dumps(self.answer(engine, body)))
        finally:
            with engine.lock:
                engine.open -= 1

    def misbehave(self, engine: Engine) -> None:
        if engine.fault == "fails":
            time.sleep(0.03)  # so that requests really are open at once
        if engine.answered < engine.count:
            return
        if engine.fault == "dies":
            os._exit(3)
        if engine.fault == "hangs":
            time.sleep(600)

    def answer(self, engine: Engine, body: dict[str, Any]) -> dict[str, Any]:
        prompt = body["prompt"] if isinstance(body["prompt"], list) else [1, 2, 3]
        most, heat = int(body.get("max_tokens", 16)), float(body.get("temperature", 0))
        first = int(body.get("seed", 0))
        answers = [
            engine.answer(prompt, most, random.Random(first + i) if heat else None)
            for i in range(int(body.get("n", 1)))
        ]
        engine.record(answers)
        reply: dict[str, Any] = {"choices": [self.choice(engine, prompt, body, one) for one in answers]}
        if engine.tokens and engine.fault != "silent" and len(answers) == 1:
            rounds = answers[0]["rounds"]
            histogram = [rounds.count(accepted) for accepted in range(engine.tokens + 1)]
            reply["metrics"] = {"speculative_decoding": {"acceptance_histogram": histogram}}
        return reply

    def stream(self, engine: Engine, body: dict[str, Any]) -> None:
        """A chat as server-sent events: first the role, then each step's tokens, then usage and metrics."""
        heat = float(body.get("temperature", 0))
        question = [ord(letter) for letter in body["messages"][-1]["content"]]
        one = engine.answer(question, int(body["max_tokens"]), random.Random(0) if heat else None)
        chunks = engine.chunks(one)
        events: list[dict[str, Any]] = [{"choices": [{"index": 0, "delta": {"role": "assistant"}}]}]
        for number, chunk in enumerate(chunks, start=1):
            text = (" " if number > 1 else "") + words_of(chunk)
            choice: dict[str, Any] = {"index": 0, "delta": {"content": text}, "token_ids": chunk}
            choice["finish_reason"] = "length" if number == len(chunks) else None
            events.append({"choices": [choice]})
        last: dict[str, Any] = {"choices": [], "usage": {"completion_tokens": len(one["tokens"])}}
        if self.server.detailed and one["rounds"]:
            steps = {"per_step_accepted": one["rounds"]}
            last["metrics"] = {"speculative_decoding": steps}
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        for event in [*events, last]:
            self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
        self.wfile.write(b"data: [DONE]\n\n")
        self.close_connection = True
        engine.record([one])

    def choice(
        self, engine: Engine, prompt: list[int], body: dict[str, Any], one: dict[str, Any]
    ) -> dict[str, Any]:
        found: dict[str, Any] = {"finish_reason": "length", "token_ids": one["tokens"]}
        wanted = body.get("logprob_token_ids")
        if wanted:
            step = {f"token_id:{token}": engine.logprob(prompt, token) for token in wanted}
            found["logprobs"] = {"top_logprobs": [step]}
        return found

    def send(self, status: int, text: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--model", default="/model")
    parser.add_argument("--served-model-name", default="target")
    parser.add_argument("--speculative-config", type=json.loads)
    parser.add_argument("--per-request-spec-decode-metrics")
    parser.add_argument("--fault", choices=FAULTS, default="none")
    parser.add_argument("--count", type=int, default=0)
    options = parser.parse_known_args()[0]
    if options.per_request_spec_decode_metrics and not options.speculative_config:
        sys.exit("ValueError: --per-request-spec-decode-metrics requires speculative decoding to be enabled")
    config = options.speculative_config or {}
    engine = Engine(options.fault, int(config.get("num_speculative_tokens", 0)), options.count)
    address = (options.host, options.port)
    key = os.environ.get("VLLM_API_KEY")
    print("INFO: serving", flush=True)
    detailed = options.per_request_spec_decode_metrics == "detailed"
    server = Server(address, engine, options.served_model_name, options.model, key, detailed)
    server.serve_forever(poll_interval=0.05)


if __name__ == "__main__":
    main()
