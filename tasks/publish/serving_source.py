"""From what a user names (version folder, run, profile, repository on a hub) to one recipe."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from profiles.deploying import Deploy, FlagValue
from profiles.load import LoadedProfile, builtin_names, load_profile
from profiles.schema import Profile
from tasks.errors import UsageError
from tasks.evaluate.hub import fetch, is_repository
from tasks.publish.serving_recipe import PORT, Place, Recipe
from tasks.publish.serving_settings import FILE, ServeSettings, read_settings, refuse_changed, refuse_strange
from tasks.publish.verify import verify_folder
from tasks.publish.versions import CHAMPION, find_incumbent, read_pointer
from tasks.run_folder import RunFolder, run_root
from tasks.stages import PUBLISH

CPU_IMAGE = "retrain-dspark:cpu"
GPU_IMAGE = "vllm/vllm-openai:latest"
_SMALL = ("config.json", FILE, "manifest.json")
_WEIGHTS = (*_SMALL, "*.safetensors", "*.json")
_SOURCES = "a version folder, a run id, a profile's name or file, or OWNER/NAME[@REVISION] on a hub"


@dataclass(frozen=True)
class Served:
    """A draft that was found, and what says how to serve it."""

    source: str
    """What the user wrote; for the champion, nothing."""
    draft: Place
    settings: ServeSettings | None
    """What it was measured with, where that was published with it."""
    profile: Profile | None
    """The profile that made or names it."""
    config: Mapping[str, Any] | None = None
    """The draft's own configuration, of a draft from a hub without settings."""
    script: bool = False
    """A published folder of this machine, whose `serve.sh` serves it."""
    notes: tuple[str, ...] = ()


def find_served(text: str | None, overrides: Mapping[str, Any] | None = None, *, weights: bool) -> Served:
    """The draft that a user names; nothing takes the champion that was chosen last.

    Args:
        overrides: Values laid over the profile.
        weights: Fetch the weights of a draft on a hub too, to serve it here.

    Raises:
        UsageError: Nothing is there by that name, or it is not a published draft.
        PublishError: The folder is not whole.
        ServiceError: The hub cannot be reached.
    """
    if text is None:
        return _of_folder(_last_champion(), "", overrides)
    path = Path(text).expanduser()
    if (path / FILE).is_file():
        return _of_folder(path.absolute(), text, overrides)
    if (run_root() / text / "profile.json").is_file():
        return _of_run(RunFolder(run_root() / text), text, overrides)
    if text in builtin_names() or path.suffix in (".yaml", ".yml", ".json"):
        return _of_profile(load_profile(text, overrides, overrides_origin="--set"), text)
    repository, _, revision = text.partition("@")
    if path.is_dir():
        return _of_folder(path.absolute(), text, overrides)
    if is_repository(repository):
        return _of_hub(repository, revision or None, text, weights=weights)
    raise UsageError(
        f"there is no published draft '{text}'",
        where=str(run_root()),
        hint=f"give {_SOURCES}; profiles: {', '.join(builtin_names())}",
    )


def recipe_of(served: Served, *, target: str | None, port: int = PORT) -> Recipe:
    """The one recipe of a draft.

    Args:
        target: Folder or hub repository of the target, in place of the one that the draft's run had.

    Raises:
        UsageError: The target's place is not known, or a flag stands twice.
    """
    profile, settings = served.profile, served.settings
    deploy = profile.deploy if profile is not None else Deploy()
    arguments = _measured_flags(served)
    cpu = settings.cpu if settings is not None else False
    name = arguments.pop("served-model-name", None) or (profile.serve.served_name if profile else "target")
    own = deploy.flags() if profile is not None else {}
    return Recipe(
        name=_plain(profile.publish.name if profile else served.draft.name),
        source=served.source or "CHAMPION",
        target=_target(served, target),
        draft=served.draft,
        served_name=str(name),
        speculation=_speculation(served),
        arguments={**arguments, **own},
        environment={**(settings.environment if settings else {}), **deploy.environment},
        image=deploy.image or (CPU_IMAGE if cpu else GPU_IMAGE),
        ready_timeout_s=deploy.ready_timeout_s,
        port=port,
        nodes=deploy.nodes,
        gpus_per_node=deploy.gpus_per_node,
        interface=deploy.interface,
        privileged=deploy.privileged,
        cpu=cpu,
        interpreter=settings.interpreter if settings is not None else False,
        notes=served.notes,
    )


