"""GPU-hours of a run, and the hours of serving after which they have paid for themselves."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

from profiles.evaluation import Prices
from profiles.hardware import Hardware, RoleRequirements
from tasks.evaluate.worth.models import BreakEven, Capacity, Curve, Figure, Spent
from tasks.evaluate.worth.points import DRAFT, PLAIN

ROLE_OF_STAGE = {"serve": "serve", "stream": "serve", "train": "train", "evaluate": "serve"}
NO_PRICE = "the profile has no evaluate.prices.serving_gpu_hour"


def gpus_of(role: RoleRequirements, hardware: Hardware, seen: int | None) -> int | None:
    """GPUs of one role: what the profile asks for, else what the checks found.

    Args:
        seen: GPUs of one node as the validate stage found them; None if it did not look.
    """
    if hardware.mode == "none":
        return 0
    each = role.gpus_per_node or seen
    return role.nodes * each if each else None


def spent(hardware: Hardware, seconds: Mapping[str, float], seen: int | None = None) -> Spent:
    """GPU-hours of the stages that made the present results: nodes x GPUs x hours.

    Args:
        seconds: Stage -> seconds of its work.
    """
    roles = {
        "serve": gpus_of(hardware.roles.serve, hardware, seen),
        "train": gpus_of(hardware.roles.train, hardware, seen),
    }
    hours = {name: seconds[name] / 3600 for name in ROLE_OF_STAGE if name in seconds}
    missing = [name for name in ROLE_OF_STAGE if name not in seconds]
    notes = ["attempts that failed or were interrupted are not counted"]
    if missing:
        notes.append(f"not known: {', '.join(missing)}")
    serve, train = roles["serve"], roles["train"]
    if serve is None or train is None:
        notes.append("the number of GPUs is not known; set hardware.roles.*.gpus_per_node")
        return Spent(
            gpus=None, used_gpu_hours=None, reserved_gpu_hours=None, stages=hours, notes=tuple(notes)
        )
    gpus = max(serve, train) if hardware.roles.colocated else serve + train
    if gpus == 0:
        notes.insert(0, "this run had no GPU")
    used = sum(hours[name] * (serve if ROLE_OF_STAGE[name] == "serve" else train) for name in hours)
    return Spent(
        gpus=gpus,
        used_gpu_hours=used,
        reserved_gpu_hours=gpus * sum(hours.values()),
        stages=hours,
        notes=tuple(notes),
    )


def gpus_of_argv(argv: Sequence[str]) -> int | None:
    """GPUs of a server by its command line: tensor x pipeline x data parallel; None where there is none."""
    if not argv:
        return None
    sizes = {"--tensor-parallel-size": 1, "--pipeline-parallel-size": 1, "--data-parallel-size": 1}
    short = {
        "-tp": "--tensor-parallel-size",
        "-pp": "--pipeline-parallel-size",
        "-dp": "--data-parallel-size",
    }
    words = [word for item in argv for word in item.split("=", 1)]
    for name, value in itertools.pairwise(words):
        name = short.get(name, name)
        if name in sizes and value.isdigit():
            sizes[name] = int(value)
    product = 1
    for size in sizes.values():
        product *= size
    return product


def break_even(
    prices: Prices,
    found: Spent | None,
    served: Sequence[Capacity],
    curve: Curve | None,
    load_tokens_per_s: float | None = None,
) -> BreakEven:
    """Hours of serving after which the saved GPU-hours have paid for the retraining.

    At the operating points of the capacity table, plain gives `r0` and the draft `r1` tokens/s a server: the
    load of one plain server then takes `r0 / r1` servers, so `1 - r0 / r1` of it is saved; with a load in the
    profile, as many times as that load fills a plain server. The interval is that of the speed-up at the
    nearest measured concurrency; its upper bound gives the lower bound of the hours.
    """
    plain = next((one for one in served if one.arm == PLAIN), None)
    draft = next((one for one in served if one.arm == DRAFT), None)
    rates = _rates(plain), _rates(draft)
    why = _why_not(prices, found, rates)
    if why or plain is None or found is None or prices.serving_gpu_hour is None:
        return BreakEven(hours=Figure(), currency=prices.currency, why_not=why or NO_PRICE)
    (r0, per_gpu), (r1, _) = rates
    training = prices.training_gpu_hour or prices.serving_gpu_hour
    cost = (found.reserved_gpu_hours or 0.0) * training + prices.other_costs
    hourly = (load_tokens_per_s or r0) / per_gpu * prices.serving_gpu_hour
    low, high = _bounds(r1 / r0, curve, draft.concurrency if draft else None)
    return BreakEven(
        hours=Figure(
            value=_hours(cost, hourly, r1 / r0),
            low=_hours(cost, hourly, high),
            high=_hours(cost, hourly, low),
        ),
        cost=cost,
        currency=prices.currency,
        saved_per_hour=hourly * (1 - r0 / r1),
    )


def _rates(one: Capacity | None) -> tuple[float, float]:
    """(tokens/s of a server, tokens/s of a GPU); 0 where not known."""
    if one is None:
        return 0.0, 0.0
    return one.tokens_per_s_per_server or 0.0, one.tokens_per_s_per_gpu or 0.0


def _bounds(
    ratio: float, curve: Curve | None, concurrency: float | None
) -> tuple[float | None, float | None]:
    """Interval of a ratio, as wide as that of the speed-up nearest to the draft's operating point."""
    known = [point for point in curve.points if point.low is not None] if curve else []
    if not known or concurrency is None:
        return None, None
    near = min(known, key=lambda point: abs(math.log(point.concurrency / concurrency)))
    if near.low is None or near.high is None:
        return None, None
    return ratio * near.low / near.speedup, ratio * near.high / near.speedup


def _hours(cost: float, hourly: float, speedup: float | None) -> float | None:
    return cost / (hourly * (1 - 1 / speedup)) if speedup is not None and speedup > 1 else None


def _why_not(
    prices: Prices, found: Spent | None, rates: tuple[tuple[float, float], tuple[float, float]]
) -> str:
    (r0, plain_gpu), (r1, draft_gpu) = rates
    if prices.serving_gpu_hour is None:
        return NO_PRICE
    if found is None or found.reserved_gpu_hours is None:
        return "the GPU-hours of the retraining are not known"
    if not r0 or not r1:
        return "no speed was measured at the targets for both arms"
    if not plain_gpu or not draft_gpu:
        return "the GPUs of one server are not known, or it has none"
    if r1 <= r0:
        return f"it never pays at these operating points: {r1:.4g} tokens/s with the draft, {r0:.4g} without"
    return ""
