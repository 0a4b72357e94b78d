"""One answer of the target and the checks that its hidden states must pass."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tasks.stream.checksum import SEAL_BYTES, SealBroken, check_seal
from tasks.stream.models import Source, Split
from tasks.stream.reasons import CHECKSUM, NOT_FINITE

if TYPE_CHECKING:
    import torch

MANIFEST_VERSION = 1
"""Version of hs-connectors' transfer manifest that this reader understands."""
_HEAD = 8
"""Values by which most rows are told from constant ones; the rest are compared in full."""


class SampleRejected(Exception):
    """A sample that may not enter the log; it is asked for again.

    Args:
        reason: A word of `reasons.REASONS`, under which it is counted.
        detail: What exactly was wrong.
        final: Asking again cannot help.
        wait_s: Seconds that the server asked to wait.
    """

    def __init__(self, reason: str, detail: str = "", *, final: bool = False, wait_s: float = 0.0):
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason
        self.final = final
        self.wait_s = wait_s


@dataclass(frozen=True)
class GivenAnswer:
    """An answer that is known before its hidden states: the target then only reads it."""

    ids: tuple[int, ...]
    finish_reason: str


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
    source: Source = "generated"
    """Where the answer comes from."""
    given: GivenAnswer | None = None
    """The answer, if it is known already."""

    @property
    def most_rows(self) -> int:
        """Largest number of rows that its hidden states may have."""
        new = self.max_new_tokens if self.given is None else len(self.given.ids)
        return len(self.prompt_ids) + max(new - 1, 0)


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


def choice_of(body: Any, prompt_ids: tuple[int, ...]) -> tuple[tuple[int, ...], str]:
    """Token ids and finish reason of the one choice in a response of `/v1/completions`.

    Args:
        prompt_ids: What was asked; the server repeats it where it can.

    Raises:
        SampleRejected: It is not such a response, or belongs to another prompt.
    """
    choices = body.get("choices") if isinstance(body, dict) else None
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
        raise SampleRejected("bad_answer", "the response does not hold exactly one choice")
    ids = choices[0].get("token_ids")
    if ids is None:
        raise SampleRejected("no_token_ids", "the server does not return token ids")
    echoed = choices[0].get("prompt_token_ids")
    if echoed is not None and tuple(echoed) != prompt_ids:
        raise SampleRejected("prompt_changed", "the server answered another prompt")
    finish_reason = str(choices[0].get("finish_reason"))
    if finish_reason in ("abort", "error"):
        raise SampleRejected("aborted", f"finish reason {finish_reason}")
    return tuple(int(token) for token in ids), finish_reason


def answer_of(body: Any, prompt_ids: tuple[int, ...]) -> Answer:
    """Read a response of `/v1/completions` with `return_token_ids`.

    Raises:
        SampleRejected: Something that this run needs is not in it.
    """
    ids, finish_reason = choice_of(body, prompt_ids)
    manifest = body.get("kv_transfer_params")
    if not isinstance(manifest, dict) or not manifest.get("handle"):
        raise SampleRejected("no_handle", "the server does not extract hidden states")
    if manifest.get("version") != MANIFEST_VERSION:
        raise SampleRejected("manifest_version", f"{manifest.get('version')}, not {MANIFEST_VERSION}")
    return Answer(ids, finish_reason, manifest)


def object_bytes(answer: Answer) -> int:
    """Size of the stored object by its manifest.

    Raises:
        SampleRejected: The manifest does not say.
    """
    try:
        return int(answer.manifest["metadata"]["total_aligned_bytes"])
    except (KeyError, TypeError, ValueError):
        raise SampleRejected("manifest", "it does not say how large the object is") from None


def verify(
    stored: memoryview, answer: Answer, request: Request, shape: Shape
) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Check an object and take it apart; the tensors are views of `stored`.

    Args:
        stored: The object as it lay in the store, seal included; writable memory.

    Returns:
        `hidden_states [T, L, H]`, `token_ids [T]`, and how often its put waited for space.

    Raises:
        SampleRejected: With the first check that failed.
    """
    try:
        waits = check_seal(stored)
    except SealBroken as error:
        raise SampleRejected(CHECKSUM, str(error)) from None
    rows = len(request.prompt_ids) + len(answer.answer_ids) - 1
    states = _tensor(stored, answer, "hidden_states", [rows, shape.layers, shape.hidden_size], shape.dtype)
    ids = _tensor(stored, answer, "token_ids", [rows], "int64")
    _check_values(states, ids, answer, request)
    return states, ids, waits


def _tensor(stored: memoryview, answer: Answer, name: str, sizes: list[int], dtype: str) -> torch.Tensor:
    """One tensor of the object, as a view.

    Raises:
        SampleRejected: Its description is not what was asked for.
    """
    import torch

    tensors = answer.manifest.get("tensors")
    spec = tensors.get(name) if isinstance(tensors, dict) else None
    if not isinstance(spec, dict):
        raise SampleRejected("manifest", f"it does not describe {name}")
    if list(spec.get("shape", ())) != sizes:
        raise SampleRejected("shape", f"{name} is {spec.get('shape')}, expected {sizes}")
    if str(spec.get("dtype")) != f"torch.{dtype}":
        raise SampleRejected("dtype", f"{name} is {spec.get('dtype')}, expected {dtype}")
    try:
        return torch.frombuffer(
            stored, dtype=getattr(torch, dtype), count=math.prod(sizes), offset=int(spec["offset"])
        ).view(sizes)
    except (KeyError, TypeError, ValueError) as error:
        raise SampleRejected("manifest", f"{name} does not lie inside the object: {error}") from None


def _check_values(states: torch.Tensor, ids: torch.Tensor, answer: Answer, request: Request) -> None:
    import torch

    if ids.tolist() != [*request.prompt_ids, *answer.answer_ids[:-1]]:
        raise SampleRejected("token_ids", "the states belong to other tokens than the answer")
    # Every value takes part in its row's sum, so finite sums have no other addends: one pass over the states
    # for nearly all samples. A sum may overflow, and then the values themselves decide.
    if not bool(torch.isfinite(states.sum(dim=-1)).all() or torch.isfinite(states).all()):
        raise SampleRejected(NOT_FINITE, "a hidden state is NaN or infinite")
    head = states[..., :_HEAD]
    alike = (head == head[..., :1]).all(dim=-1)
    if bool(alike.any()):
        rows = states[alike]
        flat = int((rows == rows[:, :1]).all(dim=-1).sum())
        if flat:
            raise SampleRejected("constant", f"{flat} hidden states have one value throughout")