def _measured_flags(served: Served) -> dict[str, FlagValue]:
    """Arguments that go before those of the profile's `deploy` part."""
    if served.settings is not None:
        return served.settings.flags(f"{served.draft.name}: {FILE}")
    if served.profile is None:
        return {}
    target = served.profile.target
    code: dict[str, FlagValue] = {"trust-remote-code": True} if target.trust_remote_code else {}
    return {**code, "max-model-len": target.max_model_len}


def _speculation(served: Served) -> dict[str, Any]:
    """The speculative options as published; the profile's where a draft came without any."""
    profile = served.profile
    backend = profile.deploy.draft_attention_backend if profile else None
    further = {"attention_backend": backend} if backend else {}
    if served.settings is not None:
        return {**served.settings.speculation(), **further}
    if profile is not None:
        live = profile.evaluate.live
        return {
            "method": "dspark",
            "num_speculative_tokens": profile.train.draft.block_size,
            "draft_sample_method": live.draft_sample_method,
            "rejection_sample_method": live.rejection_sample_method,
            **further,
        }
    return {"method": "dspark", "num_speculative_tokens": _proposed_tokens(served)}


def _proposed_tokens(served: Served) -> int:
    from tasks.evaluate.draft_source import proposed_tokens

    config = dict(served.config or {})
    block = config.get("block_size")
    if config.get("speculators_model_type") != "dspark" or not isinstance(block, int) or block < 1:
        raise UsageError(
            "it is not a DSpark draft in Speculators format",
            where=served.source,
            hint="its config.json must say speculators_model_type: dspark and block_size",
        )
    return proposed_tokens(config, block)


def _target(served: Served, given: str | None) -> Place:
    """Where the target is."""
    if given:
        return _place(given, None)
    if served.profile is not None:
        return target_of(served.profile)
    name = served.settings.target.name if served.settings is not None else _verifier(served.config)
    for known in (load_profile(one).profile for one in builtin_names()):
        if known.target.model == name and known.target.source.kind == "gguf_wheel":
            return target_of(known)
    if is_repository(name) and not Path(name).exists():
        return Place(name)
    raise UsageError(
        f"the run that made this draft is not in {run_root()}, so the place of its target is not known",
        where=served.source or served.draft.name,
        hint=f"retrain-dspark serve {served.source or served.draft.here()} --target FOLDER   "
        f"(the weights of {name or 'the target that it was trained for'})",
    )


def target_of(profile: Profile) -> Place:
    """The target of a profile: its folder, or its name on a hub where there is no such folder."""
    from tasks.serve.target_folder import resolve_target

    model = profile.target.model
    is_folder = profile.target.source.kind != "path" or Path(model).expanduser().is_dir()
    if not is_folder and is_repository(model):
        return Place(model, revision=profile.target.revision)
    folder = resolve_target(profile)
    return Place(folder.name, folder)


def _verifier(config: Mapping[str, Any] | None) -> str:
    verifier = ((config or {}).get("speculators_config") or {}).get("verifier") or {}
    return str(verifier.get("name_or_path") or "")


def _of_folder(folder: Path, source: str, overrides: Mapping[str, Any] | None) -> Served:
    settings = read_settings(folder)
    verify_folder(folder)
    profile = _profile_of(folder)
    if profile is not None and overrides:
        profile = load_profile(profile, overrides, overrides_origin="--set").profile
    return Served(source, Place(folder.name, folder), settings, profile, script=True)


