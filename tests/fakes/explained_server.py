"""A program that answers as vLLM with our connector does, from a tiny target that really computes.

`python explained_server.py --port P --master H:P --target FOLDER`. Greedy answers and hidden states are the
target's own, so that they explain each other. Somebody else's key, `other-client`, lies in the store.

The run id names a fault, `run-<fault>`: none, slow, late (rows moved by one), other-sample (states of the
request before), constant (states are all zero, as a hybrid model's were), penalty (a repetition penalty, as a
generation_config.json may set one), no-handle (no connector), fewer-layers, announces-ours and
announces-others (layer ids in the manifest).
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import torch
from hs_connectors.mooncake_store import VERSION, MooncakeStoreConfig, packed_layout
from transformers import AutoModelForCausalLM

from tasks.stream.sealed import SealedStore, enlarge_by_seal
from tests.support.tiny_target import LAYER_IDS, answer

ANNOUNCED = {"announces-ours": [*LAYER_IDS], "announces-others": [0, *LAYER_IDS[1:]]}


class Handler(BaseHTTPRequestHandler):
    options: argparse.Namespace
    store: SealedStore
    model: Any
    lock = threading.Lock()
    count = 0
    before: torch.Tensor | None = None
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        row = {"id": "tiny", "root": self.options.target, "max_model_len": 256}
        known = {
            "/health": {},
            "/version": {"version": self.options.version},
            "/v1/models": {"data": [row]},
        }
        self.send(200 if self.path in known else 404, known.get(self.path, {}))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        fault = self.headers["X-Request-Id"].rsplit("-", 2)[0].removeprefix("run-")
        if fault == "slow":
            time.sleep(0.3)
        with Handler.lock:
            ids, manifest, tensors = self.computed(body, fault)
        response: dict[str, Any] = {"choices": [{"token_ids": ids, "finish_reason": "length"}]}
        if fault != "no-handle":
            response["kv_transfer_params"] = manifest
        self.send(200, response)
        with Handler.lock:
            self.store.put_sample(manifest, tensors)

    def computed(
        self, body: dict[str, Any], fault: str
    ) -> tuple[list[int], dict[str, Any], dict[str, torch.Tensor]]:
        """Answer, manifest and tensors of one request."""
        Handler.count += 1
        penalty = 1.5 if fault == "penalty" else 1.0
        made = answer(self.model, tuple(body["prompt"]), body["max_tokens"], repetition_penalty=penalty)
        inputs = [*body["prompt"], *made.answer_ids[:-1]]
        tensors = {"hidden_states": spoilt(made.states, fault), "token_ids": torch.tensor(inputs)}
        spec, total = packed_layout({name: (list(t.shape), t.dtype) for name, t in tensors.items()})
        metadata: dict[str, Any] = {
            "num_tokens": len(inputs),
            "total_aligned_bytes": total,
            "extract_mode": "all",
        }
        if fault in ANNOUNCED:
            metadata["layer_ids"] = ANNOUNCED[fault]
        key = f"cmpl-{self.headers['X-Request-Id']}-0-{Handler.count:08x}"
        manifest = {"handle": key, "version": VERSION, "tensors": spec, "metadata": metadata}
        enlarge_by_seal(manifest)
        return list(made.answer_ids), manifest, tensors

    def send(self, status: int, value: Any) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def spoilt(states: torch.Tensor, fault: str) -> torch.Tensor:
    """States `[T, L, H]` with a fault that leaves their shape as it is, but for one."""
    before, Handler.before = Handler.before, states
    match fault:
        case "late":
            return states.roll(1, 0)
        case "other-sample" if before is not None:
            return before.repeat(20, 1, 1)[: len(states)].clone()
        case "constant":
            return torch.zeros_like(states)
        case "fewer-layers":
            return states[:, 1:].clone()
    return states


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--master", required=True)
    parser.add_argument("--target", required=True)
    parser.add_argument("--version", default="0.32.0")
    Handler.options = parser.parse_args()
    torch.set_num_threads(1)
    Handler.model = AutoModelForCausalLM.from_pretrained(Handler.options.target).eval()
    config = MooncakeStoreConfig(
        local_hostname="127.0.0.1",
        master_server_address=Handler.options.master,
        global_segment_size=64 << 20,
        local_buffer_size=32 << 20,
    )
    Handler.store = SealedStore(config, put_timeout_s=5.0).setup()
    Handler.store._require_store()._store.put("other-client", b"theirs")
    ThreadingHTTPServer(("127.0.0.1", Handler.options.port), Handler).serve_forever()


if __name__ == "__main__":
    main()
