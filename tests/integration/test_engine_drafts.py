"""vLLM drafts on this machine what replay says it drafts, token for token."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from profiles.load import load_profile
from profiles.schema import Profile
from tasks.serve.arms import arm_environment
from tasks.serve.target_folder import resolve_target

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(600),
    pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed; run: make setup"),
]
PROGRAM = Path(__file__).parents[1] / "support" / "engine_drafts.py"
PROMPT = "Write one sentence about the sea."
ANSWER_TOKENS = 16


def draft_with_uneven_norms(profile: Profile, target: Path, folder: Path) -> None:
    """A draft whose every norm has weights of its own: a norm that takes another's shows in the tokens."""
    import torch

    from tasks.train import adapter
    from tasks.train.export import ExportedFor, export_draft
    from tasks.train.vocabulary import DraftVocabulary

    ids = torch.arange(512)
    t2d = torch.zeros(adapter.target_text_config(target).vocab_size, dtype=torch.bool)
    t2d[ids] = True
    vocabulary = DraftVocabulary(t2d, ids - torch.arange(512), 512)
    model = adapter.build_draft(target, profile.train.draft, profile.target.aux_layer_ids, vocabulary, 0)
    random = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() == 1 and "norm" in name and not name.startswith("verifier"):
                weight.copy_(0.2 + 3 * torch.rand(weight.shape, generator=random))
            elif weight.dim() == 2 and name.startswith("layers."):
                weight.mul_(4)  # attention has to matter beside the residual stream
    export_draft(
        model, adapter.trained_state(model), folder, ExportedFor("target", None, target), torch.float32
    )


def replayed(draft: Path, target: Path, ids: list[int], first: int, count: int) -> dict[int, list[int]]:
    """Blocks by the position of their anchor, drafted from the states of Transformers' model."""
    import torch
    from transformers import AutoModelForCausalLM

    from tasks.evaluate.draft_model import draft_blocks, load_draft

    model = load_draft(draft, target)
    tokens = torch.tensor(ids)
    with torch.inference_mode():
        verifier = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32).eval()
        states = verifier(tokens[None], output_hidden_states=True).hidden_states
        hidden = torch.stack([states[layer][0] for layer in model.target_layer_ids], dim=1).flatten(1)
        anchors = torch.arange(first, first + count)
        blocks = draft_blocks(model, hidden, tokens, anchors).tolist()
    return dict(zip(anchors.tolist(), blocks, strict=True))


def test_the_engine_drafts_what_replay_drafts(tmp_path: Path) -> None:
    """Layers, norms, positions, Markov bias and vocabulary mean the same to the trainer and to the engine."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    profile = load_profile("laptop").profile
    target, draft = resolve_target(profile), tmp_path / "draft"
    draft_with_uneven_norms(profile, target, draft)
    prompt = AutoTokenizer.from_pretrained(target)(PROMPT)["input_ids"]
    with torch.inference_mode():
        verifier = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32).eval()
        answered = verifier.generate(
            torch.tensor([prompt]), max_new_tokens=ANSWER_TOKENS, do_sample=False, eos_token_id=None
        )[0].tolist()
    words = (str(target), str(draft), str(profile.train.draft.block_size), json.dumps(prompt))
    done = subprocess.run(
        (sys.executable, str(PROGRAM), *words),
        env={**os.environ, **arm_environment(profile)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    drafted: list[tuple[int, list[int]]] = json.loads(done.stdout.splitlines()[-1])
    expected = replayed(draft, target, answered, len(prompt), ANSWER_TOKENS - 1)
    known = [(anchor, block) for anchor, block in drafted if anchor in expected]
    assert len(known) >= ANSWER_TOKENS // 2
    assert known == [(anchor, expected[anchor]) for anchor, _ in known]
    assert len({tuple(block) for _, block in known}) > 1
