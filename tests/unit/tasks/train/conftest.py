"""A tiny random target with tokenizer, and a log of its own greedy answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from profiles.schema import Train
from tasks.stream.log import LogWriter
from tasks.train.loop import StopFlag
from tasks.train.settings import TrainSettings

AUX_LAYERS = (1, 3)
HIDDEN = 64
VOCAB = 512


@dataclass(frozen=True)
class TinyWorld:
    """Folders of the tiny target and of the log."""

    target: Path
    log: Path

    def settings(self, folder: Path, **train: Any) -> TrainSettings:
        """Settings of a fast training run; keyword arguments override `train`."""
        draft = {"num_layers": 1, "block_size": 4, "markov_rank": 8, "vocab_size": 64}
        draft |= train.pop("draft", {})
        values: dict[str, Any] = {
            "draft": draft,
            "epochs": 2,
            "batch_tokens": 64,
            "anchors": 24,
            "lr": 0.01,
            "device": "cpu",
            "autocast": "float32",
            "threads": 1,
        }
        return TrainSettings(
            train=Train.model_validate(values | train),
            log_dir=str(self.log),
            captures_digest="captures",
            target_dir=str(self.target),
            target_name="tiny",
            aux_layer_ids=AUX_LAYERS,
            hidden_size=HIDDEN,
            folder=str(folder),
            progress_file=str(folder / "progress.jsonl"),
        )


def _make_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = {f"w{i}": i for i in range(VOCAB - 2)} | {"<pad>": VOCAB - 2, "<unk>": VOCAB - 1}
    inner = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>", unk_token="<unk>").save_pretrained(
        folder
    )


def _make_target(folder: Path) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        intermediate_size=96,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=256,
        initializer_range=0.2,
        tie_word_embeddings=True,
        pad_token_id=VOCAB - 2,
    )
    model = LlamaForCausalLM(config).eval()
    model.save_pretrained(folder)
    _make_tokenizer(folder)
    return model


def _capture(
    model: Any, writer: LogWriter, i: int, split: Any, generator: torch.Generator, domain: str = "qa"
) -> None:
    prompt = torch.randint(0, 200, (1, 9 + i % 4), generator=generator)
    answered = model.generate(
        prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=16, do_sample=False, eos_token_id=None
    )
    ids = answered[:, :-1]
    before_norm: list[torch.Tensor] = []
    hook = model.model.norm.register_forward_pre_hook(lambda _, args: before_norm.append(args[0]))
    states = model(ids, output_hidden_states=True).hidden_states
    hook.remove()
    writer.append(
        i=i,
        prompt_id=f"p{i}",
        domain=domain,
        split=split,
        prompt_tokens=prompt.shape[1],
        answer_ids=tuple(answered[0, prompt.shape[1] :].tolist()),
        finish_reason="length",
        hidden_states=torch.stack([states[k][0] for k in AUX_LAYERS] + [before_norm[0][0]], dim=1),
        token_ids=ids[0],
    )


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> TinyWorld:
    """The tiny target and a log of 20 train and 4 held-out samples."""
    root = tmp_path_factory.mktemp("tiny")
    torch.set_num_threads(1)
    model = _make_target(root / "target")
    writer = LogWriter(root / "log")
    generator = torch.Generator().manual_seed(1)
    with torch.inference_mode():
        for i in range(24):
            _capture(model, writer, i, "held_out" if i >= 20 else "train", generator)
    writer.close()
    return TinyWorld(root / "target", root / "log")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Results must not depend on how many cores a machine has."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def quiet() -> Callable[..., None]:
    return lambda *_: None


@pytest.fixture
def never() -> StopFlag:
    return StopFlag()
