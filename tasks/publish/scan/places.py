"""What would tell where a draft was made: paths, host names and addresses of machines."""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

_ROOTS = (
    "home root Users mnt media data scratch work workspace tmp var srv lustre gpfs nfs fsx shared projects"
)
_PATHS = re.compile(
    rf"(?<![\w./$}}<-])/(?:{'|'.join(_ROOTS.split())})/[\w.@+-]+"
    r"|(?<![\w/])~/[\w.-]+/|\bfile:///?[\w.]|\b[A-Za-z]:\\{1,2}[\w.-]+\\"
)
_ADDRESSES = re.compile(
    r"\b(?:192\.168|172\.(?:1[6-9]|2\d|3[01]))\.\d{1,3}\.\d{1,3}\b"
    r"|(?:(?<=//)|(?<=@))10\.\d{1,3}\.\d{1,3}\.\d{1,3}\b|\b10\.\d{1,3}\.\d{1,3}\.\d{1,3}(?=:\d)"
    r"|\b(?:[a-z0-9-]+\.)+(?:internal|local|lan|corp|intranet|localdomain|cluster\.local)\b"
    r"|\bGPU-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}",
    re.I,
)
"""Private networks (a bare `10.3.9.90` is a version of a library), names of inner networks, GPUs."""
_PUBLIC = ("localhost", "huggingface.co", "hf.co", "github.com", "arxiv.org", "pypi.org")
_HOST_KEYS = re.compile(
    r"(?:^|_)(?:node_id|host|hostname|fqdn|nodename|rendezvous|master|url|address)(?:$|_)"
)
_ADDRESS_VARIABLES = ("MLFLOW_TRACKING_URI", "PREFECT_API_URL", "HF_ENDPOINT", "HTTP_PROXY", "HTTPS_PROXY")
_SHORTEST_NAME = 4


def machine_paths(folders: Iterable[Path]) -> list[str]:
    """Texts that would tell where this machine keeps things; `folders`: those that the files came from."""
    known = [*folders, Path.home(), Path(sys.prefix), Path.cwd()]
    texts = {str(path) for path in known} | {str(path.resolve()) for path in known}
    return sorted((text for text in texts if len(text) > 4 and text.count("/") > 1), key=len, reverse=True)


def machine_names(*facts: Mapping[str, Any]) -> list[str]:
    """Names of the machines that took part: this one's, those in collected facts, those of its servers."""
    found = {platform.node(), os.environ.get("HOSTNAME", "")}
    for name in _ADDRESS_VARIABLES:
        found.add(_host(os.environ.get(name, "") or os.environ.get(name.lower(), "")))
    for part in facts:
        found.update(_names(part))
    whole = {name.strip().rstrip(".").lower() for name in found}
    short = {name.split(".")[0] for name in whole if not re.fullmatch(r"[\d.]+", name)}
    return sorted(name for name in whole | short if _tells(name))


def _host(address: str) -> str:
    try:
        return urlsplit(address if "//" in address else f"//{address}").hostname or ""
    except ValueError:
        return ""


def _names(value: Mapping[str, Any]) -> Iterator[str]:
    for key, inner in value.items():
        if isinstance(inner, Mapping):
            yield from _names(inner)
        elif isinstance(inner, list | tuple):
            yield from (name for one in inner if isinstance(one, Mapping) for name in _names(one))
        elif isinstance(inner, str) and _HOST_KEYS.search(str(key)):
            yield _host(inner)


def _tells(name: str) -> bool:
    loopback = name.startswith("127.") or name in ("0.0.0.0", "::1", "::")
    public = any(name == one or name.endswith(f".{one}") for one in _PUBLIC)
    return len(name) >= _SHORTEST_NAME and not loopback and not public


def places_in(text: str, paths: Iterable[str], names: Iterable[str]) -> Iterator[str]:
    """What of a text tells a place, in words; each finding with the text that was found."""
    known = next((path for path in paths if path in text), None)
    if known:
        yield f"a path of this machine ({known})"
    elif match := _PATHS.search(text):
        yield f"a path of a machine ({match.group()})"
    for name in names:
        if _name_pattern(name).search(text):
            yield f"the name of a machine ({name})"
    if match := _ADDRESSES.search(text):
        yield f"an address of a private network or machine ({match.group()})"


def _name_pattern(name: str) -> re.Pattern[str]:
    """A name with a digit, dot or hyphen by itself; a plain word only where a host is spoken of."""
    end = r"(?![\w-])"
    if name.isalpha():
        return re.compile(
            rf"(?:(?<=//)|(?<=@)|(?<=host )|(?<=host=)|(?<=host: )){re.escape(name)}{end}", re.I
        )
    return re.compile(rf"(?<![\w-]){re.escape(name)}{end}", re.I)
