"""Publishes a tiny draft that was really trained: `python -m tests.support.tiny_publication ROOT`.

Makes ROOT/target and ROOT/runs/published/tiny/v0001 in less than a minute, without an engine, and prints both
folders and a question whose answer the draft learned. The target's words are w0, w1, ...
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "unit" / "tasks" / "publish"))
from drafts import publish_inputs

from profiles.schema import Profile
from tasks.publish.core import publish
from tasks.stream.log import HiddenStateLog
from tests.unit.tasks.evaluate.replay_world import ReplayWorld, build_world
from tests.unit.tasks.train.conftest import AUX_LAYERS, VOCAB

MAX_MODEL_LEN = 256
HEAD_DIM = 32
"""The smallest that vLLM's attention on CPU takes."""


def profile_of(world: ReplayWorld) -> Profile:
    """How the draft is served where there is no GPU."""
    values: dict[str, Any] = {
        "name": "tiny",
        "hardware": {"mode": "none"},
        "target": {
            "model": str(world.target),
            "dtype": "float32",
            "aux_layer_ids": list(AUX_LAYERS),
            "max_model_len": MAX_MODEL_LEN,
        },
        "serve": {"served_name": "tiny", "kv_cache_gib": 1, "max_num_batched_tokens": 512},
        "stream": {"max_new_tokens": 64},
        "train": {"draft": {"block_size": world.checkpoint.block_size}},
        "evaluate": {"live": {"triton_interpreter": True, "dtype": "float32"}},
        "publish": {"name": "tiny"},
    }
    return Profile.model_validate(values)


def give_words(target: Path) -> None:
    """A tokenizer that splits at spaces, and a chat template that adds nothing: a question is its tokens."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {f"w{i}": i for i in range(VOCAB - 2)} | {"<pad>": VOCAB - 2, "<unk>": VOCAB - 1}
    inner = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>", unk_token="<unk>")
    fast.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    fast.save_pretrained(target)


def learned_question(world: ReplayWorld) -> str:
    """The first prompt of the log that the draft was trained on, in words."""
    log = HiddenStateLog(world.root / "log")
    entry = next(iter(log.entries("train")))
    return " ".join(f"w{token}" for token in log.load(entry)[1][: entry.prompt_tokens].tolist())


def publish_tiny(root: Path) -> tuple[Path, Path, str]:
    """Folders of the published draft and of its target, below `root`; and a question."""
    world = build_world(root, head_dim=HEAD_DIM)
    give_words(world.target)
    inputs = publish_inputs(root, "tiny-run", profile=profile_of(world), draft_dir=world.draft)
    folder = Path(publish(**{**inputs, "target_dir": world.target}).location)
    return folder, world.target, learned_question(world)


if __name__ == "__main__":
    print(*publish_tiny(Path(sys.argv[1]).absolute()), sep="\n")
