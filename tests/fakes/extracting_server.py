"""A program that answers /v1/completions as vLLM with our connector does, without a model.

`python extracting_server.py --port P --master H:P`. Tokens and hidden states are made from the prompt;
samples go through the product's own sealed writer into a real store.

The run id names a fault, `run-<fault>`, on the first attempt for the first prompt only: none,
not-finite, damaged (bytes changed after sealing), writer-error (the marker instead of the sample),
never-written, http-500, other-tokens. `empty` answers every prompt with one token.
"""

from __future__ import annotations

import argparse
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import torch
from hs_connectors.mooncake_store import VERSION, MooncakeStoreConfig, packed_layout

from tasks.stream.sealed import SealedStore, enlarge_by_seal

LAYERS, HIDDEN = 3, 8


class Handler(BaseHTTPRequestHandler):
    store: SealedStore
    lock = threading.Lock()
    count = 0
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        request_id = self.headers["X-Request-Id"]
        run, number, attempt = request_id.rsplit("-", 2)
        wanted = run.removeprefix("run-")
        fault = wanted if number == "0" and attempt.endswith("1") else "none"
        if fault == "http-500":
            self.send(500, {"error": "no"})
            return
        with Handler.lock:
            Handler.count += 1
            key = f"cmpl-{request_id}-0-{Handler.count:08x}"
        length = 1 if wanted == "empty" else body["max_tokens"]
        answer = [(sum(body["prompt"]) + i) % 7 for i in range(length)]
        manifest, tensors = self.sample(key, [*body["prompt"], *answer][:-1])
        if fault == "other-tokens":
            tensors["token_ids"][0] += 1
        if fault == "not-finite":
            tensors["hidden_states"][0, 0, 0] = float("nan")
        # vLLM, too, answers before the sample is in the store.
        self.send(
            200,
            {
                "choices": [{"token_ids": answer, "finish_reason": "length"}],
                "kv_transfer_params": manifest,
            },
        )
        self.write(fault, manifest, tensors)

    def sample(self, key: str, ids: list[int]) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
        states = torch.randn(len(ids), LAYERS, HIDDEN, generator=torch.Generator().manual_seed(sum(ids)))
        tensors = {"hidden_states": states, "token_ids": torch.tensor(ids)}
        spec, total = packed_layout({name: (list(t.shape), t.dtype) for name, t in tensors.items()})
        metadata = {"num_tokens": len(ids), "total_aligned_bytes": total, "extract_mode": "all"}
        manifest = {"handle": key, "version": VERSION, "tensors": spec, "metadata": metadata}
        enlarge_by_seal(manifest)
        return manifest, tensors

    def write(self, fault: str, manifest: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
        with Handler.lock:
            if fault == "writer-error":
                self.store.put_error(manifest, "no space within 45 s")
            elif fault == "damaged":
                damaged = {**manifest, "handle": "scratch"}
                self.store.put_sample(damaged, tensors)
                raw = self.store._require_store()._store
                data = bytearray(raw.get("scratch"))
                data[5] ^= 1
                raw.put(manifest["handle"], bytes(data))
                raw.remove("scratch", True)
            elif fault != "never-written":
                self.store.put_sample(manifest, tensors)

    def send(self, status: int, value: Any) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--master", required=True)
    options = parser.parse_args()
    config = MooncakeStoreConfig(
        local_hostname="127.0.0.1",
        master_server_address=options.master,
        global_segment_size=64 << 20,
        local_buffer_size=32 << 20,
    )
    Handler.store = SealedStore(config, put_timeout_s=5.0).setup()
    server = ThreadingHTTPServer(("127.0.0.1", options.port), Handler)
    print("ready", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
