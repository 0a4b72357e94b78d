"""What is told of a server's refusal: never the request's token ids, which a server may repeat."""

from __future__ import annotations

import httpx
import pytest

from tasks.serve.vllm_http import refusal


@pytest.mark.parametrize("ids", ["[11, 22, 33, 44]", "[11,22,33", "[\n 11,\n 22,\n 33\n]"])
def test_token_ids_of_the_request_are_left_out(ids: str) -> None:
    told = refusal(httpx.Response(400, text=f"'input': {{'prompt': {ids}"))
    assert told.startswith("400: 'input': {'prompt': [...]") and "22" not in told


def test_the_rest_is_told_in_short() -> None:
    assert refusal(httpx.Response(404, text="no model 'x' in [1, 2]")) == "404: no model 'x' in [1, 2]"
    assert len(refusal(httpx.Response(500, text="x" * 1000))) == 305
