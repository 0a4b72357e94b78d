"""Sets everything up in .venv: what `make setup`, `make demo` and `make test` begin with.

Needs Python 3.11 or 3.12 and nothing else; every step can be repeated, so an aborted set-up just goes on.
A stamp in .venv says that nothing has to be done; `--force` ignores it.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
VENV_PYTHON = VENV / "bin" / "python"
STAMP = VENV / "set-up.json"
INSTALLING = VENV / "installing"
PROFILE = ROOT / "profiles" / "laptop.yaml"
UV_VERSION = "0.13.9"
SUPPORTED = ((3, 11), (3, 12))
DISK_GIB = 6.0
MEMORY_GIB = 12.0
SMALLER = "retrain-dspark run -p laptop --set prompts.train_per_domain=12 --set train.epochs=4"

sys.path.insert(0, str(ROOT / ".ci"))
import system_libraries  # noqa: E402  (beside this file, which no package contains)


def fail(what: str, remedy: str, log: str = "") -> None:
    """End the set-up with a message of one screen; what was done stays and is used by the next try."""
    tail = "\n".join(f"    {line}" for line in log.strip().splitlines()[-12:])
    sys.exit(f"set-up stopped: {what}\n  to do: {remedy}" + (f"\n  last lines:\n{tail}" if tail else ""))


def constraints() -> Path:
    return ROOT / "constraints" / f"cpu-{sys.version_info[0]}.{sys.version_info[1]}.txt"


def fingerprint() -> str:
    """Changes when anything that decides the content of .venv changes."""
    files = (ROOT / "pyproject.toml", constraints(), Path(__file__), PROFILE)
    text = [
        platform.python_version(),
        str(ROOT),
        *(hashlib.sha256(f.read_bytes()).hexdigest() for f in files),
    ]
    return hashlib.sha256("\n".join(text).encode()).hexdigest()


def is_complete() -> bool:
    try:
        stamp = json.loads(STAMP.read_text(encoding="utf-8"))
        return stamp["fingerprint"] == fingerprint() and Path(stamp["target"]).is_dir()
    except (OSError, ValueError, KeyError):
        return False


def use_supported_python() -> None:
    """Go on under Python 3.11 or 3.12 if this is another one and such a one is on the PATH."""
    if sys.version_info[:2] in SUPPORTED:
        return
    for major, minor in SUPPORTED:
        path = shutil.which(f"python{major}.{minor}")
        if path and subprocess.run([path, "-c", ""], capture_output=True).returncode == 0:
            os.execv(path, [path, *sys.argv])
    fail(
        f"Python {platform.python_version()} is not supported",
        "install Python 3.11 or 3.12 (on Debian and Ubuntu: python3.11), or: make setup PYTHON=/path",
    )


def memory_gib() -> float:
    """Memory that this machine or container may use."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = Path("/sys/fs/cgroup/memory.max")
    if limit.exists() and limit.read_text().strip().isdigit():
        total = min(total, int(limit.read_text()))
    return total / 2**30


def print_needs() -> None:
    """Show what is needed and what is here, and stop where set-up cannot work."""
    cores, memory = len(os.sched_getaffinity(0)), memory_gib()
    disk = shutil.disk_usage(ROOT).free / 2**30
    print("retrain-dspark set-up: everything goes into .venv and the cache folder")
    print(f"  platform  needs Linux on x86-64 or ARM64      found {platform.system()} {platform.machine()}")
    print(f"  Python    needs 3.11 or 3.12                  found {platform.python_version()}")
    print(f"  cores     needs 2                             found {cores}")
    print(f"  memory    needs {MEMORY_GIB:.0f} GiB for a run               found {memory:.1f} GiB")
    print(f"  disk      needs {DISK_GIB:.0f} GiB                         found {disk:.1f} GiB free")
    print(
        "  time      3 to 10 minutes, mostly download; then `make demo` runs for about 12 minutes on 2 cores"
    )
    if memory < MEMORY_GIB or cores < 2:
        print(
            f"  This machine is weaker than that. After set-up, try the smaller run:\n    .venv/bin/{SMALLER}"
        )
    if platform.system() != "Linux" or platform.machine() not in ("x86_64", "aarch64"):
        fail(
            "this platform has no CPU build of the engine",
            "use Linux on x86-64 or ARM64, or docker/cpu.Dockerfile",
        )
    if disk < DISK_GIB and not VENV_PYTHON.exists():
        fail(
            f"{disk:.1f} GiB of free disk are not enough",
            f"free {DISK_GIB:.0f} GiB, or clone to another disk",
        )


