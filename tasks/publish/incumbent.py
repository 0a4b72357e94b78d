"""What a candidate has to beat: the champion, or the draft that the profile names instead."""

from __future__ import annotations

from pathlib import Path

from profiles.schema import Profile
from tasks.errors import UsageError
from tasks.evaluate.draft_source import find_draft
from tasks.evaluate.models import EvaluationReport
from tasks.publish.gate import ToBeat
from tasks.publish.records import TargetFacts, read_record, target_changes, target_of_folder
from tasks.publish.versions import CHAMPION, PREVIOUS, draft_root, find_incumbent, read_pointer
from tasks.run_folder import RunFolder
from tasks.serve.models import TargetIdentity
from tasks.train.initial import draft_digest

FIELD = "publish.incumbent"


def resolve_incumbent(profile: Profile, root: Path) -> tuple[str, Path] | None:
    """Name and folder of the incumbent; a repository of a hub is downloaded. None before a first publication.

    The name of a draft that the profile names holds what identifies it: the commit of a hub, or a digest of
    the folder's files. So an evaluation is not reused for another draft of the same name.

    Raises:
        UsageError: The profile names something that is no draft.
        ServiceError: The hub cannot be reached.
        PublishError: The champion is not whole.
    """
    wanted = profile.publish.incumbent
    if wanted is None:
        return find_incumbent(profile, root)
    try:
        found = find_draft(wanted)
    except UsageError as error:
        raise UsageError(
            error.what,
            where=FIELD,
            hint="name a folder in Speculators format, or OWNER/NAME or OWNER/NAME@REVISION of a hub",
        ) from None
    if found.revision is not None:
        return f"{found.name}@{found.revision[:12]}", found.folder
    return f"{found.folder.name}@{draft_digest(found.folder)[:12]}", found.folder


def to_beat(profile: Profile, run: RunFolder, own: str | None, target: TargetFacts) -> ToBeat | None:
    """The incumbent of a decision, and what changed about the target since it was made.

    Args:
        own: Version that this run has published already; as champion it is not to be beaten, but the one
            before it is.
    """
    place = draft_root(profile, run.path.parent)
    if profile.publish.incumbent is not None:
        known = run.facts().get("incumbent") or []
        if not known:
            return ToBeat(profile.publish.incumbent)
        return ToBeat(known[0], target_changes(target_of_folder(Path(known[1])), target))
    champion = read_pointer(place, CHAMPION)
    if champion is not None and champion == own:
        champion = read_pointer(place, PREVIOUS)
    if champion is None:
        return None
    record = read_record(place, champion)
    made_for = record.target if record else target_of_folder(place / champion)
    return ToBeat(champion, target_changes(made_for, target))


def target_facts(identity: TargetIdentity, evaluation: EvaluationReport) -> TargetFacts:
    """The target of this run; the engine is the one that served the arms."""
    engine = next((arm.engine for arm in evaluation.arms if arm.engine), identity.engine)
    return TargetFacts(
        weights=identity.model_digest,
        tokenizer=identity.tokenizer_digest,
        template=identity.template_digest,
        dtype=identity.dtype,
        engine=engine,
    )
