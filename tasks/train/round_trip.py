"""Does a draft's config.json survive `speculators`' own configuration class, as it is installed?

    python -m tasks.train.round_trip FOLDER     JSON on stdout: {"digest", "differences", "version"}

A key that the class drops, or a value that it changes, means another thing to every reader that goes through
the class. The class takes seconds to import, so the exporter, which has it loaded, does this once and keeps
the digest of what it tried; publication starts this module only for a configuration that nobody tried.
"""

from __future__ import annotations

import copy
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tasks.stage import canonical, sha256_text

NOT_COMPARED = ("auto_map", "_name_or_path", "_commit_hash", "transformers_version", "speculators_version")
"""Written by libraries about themselves; none of them is published or read in serving."""
_ABSENT = "<absent>"


def comparable(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration without what names the target, which publication replaces, or the writer."""
    kept = {name: copy.deepcopy(value) for name, value in config.items() if name not in NOT_COMPARED}
    for part in (kept.get("transformer_layer_config"), kept.get("speculators_config")):
        for name in NOT_COMPARED:
            if isinstance(part, dict):
                part.pop(name, None)
    verifier = (kept.get("speculators_config") or {}).get("verifier")
    if isinstance(verifier, dict):
        for name in ("name_or_path", "revision"):  # upstream's class knows no revision
            verifier.pop(name, None)
    return kept


def config_digest(config: Mapping[str, Any]) -> str:
    """SHA-256 of what is compared: equal for an export and for what is published from it."""
    return sha256_text(canonical(comparable(config)))


def digest_of(folder: Path) -> str:
    """`config_digest` of a folder's config.json."""
    return config_digest(json.loads((folder / "config.json").read_text(encoding="utf-8")))


def differences(folder: Path) -> list[str]:
    """What reading `config.json` and writing it again changes, as `key: before / after`; empty if nothing.

    Needs `speculators`. A configuration that the class cannot read is one difference that says so.
    """
    from speculators.models.dspark import DSparkSpeculatorConfig

    before = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as scratch:
        try:
            read = DSparkSpeculatorConfig.from_pretrained(str(folder), local_files_only=True)
            read.save_pretrained(scratch)
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            return [f"it cannot be read: {str(error).splitlines()[0]}"]
        after = json.loads((Path(scratch) / "config.json").read_text(encoding="utf-8"))
    return list(_differing(comparable(before), comparable(after)))


def _differing(one: Mapping[str, Any], other: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for name in sorted(one.keys() | other.keys()):
        left, right = one.get(name, _ABSENT), other.get(name, _ABSENT)
        if isinstance(left, dict) and isinstance(right, dict):
            yield from _differing(left, right, f"{prefix}{name}.")
        elif left != right or type(left) is not type(right):
            yield f"{prefix}{name}: {json.dumps(left)[:80]} / {json.dumps(right)[:80]}"


def main(arguments: list[str]) -> int:
    folder = Path(arguments[0])
    found = {
        "digest": digest_of(folder),
        "differences": differences(folder),
        "version": version("speculators"),
    }
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
