"""CUDA toolkit and compatibility package, from `version.json`, `nvcc` and the library path."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from tasks.validate.collect.findings import Findings
from tasks.validate.collect.programs import NotInstalled, Unanswered, ask
from tasks.validate.collect.request import ProbeRequest

_RELEASE = re.compile(r"release (\d+\.\d+)")
_FOLDER = re.compile(r"cuda-(\d+)\.(\d+)")


def toolkit_findings(request: ProbeRequest, environment: Mapping[str, str] = os.environ) -> Findings:
    """The toolkit that a build on this node takes: CUDA_HOME, else the one of `nvcc`, else /usr/local/cuda.

    `nvcc` knows only its release (13.4), so that the preview 13.4.0 is told from 13.4.1 by `version.json`.
    """
    found = Findings()
    nvcc = shutil.which("nvcc")
    named = [environment[name] for name in ("CUDA_HOME", "CUDA_PATH") if environment.get(name)]
    folders = [request.path(folder) for folder in named]
    folders += [Path(nvcc).resolve().parents[1]] if nvcc and not named else []
    folders += [request.path("/usr/local/cuda")] if not named and not nvcc else []
    for folder in folders:
        version = _version_json(folder / "version.json", found)
        if version:
            found.put("cuda", {"toolkit": version}, "version.json")
            break
    else:
        compiler = folders[0] / "bin" / "nvcc" if named else nvcc
        found.put(
            "cuda", {"toolkit": _release(str(compiler), request) if compiler else None}, "nvcc --version"
        )
    found.put("cuda", {"compat_package": _compat(request, environment)}, "LD_LIBRARY_PATH, /etc/ld.so.conf.d")
    return found


def _version_json(path: Path, found: Findings) -> str | None:
    try:
        return str(json.loads(path.read_text(encoding="utf-8"))["cuda"]["version"])
    except OSError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        found.errors["cuda.toolkit"] = (
            f"version.json of the toolkit cannot be read: {type(error).__name__}: {error}"
        )
        return None


def _release(nvcc: str, request: ProbeRequest) -> str | None:
    try:
        answer = ask((nvcc, "--version"), request.deadline_s / 2)
    except (NotInstalled, Unanswered):
        return None
    release = _RELEASE.search(answer.output)
    return release.group(1) if release else None


def _compat(request: ProbeRequest, environment: Mapping[str, str]) -> str | None:
    """Forward-compatibility package on the loader's path: libcuda is then the package's, not the driver's."""
    folders = [one for one in environment.get("LD_LIBRARY_PATH", "").split(":") if one]
    for listing in sorted(request.path("/etc/ld.so.conf.d").glob("*.conf")):
        folders += [line.strip() for line in listing.read_text(errors="replace").splitlines()]
    for folder in folders:
        if not folder.startswith("/") or "compat" not in Path(folder).parts:
            continue
        library = request.path(folder) / "libcuda.so.1"
        if library.exists():
            place = _FOLDER.search(str(library.resolve()))
            version = library.resolve().name.removeprefix("libcuda.so.")
            return (
                f"cuda-compat-{place.group(1)}-{place.group(2)}"
                if place
                else f"cuda-compat (libcuda {version})"
            )
    return None
