"""The same requests to any server that speaks vLLM's HTTP with our connector, and what it says."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import httpx
from observing import until

from tasks.stream.checksum import check_seal
from tasks.stream.store import StoreClient

PROMPT = [3, 5, 4, 6, 2]
COUNTERS = ("prompt_tokens_total", "generation_tokens_total")
GAUGES = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")


@dataclass(frozen=True)
class Spoken:
    """A server to talk to, and the store that it writes to."""

    url: str
    served_name: str
    key: str
    store_master: str
    max_model_len: int

    def client(self, key: str | None) -> httpx.Client:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        return httpx.Client(base_url=self.url, timeout=300, headers=headers, trust_env=False)

    def body(self, **changes: Any) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self.served_name,
            "prompt": PROMPT,
            "max_tokens": 4,
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
            "add_special_tokens": False,
            "kv_transfer_params": {"include_output_tokens": True},
        }
        return {**body, **changes}


_PROMPT_ONLY = {"kv_transfer_params": {"include_output_tokens": False}}


def conversation(server: Spoken) -> dict[str, Any]:
    """What the server said: statuses, shapes, and the numbers that do not depend on its weights."""
    with server.client(None) as stranger, server.client(server.key) as client:
        return {
            "without key": _statuses(stranger),
            "with another key": _completion_status(server, "wrong", {}),
            "models": shape_of(client.get("/v1/models").json()),
            "version": shape_of(client.get("/version").json()),
            "refused": {
                "unknown model": _refusal(client, server.body(model="no-such")),
                "too long": _refusal(client, server.body(prompt=[3] * server.max_model_len)),
            },
            "counted": _counted(client, server),
            "generate": _extraction(client, server, "conformance-0-a1", {}),
            "prefill": _extraction(client, server, "conformance-1-a1", {"max_tokens": 1}),
            "prompt only": _extraction(client, server, "conformance-2-a1", _PROMPT_ONLY),
            "did not ask": client.post("/v1/completions", json=server.body(kv_transfer_params={})).json()[
                "kv_transfer_params"
            ],
        }


def shape_of(value: Any) -> Any:
    """Names and types of an answer, without its values."""
    if isinstance(value, dict):
        return {name: shape_of(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [shape_of(value[0])] if value else []
    return type(value).__name__


def missing(real: Any, fake: Any, where: str = "") -> list[str]:
    """Everything that the fake's answer has and the real one has not, or has otherwise."""
    if isinstance(fake, dict) and isinstance(real, dict):
        found = [f"{where}/{name}: only the fake has it" for name in fake.keys() - real.keys()]
        both = [name for name in fake if name in real]
        return found + [line for name in both for line in missing(real[name], fake[name], f"{where}/{name}")]
    if isinstance(fake, list) and isinstance(real, list) and fake and real and isinstance(fake[0], dict):
        return missing(real[0], fake[0], f"{where}[0]")
    return [] if real == fake else [f"{where}: {fake!r}, and the real server {real!r}"]


def _statuses(client: httpx.Client) -> dict[str, int]:
    return {path: client.get(path).status_code for path in ("/health", "/metrics", "/version", "/v1/models")}


def _completion_status(server: Spoken, key: str, changes: dict[str, Any]) -> int:
    with server.client(key) as client:
        return client.post("/v1/completions", json=server.body(**changes)).status_code


def _refusal(client: httpx.Client, body: dict[str, Any]) -> list[Any]:
    response = client.post("/v1/completions", json=body)
    error = response.json().get("error", {})
    return [response.status_code, sorted(error) if isinstance(error, dict) else [], error.get("code")]


def metrics_of(text: str) -> dict[str, float]:
    """The metrics that the product reads, summed over labels; one that is absent is absent here."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        match = re.match(r"vllm:(\w+)\{.*\} (\S+)$", line)
        if match and match[1] in (*COUNTERS, *GAUGES):
            found[match[1]] = found.get(match[1], 0.0) + float(match[2])
    return found


def _counted(client: httpx.Client, server: Spoken) -> dict[str, float]:
    """How the counters change by one answer of four tokens; the gauges are back at zero soon after."""
    before = metrics_of(client.get("/metrics").text)
    client.post("/v1/completions", json=server.body(), headers={"X-Request-Id": "conformance-9-a1"})

    def settled() -> dict[str, float] | None:
        now = metrics_of(client.get("/metrics").text)
        moved = all(now[name] > before[name] for name in COUNTERS)
        return now if moved and not any(now[name] for name in GAUGES) else None

    after: dict[str, float] = until(settled, 60, "the metrics of an answer")
    return {name: after[name] - (before[name] if name in COUNTERS else 0.0) for name in sorted(after)}


def _extraction(
    client: httpx.Client, server: Spoken, request_id: str, changes: dict[str, Any]
) -> dict[str, Any]:
    """Shape of an answer, its whole manifest, and what the store holds for it."""
    headers = {"X-Request-Id": request_id}
    answer = client.post("/v1/completions", json=server.body(**changes), headers=headers).json()
    manifest = answer.pop("kv_transfer_params")
    handle = str(manifest["handle"])
    manifest["handle"] = re.sub(rf"(?<={request_id}-0-)[0-9a-z-]+$", "<unique>", handle)
    [choice] = answer["choices"]
    return {
        "id": answer["id"],
        "tokens": [len(choice["prompt_token_ids"] or ()), len(choice["token_ids"]), choice["finish_reason"]],
        "usage": {name: answer["usage"][name] for name in ("prompt_tokens", "completion_tokens")},
        "answer": shape_of(answer),
        "manifest": manifest,
        "stored": _stored(server, handle, int(manifest["metadata"]["total_aligned_bytes"])),
    }


def _stored(server: Spoken, handle: str, size: int) -> str:
    with StoreClient(server.store_master) as store:
        until(lambda: store.exists(handle), 60, f"the object '{handle}'")
        check_seal(store.get(handle, size))
        store.remove(handle)
    return "sealed, of the announced size"
