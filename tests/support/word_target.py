"""Folder of a tiny target in Hugging Face format: real files, random weights, a tokenizer of words."""

from __future__ import annotations

from pathlib import Path

import torch

LAYERS, HIDDEN, VOCAB = 4, 32, 128
AUX_LAYERS = (1, 3)
WORDS = tuple(f"w{number}" for number in range(VOCAB - 6))
EOS = VOCAB - 1


def write_tiny_target(folder: Path) -> Path:
    """Write the target; the rows of its output head have equal length, so that each can win."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        intermediate_size=48,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=256,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=EOS,
        pad_token_id=EOS,
        dtype="float32",
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        weight = model.lm_head.weight
        weight.copy_(torch.nn.functional.normalize(torch.randn_like(weight), dim=-1))
    model.save_pretrained(folder)
    _write_tokenizer(folder)
    return folder


def _write_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special = ["<unk>", "<user>", "<assistant>", "<system>", "<end>", "<eos>"]
    words = {word: number for number, word in enumerate([*WORDS, *special])}
    inner = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=inner, unk_token="<unk>", eos_token="<eos>", pad_token="<eos>"
    )
    fast.chat_template = (
        "{% for m in messages %}<{{ m.role }}> {{ m.content }} <end> {% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% endif %}"
    )
    fast.save_pretrained(folder)
