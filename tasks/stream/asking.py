"""Requests to the target, over its OpenAI-compatible API."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any

import httpx

from tasks.errors import ServiceError
from tasks.serve.vllm_http import refusal
from tasks.stream.sample import Answer, Request, SampleRejected, answer_of

_CONNECT_TRIES = 4
_BACK_OFF_S = 1.0
_RETRYABLE = {408, 409, 425, 429}


class Asker:
    """Asks the target, one request id for each attempt, so that keys in the store never repeat.

    Args:
        url: Base URL of the server, without `/v1`.
        served_name: Model name in requests.
        api_key: Bearer key, if the server wants one.
        prefix: Begin of every request id of this run.
        session: Differs between two clients of one run, e.g. before and after a resume.
        concurrency: Most connections.
        timeout_s: Longest wait for one answer.
    """

    def __init__(
        self,
        url: str,
        served_name: str,
        api_key: str | None,
        *,
        prefix: str,
        session: str,
        concurrency: int,
        timeout_s: float,
    ):
        self._url = url.rstrip("/").removesuffix("/v1")
        self._served_name = served_name
        self._prefix = prefix
        self._session = session
        self._client = httpx.AsyncClient(
            headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
            timeout=httpx.Timeout(timeout_s, connect=10.0),
            limits=httpx.Limits(max_connections=concurrency),
            trust_env=False,
        )

    async def __aenter__(self) -> Asker:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.aclose()

    def _body(self, request: Request) -> dict[str, Any]:
        return {
            "model": self._served_name,
            "prompt": list(request.prompt_ids),
            "max_tokens": request.max_new_tokens,
            "temperature": request.temperature,
            "top_p": request.top_p,
            "seed": request.seed,
            "return_token_ids": True,
            "add_special_tokens": False,
            "kv_transfer_params": {"include_output_tokens": True},
        }

    async def ask(self, request: Request, attempt: int) -> Answer:
        """One answer.

        Raises:
            SampleRejected: This attempt failed; another may succeed.
            ServiceError: The server is gone, or refuses what every request asks.
        """
        request_id = f"{self._prefix}-{request.n}-{self._session}{attempt}"
        response = await self._post(self._body(request), {"X-Request-Id": request_id})
        status = response.status_code
        if status == 200:
            return answer_of(response.json(), request.prompt_ids)
        if status >= 500 or status in _RETRYABLE:
            await asyncio.sleep(_BACK_OFF_S * attempt)
            raise SampleRejected(f"http_{status}")
        raise ServiceError(
            f"the target refused a request with {refusal(response)}",
            where=self._url,
            hint="with serve.kind attach: does the server serve serve.served_name, and is the key right?",
        )

    async def _post(self, body: dict[str, Any], headers: dict[str, str]) -> httpx.Response:
        for attempt in range(1, _CONNECT_TRIES + 1):
            try:
                return await self._client.post(f"{self._url}/v1/completions", json=body, headers=headers)
            except httpx.ConnectError as error:
                if attempt == _CONNECT_TRIES:
                    raise ServiceError(
                        f"the target does not accept connections any more ({error})",
                        where=self._url,
                        hint="see the target's log; `retrain-dspark resume` continues with what is missing",
                    ) from None
                await asyncio.sleep(_BACK_OFF_S * attempt)
            except httpx.TimeoutException:
                raise SampleRejected("answer_timeout", "no answer in time") from None
            except httpx.TransportError as error:
                raise SampleRejected("connection", f"{type(error).__name__}: {error}") from None
        raise AssertionError("unreachable")
