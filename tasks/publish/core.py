"""Publish: decide, then let a verified folder appear and move the champion, or keep the draft in the run."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

from profiles.schema import Profile
from tasks.evaluate.models import EvaluationReport
from tasks.publish.check_folder import MANIFEST
from tasks.publish.gate import decide, rules_of
from tasks.publish.hub.models import HubRelease
from tasks.publish.hub.publisher import HubPublisher
from tasks.publish.incumbent import target_facts, to_beat
from tasks.publish.models import Decision, Publication, Word
from tasks.publish.package import Package
from tasks.publish.records import Move, VersionRecord, note_move, now, withdrawn, write_record
from tasks.publish.serving import serve_command
from tasks.publish.verify import verify_folder
from tasks.publish.versions import (
    CHAMPION,
    add_version,
    draft_root,
    promote,
    published_by,
    read_pointer,
)
from tasks.run_folder import RunFolder
from tasks.serve.models import TargetIdentity
from tasks.stage import sha256_file
from tasks.stream.models import CaptureManifest
from tasks.train.models import DraftCheckpoint
from tasks.validate.models import ValidationReport

HELD = "held"


def publish(
    profile: Profile,
    run: RunFolder,
    folder: Path,
    draft: DraftCheckpoint,
    draft_dir: Path,
    evaluation: EvaluationReport,
    identity: TargetIdentity,
    captures: CaptureManifest,
    validation: ValidationReport,
    target_dir: Path,
    lineage: dict[str, str],
    words: tuple[Word, ...] = (),
    publisher: HubPublisher | None = None,
) -> Publication:
    """Decide about a draft and act on it.

    A promoted draft becomes a new version; the champion moves last. A held one is packed in the stage folder.

    Args:
        folder: The stage's folder.
        draft_dir: Export in Speculators format.
        lineage: Ids of this run elsewhere; only ids and digests of it are published.
        words: What people said about this draft. No word overrides a refusal.
        publisher: Where else a promoted draft goes; None without a hub.

    Raises:
        PublishError: The draft is damaged, a file would tell a path or a secret, or the hub did not take it.
    """
    place, weights = draft_root(profile, run.path.parent), sha256_file(draft_dir / "model.safetensors")
    own = published_by(place, run.run_id, weights)
    decision = decided(profile, run, draft, draft_dir, evaluation, identity, captures, words)
    package = Package(
        profile=profile,
        run_id=run.run_id,
        draft=draft,
        draft_dir=draft_dir,
        target_dir=target_dir,
        decision=decision,
        evaluation=evaluation,
        identity=identity,
        captures=captures,
        validation=validation,
        lineage=lineage,
        private_folders=(run.path, run.path.parent, place, draft_dir, target_dir, folder),
    )
    revision, location, release = (
        promoted(place, own, package, weights, publisher, folder / ".hub")
        if decision.promote
        else ("", hold(folder, package), None)
    )
    return Publication(
        decision=decision,
        kind="hub" if release else "local",
        location=release.repo if release else str(location),
        revision=release.revision if release else revision,
        serve_command=serve_command(location, target_dir, sys.executable),
        files=published_files(location),
        hub=release,
    )


def published_files(location: Path) -> dict[str, str]:
    """File name -> SHA-256 of everything in a published folder, its manifest included."""
    manifest = json.loads((location / MANIFEST).read_text(encoding="utf-8"))
    return {**manifest["files"], MANIFEST: sha256_file(location / MANIFEST)}


def decided(
    profile: Profile,
    run: RunFolder,
    draft: DraftCheckpoint,
    draft_dir: Path,
    evaluation: EvaluationReport,
    identity: TargetIdentity,
    captures: CaptureManifest,
    words: tuple[Word, ...] = (),
) -> Decision:
    """The decision about a draft as things stand now; nothing is done about it."""
    place = draft_root(profile, run.path.parent)
    own = published_by(place, run.run_id, sha256_file(draft_dir / "model.safetensors"))
    incumbent = to_beat(profile, run, own, target_facts(identity, evaluation))
    return decide(rules_of(profile), evaluation, draft, captures, incumbent, words, withdrawn(place, own))


def promoted(
    place: Path,
    own: str | None,
    package: Package,
    weights: str,
    publisher: HubPublisher | None,
    work: Path,
) -> tuple[str, Path, HubRelease | None]:
    """Make the version here, publish it on the hub, and let the champion point at it last of all.

    Version, hub, record, note of the move, pointer: a run that was killed between two of them does the rest
    once.
    """
    if publisher is not None and own is not None and publisher.gave_away(place / own):
        own = None  # the hub has another draft under that number
    revision, location = versioned(place, own, package, publisher.newest() if publisher else 0)
    release = publisher.release(location, work) if publisher else None
    write_record(place, record_of(package, revision, weights, release))
    champion = read_pointer(place, CHAMPION)
    if champion != revision:
        note_move(place, move_of(package, champion, revision))
    promote(place, revision)
    return revision, location, release


def versioned(place: Path, own: str | None, package: Package, above: int) -> tuple[str, Path]:
    """Add a version, unless this run did so before it was interrupted.

    Args:
        above: Highest number that is taken elsewhere.
    """
    revision = own or add_version(place, package.build, above)
    verify_folder(place / revision)
    return revision, place / revision


def record_of(package: Package, version: str, weights: str, release: HubRelease | None) -> VersionRecord:
    on_hub = release and {"repo": release.repo, "revision": release.revision, "commit": release.commit}
    return VersionRecord(
        name=package.profile.publish.name,
        version=version,
        run_id=package.run_id,
        weights=weights,
        captures=package.captures.digest,
        target=target_facts(package.identity, package.evaluation),
        decision=package.decision,
        lineage=dict(package.lineage),
        hub=on_hub,
    )


def move_of(package: Package, left: str | None, to: str) -> Move:
    spoken = package.decision.words[-1] if package.decision.words else None
    by, why = (spoken.by, spoken.why) if spoken else ("the gate", "")
    return Move(move="promote", left=left, to=to, at=now(), by=by, why=why, run_id=package.run_id)


def hold(folder: Path, package: Package) -> Path:
    """Pack a held draft in the stage folder, complete or absent."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    held, staging = folder / HELD, folder / f".{HELD}"
    for old in (held, staging):
        shutil.rmtree(old, ignore_errors=True)
    staging.mkdir(mode=0o700)
    package.build(staging, HELD)
    verify_folder(staging)
    staging.rename(held)
    return held
