"""A target that speaks vLLM's HTTP and publishes real manifests and samples, without a model.

`python extracting_server.py --port P --master H:P`. Tokens and hidden states are made from the prompt
(`extracting_model.py`); samples go through the product's own sealed writer into a real store. Answers
/health, /metrics, /version, /v1/models and /v1/completions as vLLM 0.32 does, and wants the key in
VLLM_API_KEY where there is one. What it does wrong on request: `extracting_faults.py`.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import socket
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from extracting_engine import Aborted, Engine, Generation, Result
from extracting_faults import Faults, Moments
from extracting_model import ExtractingModel
from hs_connectors.mooncake_store import MooncakeStoreConfig

from tasks.stream.announced import Announced
from tasks.stream.sealed import SealedStore

_STATUSES = {f"http-{code}": code for code in (400, 429, 500, 503)}
_KINDS = {400: "BadRequestError", 401: "Unauthorized", 404: "NotFoundError"}


class Handler(BaseHTTPRequestHandler):
    engine: Engine
    options: argparse.Namespace
    key: str | None = None
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        if self.options.log_requests:
            print(f"INFO: {self.client_address[0]} {format % args}", flush=True)

    def do_GET(self) -> None:
        if self.path == "/health":
            self.send(200, b"")
        elif self.path == "/metrics":
            self.send(200, self.metrics().encode(), "text/plain; version=0.0.4; charset=utf-8")
        elif self.path == "/version":
            self.send_json(200, {"version": self.options.version})
        elif not self.allowed():
            self.send_json(401, {"error": "Unauthorized"})
        elif self.path == "/v1/models":
            row = {"id": self.options.served_model_name, "object": "model", "root": self.options.model or "m"}
            row |= {"max_model_len": self.options.max_model_len, "owned_by": "vllm", "parent": None}
            self.send_json(200, {"object": "list", "data": [row]})
        else:
            self.send_json(404, {"detail": "Not Found"})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))))
        prompt = body.get("prompt", "")
        # A text is not tokenised: its bytes are as good as any ids.
        ids = (
            prompt
            if isinstance(prompt, list)
            else [byte % self.engine.model.vocab for byte in prompt.encode()]
        )
        if not self.allowed():
            self.send_json(401, {"error": "Unauthorized"})
        elif self.path != "/v1/completions":
            self.send_json(404, {"detail": "Not Found"})
        elif body.get("model") != self.options.served_model_name:
            self.send_error_body(404, f"The model `{body.get('model')}` does not exist.")
        elif len(ids) + int(body.get("max_tokens", 16)) > self.options.max_model_len:
            self.send_error_body(
                400,
                f"This model's maximum context length is {self.options.max_model_len} tokens. However, your "
                f"request has {len(ids)} input tokens.",
            )
        else:
            self.complete(body, ids)

    def complete(self, body: dict[str, Any], ids: list[int]) -> None:
        wanted = body.get("kv_transfer_params") or {}
        asked = Generation(
            request_id=self.headers.get("X-Request-Id", "x"),
            prompt=ids,
            max_tokens=int(body.get("max_tokens", 16)),
            ignore_eos=bool(body.get("ignore_eos")),
            extraction=bool(wanted.get("include_output_tokens")),
            wanted=bool(wanted),
        )
        fault = self.engine.faults.of(asked.name)
        if fault in _STATUSES:
            self.send_error_body(_STATUSES[fault], "asked to fail")
            return
        try:
            result = self.engine.generate(asked, fault, self.client_is_gone)
        except Aborted:
            self.close_connection = True
            return
        try:
            if result.fault == "drop":
                self.close_connection = True
            else:
                self.send_json(200, self.answer(asked, result, bool(body.get("return_token_ids"))))
        finally:
            # vLLM, too, answers before the sample is in the store, and stores it when nobody listens.
            self.engine.send(asked, result)

    def answer(self, asked: Generation, result: Result, with_ids: bool) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": 0, "text": " ".join(map(str, result.answer)), "logprobs": None}
        choice |= {"finish_reason": result.finish_reason, "stop_reason": None, "prompt_logprobs": None}
        if with_ids and result.fault != "no-token-ids":
            choice |= {"token_ids": result.answer, "prompt_token_ids": asked.prompt}
        manifest = {**result.manifest, "version": 2} if result.fault == "other-version" else result.manifest
        counts = {"prompt_tokens": len(asked.prompt), "completion_tokens": len(result.answer)}
        counts["total_tokens"] = sum(counts.values())
        return {
            "id": f"cmpl-{asked.request_id}",
            "object": "text_completion",
            "created": 0,
            "model": self.options.served_model_name,
            "choices": [choice],
            "usage": counts,
            "kv_transfer_params": manifest if asked.wanted and result.fault != "no-handle" else None,
        }

    def client_is_gone(self) -> bool:
        """Whether the client closed; vLLM aborts such a request."""
        readable, _, _ = select.select([self.connection], [], [], 0)
        return bool(readable) and not self.connection.recv(1, socket.MSG_PEEK)

    def metrics(self) -> str:
        label = f'{{engine="0",model_name="{self.options.served_model_name}"}}'
        engine = self.engine
        values = {
            "num_requests_running": ("gauge", engine.running),
            "num_requests_waiting": ("gauge", engine.waiting),
            "kv_cache_usage_perc": ("gauge", engine.usage),
            "prompt_tokens_total": ("counter", engine.prompt_tokens),
            "generation_tokens_total": ("counter", engine.generated_tokens),
        }
        return "".join(
            f"# TYPE vllm:{name.removesuffix('_total')} {kind}\nvllm:{name}{label} {float(value)}\n"
            for name, (kind, value) in values.items()
        )

    def allowed(self) -> bool:
        return self.key is None or self.headers.get("Authorization") == f"Bearer {self.key}"

    def send_error_body(self, status: int, message: str) -> None:
        kind = _KINDS.get(status, "InternalServerError")
        error = {"message": message, "type": kind, "param": None, "code": status}
        self.send_json(status, {"error": error})

    def send_json(self, status: int, value: Any) -> None:
        self.send(status, json.dumps(value).encode(), "application/json")

    def send(self, status: int, data: bytes, kind: str = "text/plain") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--master", required=True)
    parser.add_argument("--model", default="", help="folder of a target, whose sizes and head are used")
    parser.add_argument("--served-model-name", default="t")
    parser.add_argument("--version", default="0.32.0")
    parser.add_argument("--max-model-len", type=int, default=4096)
    parser.add_argument("--layers", type=int, default=3, help="captured layers")
    parser.add_argument("--layer-ids", default="", help="their ids, with commas; empty announces none")
    parser.add_argument("--hidden", type=int, default=8)
    parser.add_argument("--vocab", type=int, default=7)
    parser.add_argument("--segment-bytes", type=int, default=64 << 20)
    parser.add_argument("--put-timeout-s", type=float, default=5.0)
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--token-s", type=float, default=0.0, help="seconds of each generated token")
    parser.add_argument("--late-s", type=float, default=2.0)
    parser.add_argument("--fault", default="none")
    parser.add_argument("--every", type=int, default=0)
    parser.add_argument("--holds", type=Path, default=None, help="folder of `extracting_faults.Moments`")
    parser.add_argument("--log-requests", action="store_true")
    return parser.parse_args()


def announced_by(options: argparse.Namespace) -> Announced | None:
    layer_ids = tuple(int(word) for word in options.layer_ids.split(",") if word)
    return Announced(options.model, None, layer_ids) if layer_ids else None


def main() -> None:
    options = parse()
    config = MooncakeStoreConfig(
        local_hostname=options.host,
        master_server_address=options.master,
        global_segment_size=options.segment_bytes,
        local_buffer_size=32 << 20,
    )
    folder = Path(options.model) if options.model else None
    Handler.options = options
    Handler.key = os.environ.get("VLLM_API_KEY")
    Handler.engine = Engine(
        ExtractingModel(options.layers, options.hidden, options.vocab, folder),
        SealedStore(config, put_timeout_s=options.put_timeout_s).setup(),
        Faults(options.fault, options.every),
        Moments(options.holds),
        announced_by(options),
        concurrency=options.concurrency,
        token_s=options.token_s,
        late_s=options.late_s,
    )
    server = ThreadingHTTPServer((options.host, options.port), Handler)
    server.daemon_threads = True
    print("ready", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
