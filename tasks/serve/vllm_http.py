"""Requests to a vLLM server that its own operator makes: health, models, version, one generation."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import httpx

from tasks.errors import ServiceError

_SHORT_S = 5.0
_TOKEN_IDS = re.compile(r"\[\s*\d+(?:\s*,\s*\d+){2}[\d\s,]*(?:\]|$)")


def refusal(response: httpx.Response, most_chars: int = 300) -> str:
    """Status and start of an error's text. A server may repeat the request: its token ids are left out."""
    return f"{response.status_code}: {_TOKEN_IDS.sub('[...]', response.text)[:most_chars]}"


@dataclass(frozen=True)
class Server:
    """Where a server answers. Proxies of the environment are not used: the servers are near."""

    url: str
    served_name: str
    api_key: str | None = field(default=None, repr=False)

    def _client(self, timeout_s: float) -> httpx.Client:
        headers = {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        return httpx.Client(base_url=self.url, headers=headers, timeout=timeout_s, trust_env=False)

    def is_healthy(self) -> bool:
        try:
            with self._client(_SHORT_S) as client:
                return client.get("/health").status_code == httpx.codes.OK
        except httpx.HTTPError:
            return False

    def get(self, path: str, timeout_s: float = 30.0) -> httpx.Response:
        return self._ask("GET", path, None, timeout_s)

    def post(self, path: str, body: dict[str, Any], timeout_s: float = 30.0) -> httpx.Response:
        """Like `get`, with a JSON body."""
        return self._ask("POST", path, body, timeout_s)

    def _ask(self, method: str, path: str, body: dict[str, Any] | None, timeout_s: float) -> httpx.Response:
        try:
            with self._client(timeout_s) as client:
                response = client.request(method, path, json=body)
        except httpx.HTTPError as error:
            raise ServiceError(
                f"{path} does not answer ({type(error).__name__})",
                where=self.url,
                hint="is the server running?",
            ) from error
        if response.status_code == httpx.codes.UNAUTHORIZED:
            raise ServiceError(
                f"{path} refuses the key (401)",
                where=self.url,
                hint="name the right variable in serve.api_key_env",
            )
        if response.status_code != httpx.codes.OK:
            raise ServiceError(f"{path} answered {response.status_code}", where=self.url)
        return response

    def models(self) -> dict[str, str]:
        """Served name -> model folder or repository, as the server says."""
        return {name: str(row.get("root") or "") for name, row in self.model_rows().items()}

    def model_rows(self) -> dict[str, dict[str, Any]]:
        """Served name -> everything that the server says about that model."""
        rows = self.get("/v1/models").json().get("data", [])
        return {str(row.get("id")): row for row in rows}

    def version(self) -> str:
        return str(self.get("/version").json().get("version", ""))

    def metrics(self) -> str:
        return self.get("/metrics", timeout_s=_SHORT_S).text

    def generate(self, timeout_s: float, request_id: str, extraction: bool) -> dict[str, Any]:
        """One real generation of four tokens; returns the response.

        Raises:
            ServiceError: No answer within `timeout_s`, an error status, no token, or no handle of the
                captured hidden states although `extraction` asks for one.
        """
        body: dict[str, Any] = {
            "model": self.served_name,
            "prompt": "The capital of France is",
            "max_tokens": 4,
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
        }
        if extraction:
            body["kv_transfer_params"] = {"include_output_tokens": True}
        try:
            with self._client(timeout_s) as client:
                response = client.post("/v1/completions", json=body, headers={"X-Request-Id": request_id})
        except httpx.TimeoutException as error:
            raise ServiceError(
                f"the first generation had no answer within {timeout_s:.0f} s: engine not progressing",
                where=f"{self.url}/v1/completions",
                hint="its status endpoints answer, its engine does not; see the log",
            ) from error
        except httpx.HTTPError as error:
            raise ServiceError(
                f"the first generation broke off ({type(error).__name__})", where=f"{self.url}/v1/completions"
            ) from error
        return self._checked(response, extraction)

    def _checked(self, response: httpx.Response, extraction: bool) -> dict[str, Any]:
        where = f"{self.url}/v1/completions"
        if response.status_code != httpx.codes.OK:
            raise ServiceError(f"the first generation answered {refusal(response)}", where=where)
        answer: dict[str, Any] = response.json()
        choices = answer.get("choices") or [{}]
        if not choices[0].get("token_ids"):
            raise ServiceError(
                "the first generation has no token ids",
                where=where,
                hint="the server must know return_token_ids",
            )
        if extraction and not (answer.get("kv_transfer_params") or {}).get("handle"):
            raise ServiceError(
                "the server answers, but without hidden states (no kv_transfer_params.handle)",
                where=where,
                hint="start it with method extract_hidden_states and the hidden-state connector",
            )
        return answer
