"""A server that streams completions and counts as vLLM 0.32 does: `python loaded_server.py --port P`.

Answers /health, /version, /v1/models, /metrics, /tokenize, /server_info (with --server-info) and
/v1/completions, streamed or not, with the token ids of the answer where they are asked for. With --draft K it
counts rounds: each accepts half of K.

What it does may depend on the load, which `load_generator.py` names in the header X-Concurrency:
--hang, --die and --fail take such numbers, --speed pairs `concurrency=seconds per token`, sent in the usage
as `seconds_per_token`, so that tests need no clock. --stuck never gives up the requests that hang. --foreign
counts one request of somebody else with each of ours. --wrong makes the answer differ from a plain server's
at the third token. --by-request says the rounds of each answer in its response. --every N drafts in every
Nth step.
"""

from __future__ import annotations

import argparse
import json
import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from select import select
from socket import MSG_PEEK
from typing import Any


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


class Counters:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.requests = self.tokens = self.rounds = self.open = 0


class Handler(BaseHTTPRequestHandler):
    options: argparse.Namespace
    counters: Counters
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        options = self.options
        if self.path == "/metrics":
            self.send(200, self.metrics().encode(), "text/plain")
        elif self.path == "/health":
            self.send(200, b"")
        elif not self.allowed():
            self.send_json(401, {"error": "Unauthorized"})
        elif self.path == "/version":
            self.send_json(200, {"version": options.version})
        elif self.path == "/v1/models":
            row = {"id": options.name, "root": options.root, "max_model_len": options.max_model_len}
            self.send_json(200, {"object": "list", "data": [row]})
        elif self.path.startswith("/server_info") and options.server_info:
            self.send_json(200, json.loads(options.server_info))
        else:
            self.send_json(404, {"detail": "Not Found"})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))))
        if not self.allowed():
            self.send_json(401, {"error": "Unauthorized"})
        elif self.path == "/tokenize":
            text = "".join(turn["content"] for turn in body["messages"])
            self.send_json(200, {"tokens": [len(word) for word in text.split()], "count": len(text.split())})
        elif body.get("model") != self.options.name:
            self.send_json(404, {"error": {"message": "no such model"}})
        else:
            self.complete(body)

    def complete(self, body: dict[str, Any]) -> None:
        options, counters = self.options, self.counters
        load = int(self.headers.get("X-Concurrency", 0))
        if load in options.die:
            os._exit(1)
        with counters.lock:
            counters.open += 1
            number = counters.requests
        try:
            if load in options.hang:
                self.wait_for_goodbye()
                return
            if load in options.fail and number % 10:
                with counters.lock:
                    counters.requests += 1
                self.send_json(500, {"error": {"message": "broken"}})
                return
            self.answer(body, load)
        finally:
            with counters.lock:
                counters.open -= not (load in options.hang and options.stuck)

    def wait_for_goodbye(self) -> None:
        """Say nothing until the client goes away; the engine then gives its request up."""
        while not (select([self.connection], [], [], 0.05)[0] and not self.connection.recv(1, MSG_PEEK)):
            pass
        self.close_connection = True

    def answer(self, body: dict[str, Any], load: int) -> None:
        options, counters = self.options, self.counters
        count = int(body["max_tokens"])
        ids = [sum(body["prompt"]) % 50 + place for place in range(count)]
        if options.wrong and count > 2:
            ids[2] += 1
        with counters.lock:
            times = 2 if options.foreign else 1
            counters.requests += times
            counters.tokens += times * count
            counters.rounds += times * self.rounds(count)
        usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": count}
        usage["seconds_per_token"] = options.speed.get(load, 0.01)
        if body.get("stream"):
            self.stream(ids, usage)
            return
        choice: dict[str, Any] = {"index": 0, "text": "x", "finish_reason": "length", "token_ids": ids}
        if body.get("logprobs"):
            choice["logprobs"] = {"top_logprobs": [{f"token_id:{one}": -0.1} for one in ids]}
        reply: dict[str, Any] = {"choices": [choice], "usage": usage}
        if options.by_request:
            histogram = [0] * (options.draft + 1)
            histogram[options.draft // 2] = self.rounds(count)
            reply["metrics"] = {"speculative_decoding": {"acceptance_histogram": histogram}}
        self.send_json(200, reply)

    def rounds(self, count: int) -> int:
        """Rounds with a draft of an answer of `count` tokens."""
        options = self.options
        if options.every == 1:
            return count - 1
        return (count - 1) // (options.every + options.draft // 2)

    def stream(self, ids: list[int], usage: dict[str, Any]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        for _ in ids:
            self.event({"choices": [{"index": 0, "text": "x"}]})
        self.event({"choices": [], "usage": usage})
        self.wfile.write(b"data: [DONE]\n\n")
        self.close_connection = True

    def event(self, value: Any) -> None:
        self.wfile.write(f"data: {json.dumps(value)}\n\n".encode())

    def metrics(self) -> str:
        options, counters = self.options, self.counters
        label = f'engine="0",model_name="{options.name}"'
        rows = {
            "num_requests_running": counters.open,
            "num_requests_waiting": 0,
            "generation_tokens_total": counters.tokens,
        }
        if options.draft:
            rows |= {
                "spec_decode_num_drafts_total": counters.rounds,
                "spec_decode_num_draft_tokens_total": options.draft * counters.rounds,
                "spec_decode_num_accepted_tokens_total": options.draft // 2 * counters.rounds,
            }
        lines = [f"vllm:{name}{{{label}}} {float(value)}" for name, value in rows.items()]
        lines.append(f'vllm:request_success_total{{{label},finished_reason="length"}} {counters.requests}.0')
        for place in range(options.draft):
            value = float(counters.rounds if place < options.draft // 2 else 0)
            name = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
            lines.append(f'{name}{{{label},position="{place}"}} {value}')
        lines.append(f'vllm:cache_config_info{{enable_prefix_caching="{options.prefix_caching}"}} 1.0')
        return "\n".join(lines) + "\n"

    def allowed(self) -> bool:
        key = os.environ.get("VLLM_API_KEY")
        return key is None or self.headers.get("Authorization") == f"Bearer {key}"

    def send_json(self, status: int, value: Any) -> None:
        self.send(status, json.dumps(value).encode(), "application/json")

    def send(self, status: int, content: bytes, kind: str = "text/plain") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def speeds(text: str) -> dict[int, float]:
    return {int(k): float(v) for k, v in (pair.split("=") for pair in text.split(",") if pair)}


def numbers(text: str) -> set[int]:
    return {int(one) for one in text.split(",") if one}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--name", default="m")
    parser.add_argument("--root", default="/models/m")
    parser.add_argument("--version", default="0.32.0")
    parser.add_argument("--max-model-len", type=int, default=2048)
    parser.add_argument("--draft", type=int, default=0)
    parser.add_argument("--prefix-caching", default="False")
    parser.add_argument("--server-info", default="")
    parser.add_argument("--hang", type=numbers, default=set())
    parser.add_argument("--die", type=numbers, default=set())
    parser.add_argument("--fail", type=numbers, default=set())
    parser.add_argument("--speed", type=speeds, default={})
    parser.add_argument("--stuck", action="store_true")
    parser.add_argument("--foreign", action="store_true")
    parser.add_argument("--wrong", action="store_true")
    parser.add_argument("--by-request", action="store_true")
    parser.add_argument("--every", type=int, default=1)
    Handler.options = parser.parse_args()
    Handler.counters = Counters()
    Server(("127.0.0.1", Handler.options.port), Handler).serve_forever()


if __name__ == "__main__":
    main()
