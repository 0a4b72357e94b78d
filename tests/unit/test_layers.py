"""The layer rule and the size limits of `CONTRIBUTING.md`, read from the source with `ast`."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
OURS = ("flows", "tasks", "profiles")
SOURCES = sorted(path for package in OURS for path in (ROOT / package).rglob("*.py"))
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
MAX_NESTING = 3


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """(line, module) of every import of a file, inside functions too."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.lineno, node.module


def offenders(library: str, allowed: Callable[[str], bool]) -> list[str]:
    return [
        f"{name(path)}:{line} imports {module}"
        for path in SOURCES
        if not allowed(name(path))
        for line, module in imports(path)
        if module.split(".")[0] == library
    ]


def is_prefect_side(file: str) -> bool:
    """Flows, and the thin wrappers of the stages."""
    return file.startswith("flows/") or file.endswith("/task.py")


ENGINE_SIDE = (
    "tasks/stream/connector.py",
    "tasks/stream/scheduling.py",
    "tasks/serve/engine/",
    "tasks/evaluate/load/benchmark.py",
)

RULES: dict[str, Callable[[str], bool]] = {
    "prefect": is_prefect_side,
    "mlflow": lambda file: file == "tasks/tracking.py",
    "mooncake": lambda file: file.startswith("tasks/stream/"),
    "torch": lambda file: (
        file.startswith(("tasks/stream/", "tasks/train/", "tasks/evaluate/"))
        or file == "tasks/serve/convert_gguf.py"
    ),
    "vllm": lambda file: file.startswith(ENGINE_SIDE),
    "flows": lambda file: file.startswith("flows/"),
    "tasks": lambda file: file.startswith(("flows/", "tasks/")),
}


@pytest.mark.parametrize("library", RULES)
def test_only_its_layer_imports(library: str) -> None:
    assert offenders(library, RULES[library]) == []


def test_imports_are_absolute() -> None:
    relative = [
        f"{name(path)}:{node.lineno}"
        for path in SOURCES
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.ImportFrom) and node.level
    ]
    assert relative == []


def test_files_are_short() -> None:
    lengths = {name(path): len(path.read_text(encoding="utf-8").splitlines()) for path in SOURCES}
    assert {file: lines for file, lines in lengths.items() if lines > MAX_FILE_LINES} == {}


def functions() -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for path in SOURCES:
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield f"{name(path)}:{node.lineno} {node.name}", node


def test_functions_are_short() -> None:
    lengths = {where: (node.end_lineno or node.lineno) - node.lineno + 1 for where, node in functions()}
    assert {where: lines for where, lines in lengths.items() if lines > MAX_FUNCTION_LINES} == {}


BLOCKS = (ast.If, ast.For, ast.While, ast.With, ast.Try, ast.AsyncFor, ast.AsyncWith, ast.Match)


def depth(node: ast.AST, inside_else: bool = False) -> int:
    """Deepest nesting of blocks; an `elif` stands on the level of its `if`."""
    own = isinstance(node, BLOCKS) and not inside_else
    deepest = 0
    for child in ast.iter_child_nodes(node):
        chained = isinstance(node, ast.If) and node.orelse == [child] and isinstance(child, ast.If)
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            deepest = max(deepest, depth(child, chained))
    return deepest + own


def test_blocks_are_not_nested_deeply() -> None:
    depths = {where: depth(node) for where, node in functions()}
    assert {where: levels for where, levels in depths.items() if levels > MAX_NESTING} == {}


def test_no_catch_all_modules() -> None:
    banned = {"utils", "helpers", "common", "manager", "misc"}
    assert [name(path) for path in SOURCES if path.stem in banned or path.parent.name in banned] == []


def test_no_file_of_flows_hides_another_module() -> None:
    """`flows/` comes first on the path under a file entry point, so its names must be nobody else's."""
    import sys

    taken = set(sys.stdlib_module_names) | set(OURS) | {"prefect", "mlflow", "click", "rich", "docker"}
    assert [path.name for path in (ROOT / "flows").glob("*.py") if path.stem in taken] == []