def run(command: list[str], what: str, remedy: str, env: dict[str, str] | None = None) -> str:
    """Run one step; its output is shown only if it fails."""
    print(f"  {what} ...", flush=True)
    started = time.monotonic()
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, **(env or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        fail(f"{what} failed", remedy, done.stdout + done.stderr)
    print(f"    done in {time.monotonic() - started:.0f} s", flush=True)
    return done.stdout


def make_environment() -> str:
    """Create .venv if it is missing or broken; return the uv to install with."""
    works = (
        subprocess.run(
            [VENV_PYTHON, "-c", f"import sys; sys.exit(sys.version_info[:2] != {sys.version_info[:2]})"],
            capture_output=True,
        ).returncode
        if VENV_PYTHON.exists()
        else 1
    )
    if works != 0 and VENV.exists():
        shutil.rmtree(VENV)
    uv = VENV / "bin" / "uv"
    found = str(uv) if uv.is_file() else shutil.which("uv")
    if works != 0:
        if found:
            run([found, "venv", "--python", sys.executable, str(VENV)], "making .venv", "see below")
        else:
            run([sys.executable, "-m", "venv", "--without-pip", str(VENV)], "making .venv", "see below")
    if not found:
        get_uv()
        found = str(uv)
    return found


def get_uv() -> None:
    """Install uv into .venv with whatever pip there is."""
    remedy = "check the network or the package index; on Debian and Ubuntu: apt-get install python3-venv"
    requirement = f"uv=={UV_VERSION}"
    if subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True).returncode == 0:
        pip = [sys.executable, "-m", "pip", "--python", str(VENV_PYTHON)]
    elif subprocess.run([VENV_PYTHON, "-m", "ensurepip"], capture_output=True).returncode == 0:
        pip = [str(VENV_PYTHON), "-m", "pip"]
    else:
        wheel = system_libraries.unpack_pip_wheel(VENV)
        if wheel is None:
            fail("there is neither uv nor pip", remedy)
        pip = [str(VENV_PYTHON), f"{wheel}/pip"]
    run(
        [*pip, "install", "--quiet", "--disable-pip-version-check", requirement],
        f"getting {requirement}",
        remedy,
    )


def install(uv: str) -> None:
    """Install the pinned packages and this project, editable."""
    command = [
        uv,
        "pip",
        "install",
        "--python",
        str(VENV_PYTHON),
        "-c",
        str(constraints()),
        "-e",
        ".[cpu,dev]",
    ]
    env = {}
    links = os.environ.get("PIP_FIND_LINKS")
    if links:
        env["UV_FIND_LINKS"] = os.environ.get("UV_FIND_LINKS") or ",".join(links.split())
    else:
        command += ["--torch-backend", "cpu"]
    if os.environ.get("PIP_INDEX_URL"):
        env["UV_DEFAULT_INDEX"] = os.environ.get("UV_DEFAULT_INDEX") or os.environ["PIP_INDEX_URL"]
    if INSTALLING.exists():
        # The last installation was cut off, so a package may be there in part and count as installed.
        command.append("--reinstall")
    INSTALLING.touch()
    remedy = "check the network or the package index, then run it again: it goes on where it stopped"
    run(command, "installing the pinned packages (about 4 GB on disk)", remedy, env)
    INSTALLING.unlink()


def prepare_target() -> Path:
    command = [str(VENV_PYTHON), "-m", "tasks.serve.prepare", str(PROFILE)]
    remedy = "follow the hint in the message below, then run it again"
    out = run(command, "getting and converting the target, once", remedy)
    return Path(out.strip().splitlines()[-1])


def size_gib(folder: Path) -> float:
    out = subprocess.run(["du", "-sk", str(folder)], capture_output=True, text=True).stdout
    return int(out.split()[0]) / 2**20 if out else 0.0


def print_end(target: Path, started: float) -> None:
    cache = target.parent.parent
    print(f"set-up complete in {time.monotonic() - started:.0f} s")
    print(f"  disk used: {size_gib(VENV):.1f} GiB in .venv, {size_gib(cache):.1f} GiB in {cache}")
    print(f"  to remove: make clean (runs), rm -rf .venv (environment), rm -rf {cache} (converted targets)")


def main() -> None:
    use_supported_python()
    started = time.monotonic()
    if not constraints().exists():
        fail(f"{constraints().name} is missing", "restore it: git checkout constraints")
    with open(ROOT / "pyproject.toml", encoding="utf-8") as lock:
        # Two set-ups at once (two terminals, a worker) would write the same .venv.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if is_complete() and "--force" not in sys.argv:
            print("set-up: nothing to do")
            return
        print_needs()
        STAMP.unlink(missing_ok=True)
        install(make_environment())
        problem = system_libraries.provide(VENV, VENV_PYTHON)
        if problem:
            fail(*problem)
        target = prepare_target()
        STAMP.write_text(json.dumps({"fingerprint": fingerprint(), "target": str(target)}), encoding="utf-8")
        print_end(target, started)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("set-up interrupted; run it again and it goes on where it stopped")
