"""One answer of the target and the checks that its hidden states must pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tasks.stream.checksum import SEAL_BYTES, SealBroken, check_seal
from tasks.stream.models import Split

if TYPE_CHECKING:
    import torch

MANIFEST_VERSION = 1
"""Version of hs-connectors' transfer manifest that this reader understands."""


class SampleRejected(Exception):
    """A sample that may not enter the log; it is asked for again.

    Args:
        reason: A short word, under which it is counted.
        detail: What exactly was wrong.
    """

    def __init__(self, reason: str, detail: str = ""):
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason


@dataclass(frozen=True)
class Request:
    """One prompt to capture."""

    n: int
    """Number of the prompt in the run; also the number of its file in the log."""
    prompt_id: str
    domain: str
    split: Split
    prompt_ids: tuple[int, ...]
    max_new_tokens: int
    temperature: float
    top_p: float
    seed: int


@dataclass(frozen=True)
class Answer:
    """What the server answered; the hidden states are still in the store."""

    answer_ids: tuple[int, ...]
    finish_reason: str
    manifest: dict[str, Any]

    @property
    def handle(self) -> str:
        return str(self.manifest["handle"])


@dataclass(frozen=True)
class Shape:
    """What every sample must look like."""

    layers: int
    hidden_size: int
    dtype: str
    """As torch writes it, without the prefix: `float32`."""

    @property
    def row_bytes(self) -> int:
        """Bytes of one token's hidden states and id."""
        size = {"float32": 4, "bfloat16": 2, "float16": 2}[self.dtype]
        return self.layers * self.hidden_size * size + 8

    def expected_bytes(self, tokens: int) -> int:
        """Upper bound of an object with `tokens` rows, padding and seal included."""
        return tokens * self.row_bytes + 2 * 64 + SEAL_BYTES


def answer_of(body: dict[str, Any], prompt_ids: tuple[int, ...]) -> Answer:
    """Read a response of `/v1/completions` with `return_token_ids`.

    Raises:
        SampleRejected: Something that this run needs is not in it.
    """
    choices = body.get("choices") or [{}]
    ids = choices[0].get("token_ids")
    manifest = body.get("kv_transfer_params")
    if ids is None:
        raise SampleRejected("no_token_ids", "the server does not return token ids")
    if not isinstance(manifest, dict) or not manifest.get("handle"):
        raise SampleRejected("no_handle", "the server does not extract hidden states")
    if manifest.get("version") != MANIFEST_VERSION:
        raise SampleRejected("manifest_version", f"{manifest.get('version')}, not {MANIFEST_VERSION}")
    echoed = choices[0].get("prompt_token_ids")
    if echoed is not None and tuple(echoed) != prompt_ids:
        raise SampleRejected("prompt_changed", "the server answered another prompt")
    return Answer(tuple(ids), str(choices[0].get("finish_reason")), manifest)


def verify(
    stored: memoryview, answer: Answer, request: Request, shape: Shape
) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Check an object and take it apart; the tensors are copies.

    Args:
        stored: The object as it lay in the store, seal included.

    Returns:
        `hidden_states [T, L, H]`, `token_ids [T]`, and how often its put waited for space.

    Raises:
        SampleRejected: With the first check that failed.
    """
    import torch

    try:
        waits = check_seal(stored)
    except SealBroken as error:
        raise SampleRejected("checksum", str(error)) from None
    rows = len(request.prompt_ids) + len(answer.answer_ids) - 1
    wanted = {
        "hidden_states": ([rows, shape.layers, shape.hidden_size], shape.dtype),
        "token_ids": ([rows], "int64"),
    }
    tensors = {}
    for name, (sizes, dtype) in wanted.items():
        spec = answer.manifest.get("tensors", {}).get(name, {})
        if list(spec.get("shape", ())) != sizes:
            raise SampleRejected("shape", f"{name} is {spec.get('shape')}, expected {sizes}")
        if str(spec.get("dtype")) != f"torch.{dtype}":
            raise SampleRejected("dtype", f"{name} is {spec.get('dtype')}, expected {dtype}")
        start = int(spec["offset"])
        data = stored[start : start + int(spec["nbytes"])]
        tensors[name] = torch.frombuffer(bytearray(data), dtype=getattr(torch, dtype)).view(sizes)
    _check_values(tensors["hidden_states"], tensors["token_ids"], answer, request)
    return tensors["hidden_states"], tensors["token_ids"], waits


def _check_values(states: torch.Tensor, ids: torch.Tensor, answer: Answer, request: Request) -> None:
    import torch

    if ids.tolist() != [*request.prompt_ids, *answer.answer_ids[:-1]]:
        raise SampleRejected("token_ids", "the states belong to other tokens than the answer")
    low, high = states.amin(dim=-1), states.amax(dim=-1)
    if not bool(torch.isfinite(low).all() and torch.isfinite(high).all()):
        raise SampleRejected("not_finite", "a hidden state is NaN or infinite")
    flat = int((low == high).sum())
    if flat:
        raise SampleRejected("constant", f"{flat} hidden states have one value throughout")
