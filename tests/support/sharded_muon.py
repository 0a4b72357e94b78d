"""One rank of a Muon step on sharded matrices: `sharded_muon.py <result>`; the leader writes the result."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from tasks.train.muon import ShardedMuon

SHAPES = {"tall": (9, 4), "wide": (4, 9), "one": (3, 5)}
OPTIONS = {"lr": 0.02, "weight_decay": 0.1, "momentum": 0.95, "adjust_lr_fn": "match_rms_adamw"}
STEPS = 3


def values(name: str, step: int) -> torch.Tensor:
    """Parameter (step -1) and gradients, the same wherever they are asked for."""
    generator = torch.Generator().manual_seed(100 * step + len(name) + sum(map(ord, name)))
    return torch.randn(SHAPES[name], generator=generator)


def main() -> None:
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))

    def sharded(value: torch.Tensor) -> torch.Tensor:
        return distribute_tensor(value, mesh, [Shard(0)])

    parameters = {name: torch.nn.Parameter(sharded(values(name, -1))) for name in SHAPES}
    optimizer = ShardedMuon(list(parameters.values()), **OPTIONS)
    for step in range(STEPS):
        for name, parameter in parameters.items():
            parameter.grad = sharded(values(name, step))
        optimizer.step()
    whole = {name: parameter.detach().full_tensor() for name, parameter in parameters.items()}
    if dist.get_rank() == 0:
        save_file(whole, sys.argv[1])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
