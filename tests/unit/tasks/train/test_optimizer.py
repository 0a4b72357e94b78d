"""Which optimizer gets which parameter, and the schedule."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from profiles.schema import Train
from tasks.train.optimizer import (
    build_optimizers,
    load_optimizer_tensors,
    optimizer_tensors,
    rate_factor,
    set_rates,
)

NAMES = {
    "fc.weight": (4, 8),
    "norm.weight": (4,),
    "markov_head.markov_w1.weight": (16, 2),
    "confidence_head.proj.weight": (1, 6),
}


def parameters() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {name: torch.nn.Parameter(torch.randn(size, generator=generator)) for name, size in NAMES.items()}


def test_muon_takes_matrices_but_no_vocabulary_factor() -> None:
    values = parameters()
    optimizers = build_optimizers(values, Train(optimizer="muon", muon_lr=0.02))
    muon = {id(p) for group in optimizers["muon"].param_groups for p in group["params"]}
    assert muon == {id(values["fc.weight"])}
    adamw = {id(p) for group in optimizers["adamw"].param_groups for p in group["params"]}
    assert len(adamw) == 3
    assert set(build_optimizers(parameters(), Train())) == {"adamw"}


def test_rates_rise_then_fall() -> None:
    settings = Train(warmup=0.1, lr=1e-2, optimizer="muon", muon_lr=0.5)
    factors = [rate_factor(step, 100, settings) for step in range(100)]
    assert factors[0] == pytest.approx(0.1) and factors[9] == pytest.approx(1.0)
    assert all(a >= b for a, b in pairwise(factors[9:]))
    assert factors[-1] < 0.01
    linear = Train(warmup=0.0, schedule="linear")
    assert rate_factor(50, 100, linear) == pytest.approx(0.5)
    assert rate_factor(99, 100, Train(schedule="constant")) == 1.0
    optimizers = build_optimizers(parameters(), settings)
    assert set_rates(optimizers, 0.5, settings) == pytest.approx(5e-3)
    assert optimizers["muon"].param_groups[0]["lr"] == pytest.approx(0.25)


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_state_survives_a_round_trip(kind: str) -> None:
    settings = Train.model_validate({"optimizer": kind, "muon_lr": 0.02})

    def step(values: dict[str, torch.Tensor], optimizers: dict[str, torch.optim.Optimizer]) -> None:
        for value in values.values():
            value.grad = value.detach() * 0.1
        for optimizer in optimizers.values():
            optimizer.step()

    values = parameters()
    optimizers = build_optimizers(values, settings)
    step(values, optimizers)
    copied = {name: torch.nn.Parameter(value.detach().clone()) for name, value in values.items()}
    again = build_optimizers(copied, settings)
    load_optimizer_tensors(again, {k: v.clone() for k, v in optimizer_tensors(optimizers).items()})
    step(values, optimizers)
    step(copied, again)
    for name, value in values.items():
        assert torch.equal(value, copied[name]), name
