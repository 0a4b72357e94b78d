"""A target with random weights and a log of captures that it explains: laptop sizes, made in seconds.

What the target says is drawn at random, so that nothing is learned from it; the rows that use it compare
costs and losses, not quality.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from profiles.load import load_profile
from profiles.schema import Train
from tasks.stream.log import HiddenStateLog, LogWriter
from tasks.train.settings import TrainSettings


@dataclass(frozen=True)
class TrainSize:
    """Sizes of the target and of its captures; draft and training are the laptop profile's.

    Args:
        documents: Samples to train on; a few more are held out.
        answer_tokens: Longest answer; lengths vary.
        losses: Steps whose losses are compared with upstream's.
        steps: Steps of one timed repetition, the first `warm` of which are not counted.
        overrides: Fields of the profile's `train` to change.
    """

    vocab: int = 49_152
    hidden: int = 576
    heads: int = 9
    kv_heads: int = 3
    aux_layers: int = 5
    documents: int = 320
    held_out: int = 12
    prompt_tokens: int = 40
    answer_tokens: int = 96
    losses: int = 50
    steps: int = 14
    warm: int = 4
    repetitions: int = 5
    overrides: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True)
class TrainWorld:
    """Folders of the target and its captures, and how to train on them."""

    size: TrainSize
    folder: Path
    train: Train

    @property
    def target(self) -> Path:
        return self.folder / "target"

    @property
    def log(self) -> Path:
        return self.folder / "log"

    @property
    def aux_layer_ids(self) -> tuple[int, ...]:
        return tuple(range(1, self.size.aux_layers + 1))

    def settings(self, name: str, **train: Any) -> TrainSettings:
        """Settings of a training run in a folder of its own; keyword arguments override `train`."""
        own = self.folder / "runs" / name
        own.mkdir(parents=True)
        values = {**self.train.model_dump(), **train}
        return TrainSettings(
            train=Train.model_validate(values),
            log_dir=str(self.log),
            captures_digest="bench",
            target_dir=str(self.target),
            target_name="bench",
            aux_layer_ids=self.aux_layer_ids,
            hidden_size=self.size.hidden,
            folder=str(own),
            progress_file=str(own / "progress.jsonl"),
        )


def make_train_world(size: TrainSize, folder: Path) -> TrainWorld:
    """Write target and captures."""
    train = load_profile("laptop").profile.train
    values = {**train.model_dump(), "prompt_epochs": 0, **dict(size.overrides)}
    world = TrainWorld(size, folder, Train.model_validate(values))
    _write_log(world, _write_target(world))
    return world


def _write_target(world: TrainWorld) -> Tensor:
    """The target's folder; returns its tied embedding `[V, H]`."""
    from tokenizers import Tokenizer, models
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    torch.manual_seed(0)
    size = world.size
    config = LlamaConfig(
        vocab_size=size.vocab,
        hidden_size=size.hidden,
        intermediate_size=size.hidden,
        num_hidden_layers=size.aux_layers + 1,
        num_attention_heads=size.heads,
        num_key_value_heads=size.kv_heads,
        initializer_range=0.2,
        tie_word_embeddings=True,
        dtype="float32",
    )
    model = LlamaForCausalLM(config)
    model.save_pretrained(world.target)
    inner = Tokenizer(models.WordLevel({"<unk>": 0}, unk_token="<unk>"))
    PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="<unk>").save_pretrained(world.target)
    return model.get_input_embeddings().weight.detach()


def _write_log(world: TrainWorld, embedding: Tensor) -> None:
    """Answers from a few thousand tokens; the last layer's row points at the token that follows it."""
    size, random = world.size, torch.Generator().manual_seed(1)
    known = min(world.train.draft.vocab_size or size.vocab, size.vocab - 1)
    writer = LogWriter(world.log)
    for i in range(size.documents + size.held_out):
        answer = size.answer_tokens // 2 + i % (size.answer_tokens // 2)
        ids = 1 + torch.randint(0, known, (size.prompt_tokens + answer,), generator=random)
        rows = len(ids) - 1
        states = torch.randn(rows, size.aux_layers + 1, size.hidden, generator=random)
        states[:, -1] = 4 * embedding[ids[1:]] + 0.1 * states[:, -1]
        writer.append(
            i=i,
            prompt_id=f"p{i}",
            domain="qa",
            split="train" if i < size.documents else "held_out",
            prompt_tokens=size.prompt_tokens,
            answer_ids=tuple(ids[size.prompt_tokens :].tolist()),
            finish_reason="length",
            hidden_states=states,
            token_ids=ids[:-1],
        )
    writer.finish()


def train_entries(world: TrainWorld) -> list[Any]:
    return HiddenStateLog(world.log).entries("train")
