"""The target's own output head: which token do captured states say comes next?

`logits = lm_head(norm(last layer))`. Final norm and head are read from the target's safetensors, slice by
slice, so that a target of any size costs no more than its head on disk and one slice in memory.

Letters: N rows, H hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from tasks.errors import UsageError
from tasks.serve.target_config import TargetConfig, read_target_config
from tasks.serve.target_weights import output_tensors

_SLICE_BYTES = 64 * 2**20
_EPSILONS = ("rms_norm_eps", "layer_norm_epsilon", "layernorm_epsilon", "norm_eps")
# Two roundings in the state's type separate our logits from the engine's; this is their size, doubled. In
# float32 the order of additions counts for more than the type does.
_TIE_SPACINGS = 2.0
_LEAST_TIE = 2e-4

# Final norm of each family in vLLM 0.32: x / rms(x) * w, or (1 + w) where the weight is an offset. Families
# that are in neither list have another norm, e.g. a grouped one, or wrap any text model.
_PLAIN_NORM = frozenset(
    (
        "AfmoeForCausalLM",
        "ApertusForCausalLM",
        "DeepseekForCausalLM",
        "DeepseekV2ForCausalLM",
        "DeepseekV3ForCausalLM",
        "Ernie4_5ForCausalLM",
        "Gemma4ForCausalLM",
        "Gemma4ForConditionalGeneration",
        "GptOssForCausalLM",
        "GraniteForCausalLM",
        "InternLM3ForCausalLM",
        "KimiK25ForConditionalGeneration",
        "LagunaForCausalLM",
        "Llama4ForCausalLM",
        "Llama4ForConditionalGeneration",
        "LlamaForCausalLM",
        "MiMoForCausalLM",
        "MiMoV2ForCausalLM",
        "MiniCPM3ForCausalLM",
        "MiniCPMForCausalLM",
        "MiniMaxM2ForCausalLM",
        "Ministral3ForCausalLM",
        "Mistral3ForConditionalGeneration",
        "MistralForCausalLM",
        "MistralLarge3ForCausalLM",
        "NemotronHForCausalLM",
        "Phi3ForCausalLM",
        "PixtralForConditionalGeneration",
        "Plamo3ForCausalLM",
        "Qwen2ForCausalLM",
        "Qwen2_5_VLForConditionalGeneration",
        "Qwen3ForCausalLM",
        "Qwen3MoeForCausalLM",
        "Qwen3VLForConditionalGeneration",
        "Qwen3VLMoeForConditionalGeneration",
        "TeleChat3ForCausalLM",
    )
)
_OFFSET_NORM = frozenset(
    (
        "Qwen3NextForCausalLM",
        "Qwen3_5ForCausalLM",
        "Qwen3_5ForConditionalGeneration",
        "Qwen3_5MoeForCausalLM",
        "Qwen3_5MoeForConditionalGeneration",
    )
)


class NotCheckable(Exception):
    """The target's logits cannot be recomputed; the text says why."""


@dataclass(frozen=True)
class Formula:
    """How a family makes logits of the last layer's output."""

    epsilon: float
    offset: float
    """Added to the norm's weight: 0 or 1."""
    scale: float
    """Factor of the logits."""
    soft_cap: float | None
    """Bound of the logits: `cap * tanh(logits / cap)`, before the scale."""


@dataclass(frozen=True)
class Judged:
    """How well states explain the tokens that followed them, each `[N]` float32."""

    gap: Tensor
    """Largest logit minus the token's: 0 where the token is the greedy choice."""
    tie: Tensor
    """Largest gap that rounding can make."""
    surprise: Tensor
    """Negative log-probability of the token minus the entropy, nats: about 0 on average for a token that
    was drawn from this distribution, whatever the temperature, and negative for a greedy one."""

    @property
    def greedy(self) -> Tensor:
        """`[N]` bool: the token is the largest one, or tied with it."""
        return self.gap <= self.tie


def formula_of(config: TargetConfig) -> Formula:
    """What the configuration says about final norm and logits.

    Raises:
        NotCheckable: It does not say enough.
    """
    text = config.text
    if config.architecture not in _PLAIN_NORM | _OFFSET_NORM:
        raise NotCheckable(f"the final norm of architecture '{config.architecture}' is not known here")
    epsilon = next((text[name] for name in _EPSILONS if isinstance(text.get(name), float)), None)
    if epsilon is None:
        raise NotCheckable(f"config.json has none of {', '.join(_EPSILONS)}")
    scale = float(text.get("logit_scale") or 1.0) / float(text.get("logits_scaling") or 1.0)
    if "dim_model_base" in text:  # MiniCPM divides the normed state, which is the same
        scale *= float(text["dim_model_base"]) / config.hidden_size
    cap = text.get("final_logit_softcapping")
    return Formula(
        epsilon=epsilon,
        offset=1.0 if config.architecture in _OFFSET_NORM else 0.0,
        scale=scale,
        soft_cap=float(cap) if cap else None,
    )


