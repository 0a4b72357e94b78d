"""Muon for sharded matrices: what it orthogonalises is the whole matrix, never a rank's rows of it."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim._muon import _adjust_lr, _zeropower_via_newtonschulz


class ShardedMuon(torch.optim.Muon):
    """`torch.optim.Muon` whose parameters are DTensors; momentum stays sharded, as they are.

    Each rank gathers an update in bfloat16, the type in which torch orthogonalises it, computes all of it,
    and keeps its own rows: the result is that of one rank with the whole matrix.
    """

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        """One step; every rank must take it, with the same parameters in the same order."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._step_one(parameter, group)

    def _step_one(self, parameter: DTensor, group: dict[str, Any]) -> None:
        gradient, state = parameter.grad, self.state[parameter]
        assert isinstance(gradient, DTensor)
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(gradient)
        momentum = state["momentum_buffer"]
        momentum.lerp_(gradient, 1 - group["momentum"])
        update: Any = gradient.lerp(momentum, group["momentum"]) if group["nesterov"] else momentum
        entire = _zeropower_via_newtonschulz(
            update.bfloat16().full_tensor(), group["ns_coefficients"], group["ns_steps"], group["eps"]
        )
        own = distribute_tensor(entire, parameter.device_mesh, parameter.placements, src_data_rank=None)
        rate = _adjust_lr(group["lr"], group["adjust_lr_fn"], parameter.shape)
        parameter.mul_(1 - group["lr"] * group["weight_decay"])
        parameter.add_(own, alpha=-rate)
