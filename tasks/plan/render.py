"""A plan as tables for a terminal."""

from __future__ import annotations

import io

from rich.console import Console, Group, RenderableType
from rich.table import Table

from tasks.plan.models import Plan
from tasks.plan.prompts import prompts_table

_WIDTH = 110


def render_plan(plan: Plan) -> RenderableType:
    """Tables of sizes, stages, processes, disk and ports."""
    tables: list[RenderableType] = [
        prompts_table(plan.prompts, plan.trainable_tokens),
        _sizes(plan),
        _stages(plan),
        *([_overlap(plan)] if plan.overlap else []),
        _processes(plan),
        _disk(plan),
        _ports(plan),
    ]
    return Group(*tables, *(f"note: {note}" for note in plan.notes))


def plan_text(plan: Plan, width: int = _WIDTH) -> str:
    """The same without colours, for pipes and files."""
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(render_plan(plan))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    return "\n".join(line.rstrip() for line in str(text).splitlines()) + "\n"


def size_text(size_bytes: float) -> str:
    """Bytes in the unit that keeps the number short; decimal units, as disks are sold."""
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size_bytes >= factor:
            return f"{size_bytes / factor:,.1f} {unit}"
    return f"{size_bytes:,.0f} B"


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", header_style="bold", expand=False)
    for name in columns:
        table.add_column(
            name, justify="right" if name in ("size", "memory", "minutes") else "left", overflow="fold"
        )
    return table


def _sizes(plan: Plan) -> Table:
    table = _table(f"{plan.profile}: target {plan.target}", "what", "value")
    table.add_row("samples", f"{plan.samples:,}")
    table.add_row("hidden states of one token", size_text(plan.token_bytes))
    table.add_row("of a typical sample", size_text(plan.sample_bytes))
    table.add_row("of the largest sample", size_text(plan.largest_sample_bytes))
    table.add_row("in all", size_text(plan.log_bytes))
    table.add_row("typical samples in flight", f"{plan.in_flight_samples:,}")
    table.add_row("draft parameters", f"{plan.draft_parameters:,} ({plan.trained_parameters:,} trained)")
    table.add_row("memory needed at once, about", size_text(plan.peak_memory_bytes))
    return table


def _stages(plan: Plan) -> Table:
    total = "" if plan.expected_minutes is None else f", about {plan.expected_minutes:g} minutes"
    table = _table(f"Stages{total}", "stage", "work", "minutes")
    for stage in plan.stages:
        table.add_row(stage.name, stage.work, "" if stage.minutes is None else f"{stage.minutes:g}")
    return table


def _overlap(plan: Plan) -> Table:
    table = _table("Training beside the capture (stream.overlap)", "what", "when")
    for what, when in plan.overlap:
        table.add_row(what, when)
    return table


def _processes(plan: Plan) -> Table:
    table = _table(
        "Processes (port 0: a free one; memory: about)", "process", "stage", "role", "memory", "command"
    )
    for process in plan.processes:
        table.add_row(
            process.name, process.stage, process.role, size_text(process.memory_bytes), process.command
        )
    return table


def _disk(plan: Plan) -> Table:
    table = _table("Disk, about", "what", "size")
    for item in plan.disk:
        table.add_row(item.what, size_text(item.bytes))
    table.add_row("in all", size_text(plan.disk_bytes))
    return table


def _ports(plan: Plan) -> Table:
    table = _table("Servers listen on", "server", "address")
    for name, address in plan.ports.items():
        table.add_row(name, address)
    return table
