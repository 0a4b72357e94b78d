"""Requests to the target, over its OpenAI-compatible API."""

from __future__ import annotations

from types import TracebackType
from typing import Any

import httpx

from tasks.errors import ServiceError
from tasks.serve.vllm_http import refusal
from tasks.stream.keys import request_id
from tasks.stream.reasons import (
    ANSWER_TIMEOUT,
    CONNECTION,
    OVERLOADED,
    REQUEST_REFUSED,
    SERVER_DOWN,
    SERVER_ERROR,
)
from tasks.stream.sample import Answer, GivenAnswer, Request, SampleRejected, answer_of, choice_of
from tasks.stream.versions import require_same_versions

_CONNECT_S = 10.0
_PROBE_S = 5.0
# vLLM closes a connection that was idle for 5 s; we drop it before, or a request would meet its end.
_KEEP_IDLE_S = 4.0
_OVERLOADED = frozenset({408, 409, 425, 429, 503})
_NOT_READY = frozenset({502, 503, 504})
_REFUSED_TO_ALL = frozenset({401, 403, 404, 405})


class ServerUnreachable(SampleRejected):
    """The server at `url` is down, or the connection to it broke."""

    def __init__(self, reason: str, detail: str, url: str):
        super().__init__(reason, detail)
        self.url = url


class Asker:
    """Asks one server, one request id for each attempt, so that keys in the store never repeat.

    Args:
        url: Base URL of the server, with or without `/v1`.
        served_name: Model name in requests.
        api_key: Bearer key, if the server wants one.
        run_id: Goes into every request id.
        session: Eight hexadecimal digits that differ between two clients of one run.
        concurrency: Most connections; each is used again and again.
        timeout_s: Longest wait for one answer.
        field: Profile field that names this server, for errors.
    """

    def __init__(
        self,
        url: str,
        served_name: str,
        api_key: str | None,
        *,
        run_id: str,
        session: str,
        concurrency: int,
        timeout_s: float,
        field: str = "serve",
    ):
        self.url = url.rstrip("/").removesuffix("/v1")
        self._served_name = served_name
        self._run_id = run_id
        self._session = session
        self._field = field
        self._client = httpx.AsyncClient(
            headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
            timeout=httpx.Timeout(timeout_s, connect=_CONNECT_S),
            limits=httpx.Limits(
                max_connections=concurrency + 1,  # one for `is_up`
                max_keepalive_connections=concurrency + 1,
                keepalive_expiry=_KEEP_IDLE_S,
            ),
            trust_env=False,
        )

    async def __aenter__(self) -> Asker:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.aclose()

    def request_id(self, request: Request, attempt: int) -> str:
        """Id of one attempt; the keys of its objects begin with it."""
        return request_id(self._run_id, request.n, self._session, attempt)

    async def is_up(self) -> bool:
        """Whether the server answers; a gateway may know no `/health` and is up all the same."""
        try:
            response = await self._client.get(f"{self.url}/health", timeout=_PROBE_S)
        except httpx.TransportError:
            return False
        return response.status_code not in _NOT_READY

    async def ask(self, request: Request, attempt: int) -> Answer:
        """An answer whose hidden states are captured; one that is given already is only read.

        Raises:
            SampleRejected: This attempt failed; `final` says whether another may succeed.
            ServiceError: The server refuses what every request asks.
            UsageError: The server's connector is another one, or of other versions.
        """
        prompt, given = request.prompt_ids, request.given
        if given is not None:
            # The last token of an answer has no hidden state in a generated sample either.
            prompt = (*prompt, *given.ids[:-1])
        body = {**self._body(request, prompt), "kv_transfer_params": {"include_output_tokens": True}}
        if given is not None:
            body |= {"max_tokens": 1, "temperature": 0.0, "top_p": 1.0}
        answer = answer_of(await self._post(body, self.request_id(request, attempt)), prompt)
        require_same_versions(answer.manifest, f"{self._field}: {self.url}")
        return answer if given is None else Answer(given.ids, given.finish_reason, answer.manifest)

    async def ask_without_states(self, request: Request, attempt: int) -> GivenAnswer:
        """An answer alone, of a server that captures nothing.

        Raises:
            SampleRejected, ServiceError: As `ask`.
        """
        body = self._body(request, request.prompt_ids)
        return GivenAnswer(
            *choice_of(await self._post(body, self.request_id(request, attempt)), request.prompt_ids)
        )

    def _body(self, request: Request, prompt: tuple[int, ...]) -> dict[str, Any]:
        """Without stop strings: their text is cut from an answer whose token ids and states hold it."""
        return {
            "model": self._served_name,
            "prompt": list(prompt),
            "n": 1,
            "max_tokens": request.max_new_tokens,
            "temperature": request.temperature,
            "top_p": request.top_p,
            "seed": request.seed,
            "return_token_ids": True,
            "add_special_tokens": False,
        }

    async def _post(self, body: dict[str, Any], name: str) -> Any:
        """The parsed response of a request that succeeded."""
        try:
            response = await self._client.post(
                f"{self.url}/v1/completions", json=body, headers={"X-Request-Id": name}
            )
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise ServerUnreachable(SERVER_DOWN, f"{type(error).__name__}: {error}", self.url) from None
        except httpx.TimeoutException:
            raise SampleRejected(ANSWER_TIMEOUT, "no answer in time") from None
        except httpx.TransportError as error:
            raise ServerUnreachable(CONNECTION, f"{type(error).__name__}: {error}", self.url) from None
        if response.status_code != httpx.codes.OK:
            raise self._refused(response)
        try:
            return response.json()
        except ValueError:
            raise SampleRejected("bad_answer", "the response is not JSON") from None

    def _refused(self, response: httpx.Response) -> Exception:
        status, said = response.status_code, refusal(response)
        if status in _OVERLOADED:
            return SampleRejected(OVERLOADED, said, wait_s=_retry_after_s(response))
        if status >= 500:
            return SampleRejected(SERVER_ERROR, said)
        if status in _REFUSED_TO_ALL:
            return ServiceError(
                f"the server refused a request with {said}",
                where=f"{self._field}: {self.url}",
                hint="does it serve the model name that the profile gives, and is the key right?",
            )
        return SampleRejected(REQUEST_REFUSED, said, final=True)


def _retry_after_s(response: httpx.Response) -> float:
    """Seconds that the server asks to wait; 0 if it gives none, or a date."""
    try:
        return max(0.0, float(response.headers.get("Retry-After", "0")))
    except ValueError:
        return 0.0
