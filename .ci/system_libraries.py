"""Libraries of the operating system that the Mooncake store and vLLM need, each only when it is missing.

Installed with apt-get where this user may do that; else unpacked below .venv, and found there by every
Python of .venv and by the programs that it starts.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

# Library that the loader misses -> Debian and Ubuntu packages that have it, newest name first.
PACKAGES = {
    "libibverbs.so.1": ("libibverbs1",),
    "libnuma.so.1": ("libnuma1t64", "libnuma1"),
    "libcurl.so.4": ("libcurl4t64", "libcurl4"),
}
LSCPU = ("util-linux",)
_LOAD = "import mooncake.store"


def provide(venv: Path, python: Path) -> tuple[str, str, str] | None:
    """Make `mooncake.store` loadable and `lscpu` runnable; return what, remedy and log if that fails."""
    if not shutil.which("lscpu", path=f"{venv / 'bin'}:{os.environ.get('PATH', '')}"):
        problem = _get(LSCPU, venv)
        if problem:
            return problem
    tried: list[str] = []
    while True:
        env = {**os.environ, **library_path(venv)}
        done = subprocess.run([str(python), "-c", _LOAD], capture_output=True, text=True, env=env)
        if done.returncode == 0:
            return None
        match = re.search(r"(lib[\w.+-]+\.so[.\d]*): cannot open shared object", done.stderr)
        names = PACKAGES.get(match.group(1)) if match else None
        if names is None or names[0] in tried:
            remedy = "install the library that the last line names, then run it again"
            return "the Mooncake store cannot be loaded", remedy, done.stderr
        tried.append(names[0])
        problem = _get(names, venv)
        if problem:
            return problem


def library_path(venv: Path) -> dict[str, str]:
    """`LD_LIBRARY_PATH` with the folders of unpacked packages; empty if nothing was unpacked."""
    unpacked = venv / "lib-os"
    folders = sorted(str(p) for part in ("lib", "usr/lib") for p in unpacked.glob(f"{part}/*-linux-gnu"))
    before = os.environ.get("LD_LIBRARY_PATH")
    return {"LD_LIBRARY_PATH": ":".join([*folders, *([before] if before else [])])} if folders else {}


def _get(names: tuple[str, ...], venv: Path) -> tuple[str, str, str] | None:
    """Install or unpack the first of `names` that the distribution knows."""
    by_hand = f"install {' or '.join(reversed(names))} with your distribution's package manager"
    if not shutil.which("apt-get"):
        return f"{names[-1]} is missing and there is no apt-get", by_hand, ""
    name = _known(names)
    if name is None and _as_root():
        subprocess.run([*_as_root(), "apt-get", "update", "-qq"], capture_output=True)
        name = _known(names)
    if name is None:
        return f"apt knows no package {' or '.join(names)}", "run apt-get update, then this again", ""
    if _as_root():
        print(f"  installing {name} ...", flush=True)
        log = _apt_install(name)
    else:
        print(f"  unpacking {name} below .venv (no root, no sudo) ...", flush=True)
        log = _unpack(name, venv)
    return None if log is None else (f"{name} cannot be installed", by_hand, log)


def _known(names: tuple[str, ...]) -> str | None:
    for name in names:
        out = subprocess.run(["apt-cache", "show", "--no-all-versions", name], capture_output=True, text=True)
        if out.returncode == 0 and out.stdout.strip():
            return name
    return None


def _as_root() -> list[str]:
    """Words before a command that runs as root; none if this user cannot."""
    if os.geteuid() == 0:
        return ["env"]
    if shutil.which("sudo") and subprocess.run(["sudo", "-n", "true"], capture_output=True).returncode == 0:
        return ["sudo", "-n"]
    return []


def _apt_install(name: str) -> str | None:
    """Return None if it worked, else apt's output. Package lists are renewed only when they are too old."""
    command = [*_as_root(), "apt-get", "install", "-y", "-qq", "--no-install-recommends", name]
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for attempt in (1, 2):
        done = subprocess.run(command, capture_output=True, text=True, env=env, stdin=subprocess.DEVNULL)
        if done.returncode == 0:
            return None
        if attempt == 1:
            subprocess.run([*_as_root(), "apt-get", "update", "-qq"], capture_output=True)
    return done.stdout + done.stderr


def _unpack(name: str, venv: Path) -> str | None:
    """Unpack a package and those of its dependencies that are not installed into .venv/lib-os."""
    root = venv / "lib-os"
    root.mkdir(exist_ok=True)
    for package in [name, *_missing_dependencies(name)]:
        done = subprocess.run(["apt-get", "download", package], cwd=root, capture_output=True, text=True)
        if done.returncode != 0:
            return done.stdout + done.stderr
    for archive in root.glob("*.deb"):
        done = subprocess.run(["dpkg", "-x", str(archive), str(root)], capture_output=True, text=True)
        if done.returncode != 0:
            return done.stderr
        archive.unlink()
    lscpu = root / "usr" / "bin" / "lscpu"
    if lscpu.exists() and not (venv / "bin" / "lscpu").exists():
        (venv / "bin" / "lscpu").symlink_to(lscpu)
    _tell_python(venv)
    return None


def _missing_dependencies(name: str) -> list[str]:
    options = ["recommends", "suggests", "conflicts", "breaks", "replaces", "enhances"]
    command = ["apt-cache", "depends", "--recurse", *(f"--no-{option}" for option in options), name]
    out = subprocess.run(command, capture_output=True, text=True).stdout
    names = sorted(
        {line for line in out.splitlines() if re.fullmatch(r"[a-z0-9][a-z0-9.+-]*", line)} - {name}
    )
    query = ["dpkg-query", "-W", "-f", "${Package} ${db:Status-Status}\n", *names]
    state = subprocess.run(query, capture_output=True, text=True).stdout.splitlines()
    installed = {line.split()[0] for line in state if line.endswith(" installed")}
    return [dependency for dependency in names if dependency not in installed]


def _tell_python(venv: Path) -> None:
    """Give every program that a Python of .venv starts the unpacked libraries and programs."""
    path = library_path(venv).get("LD_LIBRARY_PATH", "")
    folders = [folder for folder in path.split(":") if folder.startswith(str(venv))]
    line = (
        "import os; "
        f"os.environ['LD_LIBRARY_PATH'] = ':'.join({folders!r} + "
        "[p for p in os.environ.get('LD_LIBRARY_PATH', '').split(':') if p and p not in "
        f"{folders!r}]); "
        f"os.environ['PATH'] = os.environ.get('PATH', '') + ':{venv / 'bin'}'\n"
    )
    for site in venv.glob("lib/python3.*/site-packages"):
        (site / "retrain_dspark_libraries.pth").write_text(line, encoding="utf-8")


def unpack_pip_wheel(venv: Path) -> Path | None:
    """The pip that Debian keeps for new environments, out of its package; None if apt cannot give it."""
    if not shutil.which("apt-get"):
        return None
    if os.geteuid() == 0:
        subprocess.run(["apt-get", "update", "-qq"], capture_output=True)
    folder = venv / "pip-wheel"
    folder.mkdir(exist_ok=True)
    subprocess.run(["apt-get", "download", "python3-pip-whl"], cwd=folder, capture_output=True)
    for archive in folder.glob("*.deb"):
        subprocess.run(["dpkg", "-x", str(archive), str(folder)], capture_output=True)
    return next(iter(folder.glob("usr/share/python-wheels/pip-*.whl")), None)
