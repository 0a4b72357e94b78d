"""The target's own head, compared with what Transformers computes."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tasks.stream.head import NotCheckable, OutputHead, open_head
from tests.support.tiny_target import VOCAB, answer, change_config, make_target

PROMPT = tuple(range(40, 60))


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("target")
    return folder, make_target(folder, tied=request.param)


def copied(folder: Path, to: Path) -> Path:
    for path in folder.iterdir():
        (to / path.name).write_bytes(path.read_bytes())
    return to


def test_gap_and_surprise_are_those_of_the_model(
    made: tuple[Path, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, model = made
    monkeypatch.setattr("tasks.stream.head._SLICE_BYTES", 64 * 4 * 100)  # six slices, the last one shorter
    one = answer(model, PROMPT, 12, temperature=0.7, seed=3)
    with torch.inference_mode():
        logits = model(torch.tensor([[*one.prompt_ids, *one.answer_ids[:-1]]])).logits[0, len(PROMPT) - 1 :]
    tokens = torch.tensor(one.answer_ids)
    judged = OutputHead(folder, "float32").judge(one.states[len(PROMPT) - 1 :, -1], tokens, 0.7)
    chosen = logits.gather(1, tokens[:, None])[:, 0]
    spread = torch.distributions.Categorical(logits=logits / 0.7)
    torch.testing.assert_close(judged.gap, logits.amax(-1) - chosen, atol=1e-3, rtol=1e-4)
    torch.testing.assert_close(
        judged.surprise, -spread.log_prob(tokens) - spread.entropy(), atol=1e-3, rtol=1e-3
    )
    assert judged.greedy.tolist() == (logits.argmax(-1) == tokens).tolist()


def test_rows_leave_no_memory_behind(made: tuple[Path, Any]) -> None:
    head, tokens = OutputHead(made[0], "float32"), torch.arange(300, 316)
    head.rows(tokens)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(200):
            head.rows(tokens)
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert grown < 200 * 200, "not 32 numbers for each call, which slices of safetensors never free"


def test_offset_norm_soft_cap_and_scale(made: tuple[Path, Any], tmp_path: Path) -> None:
    """A family whose norm weight is an offset, with scaled and capped logits, as its configuration says."""
    folder, model = made
    plain = OutputHead(folder, "float32")
    target = copied(folder, tmp_path)
    tensors = load_file(target / "model.safetensors")
    tensors["model.norm.weight"] = tensors["model.norm.weight"] - 1
    save_file(tensors, target / "model.safetensors", {"format": "pt"})
    change_config(
        target,
        architectures=["Qwen3NextForCausalLM"],
        final_logit_softcapping=30.0,
        logit_scale=0.5,
        logits_scaling=2.0,
    )
    other = OutputHead(target, "float32")
    states = answer(model, PROMPT, 4).states[:, -1]
    torch.testing.assert_close(other.normed(states), plain.normed(states))
    products = torch.tensor([-60.0, 0.0, 10.0, 60.0])
    expected = 30 * torch.tanh(products / 30) / 4
    torch.testing.assert_close(other.logits(products), expected)
    tokens = torch.zeros(len(states), dtype=torch.long)
    full = plain.normed(states) @ plain.rows(torch.arange(VOCAB)).T
    capped = 30 * torch.tanh(full / 30) / 4
    torch.testing.assert_close(
        other.judge(states, tokens).gap, capped.amax(-1) - capped[:, 0], atol=1e-3, rtol=0
    )


def test_a_tie_in_bfloat16_is_no_alarm(tmp_path: Path) -> None:
    """Two equal rows of the head: a strict argmax would blame every second answer."""
    model = make_target(tmp_path, tied=False, dtype=torch.bfloat16)
    one = answer(model, PROMPT, 1)
    best = one.answer_ids[0]
    twin = (best + 1) % VOCAB
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["lm_head.weight"][twin] = tensors["lm_head.weight"][best]
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    head = OutputHead(tmp_path, "bfloat16")
    row = one.states[-1:, -1].expand(3, -1)
    judged = head.judge(row, torch.tensor([best, twin, (best + 2) % VOCAB]))
    assert judged.greedy.tolist() == [True, True, False]
    assert judged.gap[0] == judged.gap[1] == 0


def test_token_beyond_the_vocabulary_is_not_greedy(made: tuple[Path, Any]) -> None:
    folder, model = made
    states = answer(model, PROMPT, 1).states[-1:, -1]
    assert not OutputHead(folder, "float32").judge(states, torch.tensor([VOCAB + 5])).greedy.any()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            {"architectures": ["Cohere2MoeForCausalLM"]},
            "the final norm of architecture 'Cohere2MoeForCausalLM'",
        ),
        ({"rms_norm_eps": None}, "rms_norm_eps"),
        ({"vocab_size": VOCAB + 1}, "the draft needs floats"),
    ],
)
def test_what_cannot_be_checked_says_why(
    made: tuple[Path, Any], tmp_path: Path, change: dict[str, Any], reason: str
) -> None:
    target = copied(made[0], tmp_path)
    change_config(target, **change)
    head, why_not = open_head(target, "float32")
    assert head is None and reason in why_not


def test_a_packed_head_cannot_be_checked(made: tuple[Path, Any], tmp_path: Path) -> None:
    target = copied(made[0], tmp_path)
    tensors = load_file(target / "model.safetensors")
    name = "lm_head.weight" if "lm_head.weight" in tensors else "model.embed_tokens.weight"
    tensors[name] = tensors[name].to(torch.int8)
    save_file(tensors, target / "model.safetensors", {"format": "pt"})
    with pytest.raises(NotCheckable, match="I8"):
        OutputHead(target, "float32")
