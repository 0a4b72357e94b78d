"""A program that speaks vLLM's HTTP and can misbehave: `python vllm_server.py --port P --fault NAME`.

Answers /health, /version, /v1/models, /v1/completions, /v1/chat/completions and /metrics as vLLM 0.32 does,
checks the key in VLLM_API_KEY (not on /health and /metrics, like vLLM), and ignores other vLLM flags.

Faults: none, silent (never listens, says nothing), chatty (never listens, keeps talking), dies (prints
--last-words, exit 1), no-generation (completions never answer), stops-after (hangs after --count answers),
wrong-model, no-handle, ignores-term. With --gate it listens as soon as that file exists.
--family starts a child and a grandchild in a session of its own, as engine processes.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

SLEEPER = "import time; time.sleep(600)"
FAMILY = (
    "import subprocess, sys, time; "
    f"subprocess.Popen([sys.executable, '-S', '-c', {SLEEPER!r}], start_new_session=True); "
    "time.sleep(600)"
)


class State:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.key = os.environ.get("VLLM_API_KEY")
        self.lock = threading.Lock()
        self.answered = 0
        self.running = 0
        self.tokens = 0

    def hangs(self) -> bool:
        fault = self.options.fault
        return fault == "no-generation" or (fault == "stops-after" and self.answered >= self.options.count)


class Handler(BaseHTTPRequestHandler):
    state: State
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        print(f"INFO: {self.address_string()} {format % args}", flush=True)

    def do_GET(self) -> None:
        options = self.state.options
        if self.path == "/health":
            self.send(200, b"")
        elif self.path == "/metrics":
            self.send(200, self.metrics().encode(), "text/plain")
        elif not self.allowed():
            self.send_json(401, {"error": "Unauthorized"})
        elif self.path == "/version":
            self.send_json(200, {"version": options.version})
        elif self.path == "/v1/models":
            name = "another-model" if options.fault == "wrong-model" else options.served_model_name
            row = {"id": name, "object": "model", "root": options.model, "max_model_len": 2048}
            self.send_json(200, {"object": "list", "data": [row]})
        else:
            self.send_json(404, {"detail": "Not Found"})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))))
        if not self.allowed():
            self.send_json(401, {"error": "Unauthorized"})
            return
        if body.get("model") != self.state.options.served_model_name:
            self.send_json(404, {"error": {"message": f"The model `{body.get('model')}` does not exist."}})
            return
        with self.state.lock:
            self.state.running += 1
            hangs = self.state.hangs()
        if hangs:
            time.sleep(600)
        self.answer(body)

    def answer(self, body: dict[str, Any]) -> None:
        chat = self.path == "/v1/chat/completions"
        prompt = body.get("prompt", "")
        prompt_ids = prompt if isinstance(prompt, list) else list(range(10, 15))
        ids = [100 + i for i in range(int(body.get("max_tokens", 16)))]
        choice: dict[str, Any] = {"index": 0, "finish_reason": "length"}
        choice |= {"message": {"role": "assistant", "content": "text"}} if chat else {"text": "text"}
        if body.get("return_token_ids"):
            choice["token_ids"] = ids
            choice["prompt_token_ids"] = prompt_ids
        answer: dict[str, Any] = {"id": f"cmpl-{self.headers.get('X-Request-Id', 'x')}", "choices": [choice]}
        answer["usage"] = {"prompt_tokens": len(prompt_ids), "completion_tokens": len(ids)}
        if body.get("kv_transfer_params") and self.state.options.fault != "no-handle":
            answer["kv_transfer_params"] = {"handle": answer["id"], "metadata": {}}
        with self.state.lock:
            self.state.answered += 1
            self.state.running -= 1
            self.state.tokens += len(ids)
        self.send_json(200, answer)

    def metrics(self) -> str:
        label = f'{{engine="0",model_name="{self.state.options.served_model_name}"}}'
        return (
            "# TYPE vllm:num_requests_running gauge\n"
            f"vllm:num_requests_running{label} {self.state.running}.0\n"
            f"vllm:num_requests_waiting{label} 0.0\n"
            f"vllm:prompt_tokens_total{label} {5 * self.state.answered}.0\n"
            f"vllm:generation_tokens_total{label} {self.state.tokens}.0\n"
        )

    def allowed(self) -> bool:
        key = self.state.key
        return key is None or self.headers.get("Authorization") == f"Bearer {key}"

    def send_json(self, status: int, value: Any) -> None:
        self.send(status, json.dumps(value).encode(), "application/json")

    def send(self, status: int, content: bytes, kind: str = "text/plain") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--model", default="/model")
    parser.add_argument("--served-model-name", default="target")
    parser.add_argument("--version", default="0.32.0")
    parser.add_argument("--fault", default="none")
    parser.add_argument("--gate", type=Path)
    parser.add_argument("--count", type=int, default=0)
    parser.add_argument("--last-words", default="")
    parser.add_argument("--family", action="store_true")
    return parser.parse_known_args()[0]


def main() -> None:
    options = parse()
    if options.family:
        subprocess.Popen([sys.executable, "-S", "-c", FAMILY])
    if options.fault == "ignores-term":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("INFO: starting", flush=True)
    if options.fault == "dies":
        print(options.last_words, flush=True)
        sys.exit(1)
    while options.fault in ("silent", "chatty"):
        time.sleep(0.05)
        if options.fault == "chatty":
            print("INFO: compiling graphs", flush=True)
    while options.gate and not options.gate.exists():
        time.sleep(0.02)
    Handler.state = State(options)
    server = ThreadingHTTPServer((options.host, options.port), Handler)
    server.daemon_threads = True
    server.serve_forever()


if __name__ == "__main__":
    main()
