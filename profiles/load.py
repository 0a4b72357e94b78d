"""name | path | inline value, plus overrides -> a checked `Profile` that knows where each value came from."""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from profiles.extending import extended
from profiles.extending import merge as merge
from profiles.problem import ProfileProblem as ProfileProblem
from profiles.schema import Profile
from profiles.text import DuplicateKey, NotAMapping, Source, parse_source

DEFAULT = "default"
_FILE_LINE = re.compile(r":\d+$")


@dataclass(frozen=True)
class LoadedProfile:
    """A checked profile.

    Args:
        profile: The profile.
        origins: Dotted field -> where its value came from: `laptop.yaml:12`, `--set`, `default`.
        digest: SHA-256 of the whole profile, hexadecimal.
    """

    profile: Profile
    origins: dict[str, str]
    digest: str

    @property
    def unknown(self) -> tuple[str, ...]:
        """Fields that a file of the profile leaves open by `null`, dotted and sorted: not published, or for
        the user to fill in. Fields that nobody mentions are defaults, and not among them."""
        values = _flat(self.profile.model_dump(mode="json"))
        return tuple(
            sorted(
                field
                for field, origin in self.origins.items()
                if values.get(field) is None and field in values and _FILE_LINE.search(origin)
            )
        )


def builtin_names() -> tuple[str, ...]:
    """Names of the profiles that come with the project, sorted."""
    folder = resources.files("profiles")
    return tuple(sorted(item.name[:-5] for item in folder.iterdir() if item.name.endswith(".yaml")))


def load_profile(
    spec: str | Path | Mapping[str, Any] | Profile,
    overrides: Mapping[str, Any] | None = None,
    *,
    overrides_origin: str = "overrides",
) -> LoadedProfile:
    """Load a profile and lay overrides over it.

    Args:
        spec: Built-in name, path of a YAML or JSON file, or the values themselves.
        overrides: Nested values to merge over it; a mapping is merged, anything else replaces.
        overrides_origin: What `origins` says for overridden values.

    Raises:
        ProfileProblem: Unknown name, unreadable file, duplicate key, unknown field, wrong value.
    """
    source = extended(_source(spec), _named_by)
    lines = dict(source.lines)
    values = merge(source.values, overrides or {})
    overridden = set(_leaves(overrides or {}))
    try:
        profile = Profile.model_validate(values)
    except ValidationError as error:
        raise _problem(error, values, source, overridden, overrides_origin) from None
    origins = {
        field: _origin(field, lines, overridden, overrides_origin)
        for field in _leaves(profile.model_dump(mode="json"))
    }
    return LoadedProfile(profile, origins, profile_digest(profile))


