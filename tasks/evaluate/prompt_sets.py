"""Public prompt sets as prompt sources: `set:NAME`, `set:NAME/PART`, `set:NAME@FOLDER` (a local copy).

Each comes from its hub at a revision that is recorded, or from a folder with the same files. Rows become
prompts of this project's form in the user's cache; nothing of a set goes into a report or a published draft.
"""

from __future__ import annotations

import importlib.resources
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from tasks.errors import UsageError
from tasks.evaluate.hub import fetch
from tasks.evaluate.prompt_sets_rows import Converted, longbench_rows, plain_rows, speed_rows
from tasks.serve.cache_folder import cache_root
from tasks.stage import canonical, sha256_file, sha256_text, write_atomic

PREFIX = "set:"
_PACKAGE = "package:"
_SOURCE = "source.json"
_FORMAT = 1
"""Raised when rows are converted differently, so that older files in the cache are not taken."""


@dataclass(frozen=True)
class PromptSetKind:
    """A public set: where it is, which files it has, how its rows become prompts."""

    repository: str
    patterns: tuple[str, ...]
    """Paths below the folder, with `{part}` for the chosen part; `*` matches `/` too, as for the hub."""
    part: str
    """What is taken where none is named."""
    convert: Callable[[Iterable[Path]], Iterator[Converted]]


KINDS: Mapping[str, PromptSetKind] = {
    "speculator_benchmarks": PromptSetKind(
        "RedHatAI/speculator_benchmarks", ("{part}.jsonl",), "*", plain_rows
    ),
    "speed_bench": PromptSetKind(
        "nvidia/SPEED-Bench", ("*{part}*.parquet", "*{part}*.jsonl"), "qualitative", speed_rows
    ),
    "longbench_v2": PromptSetKind("zai-org/LongBench-v2", ("{part}.json",), "data", longbench_rows),
}


@dataclass(frozen=True)
class _Named:
    """One source, taken apart."""

    text: str
    name: str
    kind: PromptSetKind
    part: str
    folder: str


def is_prompt_set(source: str) -> bool:
    """Whether a prompt source names a set."""
    return source.startswith(PREFIX)


def files_of_set(source: str, field: str) -> list[Path]:
    """Prompt files of a set, one for each of its files, in the user's cache.

    Args:
        source: As above.
        field: Field of the profile, for errors.

    Raises:
        UsageError: No such set, folder or file, or only placeholders in it.
        ServiceError: Its hub cannot be reached and the cache has not got it.
    """
    named = _parse(source, field)
    folder, origin = _located(named, field)
    patterns = [pattern.format(part=named.part) for pattern in named.kind.patterns]
    found = [
        path
        for path in sorted(folder.rglob("*"))
        if path.is_file() and any(fnmatch(path.relative_to(folder).as_posix(), one) for one in patterns)
    ]
    if not found:
        raise UsageError(
            f"'{folder}' has no file of {named.name} ({', '.join(patterns)})",
            where=field,
            hint="give the folder of a copy of the set as its hub has it",
        )
    digest = sha256_text(canonical([_FORMAT, [[path.name, sha256_file(path)] for path in found]]))
    made = cache_root() / "prompt-sets" / f"{named.name}-{digest[:16]}"
    if not (made / _SOURCE).is_file():
        _make(named, found, made, field)
    counts = json.loads((made / _SOURCE).read_text(encoding="utf-8"))
    write_atomic(made / _SOURCE, json.dumps({**counts, "origin": origin}))
    return sorted(made.glob("*.jsonl"))


def set_notes(sources: Iterable[str]) -> list[str]:
    """What a report says of the sets among the sources: origin, revision, rows and what was left out."""
    notes = []
    for source in sources:
        if is_prompt_set(source):
            made = files_of_set(source, "prompts.evaluate")[0].parent
            known = json.loads((made / _SOURCE).read_text(encoding="utf-8"))
            left = f", {known['left_out']} placeholders left out" if known["left_out"] else ""
            notes.append(f"prompt set {source}: {known['origin']}; {known['rows']} rows{left}")
    return notes


def _parse(source: str, field: str) -> _Named:
    text, _, folder = source.removeprefix(PREFIX).partition("@")
    name, _, part = text.partition("/")
    kind = KINDS.get(name)
    if kind is None:
        raise UsageError(
            f"there is no prompt set '{name}'",
            where=field,
            hint=f"sets: {', '.join(PREFIX + known for known in KINDS)}",
        )
    if any(sign in part for sign in "*?[]/{}") or part.startswith("."):
        raise UsageError(f"'{part}' cannot be a part of {name}", where=field, hint="give its plain name")
    return _Named(source, name, kind, part or kind.part, folder)


def _located(named: _Named, field: str) -> tuple[Path, str]:
    """The folder of the set's files, and where they are from, for people."""
    if not named.folder:
        patterns = [pattern.format(part=named.part) for pattern in named.kind.patterns]
        found = fetch(
            named.kind.repository, kind="dataset", patterns=patterns, field=f"{field}: {named.text}"
        )
        return found.folder, f"{found.repository} at revision {found.revision}"
    if named.folder.startswith(_PACKAGE):
        folder = Path(str(importlib.resources.files("profiles"))) / named.folder.removeprefix(_PACKAGE)
    else:
        folder = Path(named.folder).expanduser()
    if not folder.is_dir():
        raise UsageError(
            f"there is no folder '{named.folder}'",
            where=f"{field}: {named.text}",
            hint="give one that exists",
        )
    return folder, f"local copy {named.folder}"


def _make(named: _Named, files: Iterable[Path], made: Path, field: str) -> None:
    """Convert the rows, one prompt file for each domain of the set."""
    by_domain: dict[str, list[str]] = {}
    left_out = 0
    for row in _converted(named, files, field):
        if row.prompt is None:
            left_out += 1
        else:
            by_domain.setdefault(row.domain, []).append(json.dumps(row.prompt, ensure_ascii=False))
    if not by_domain:
        raise UsageError(
            f"every row of {named.name} is a placeholder" if left_out else f"{named.name} has no rows",
            where=f"{field}: {named.text}",
            hint="run the set's own preparation program, which fetches the texts from their owners, and name "
            f"the folder that it writes: {PREFIX}{named.name}@FOLDER",
        )
    made.mkdir(parents=True, exist_ok=True, mode=0o700)
    for domain, rows in by_domain.items():
        write_atomic(made / f"{domain}.jsonl", "".join(f"{row}\n" for row in rows))
    kept = sum(map(len, by_domain.values()))
    write_atomic(made / _SOURCE, json.dumps({"rows": kept, "left_out": left_out}))


def _converted(named: _Named, files: Iterable[Path], field: str) -> list[Converted]:
    try:
        return list(named.kind.convert(files))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"{named.name} cannot be read as such a set: {type(error).__name__}: {error}",
            where=f"{field}: {named.text}",
            hint="give a copy of the set as its hub has it",
        ) from None
