"""Memory and cores under cgroup limits of both versions."""

from __future__ import annotations

from pathlib import Path

import pytest

from tasks.validate.memory import available_memory, usable_cores

MIB = 2**20


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    folder = tmp_path / "proc"
    (folder / "self").mkdir(parents=True)
    (folder / "meminfo").write_text("MemTotal: 4096000 kB\nMemAvailable: 2048000 kB\n")
    return folder


def write(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


def test_no_limit_takes_the_kernels_answer(proc: Path, tmp_path: Path) -> None:
    write(tmp_path / "cg", memory__max="max\n", memory__current="5\n")
    assert available_memory(proc, tmp_path / "cg") == (2048000 * 1024, "kernel")


def test_cgroup_v2_limit_counts_reclaimable_cache_as_free(proc: Path, tmp_path: Path) -> None:
    write(
        tmp_path / "cg",
        memory__max=str(900 * MIB),
        memory__current=str(500 * MIB),
        memory__stat=f"anon 1\ninactive_file {100 * MIB}\n",
    )
    assert available_memory(proc, tmp_path / "cg") == (500 * MIB, "cgroup")


def test_a_limit_on_the_parent_group_binds(proc: Path, tmp_path: Path) -> None:
    (proc / "self" / "cgroup").write_text("0::/outer/inner\n")
    write(tmp_path / "cg" / "outer", memory__max=str(100 * MIB), memory__current=str(40 * MIB))
    write(tmp_path / "cg" / "outer" / "inner", memory__max="max", memory__current="1")
    assert available_memory(proc, tmp_path / "cg") == (60 * MIB, "cgroup")


def test_cgroup_v1_and_its_huge_number_for_unlimited(proc: Path, tmp_path: Path) -> None:
    v1 = tmp_path / "cg" / "memory"
    write(v1, memory__limit_in_bytes=str(9223372036854771712), memory__usage_in_bytes="1")
    assert available_memory(proc, tmp_path / "cg")[1] == "kernel"
    write(v1, memory__limit_in_bytes=str(300 * MIB), memory__usage_in_bytes=str(100 * MIB))
    assert available_memory(proc, tmp_path / "cg") == (200 * MIB, "cgroup")


def test_nothing_readable_is_not_observed(tmp_path: Path) -> None:
    assert available_memory(tmp_path / "no", tmp_path / "no") == (None, "")


def test_a_cpu_quota_lowers_the_cores(tmp_path: Path) -> None:
    write(tmp_path / "cg", cpu__max="50000 100000\n")
    assert usable_cores(tmp_path / "cg") == 0.5
    write(tmp_path / "cg", cpu__max="max 100000\n")
    assert usable_cores(tmp_path / "cg") >= 1