def profile_digest(profile: Profile) -> str:
    """SHA-256 of a profile's values, hexadecimal; equal profiles have equal digests."""
    text = json.dumps(profile.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def parse_assignments(assignments: tuple[str, ...]) -> dict[str, Any]:
    """`("train.epochs=2", ...)` -> `{"train": {"epochs": 2}}`; values are read as YAML.

    Raises:
        ProfileProblem: No `=`, an empty field, or a value that is not YAML.
    """
    values: dict[str, Any] = {}
    for assignment in assignments:
        field, equals, text = assignment.partition("=")
        parts = field.strip().split(".")
        if not equals or not all(parts):
            raise ProfileProblem(
                f"'{assignment}' is not FIELD=VALUE", where="--set", hint="for example: --set train.epochs=2"
            )
        try:
            value = parse_source(f"value: {text}\n", "--set").values["value"]
        except (yaml.YAMLError, DuplicateKey, NotAMapping):
            raise ProfileProblem(
                f"the value of '{assignment}' cannot be read", where="--set", hint="quote it"
            ) from None
        for part in reversed(parts):
            value = {part: value}
        values = merge(values, value)
    return values


def _source(spec: str | Path | Mapping[str, Any] | Profile) -> Source:
    """Values of the profile before overrides, with the line of each field."""
    if isinstance(spec, Profile):
        return Source("inline", spec.model_dump(mode="json", exclude_unset=True), {})
    if isinstance(spec, Mapping):
        return Source("inline", dict(spec), {})
    names = builtin_names()
    text = str(spec)
    if text in names:
        return _read(Path(str(resources.files("profiles"))) / f"{text}.yaml")
    looks_like_path = isinstance(spec, Path) or "/" in text or text.endswith((".yaml", ".yml", ".json"))
    if looks_like_path:
        return _read(Path(text).expanduser())
    close = difflib.get_close_matches(text, names, n=1)
    raise ProfileProblem(
        f"unknown profile '{text}'",
        where="profile",
        hint=(f"did you mean '{close[0]}'? " if close else "")
        + f"profiles: {', '.join(names)}; or the path of a YAML or JSON file",
    )


def _read(path: Path) -> Source:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise ProfileProblem(
            f"the profile cannot be read: {reason}",
            where=str(path),
            hint=f"give a YAML or JSON file, or one of: {', '.join(builtin_names())}",
        ) from None
    try:
        return dataclasses.replace(parse_source(text, path.name), place=str(path.absolute()))
    except DuplicateKey as error:
        raise ProfileProblem(
            f"'{error.key}' is given twice, in line {error.first_line} and in line {error.line}",
            where=f"{path}:{error.line}",
            hint="keep one of them",
        ) from None
    except NotAMapping:
        raise ProfileProblem(
            "the profile is empty or not a mapping of fields",
            where=str(path),
            hint="start from a built-in profile, for example profiles/laptop.yaml",
        ) from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        what = getattr(error, "problem", None) or "it is not YAML or JSON"
        raise ProfileProblem(f"the profile cannot be parsed: {what}", where=f"{path}{line}") from None


def _named_by(name: str, by: Source) -> Source:
    """The profile that `by` extends: a built-in one, or a file beside it."""
    if name in builtin_names() or Path(name).is_absolute() or not by.place:
        return _source(name)
    return _source(Path(by.place).parent / name)


def _flat(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Dotted name -> value of everything that is not a non-empty mapping."""
    flat: dict[str, Any] = {}
    for key, inner in value.items():
        name = f"{prefix}{key}"
        flat |= _flat(inner, f"{name}.") if isinstance(inner, Mapping) and inner else {name: inner}
    return flat


def _leaves(value: Mapping[str, Any]) -> list[str]:
    """Dotted names of everything that is not a non-empty mapping."""
    return list(_flat(value))


def _origin(field: str, lines: Mapping[str, str], overridden: set[str], overrides_origin: str) -> str:
    """Where a value came from: an override, a line of the file, or a default."""
    if any(field == name or field.startswith(f"{name}.") for name in overridden):
        return overrides_origin
    return lines.get(field, DEFAULT)


def _problem(
    error: ValidationError,
    values: Mapping[str, Any],
    source: Source,
    overridden: set[str],
    overrides_origin: str,
) -> ProfileProblem:
    """One line for each field at fault: field, value, what is allowed, and where the value stands."""
    lines, places = [], []
    for fault in error.errors(include_url=False):
        field = ".".join(str(part) for part in fault["loc"])
        top = ".".join(str(part) for part in fault["loc"] if isinstance(part, str))
        lines.append(_describe(fault, field, values))
        places.append(_origin(top, source.lines, overridden, overrides_origin))
    known = sorted({place for place in places if place != DEFAULT})
    return ProfileProblem(
        "\n".join(lines),
        where=", ".join(known) or source.name,
        hint="correct the field; every field is described in profiles/schema.py and the parts beside it",
    )


def _describe(fault: Any, field: str, values: Mapping[str, Any]) -> str:
    value = json.dumps(fault.get("input"), default=str, ensure_ascii=False)
    value = value if len(value) <= 60 else value[:57] + "..."
    if fault["type"] == "extra_forbidden":
        siblings = field_names(fault["loc"][:-1])
        close = difflib.get_close_matches(str(fault["loc"][-1]), siblings, n=2, cutoff=0.5)
        guess = f"did you mean {' or '.join(close)}? " if close else ""
        return f"{field}: unknown field; {guess}fields here: {', '.join(siblings)}"
    if fault["type"] == "missing":
        return f"{field}: missing; it has no default"
    message = fault["msg"].removeprefix("Value error, ")
    message = message.replace("Input should be ", "must be ")
    return f"{field}: {value}: {message}" if field else message


def field_names(path: tuple[str | int, ...]) -> list[str]:
    """Names of the fields of the profile's part at `path`; empty where there is no such part."""
    model: type[BaseModel] = Profile
    for part in path:
        field = model.model_fields.get(str(part))
        if field is None or not (
            isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
        ):
            return []
        model = field.annotation
    return list(model.model_fields)
