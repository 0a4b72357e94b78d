"""The registry in MLflow: one registered model a draft, one version for each candidate, and the aliases.

Everything is found before it is made, so an operation that is sent twice leaves the same. Weights stay where
they are: a version names their place, and holds only the small files that describe them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

DRAFT = "dspark.draft"
"""Tag: `<run id>:<start of the weights' digest>`, what a candidate is found by."""
VERSION = "dspark.version"
"""Tag: the version's folder; empty for a held draft."""
MODEL = "dspark.model_id"
"""Tag: the LoggedModel of a version."""
CANDIDATE = "candidate"
_MODEL_TYPE = "dspark-draft"
_MAX_TAG_CHARS = 4000


def register(
    client: Any, experiment_id: str, run_id: str, operation: Mapping[str, Any], with_files: bool
) -> None:
    """Let a candidate have its LoggedModel and its version of the registered model, with all tags.

    Args:
        client: `MlflowClient`.
        run_id: MLflow run of the pipeline run that made it.
        operation: `name`, `draft`, `candidate` (whether a new one gets that alias), `tags`, `files`.
        with_files: Whether the artifact store can be written.
    """
    name, draft = operation["name"], operation["draft"]
    tags = {key: str(value)[:_MAX_TAG_CHARS] for key, value in operation["tags"].items()}
    tags[DRAFT] = draft
    _registered_model(client, name)
    version = _version_of(client, name, DRAFT, draft)
    is_new = version is None
    if version is None:
        model = _logged_model(client, experiment_id, run_id, name, draft, tags)
        if with_files:
            for path in operation["files"]:
                _store_file(client, model.model_id, Path(path))
        client.finalize_logged_model(model.model_id, "READY")
        tags[MODEL] = model.model_id
        # Its own artifacts are the one source that every kind of store and server takes. With its tags from
        # the start, a version that was made before a kill is found again.
        version = client.create_model_version(
            name,
            model.artifact_location,
            run_id=run_id,
            tags=tags,
            model_id=model.model_id,
            await_creation_for=0,
        )
    for key, value in tags.items():
        client.set_model_version_tag(name, version.version, key, value)
    # A search does not tell a version's model, so that a tag does.
    client.set_logged_model_tags(tags.get(MODEL) or version.tags[MODEL], tags)
    client.set_tag(run_id, "dspark.registered", f"models:/{name}/{version.version}")
    if is_new and operation["candidate"]:
        client.set_registered_model_alias(name, CANDIDATE, version.version)


def set_aliases(client: Any, operation: Mapping[str, Any]) -> list[str]:
    """Let the aliases name the versions that the pointer files name; one without a version is removed.

    The candidate that became champion is no candidate any more.

    Args:
        operation: `name` of the registered model, `aliases` as alias -> version folder or None.

    Returns:
        Version folders that have no version in the registry.
    """
    name, missing = operation["name"], []
    known = {version.tags.get(VERSION, ""): version for version in _versions(client, name)}
    has = dict(client.get_registered_model(name).aliases) if known else {}
    for alias, folder in operation["aliases"].items():
        wanted = known.get(folder) if folder else None
        if folder and wanted is None:
            missing.append(folder)
        elif wanted is None and alias in has:
            client.delete_registered_model_alias(name, alias)
        elif wanted is not None and str(has.get(alias)) != str(wanted.version):
            client.set_registered_model_alias(name, alias, wanted.version)
    champion = known.get(operation["aliases"].get("champion") or "")
    if champion is not None and str(has.get(CANDIDATE)) == str(champion.version):
        client.delete_registered_model_alias(name, CANDIDATE)
    return missing


def _registered_model(client: Any, name: str) -> None:
    if not client.search_registered_models(f"name = '{name}'", max_results=1):
        client.create_registered_model(name, tags={"dspark.kind": _MODEL_TYPE})


def _versions(client: Any, name: str) -> list[Any]:
    """All versions with their tags, newest first; searches list what is not yet indexed, too."""
    return list(client.search_model_versions(f"name = '{name}'"))


def _version_of(client: Any, name: str, tag: str, value: str) -> Any | None:
    return next((one for one in _versions(client, name) if one.tags.get(tag) == value), None)


def _logged_model(
    client: Any, experiment_id: str, run_id: str, name: str, draft: str, tags: Mapping[str, str]
) -> Any:
    """The LoggedModel of a draft; an attempt that was killed after making it left it."""
    found = client.search_logged_models([experiment_id], filter_string=f"tags.`{DRAFT}` = '{draft}'")
    if found:
        return found[0]
    return client.create_logged_model(
        experiment_id, name=name, source_run_id=run_id, tags=dict(tags), model_type=_MODEL_TYPE
    )


def _store_file(client: Any, model_id: str, path: Path) -> None:
    """Copy one small file to the model's artifacts; the registry is of use without it."""
    import shutil
    import tempfile

    if not path.is_file():
        return
    with tempfile.TemporaryDirectory() as folder:
        shutil.copyfile(path, Path(folder) / path.name)
        client.log_model_artifacts(model_id, folder)