def _profile_of(folder: Path) -> Profile | None:
    """The profile of the run that made the draft, if that run is still here."""
    try:
        manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    run = RunFolder(run_root() / str(manifest.get("run_id") or "-"))
    return run.profile() if (run.path / "profile.json").is_file() else None


def _of_run(run: RunFolder, source: str, overrides: Mapping[str, Any] | None) -> Served:
    published = run.stage(PUBLISH).path / "manifest.json"
    try:
        result: Any = json.loads(published.read_text(encoding="utf-8"))["result"]
        folder = Path(result["location"])
    except (OSError, ValueError, KeyError, TypeError):
        raise UsageError(
            "this run has not published a draft",
            where=source,
            hint=f"go on with it: retrain-dspark resume {source}",
        ) from None
    if not folder.is_dir() and is_repository(str(folder)):
        return _of_hub(str(folder), result.get("revision") or None, source, weights=True)
    served = _of_folder(folder, source, overrides)
    held = () if result.get("revision") else ("This draft was held, not promoted.",)
    return replace(served, notes=held)


def _of_profile(loaded: LoadedProfile, source: str) -> Served:
    """The incumbent that the profile names, else the champion of its published drafts."""
    profile = loaded.profile
    named = profile.publish.incumbent
    if named and not Path(named).expanduser().is_dir():
        repository, _, revision = named.partition("@")
        return Served(source, Place(repository, revision=revision or None), None, profile)
    if named:
        found = _of_folder(Path(named).expanduser().absolute(), source, None)
        return replace(found, profile=profile)
    champion = find_incumbent(profile, run_root())
    if champion is None:
        raise UsageError(
            f"'{profile.publish.name}' has no champion yet, and the profile names no published draft",
            where=f"{source}: publish.incumbent",
            hint=f"retrain-dspark run -p {source}, or set publish.incumbent=OWNER/NAME",
        )
    found = _of_folder(champion[1], source, None)
    return replace(found, profile=profile)


def _of_hub(repository: str, revision: str | None, source: str, *, weights: bool) -> Served:
    """A draft on a hub. No code of it is fetched, and its settings may set only what we would."""
    found = fetch(
        repository, kind="model", patterns=_WEIGHTS if weights else _SMALL, revision=revision, field="SOURCE"
    )
    place = Place(repository, found.folder if weights else None, found.revision if not weights else None)
    if weights:
        refuse_changed(found.folder, source)
    if not (found.folder / FILE).is_file():
        config = json.loads((found.folder / "config.json").read_text(encoding="utf-8"))
        return Served(source, place, None, None, config, notes=_recipes_for(repository))
    settings = read_settings(found.folder, source)
    refuse_strange(settings, source)
    return Served(source, place, settings, None)


def _recipes_for(repository: str) -> tuple[str, ...]:
    """Profiles that know more about a draft than its repository says."""
    names = [
        name
        for name in builtin_names()
        if (load_profile(name).profile.publish.incumbent or "").partition("@")[0] == repository
    ]
    return tuple(f"The profile {name} has the published recipe of this draft." for name in names)


def _last_champion() -> Path:
    """Folder of the champion; of several drafts' champions, the one whose pointer moved last."""
    pointers = sorted(run_root().glob(f"published/*/{CHAMPION}"), key=lambda path: path.stat().st_mtime)
    if not pointers:
        raise UsageError(
            "nothing was published yet",
            where=str(run_root() / "published"),
            hint=f"retrain-dspark run -p laptop; or give {_SOURCES}",
        )
    place = pointers[-1].parent
    return place / str(read_pointer(place, CHAMPION))


def _place(text: str, revision: str | None) -> Place:
    folder = Path(text).expanduser()
    if not folder.exists() and is_repository(text):
        return Place(text, revision=revision)
    return Place(folder.name, folder.absolute())


def _plain(name: str) -> str:
    """A name that compose, Slurm and Kubernetes all take."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40].strip("-") or "draft"
