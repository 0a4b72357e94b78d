"""Which draft training starts from: found once a run and known by its content, not by its path."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from profiles.schema import Profile
from tasks.errors import StageInputError
from tasks.publish.check_folder import MANIFEST
from tasks.publish.versions import find_incumbent
from tasks.run_folder import RunFolder
from tasks.stage import canonical, sha256_file, sha256_text

INCUMBENT = "incumbent"
CONFIG = "config.json"
FIELD = "train.init_from"
_FACT = "initial_draft"


class InitialDraft(BaseModel):
    """The draft that training starts from."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    """Version of the champion, or the folder's own name; what notes and the card say."""
    folder: str
    """Where it lies; never published."""
    digest: str
    """Identity of its configuration and weights."""


def resolve_initial(profile: Profile, run: RunFolder) -> InitialDraft | None:
    """The draft that `train.init_from` names; None for a new one.

    The first answer of a run counts for all its attempts: the champion may move meanwhile.

    Raises:
        StageInputError: The folder holds no draft.
        PublishError: The champion is not whole.
    """
    wanted = profile.train.init_from
    if wanted is None:
        return None
    known = run.facts().get(_FACT)
    if known is not None and known["asked"] == wanted:
        return InitialDraft(**known["found"]) if known["found"] else None
    found = _find(profile, run, wanted)
    run.remember(**{_FACT: {"asked": wanted, "found": found.model_dump() if found else None}})
    return found


def _find(profile: Profile, run: RunFolder, wanted: str) -> InitialDraft | None:
    if wanted == INCUMBENT:
        champion = find_incumbent(profile, run.path.parent)
        return None if champion is None else _named(champion[0], champion[1])
    folder = Path(wanted).expanduser().absolute()
    return _named(folder.name, folder)


def _named(name: str, folder: Path) -> InitialDraft:
    return InitialDraft(name=name, folder=str(folder), digest=draft_digest(folder))


def draft_digest(folder: Path) -> str:
    """Identity of the draft in `folder`: its configuration and weights, wherever they lie.

    Raises:
        StageInputError: It holds no `config.json` or no weights.
    """
    names, known = draft_files(folder), _published_digests(folder)
    return sha256_text(canonical({name: known.get(name) or sha256_file(folder / name) for name in names}))


def draft_files(folder: Path) -> list[str]:
    """Names of the files that make the draft in `folder`.

    Raises:
        StageInputError: It holds no `config.json` or no weights.
    """
    files = sorted(folder.glob("*.safetensors"))
    if not (folder / CONFIG).is_file() or not files:
        missing = CONFIG if not (folder / CONFIG).is_file() else "*.safetensors"
        raise StageInputError(
            f"the initial draft has no {missing}",
            where=f"{FIELD}: {folder}",
            hint="name a folder with config.json and model.safetensors of a DSpark or DFlash draft",
        )
    return [CONFIG, *(path.name for path in files)]


def _published_digests(folder: Path) -> dict[str, str]:
    """File digests in the manifest of a published folder, which was verified when it was found."""
    try:
        files = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["files"]
    except (OSError, ValueError, KeyError):
        return {}
    return {str(name): str(digest) for name, digest in files.items()} if isinstance(files, dict) else {}
