"""An earlier draft as its `config.json` describes it, compared with what a profile asks for; no torch here.

The comparison runs twice: before a run exists, with what is known of the target then, and in the trainer,
with the new draft's whole configuration.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from profiles.schema import Draft, Profile
from tasks.errors import StageInputError, UsageError
from tasks.publish.versions import CHAMPION, draft_root, read_pointer
from tasks.serve.target_config import TargetConfig
from tasks.train.draft_kind import latent_attention
from tasks.train.initial import CONFIG, FIELD, INCUMBENT, InitialDraft, draft_files

KINDS = ("dspark", "dflash")


class Pair(NamedTuple):
    """A property that both drafts must share.

    Args:
        what: In words.
        theirs, ours: The earlier draft's value and the one asked for.
        field: Field of the profile that says ours.
    """

    what: str
    theirs: Any
    ours: Any
    field: str


class EarlierDraft:
    """A draft in Speculators format to start from.

    Raises:
        StageInputError: Its configuration cannot be read, or is none of DSpark or DFlash.
    """

    def __init__(self, initial: InitialDraft):
        self.name = initial.name
        self.folder = Path(initial.folder)
        try:
            read = json.loads((self.folder / CONFIG).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise self.refused(f"its {CONFIG} cannot be read: {error}") from None
        self.config: dict[str, Any] = read if isinstance(read, dict) else {}
        latent = latent_attention(self.config)
        if latent:
            raise self.refused(
                f"{latent}: DSpark drafts are trained here with the layers of Qwen3, in which these weights "
                "have no place",
                f"serve and measure it as an arm (evaluate.live.own_arms); to train, leave {FIELD} empty or "
                "name a draft with ordinary attention",
            )
        self.kind = self.config.get("speculators_model_type")
        if self.kind not in KINDS:
            raise self.refused(f"its speculators_model_type is {self.kind!r}, not dspark or dflash")
        if self.kind == "dspark" and "sample_from_anchor" not in self.config:
            # Engines read a missing field in both ways; a wrong guess shifts every slot by one.
            raise self.refused(f"its {CONFIG} does not say sample_from_anchor")

    def refused(self, why: str, hint: str = "") -> StageInputError:
        return StageInputError(
            f"training cannot start from draft {self.name}: {why}",
            where=f"{FIELD}: {self.folder}",
            hint=hint or f"name another draft with {FIELD}, or leave it empty to start anew",
        )

    def field(self, name: str, fallback: Any = None) -> Any:
        """Value of the configuration."""
        return self.config.get(name, fallback)

    def layer(self, name: str) -> Any:
        """Value of the configuration of its layers."""
        return (self.config.get("transformer_layer_config") or {}).get(name)

    @property
    def mask_token_id(self) -> int | None:
        found = self.field("mask_token_id")
        return None if found is None else int(found)

    @property
    def markov_rank(self) -> int:
        """0 without a Markov head."""
        return int(self.field("markov_rank") or 0) if self.kind == "dspark" else 0

    @property
    def has_confidence(self) -> bool:
        return self.kind == "dspark" and bool(self.field("enable_confidence_head"))

    @property
    def vocab_size(self) -> int:
        return int(self.layer("vocab_size") or 0)

    @property
    def draft_vocab_size(self) -> int:
        return int(self.field("draft_vocab_size") or self.vocab_size)

    @property
    def revision(self) -> str | None:
        verifier = (self.config.get("speculators_config") or {}).get("verifier") or {}
        return verifier.get("revision") or None

    @property
    def rope(self) -> dict[str, Any]:
        """Rotary settings, also where they are written in the older way."""
        found = dict(self.layer("rope_parameters") or {})
        if not found:
            found = {"rope_type": "default", **(self.layer("rope_scaling") or {})}
            found["rope_theta"] = self.layer("rope_theta")
        return found

    @property
    def window(self) -> int | None:
        """Attention window, of whichever layers slide."""
        return self.layer("sliding_window") if "sliding_attention" in self.layer_types else None

    @property
    def layer_types(self) -> list[str]:
        return self.layer("layer_types") or ["full_attention"] * int(self.layer("num_hidden_layers") or 0)


def require_equal(earlier: EarlierDraft, pairs: Iterable[Pair]) -> None:
    """Refuse a draft whose weights would mean something else here.

    Raises:
        StageInputError: Naming everything that differs, with both values.
    """
    wrong = [
        f"{pair.what} is {pair.theirs}, wanted {pair.ours} ({pair.field})"
        for pair in pairs
        if pair.theirs != pair.ours
    ]
    if wrong:
        raise earlier.refused(
            "; ".join(wrong),
            f"set the fields in brackets to the draft's values, or name another draft with {FIELD}",
        )


def profile_pairs(
    earlier: EarlierDraft, draft: Draft, aux_layer_ids: tuple[int, ...], revision: str | None
) -> Iterator[Pair]:
    """What the profile alone decides.

    Args:
        revision: Pinned revision of the target, if the profile names one.
    """
    yield Pair(
        "number of layers", earlier.layer("num_hidden_layers"), draft.num_layers, "train.draft.num_layers"
    )
    yield Pair("attention window", earlier.window, draft.sliding_window, "train.draft.sliding_window")
    yield Pair("block size", earlier.field("block_size"), draft.block_size, "train.draft.block_size")
    anchor = bool(earlier.field("sample_from_anchor", False))
    yield Pair("sample_from_anchor", anchor, draft.sample_from_anchor, "train.draft.sample_from_anchor")
    if draft.mask_token_id is not None:
        mask = earlier.mask_token_id
        yield Pair("mask token", mask, draft.mask_token_id, "train.draft.mask_token_id")
    layers = earlier.field("aux_hidden_state_layer_ids")
    yield Pair("auxiliary layers", layers, list(aux_layer_ids), "target.aux_layer_ids")
    if earlier.revision and revision:
        yield Pair("the target's revision", earlier.revision, revision, "target.revision")
    yield from _head_pairs(earlier, draft)


def _head_pairs(earlier: EarlierDraft, draft: Draft) -> Iterator[Pair]:
    """Heads that the earlier draft has; one that it lacks starts anew."""
    rank = earlier.markov_rank
    if rank:
        yield Pair("Markov rank", rank, draft.markov_rank, "train.draft.markov_rank")
        kind = earlier.field("markov_head_type", "vanilla")
        yield Pair("Markov head", kind, draft.markov_head_type, "train.draft.markov_head_type")
    if earlier.has_confidence:
        yield Pair("confidence head", True, draft.confidence_head, "train.draft.confidence_head")
        theirs = bool(earlier.field("confidence_head_with_markov")) and rank > 0
        ours = draft.confidence_with_markov and draft.markov_rank > 0
        yield Pair("the confidence head sees Markov", theirs, ours, "train.draft.confidence_with_markov")


def check_initial(profile: Profile, root: Path, target: TargetConfig | None) -> None:
    """Refuse an initial draft that cannot fit, before anything is captured for it.

    Args:
        root: The run root; drafts are published below it.
        target: None where the target's folder is not there yet.

    Raises:
        UsageError: It is no draft, or differs in what is known already.
    """
    folder = _folder(profile, root)
    if folder is None:
        return
    try:
        _require_fit(profile, folder, target)
    except StageInputError as error:
        raise UsageError(error.what, where=error.where, hint=error.hint) from None


def _require_fit(profile: Profile, folder: Path, target: TargetConfig | None) -> None:
    draft_files(folder)
    earlier = EarlierDraft(InitialDraft(name=folder.name, folder=str(folder), digest=""))
    pairs = list(
        profile_pairs(earlier, profile.train.draft, profile.target.aux_layer_ids, profile.target.revision)
    )
    if target is not None:
        pairs.append(Pair("hidden size", earlier.layer("hidden_size"), target.hidden_size, "target.model"))
        vocabulary = earlier.layer("vocab_size")
        pairs.append(Pair("the target's vocabulary", vocabulary, target.vocab_size, "target.model"))
    require_equal(earlier, pairs)


def _folder(profile: Profile, root: Path) -> Path | None:
    wanted = profile.train.init_from
    if wanted is None:
        return None
    if wanted != INCUMBENT:
        return Path(wanted).expanduser().absolute()
    place = draft_root(profile, root)
    version = read_pointer(place, CHAMPION)
    return None if version is None else place / version
