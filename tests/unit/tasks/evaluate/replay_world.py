"""A tiny target, its answers, and a draft that was trained on exactly these: it accepts nearly everything."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from profiles.evaluation import Replay
from tasks.evaluate import replay
from tasks.evaluate.draft_check import TrainingRecord
from tasks.evaluate.replay_detail import replay_config
from tasks.stream.log import LogWriter
from tasks.train.loop import StopFlag
from tasks.train.models import DraftCheckpoint
from tasks.train.run import train_draft
from tests.unit.tasks.train.conftest import AUX_LAYERS, HIDDEN, VOCAB, TinyWorld, _make_tokenizer

PROMPTS = 12
ANSWER = 16


@dataclass(frozen=True)
class ReplayWorld:
    """Folders of the target, of the log with its `evaluate` split, and of the draft."""

    root: Path
    model: Any
    """The target."""
    checkpoint: DraftCheckpoint

    @property
    def target(self) -> Path:
        return self.root / "target"

    @property
    def log(self) -> Path:
        return self.root / "evaluate"

    @property
    def draft(self) -> Path:
        return self.root / "train" / "draft"

    def copy_draft(self, folder: Path, **config: Any) -> Path:
        """A copy of the draft whose `config.json` has other values."""
        shutil.copytree(self.draft, folder)
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | config))
        return folder

    def replay(
        self,
        folder: Path,
        draft: Path,
        log: Path | None = None,
        record: TrainingRecord | None = None,
        lengths: Sequence[int] = (6, ANSWER),
        **options: Any,
    ) -> tuple[list[dict[str, Any]], dict[str, Any], Path]:
        """Replay in this process; the rows, the verdict and the rows' file."""
        out = folder / "replay.jsonl"
        replay.work(
            {
                "draft_dir": str(draft),
                "target_dir": str(self.target),
                "log_dir": str(log or self.log),
                "out": str(out),
                "progress": str(folder / "progress.jsonl"),
                "lengths": list(lengths),
                "threads": 1,
                **replay_config(Replay.model_validate(options), record),
            }
        )
        rows = [json.loads(line) for line in out.read_text().splitlines()]
        return rows, json.loads(replay.check_file(out).read_text()), out

    def capture(self, folder: Path, layers: Sequence[int]) -> Path:
        """The same answers with the states of other layers."""
        with torch.inference_mode():
            _capture(self.model, folder, "evaluate", layers)
        return folder


def _make_target(folder: Path, head_dim: int) -> Any:
    """A target whose head is not its embedding: with one matrix for both, random weights repeat a token."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        intermediate_size=96,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=head_dim,
        max_position_embeddings=256,
        initializer_range=0.2,
        tie_word_embeddings=False,
        pad_token_id=VOCAB - 2,
    )
    model = LlamaForCausalLM(config).eval()
    model.save_pretrained(folder)
    _make_tokenizer(folder)
    return model


def _capture(model: Any, folder: Path, split: Any, layers: Sequence[int]) -> None:
    writer = LogWriter(folder)
    generator = torch.Generator().manual_seed(3)
    for i in range(PROMPTS):
        prompt = torch.randint(0, 200, (1, 5 + i % 4), generator=generator)
        answered = model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=ANSWER,
            do_sample=False,
            eos_token_id=None,
        )
        ids = answered[:, :-1]
        before_norm: list[torch.Tensor] = []
        hook = model.model.norm.register_forward_pre_hook(
            lambda _, args, kept=before_norm: kept.append(args[0])
        )
        states = model(ids, output_hidden_states=True).hidden_states
        hook.remove()
        writer.append(
            i=i,
            prompt_id=f"p{i}",
            domain=("qa", "writing")[i % 2],
            split=split,
            prompt_tokens=prompt.shape[1],
            answer_ids=tuple(answered[0, prompt.shape[1] :].tolist()),
            finish_reason="length",
            hidden_states=torch.stack([states[k][0] for k in layers] + [before_norm[0][0]], dim=1),
            token_ids=ids[0],
        )
    writer.close()


def build_world(root: Path, report: Callable[..., None] = lambda *_: None, head_dim: int = 16) -> ReplayWorld:
    """Make the target, capture its answers for training and for evaluation, and train."""
    torch.set_num_threads(1)
    model = _make_target(root / "target", head_dim)
    with torch.inference_mode():
        _capture(model, root / "log", "train", AUX_LAYERS)
        _capture(model, root / "evaluate", "evaluate", AUX_LAYERS)
    settings = TinyWorld(root / "target", root / "log").settings(
        root / "train", draft={"num_layers": 2, "vocab_size": 128}, epochs=40, anchors=48
    )
    done = train_draft(settings, report, StopFlag())
    assert done is not None
    return ReplayWorld(root, model, done)
