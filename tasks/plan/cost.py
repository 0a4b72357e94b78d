"""Node-hours, GPU-hours and money of a planned run, against the profile's prices and budget."""

from __future__ import annotations

from collections.abc import Sequence

from profiles.schema import Profile
from tasks.plan.models import Cost, Period
from tasks.plan.timeline import idle_node_hours
from tasks.plan.topology import Topology


def gpus_of_places(topology: Topology) -> int | None:
    """GPUs of all planned machines; None where the profile does not say."""
    counts = [place.gpus for place in topology.places]
    return None if None in counts else sum(count or 0 for count in counts)


def planned_cost(
    profile: Profile, topology: Topology, seconds: float | None, timeline: Sequence[Period]
) -> Cost:
    """What is held for the whole run costs, idle or not.

    Args:
        seconds: The whole run; None where its time is not known: then nothing of the cost is.
    """
    prices, budget = profile.evaluate.prices, profile.budget
    hours = None if seconds is None else seconds / 3600
    gpus = gpus_of_places(topology)
    node_hours = None if hours is None else hours * len(topology.places)
    gpu_hours = None if hours is None or gpus is None else hours * gpus
    return Cost(
        gpus=gpus,
        node_hours=node_hours,
        idle_node_hours=idle_node_hours(timeline) if timeline else None,
        gpu_hours=gpu_hours,
        price_serving_gpu_hour=prices.serving_gpu_hour,
        price_training_gpu_hour=prices.training_gpu_hour or prices.serving_gpu_hour,
        money=_money(profile, topology, hours),
        currency=prices.currency,
        budget_gpu_hours=budget.gpu_hours,
        budget_node_hours=budget.node_hours,
        over_budget=_exceeds(gpu_hours, budget.gpu_hours) or _exceeds(node_hours, budget.node_hours),
    )


def _exceeds(value: float | None, limit: float | None) -> bool:
    return value is not None and limit is not None and value > limit


def _money(profile: Profile, topology: Topology, hours: float | None) -> float | None:
    """Of all GPUs; a machine that plays both roles costs what serving does. None without a price."""
    prices = profile.evaluate.prices
    if hours is None or prices.serving_gpu_hour is None:
        return None
    training = prices.training_gpu_hour or prices.serving_gpu_hour
    total = prices.other_costs
    for place in topology.places:
        if place.gpus is None:
            return None
        total += place.gpus * hours * (prices.serving_gpu_hour if "serve" in place.roles else training)
    return total
