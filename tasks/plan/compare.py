"""Sets of nodes beside each other: `2+1` is two nodes that serve and one that trains."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from profiles.load import merge
from profiles.schema import Profile
from tasks.errors import UsageError
from tasks.plan.cost import planned_cost
from tasks.plan.figures import Figure
from tasks.plan.models import Compared
from tasks.plan.predict import Load, predict
from tasks.plan.rates import Rates
from tasks.plan.timeline import periods, phases, total_seconds
from tasks.plan.topology import Topology, planned_topology

_SET = re.compile(r"^(\d{1,4})\+(\d{1,4})$")


def parse_sets(text: str) -> tuple[tuple[int, int], ...]:
    """`1+1,2+1` -> ((1, 1), (2, 1)): nodes that serve, nodes that train.

    Raises:
        UsageError: Something else.
    """
    found = []
    for word in text.split(","):
        match = _SET.match(word.strip())
        if match is None or "0" in match.groups():
            raise UsageError(
                f"'{word.strip()}' is not a set of nodes",
                where="--compare",
                hint="write serving + training nodes, several sets with commas: --compare 1+1,2+1,3+1",
            )
        found.append((int(match[1]), int(match[2])))
    return tuple(found)


def with_nodes(profile: Profile, serve: int, train: int) -> Profile:
    """The profile with other numbers of nodes, each role on nodes of its own."""
    roles: dict[str, Any] = {"colocated": False, "serve": {"nodes": serve}, "train": {"nodes": train}}
    values = merge(profile.model_dump(mode="json"), {"hardware": {"roles": roles}})
    if not profile.hardware.roles.span_hosts:
        # The profile's own addresses are those of one machine; nothing is started with these.
        values["store"] = {**values["store"], "host": "store-head", "interface": ""}
    return Profile.model_validate(values)


def compared(
    profile: Profile, load: Load, rates: Rates | None, sets: tuple[tuple[int, int], ...], server_nodes: int
) -> tuple[Compared, ...]:
    """Time, waiting and cost of each set.

    Args:
        server_nodes: Nodes that one server of the target takes.
    """
    own = len(planned_topology(profile).train)
    return tuple(
        _one(with_nodes(profile, serve, train), load, rates, serve, train, server_nodes, own)
        for serve, train in sets
    )


def _one(
    profile: Profile, load: Load, rates: Rates | None, serve: int, train: int, server_nodes: int, own: int
) -> Compared:
    servers = serve // server_nodes
    topology = planned_topology(profile)
    if not servers:
        note = f"{serve} serving nodes hold no server: one takes {server_nodes}"
        return Compared(serve_nodes=serve, train_nodes=train, servers=0, note=note)
    ranks = max(1, load.train_ranks // max(1, own)) * train
    found = predict(profile, replace(load, servers=servers, train_ranks=ranks), rates)
    rows = phases(profile, found)
    spare = serve - servers * server_nodes
    timeline = periods(rows, topology, [place.name for place in topology.serve[serve - spare :]])
    seconds = total_seconds(rows, found.around)
    cost = planned_cost(profile, topology, seconds.value, timeline)
    return Compared(
        serve_nodes=serve,
        train_nodes=train,
        servers=servers,
        seconds=seconds,
        idle_node_hours=cost.idle_node_hours,
        gpu_hours=cost.gpu_hours,
        money=cost.money,
        flow=found.flow,
        note=_note(profile, topology, spare, ranks, seconds),
    )


def _note(profile: Profile, topology: Topology, spare: int, ranks: int, seconds: Figure) -> str:
    notes = []
    if spare:
        notes.append(f"{spare} serving nodes make up no whole server and stay idle")
    if profile.train.packs_per_step % ranks:
        notes.append(
            f"train.packs_per_step ({profile.train.packs_per_step}) must become a multiple of {ranks} ranks"
        )
    if seconds.value is None and topology.places:
        notes.append("no time: give --rates FILE|RUN")
    return "; ".join(notes)