class OutputHead:
    """Final norm and output head of a target. Usable from several threads.

    Args:
        folder: The target in Hugging Face format.
        dtype: Type in which the target is served, as torch writes it: weights and normed states are rounded
            to it, as the engine does.

    Raises:
        NotCheckable: The head is packed, missing, or its family's norm is not known.
    """

    def __init__(self, folder: Path, dtype: str):
        try:
            config = read_target_config(folder)
            found = output_tensors(config)
        except UsageError as error:
            raise NotCheckable(error.what) from None
        self.formula = formula_of(config)
        self.dtype: torch.dtype = getattr(torch, dtype)
        self.vocab_size, self.hidden_size = found.head.shape
        self._head_file, self._head_name = folder / found.head.file, found.head.name
        with safe_open(str(folder / found.norm.file), framework="pt") as tensors:
            weight = tensors.get_tensor(found.norm.name)
        self._norm = weight.to(self.dtype).float() + self.formula.offset

    def normed(self, states: Tensor) -> Tensor:
        """`[N, H]` float32: the final norm of `states [N, H]`, rounded as the engine rounds it."""
        x = states.float()
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.formula.epsilon) * self._norm
        return x.to(self.dtype).float()

    def rows(self, tokens: Tensor) -> Tensor:
        """`[N, H]` float32: the head's rows of `tokens [N]`; zeros for a token beyond the vocabulary."""
        found = torch.zeros(len(tokens), self.hidden_size)
        with self._open() as head:
            for place, token in enumerate(tokens.tolist()):
                if 0 <= token < self.vocab_size:
                    found[place] = self._rounded(head[token])
        return found

    def logits(self, products: Tensor) -> Tensor:
        """Logits of products of normed states and rows."""
        cap = self.formula.soft_cap
        capped = products if cap is None else cap * torch.tanh(products / cap)
        return capped * self.formula.scale

    def tie(self, largest: Tensor) -> Tensor:
        """Largest gap that rounding can make between logits of about this size."""
        relative = max(_TIE_SPACINGS * torch.finfo(self.dtype).eps, _LEAST_TIE)
        return relative * largest.abs().clamp(min=1.0)

    def judge(self, states: Tensor, tokens: Tensor, temperature: float = 1.0) -> Judged:
        """How well `states [N, H]` of the last layer explain the `tokens [N]` that followed.

        Args:
            temperature: Of the sampling; 0 (greedy) measures the surprise at 1.
        """
        x = self.normed(states)
        heat = temperature or 1.0
        chosen = self.logits((x * self.rows(tokens)).sum(-1))
        sums = _RunningSums(len(x))
        for part in self._slices():
            sums.add(self.logits(x @ part.T), heat)
        log_sum = sums.top / heat + sums.weight.log()
        entropy = log_sum - sums.weighted / sums.weight
        return Judged(
            gap=(sums.top - chosen).clamp(min=0.0),
            tie=self.tie(sums.top),
            surprise=log_sum - chosen / heat - entropy,
        )

    def _slices(self) -> Iterator[Tensor]:
        """The head, some rows at a time, float32."""
        step = max(1, _SLICE_BYTES // (4 * self.hidden_size))
        with self._open() as head:
            for start in range(0, self.vocab_size, step):
                yield self._rounded(head[start : min(start + step, self.vocab_size)])

    @contextmanager
    def _open(self) -> Iterator[Tensor]:
        """The head `[V, H]`, mapped from its file: only what is looked at is read.

        Not `get_slice`: safetensors 0.8 never frees the bounds of a slice, a kilobyte for each sample.
        """
        with safe_open(str(self._head_file), framework="pt") as tensors:
            yield tensors.get_tensor(self._head_name)

    def _rounded(self, part: Tensor) -> Tensor:
        return part.to(self.dtype).float()


class _RunningSums:
    """Largest logit, sum of weights and weighted sum of logits over the vocabulary, slice by slice."""

    def __init__(self, rows: int):
        self.top = torch.full((rows,), -torch.inf)
        self.weight = torch.zeros(rows)
        self.weighted = torch.zeros(rows)

    def add(self, logits: Tensor, heat: float) -> None:
        """Take in `logits [N, v]`; weights are `exp((logit - top) / heat)`."""
        top = torch.maximum(self.top, logits.amax(-1))
        shrink = ((self.top - top) / heat).exp()
        part = ((logits - top[:, None]) / heat).exp()
        self.weight = self.weight * shrink + part.sum(-1)
        self.weighted = self.weighted * shrink + (part * logits / heat).sum(-1)
        self.top = top


def open_head(folder: Path, dtype: str) -> tuple[OutputHead | None, str]:
    """The head, or None and why the target's logits cannot be recomputed."""
    try:
        return OutputHead(folder, dtype), ""
    except NotCheckable as error:
        return None, str(error)
