"""The draft that a training run works on: new, or with an earlier draft's weights; counted either way."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from tasks.errors import JobError
from tasks.train import adapter
from tasks.train.earlier import EarlierDraft
from tasks.train.initial import draft_digest
from tasks.train.settings import TrainSettings
from tasks.train.size import serving_parameters, trained_parameters
from tasks.train.vocabulary import DraftVocabulary
from tasks.train.warm_start import Wanted, carried_vocabulary, check_fits, put_weights


@dataclass(frozen=True)
class BuiltDraft:
    """A draft ready to train.

    Args:
        model: In float32; the target's own weights in it are frozen.
        notes: What was adjusted, for the draft's card.
        parameters: One line with the counts.
    """

    model: nn.Module
    notes: tuple[str, ...]
    parameters: str


def earlier_draft(settings: TrainSettings) -> EarlierDraft | None:
    """The draft to start from, looked through before anything large is read.

    Raises:
        StageInputError: It does not fit.
    """
    initial = settings.initial
    if initial is None:
        return None
    earlier = EarlierDraft(initial)
    draft = settings.train.draft
    decoder = adapter.decoder_config(Path(settings.target_dir), draft, settings.own_code)
    check_fits(earlier, Wanted(draft, decoder, settings.aux_layer_ids, settings.target_revision))
    return earlier


def _require_unchanged(earlier: EarlierDraft, digest: str) -> None:
    if (found := draft_digest(earlier.folder)) != digest:
        raise earlier.refused(
            f"it was changed since the run began: its digest is {found[:16]}, it was {digest[:16]}",
            "put the files back, or start a new run",
        )


def vocabulary_to_carry(settings: TrainSettings) -> DraftVocabulary | None:
    """The earlier draft's vocabulary where it is to be kept; None where one must be chosen.

    Raises:
        StageInputError: It is another one than the profile asks for.
    """
    earlier = earlier_draft(settings)
    if earlier is None or settings.train.init_vocabulary == "rebuild":
        return None
    return carried_vocabulary(earlier, settings.train.draft.vocab_size)


def make_draft(settings: TrainSettings, vocabulary: DraftVocabulary) -> BuiltDraft:
    """Build the draft that `settings` describe.

    Raises:
        StageInputError: The earlier draft does not fit, or was changed since the run began.
        JobError: The parameters are not as many as the formula says.
    """
    earlier = earlier_draft(settings)
    train, notes = settings.train, []
    target = Path(settings.target_dir)
    mask = earlier.mask_token_id if earlier is not None else None
    model: Any = adapter.build_draft(
        target, train.draft, settings.aux_layer_ids, vocabulary, train.seed, mask, settings.own_code
    )
    if earlier is not None and settings.initial is not None:
        _require_unchanged(earlier, settings.initial.digest)
        notes.append(put_weights(earlier, adapter.trained_state(model), vocabulary))
        size = model.config.transformer_layer_config.vocab_size
        usual = train.draft.mask_token_id
        if usual is None:
            usual = adapter.mask_token_id(target, size, settings.own_code)
        if mask is not None and mask != usual:
            notes.append(f"mask token {mask} of draft {earlier.name} is kept; a new draft's would be {usual}")
    return BuiltDraft(model, tuple(notes), count_parameters(model))


def count_parameters(model: nn.Module) -> str:
    """One line with the draft's parameters, counted and by the formula.

    Raises:
        JobError: They differ.
    """
    shape = adapter.draft_shape(model)
    counted = sum(value.numel() for value in adapter.trained_state(model).values())
    wanted = trained_parameters(shape)
    if counted != wanted:
        raise JobError(
            f"the draft has {counted:,} trained parameters, by its sizes they should be {wanted:,}",
            where="speculators",
            hint=f"this project is written for speculators {adapter.SPECULATORS}; install that version",
        )
    return f"{counted:,} parameters are trained, {serving_parameters(shape):,} serve"
