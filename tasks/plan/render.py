"""A plan as tables for a terminal, as text for pipes, as Markdown for Prefect."""

from __future__ import annotations

import io

from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.table import Table

from tasks.plan.models import Plan
from tasks.plan.prompts import prompts_table
from tasks.plan.render_time import (
    comparison_table,
    cost_rows,
    cost_table,
    flow_table,
    nodes_table,
    reuse_table,
    risks_table,
    stages_table,
    table_of,
    timeline_table,
)
from tasks.plan.wording import number_text, size_text, span_text

_WIDTH = 110


def render_plan(plan: Plan) -> RenderableType:
    """All tables: what refuses the plan or may go wrong first, command lines last."""
    tables: list[RenderableType] = [
        *([risks_table(plan)] if plan.risks else []),
        prompts_table(plan.prompts, plan.trainable_tokens),
        _sizes(plan),
        stages_table(plan),
        *([_overlap(plan)] if plan.overlap else []),
        flow_table(plan),
        *([timeline_table(plan)] if plan.timeline else []),
        *([comparison_table(plan)] if plan.comparison else []),
        cost_table(plan),
        nodes_table(plan),
        _disk(plan),
        *([reuse_table(plan)] if plan.reuse else []),
        _processes(plan),
        _ports(plan),
    ]
    return Group(*tables, *(f"note: {note}" for note in plan.notes))


def plan_text(plan: Plan, width: int = _WIDTH) -> str:
    """The same without colours, for pipes and files."""
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(render_plan(plan))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    return "\n".join(line.rstrip() for line in str(text).splitlines()) + "\n"


def key_rows(plan: Plan) -> list[tuple[str, str]]:
    """The few figures that a report begins with."""
    time = span_text(plan.seconds.value)
    if plan.seconds.value is None and plan.expected_minutes is not None:
        time = f"{plan.expected_minutes:g} min (the profile's own)"
    return [
        ("samples", f"{plan.samples:,}"),
        ("hidden states in all", size_text(plan.log_bytes)),
        ("disk at most", size_text(plan.disk_bytes)),
        ("steps at most", f"{plan.steps:,}"),
        ("time", time),
        ("how it is known", plan.seconds.origin),
        *cost_rows(plan),
    ]


def plan_markdown(plan: Plan) -> str:
    """Key figures, risks and stages: no command lines, no paths."""
    lines = [f"## Plan of {plan.profile}", "", "| what | |", "|---|---|"]
    lines += [f"| {name} | {_cell(value)} |" for name, value in key_rows(plan)]
    if plan.risks:
        lines += ["", "| risk | | to do |", "|---|---|---|"]
        lines += [f"| {one.severity} | {_cell(one.what)} | {_cell(one.remedy)} |" for one in plan.risks]
    lines += ["", "| stage | work | time |", "|---|---|---|"]
    lines += [f"| {one.name} | {_cell(one.work)} | {span_text(one.seconds.value)} |" for one in plan.stages]
    return "\n".join([*lines, "", plan.flow.sentence]).rstrip() + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "/").replace("\n", " ")


def _sizes(plan: Plan) -> Table:
    origin = "" if plan.target_from == "config" else " (sizes from the profile)"
    table = table_of(f"{plan.profile}: target {plan.target}{origin}", "what", "value")
    table.add_row("samples", f"{plan.samples:,}")
    table.add_row("hidden states of one token", f"{plan.token_bytes:,} B")
    table.add_row("of a typical sample", size_text(plan.sample_bytes))
    table.add_row("of the largest sample", size_text(plan.largest_sample_bytes))
    table.add_row("in all", size_text(plan.log_bytes))
    table.add_row("that the trainer reads in one epoch", size_text(plan.epoch_bytes))
    table.add_row(
        "in flight at most", f"{size_text(plan.in_flight_bytes)}: {plan.in_flight_samples:,} typical"
    )
    table.add_row("retention", plan.retention)
    weights = plan.weights_bytes
    shown = number_text(weights.value / 1e9 if weights.value is not None else None, "GB", 1)
    table.add_row("weights of the target", f"{shown}, {weights.origin}")
    table.add_row("draft parameters", f"{plan.draft_parameters:,} ({plan.trained_parameters:,} trained)")
    table.add_row("host memory on one machine, about", size_text(plan.peak_memory_bytes))
    return table


def _overlap(plan: Plan) -> Table:
    table = table_of("Training beside the capture (stream.overlap)", "what", "when")
    for what, when in plan.overlap:
        table.add_row(what, when)
    return table


def _processes(plan: Plan) -> Table:
    table = table_of(
        "Processes (port 0: a free one; memory: about, of a GPU in brackets)",
        "process",
        "node",
        "memory",
        "command and environment",
    )
    for process in plan.processes:
        gpu = f" [{size_text(process.gpu_bytes)}]" if process.gpu_bytes else ""
        variables = [f"{name}={value}" for name, value in process.environment.items()]
        variables += [f"{name}=(secret)" for name in process.secret_environment]
        text = f"{' '.join(variables)} {process.command}".strip()
        table.add_row(process.name, process.node, escape(size_text(process.memory_bytes) + gpu), escape(text))
    return table


def _disk(plan: Plan) -> Table:
    table = table_of("Disk, about", "what", "size")
    for item in plan.disk:
        table.add_row(item.what, size_text(item.bytes))
    table.add_row("in all", size_text(plan.disk_bytes))
    return table


def _ports(plan: Plan) -> Table:
    table = table_of("Servers listen on", "server", "address")
    for name, address in plan.ports.items():
        table.add_row(name, address)
    return table
