"""Training from an earlier draft: what is carried over, what starts anew, and what is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tasks.errors import StageInputError
from tasks.train import adapter
from tasks.train.checkpoint import Checkpoints
from tasks.train.initial import InitialDraft, draft_digest
from tasks.train.model import earlier_draft, make_draft, vocabulary_to_carry
from tasks.train.models import DraftCheckpoint
from tasks.train.run import train_draft
from tasks.train.settings import TrainSettings
from tasks.train.stopping import StopFlag, Stopped
from tasks.train.vocabulary import DraftVocabulary, vocabulary_of
from tests.unit.tasks.train.conftest import VOCAB, TinyWorld
from tests.unit.tasks.train.test_loop import StopAfter


@pytest.fixture(scope="module")
def trained(world: TinyWorld, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, DraftCheckpoint]:
    """A draft trained for some steps, and what its training said."""
    folder = tmp_path_factory.mktemp("earlier")
    settings = world.settings(folder, epochs=6, seed=5).model_copy(update={"target_revision": "r1"})
    return folder / "draft", train_draft(settings, lambda *_: None, StopFlag())


def starting_from(world: TinyWorld, folder: Path, earlier: Path, **changes: Any) -> TrainSettings:
    folder.mkdir(parents=True, exist_ok=True)
    initial = InitialDraft(name="v0001", folder=str(earlier), digest=draft_digest(earlier))
    revision = changes.pop("revision", "r1")
    settings = world.settings(folder, **changes)
    return settings.model_copy(update={"initial": initial, "target_revision": revision})


def damaged(draft: Path, folder: Path, change: Callable[[dict[str, Any]], Any]) -> Path:
    """A copy of a draft whose configuration was changed."""
    shutil.copytree(draft, folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    change(config)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def test_a_warm_start_begins_where_the_earlier_draft_stood(
    world: TinyWorld, tmp_path: Path, trained: tuple[Path, DraftCheckpoint], quiet: Any, never: Any
) -> None:
    folder, before = trained
    settings = starting_from(world, tmp_path, folder, max_steps=0)
    again = train_draft(settings, quiet, never)
    assert again.held_out_eal == before.held_out_eal and again.step == 0
    assert again.files["model.safetensors"] == before.files["model.safetensors"]
    assert "training started from draft v0001 (dspark)" in again.notes
    assert "draft vocabulary carried over from draft v0001: 64 tokens" in "; ".join(again.notes)
    assert again.config["init_from"] == "v0001"
    assert str(folder) not in again.model_dump_json()


def test_another_initial_draft_is_another_training(
    world: TinyWorld, tmp_path: Path, trained: tuple[Path, DraftCheckpoint]
) -> None:
    warm = starting_from(world, tmp_path, trained[0])
    moved = shutil.copytree(trained[0], tmp_path / "elsewhere")
    assert warm.identity() != world.settings(tmp_path).identity()
    assert warm.identity() == starting_from(world, tmp_path, Path(moved)).identity()
    assert warm.identity() == starting_from(world, tmp_path, trained[0], init_from=str(moved)).identity()


def test_a_warm_start_trains_at_the_lower_rate(
    world: TinyWorld, tmp_path: Path, trained: tuple[Path, DraftCheckpoint], quiet: Any, never: Any
) -> None:
    """Constant schedule without warm-up: every step has the peak rate."""
    rates = {"schedule": "constant", "warmup": 0.0, "warm_rate": 0.25, "log_every_steps": 1, "max_steps": 1}
    warm = starting_from(world, tmp_path / "warm", trained[0], **rates)
    anew = warm.model_copy(update={"initial": None, "folder": str(tmp_path / "anew")})
    logged = []
    for settings in (warm, anew):
        settings.path.mkdir(exist_ok=True)
        train_draft(settings, quiet, never)
        rows = (settings.path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        logged += [row["lr"] for row in map(json.loads, rows) if row["split"] == "train"]
    assert logged == [warm.train.lr * 0.25, warm.train.lr]


def test_the_lower_rate_decides_no_weight_of_a_new_draft(world: TinyWorld, tmp_path: Path) -> None:
    settings = world.settings(tmp_path)
    other = settings.train.model_copy(update={"warm_rate": 1.0})
    assert settings.model_copy(update={"train": other}).identity() == settings.identity()


def test_a_resumed_warm_start_does_not_start_again(
    world: TinyWorld, tmp_path: Path, trained: tuple[Path, DraftCheckpoint], quiet: Any, never: Any
) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    first = train_draft(starting_from(world, whole, trained[0], epochs=2), quiet, never)
    with pytest.raises(Stopped):
        train_draft(starting_from(world, parts, trained[0], epochs=2), quiet, StopAfter(3))
    assert 0 < Checkpoints(parts, 2).steps()[0] < first.steps
    second = train_draft(starting_from(world, parts, trained[0], epochs=2), quiet, never)
    assert first.files == second.files
    left, right = (Checkpoints(one, 2) for one in (whole, parts))
    for name, value in left.tensors(left.steps()[0])[0].items():
        assert torch.equal(value, right.tensors(right.steps()[0])[0][name]), name


def test_a_rebuilt_vocabulary_keeps_the_rows_of_common_tokens(
    world: TinyWorld, tmp_path: Path, trained: tuple[Path, DraftCheckpoint]
) -> None:
    settings = starting_from(world, tmp_path, trained[0], init_vocabulary="rebuild")
    assert vocabulary_to_carry(settings) is None
    stored = load_file(trained[0] / "model.safetensors")
    theirs = (stored["d2t"] + torch.arange(len(stored["d2t"]))).tolist()
    new = next(token for token in range(VOCAB) if token not in theirs)
    ours = vocabulary_of([*theirs[1:], new], VOCAB)
    built = make_draft(settings, ours)
    weights = adapter.trained_state(built.model)["markov_head.markov_w2.weight"]
    for row, token in enumerate(ours.target_ids().tolist()):
        if token != new:
            assert torch.equal(weights[row], stored["markov_head.markov_w2.weight"][theirs.index(token)])
    assert bool(weights[ours.target_ids().tolist().index(new)].abs().sum() > 0)
    assert "63 of 64 tokens were in that draft's" in "; ".join(built.notes)


def test_a_whole_vocabulary_is_rebuilt_from_a_pruned_one(
    world: TinyWorld, tmp_path: Path, trained: tuple[Path, DraftCheckpoint]
) -> None:
    draft = {"vocab_size": None}
    settings = starting_from(world, tmp_path, trained[0], init_vocabulary="rebuild", draft=draft)
    built = make_draft(settings, DraftVocabulary(None, None, VOCAB))
    stored = load_file(trained[0] / "model.safetensors")
    ids = stored["d2t"] + torch.arange(len(stored["d2t"]))
    weights = adapter.trained_state(built.model)["markov_head.markov_w2.weight"]
    assert torch.equal(weights[ids], stored["markov_head.markov_w2.weight"])
    with pytest.raises(StageInputError, match=r"has 64 tokens, train\.draft\.vocab_size is 512"):
        vocabulary_to_carry(settings.model_copy(update={"train": settings.train.model_copy(
            update={"init_vocabulary": "carry"})}))  # fmt: skip


def dflash(draft: Path, folder: Path) -> Path:
    """The same draft as a DFlash checkpoint of upstream's: no heads, the anchor's slot known."""

    def change(config: dict[str, Any]) -> None:
        for name in ("markov_rank", "markov_head_type", "sample_from_anchor"):
            config.pop(name)
        for name in ("enable_confidence_head", "confidence_head_with_markov"):
            config.pop(name)
        config["speculators_model_type"] = config["speculators_config"]["algorithm"] = "dflash"

    damaged(draft, folder, change)
    stored = load_file(folder / "model.safetensors")
    kept = {name: value for name, value in stored.items() if "_head." not in name or name == "lm_head.weight"}
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def test_a_dflash_draft_gets_new_heads(
    world: TinyWorld, tmp_path: Path, trained: tuple[Path, DraftCheckpoint]
) -> None:
    folder = dflash(trained[0], tmp_path / "dflash")
    with pytest.raises(StageInputError, match=r"sample_from_anchor is False, wanted True \(train.draft"):
        earlier_draft(starting_from(world, tmp_path, folder))
    settings = starting_from(world, tmp_path, folder, draft={"sample_from_anchor": False})
    vocabulary = vocabulary_to_carry(settings)
    assert vocabulary is not None and vocabulary.size == 64
    built = make_draft(settings, vocabulary)
    assert built.notes == (
        "training started from draft v0001 (dflash); its Markov head and confidence head started anew",
    )
    stored = load_file(folder / "model.safetensors")
    weights = adapter.trained_state(built.model)
    assert torch.equal(weights["layers.0.mlp.up_proj.weight"], stored["layers.0.mlp.up_proj.weight"])


def test_upstreams_own_dflash_draft_can_be_read(world: TinyWorld, tmp_path: Path) -> None:
    """Built and saved by upstream's DFlash class, not derived from one of ours."""
    from speculators.models.dflash import DFlashDraftModel

    draft = world.settings(tmp_path, draft={"sample_from_anchor": False, "vocab_size": None}).train.draft
    config = adapter.decoder_config(world.target, draft)
    options = adapter.training_options(
        world.target, draft, (1, 3), DraftVocabulary(None, None, VOCAB), VOCAB - 2
    )
    DFlashDraftModel.from_training_args(config, **options).save_pretrained(tmp_path / "dflash")
    settings = starting_from(
        world, tmp_path, tmp_path / "dflash", draft={"sample_from_anchor": False, "vocab_size": None}
    )
    built = make_draft(settings, DraftVocabulary(None, None, VOCAB))
    stored = load_file(tmp_path / "dflash" / "model.safetensors")
    assert torch.equal(adapter.trained_state(built.model)["fc.weight"], stored["fc.weight"].float())


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"draft": {"num_layers": 2}}, r"number of layers is 1, wanted 2 \(train.draft.num_layers\)"),
        ({"draft": {"block_size": 6}}, r"block size is 4, wanted 6 \(train.draft.block_size\)"),
        ({"draft": {"markov_rank": 16}}, "Markov rank is 8, wanted 16"),
        ({"draft": {"markov_head_type": "rnn"}}, "Markov head is vanilla, wanted rnn"),
        ({"draft": {"confidence_head": False}}, "confidence head is True, wanted False"),
        ({"draft": {"confidence_with_markov": False}}, "sees Markov is True, wanted False"),
        ({"draft": {"sliding_window": 8}}, "attention window is None, wanted 8"),
        ({"draft": {"intermediate_size": 32}}, "MLP width is 96, wanted 32"),
        ({"revision": "r2"}, r"the target's revision is r1, wanted r2 \(target.revision\)"),
    ],
)
def test_what_does_not_fit_is_named_with_both_values(
    world: TinyWorld,
    tmp_path: Path,
    trained: tuple[Path, DraftCheckpoint],
    changes: dict[str, Any],
    said: str,
) -> None:
    with pytest.raises(StageInputError, match=said):
        earlier_draft(starting_from(world, tmp_path, trained[0], **changes))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda c: c["transformer_layer_config"].update(hidden_size=32), "hidden size is 32, wanted 64"),
        (lambda c: c["transformer_layer_config"].update(vocab_size=999), "vocabulary is 999, wanted 512"),
        (
            lambda c: c.update(aux_hidden_state_layer_ids=[1, 2]),
            r"auxiliary layers is \[1, 2\], wanted \[1, 3\]",
        ),
        (lambda c: c["transformer_layer_config"]["rope_parameters"].update(rope_theta=5.0), "rotary setting"),
        (lambda c: c.pop("sample_from_anchor"), "does not say sample_from_anchor"),
        (lambda c: c.update(speculators_model_type="eagle3"), "'eagle3', not dspark or dflash"),
    ],
)
def test_a_draft_of_another_target_is_refused(
    world: TinyWorld, tmp_path: Path, trained: tuple[Path, DraftCheckpoint], change: Any, said: str
) -> None:
    folder = damaged(trained[0], tmp_path / "other", change)
    with pytest.raises(StageInputError, match=said):
        earlier_draft(starting_from(world, tmp_path, folder))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda t: t.pop("fc.weight"), "lacks 1 tensors, fc.weight"),
        (lambda t: t.pop("markov_head.markov_w1.weight"), "lacks 1 tensors, markov_head.markov_w1.weight"),
        (lambda t: t.update({"norm.weight": torch.zeros(3)}), r"norm.weight is \(3,\), wanted \(64,\)"),
        (lambda t: t.update({"norm.weight": t["norm.weight"] * float("nan")}), "not finite"),
        (lambda t: t.pop("d2t"), "has 64 tokens, its map d2t None"),
        (lambda t: t.update({"d2t": t["d2t"] + VOCAB}), "of a target with 512 tokens"),
    ],
)
def test_damaged_weights_are_named(
    world: TinyWorld, tmp_path: Path, trained: tuple[Path, DraftCheckpoint], damage: Any, said: str
) -> None:
    folder = shutil.copytree(trained[0], tmp_path / "damaged")
    stored = load_file(folder / "model.safetensors")
    damage(stored)
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    settings = starting_from(world, tmp_path, folder)
    with pytest.raises(StageInputError, match=said):
        make_draft(settings, vocabulary_to_carry(settings) or DraftVocabulary(None, None, VOCAB))


def test_a_draft_that_changes_during_the_run_is_refused(
    world: TinyWorld, tmp_path: Path, trained: tuple[Path, DraftCheckpoint]
) -> None:
    folder = shutil.copytree(trained[0], tmp_path / "draft")
    settings = starting_from(world, tmp_path, folder)
    vocabulary = vocabulary_to_carry(settings)
    assert vocabulary is not None
    stored = load_file(folder / "model.safetensors")
    save_file({**stored, "fc.weight": stored["fc.weight"] * 2}, folder / "model.safetensors")
    with pytest.raises(StageInputError, match="was changed since the run began"):
        make_draft(settings, vocabulary)
