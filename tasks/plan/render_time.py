"""Machines, time, cost, reuse and risks of a plan as tables."""

from __future__ import annotations

from itertools import groupby

from rich.markup import escape
from rich.table import Table

from tasks.plan.models import Compared, Period, Plan
from tasks.plan.wording import number_text, size_text, span_text

_RIGHT = (
    "size",
    "memory",
    "of a GPU",
    "usable",
    "value",
    "time",
    "idle",
    "GPU-hours",
    "money",
    "begin",
    "end",
)


def table_of(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", header_style="bold", expand=False)
    for name in columns:
        table.add_column(name, justify="right" if name in _RIGHT else "left", overflow="fold")
    return table


def risks_table(plan: Plan) -> Table:
    """What refuses the plan, what may go wrong, what is not known; each with its remedy."""
    table = table_of("Risks", "", "what", "to do")
    for risk in plan.risks:
        table.add_row(risk.severity, escape(f"{risk.what} ({risk.where})"), escape(risk.remedy))
    return table


def nodes_table(plan: Plan) -> Table:
    """What every machine must hold at once."""
    table = table_of(
        "Nodes, most memory needed at once", "node", "roles", "GPUs", "memory", "of a GPU", "usable"
    )
    for node in plan.nodes:
        gpus = "all" if node.gpus is None else str(node.gpus)
        on_gpu = size_text(node.gpu_bytes) if node.gpu_bytes else ""
        usable = "" if node.gpu_usable_bytes is None else size_text(node.gpu_usable_bytes)
        table.add_row(node.name, " + ".join(node.roles), gpus, size_text(node.host_bytes), on_gpu, usable)
    return table


def flow_table(plan: Plan) -> Table:
    """Rates of capture, store and trainer with their origin."""
    flow = plan.flow
    table = table_of("Who waits for whom", "rate", "value", "how it is known")
    for name, figure, digits in (
        ("capture, tokens/s", flow.capture_tokens_per_s, 0),
        ("store, tokens/s", flow.store_tokens_per_s, 0),
        ("trainer, tokens/s", flow.train_tokens_per_s, 0),
        ("hidden states to the trainer, GB/s", flow.needed_gb_per_s, 3),
    ):
        table.add_row(name, number_text(figure.value, digits=digits), figure.origin)
    if flow.sentence:
        table.caption, table.caption_justify = flow.sentence, "left"
    return table


def stages_table(plan: Plan) -> Table:
    """Work and time of every stage, and where the time comes from."""
    known = plan.seconds.value
    total = f", about {span_text(known)}" if known is not None else ""
    if known is None and plan.expected_minutes is not None:
        total = f", about {plan.expected_minutes:g} minutes"
    table = table_of(f"Stages{total}", "stage", "work", "time", "how it is known")
    for stage in plan.stages:
        table.add_row(stage.name, stage.work, span_text(stage.seconds.value), stage.seconds.origin)
    return table


def timeline_table(plan: Plan) -> Table:
    """Which node does what, when."""
    table = table_of("Timeline", "node", "begin", "end", "stage", "doing")
    for period in merged(plan.timeline):
        doing = period.doing or "idle"
        table.add_row(period.node, span_text(period.begin_s), span_text(period.end_s), period.stage, doing)
    return table


def merged(timeline: tuple[Period, ...]) -> list[Period]:
    """Neighbouring periods of a node that do the same, as one."""
    found = []
    for _, group in groupby(timeline, key=lambda one: (one.node, one.doing)):
        rows = list(group)
        stages = "-".join(dict.fromkeys((rows[0].stage, rows[-1].stage)))
        found.append(rows[0].model_copy(update={"end_s": rows[-1].end_s, "stage": stages}))
    return found


def cost_rows(plan: Plan) -> list[tuple[str, str]]:
    """What the run takes of machines and money."""
    cost = plan.cost
    price = "?" if cost.price_serving_gpu_hour is None else f"{cost.price_serving_gpu_hour:g} {cost.currency}"
    rows = [
        ("nodes", str(len(plan.nodes))),
        ("GPUs", "?" if cost.gpus is None else str(cost.gpus)),
        ("node-hours", number_text(cost.node_hours)),
        ("of them without work", number_text(cost.idle_node_hours)),
        ("GPU-hours", number_text(cost.gpu_hours)),
        ("price of a GPU-hour", price),
        ("money", number_text(cost.money, cost.currency) if cost.money is not None else "?"),
    ]
    for limit, unit in ((cost.budget_gpu_hours, "GPU-hours"), (cost.budget_node_hours, "node-hours")):
        if limit is not None:
            rows.append((f"budget, {unit}", f"{limit:g}{': not enough' if cost.over_budget else ''}"))
    return rows


def cost_table(plan: Plan) -> Table:
    table = table_of("Cost", "what", "value")
    for name, value in cost_rows(plan):
        table.add_row(name, value)
    return table


def reuse_table(plan: Plan) -> Table:
    """A new run does everything; this is what a resume would do."""
    table = table_of(f"retrain-dspark resume {plan.reuse_of} would", "stage", "", "why")
    for row in plan.reuse:
        table.add_row(row.stage, "reuse" if row.reused else "run again", row.why)
    return table


def comparison_table(plan: Plan) -> Table:
    """Sets of nodes: how long each takes and who waits."""
    table = table_of(
        "Sets of nodes (serving + training)",
        "set",
        "servers",
        "time",
        "idle",
        "GPU-hours",
        "money",
        "waiting",
    )
    for one in plan.comparison:
        table.add_row(
            f"{one.serve_nodes}+{one.train_nodes}",
            str(one.servers),
            span_text(one.seconds.value),
            number_text(one.idle_node_hours, "h"),
            number_text(one.gpu_hours),
            number_text(one.money),
            _waiting(one),
        )
    return table


def _waiting(one: Compared) -> str:
    return ". ".join(text for text in (one.note, one.flow.sentence) if text)
