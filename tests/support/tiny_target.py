"""A tiny target that really computes: a random Llama, its tokenizer, and its answers with hidden states."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

AUX_LAYERS = (1, 2, 3)
LAYERS = 4
HIDDEN = 64
VOCAB = 512
LAYER_IDS = (*AUX_LAYERS, LAYERS)


@dataclass(frozen=True)
class Answered:
    """One greedy (or drawn) answer and the states that made it."""

    prompt_ids: tuple[int, ...]
    answer_ids: tuple[int, ...]
    states: torch.Tensor
    """`[P + G - 1, L, H]` in the layout of the log: auxiliary layers, then the last one before the norm."""


def make_target(folder: Path, *, tied: bool = True, dtype: torch.dtype = torch.float32) -> Any:
    """Write the target in Hugging Face format and return the model."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        intermediate_size=96,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=256,
        initializer_range=0.2,
        tie_word_embeddings=tied,
        pad_token_id=VOCAB - 2,
    )
    model = LlamaForCausalLM(config).eval()
    # Logits as far apart as a trained model's: at temperature 1 a few tokens share nearly all of the weight.
    torch.nn.init.uniform_(model.model.norm.weight, 2.0, 6.0)
    model = model.to(dtype)
    model.save_pretrained(folder)
    _make_tokenizer(folder)
    return model


def _make_tokenizer(folder: Path) -> None:
    """Characters as words, so that every text has as many tokens as letters."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {chr(i): i for i in range(VOCAB - 2)} | {"<pad>": VOCAB - 2, "<unk>": VOCAB - 1}
    inner = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    fast = PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>", unk_token="<unk>")
    fast.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}:"
    fast.save_pretrained(folder)


def change_config(folder: Path, **values: Any) -> None:
    """Set values of the target's `config.json`."""
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def answer(
    model: Any,
    prompt_ids: tuple[int, ...],
    new_tokens: int,
    *,
    temperature: float = 0.0,
    seed: int = 0,
    repetition_penalty: float = 1.0,
) -> Answered:
    """Generate `new_tokens` and take the states of every row that was an input."""
    with torch.inference_mode():
        ids = _generated(model, prompt_ids, new_tokens, temperature, seed, repetition_penalty)
        before_norm: list[torch.Tensor] = []
        hook = model.model.norm.register_forward_pre_hook(lambda _, args: before_norm.append(args[0][0]))
        states = model(torch.tensor([ids[:-1]]), output_hidden_states=True).hidden_states
        hook.remove()
        stacked = torch.stack([*(states[layer][0] for layer in AUX_LAYERS), before_norm[0]], dim=1)
    return Answered(prompt_ids, tuple(ids[len(prompt_ids) :]), stacked.clone())


def _generated(
    model: Any, prompt_ids: tuple[int, ...], new_tokens: int, temperature: float, seed: int, penalty: float
) -> list[int]:
    """Prompt and answer, one forward pass over everything for each token."""
    generator = torch.Generator().manual_seed(seed)
    ids = list(prompt_ids)
    for _ in range(new_tokens):
        logits = model(torch.tensor([ids])).logits[0, -1].float()
        seen = torch.tensor(sorted(set(ids)))
        logits[seen] = torch.where(logits[seen] > 0, logits[seen] / penalty, logits[seen] * penalty)
        drawn = torch.multinomial((logits / (temperature or 1.0)).softmax(-1), 1, generator=generator)
        ids.append(int(drawn if temperature else logits.argmax()))
    return ids
