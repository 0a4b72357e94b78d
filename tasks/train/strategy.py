"""One draft on one rank or on several: DDP keeps it whole on each, FSDP2 shards it."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import checkpoint

from tasks.errors import StageInputError
from tasks.train import adapter
from tasks.train.data import Batch
from tasks.train.loss import BlockOutcome, LossWeights
from tasks.train.ranks import Ranks

Strategy = Literal["ddp", "fsdp"]


class DraftLoss(nn.Module):
    """The draft's loss as a module, since DDP and FSDP2 attach themselves to a module's call.

    Args:
        model: The draft.
        weights: Weights of the loss terms.
    """

    def __init__(self, model: nn.Module, weights: LossWeights):
        super().__init__()
        self.model = model
        self.weights = weights

    def forward(self, batch: Batch, anchors: Tensor) -> tuple[Tensor, BlockOutcome]:
        """Loss (scalar) and outcome of the blocks at `anchors [N]`."""
        outcome = adapter.run_blocks(self.model, batch, anchors, self.weights)
        return outcome.loss, outcome


def recompute_layers(model: Any) -> None:
    """Let each layer compute its activations again in the backward pass instead of keeping them."""
    for layer in model.layers:
        layer.forward = functools.partial(checkpoint, layer.forward, use_reentrant=False)


def compile_layers(model: Any, device: torch.device) -> None:
    """Compile the layers' MLPs: attention goes document by document, which no compiler makes faster.

    Raises:
        StageInputError: The compiler does not work on this machine.
    """
    for layer in model.layers:
        layer.mlp.compile(dynamic=True)
    probe = torch.zeros(1, 2, model.layers[0].mlp.gate_proj.in_features, device=device)
    try:
        model.layers[0].mlp(probe)
    except Exception as error:  # torch's compiler has no error class of its own for a missing compiler
        raise StageInputError(
            f"torch.compile does not work here: {type(error).__name__}: {str(error).splitlines()[0][:200]}",
            where="train.compile",
            hint="install a C++ compiler (on a CPU) or Triton (on a GPU), or turn train.compile off",
        ) from error


def distribute(loss: DraftLoss, strategy: Strategy, ranks: Ranks, device: torch.device) -> nn.Module:
    """The module to call for a loss whose gradients are averaged over the ranks."""
    if ranks.size == 1:
        return loss
    if strategy == "ddp":
        own = [device] if device.type == "cuda" else None
        return nn.parallel.DistributedDataParallel(
            loss, device_ids=own, broadcast_buffers=False, gradient_as_bucket_view=True
        )
    return _sharded(loss, device)


def _sharded(loss: DraftLoss, device: torch.device) -> nn.Module:
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    frozen = {value for value in loss.parameters() if not value.requires_grad}
    model: Any = loss.model
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    # Frozen weights stay whole: no gradient and no optimizer state belongs to them.
    fully_shard(loss, mesh=mesh, ignored_params=frozen)
    return loss


@contextmanager
def exchanging(module: nn.Module, last: bool) -> Iterator[None]:
    """Exchange gradients in the backward passes of the block only if they are the `last` of a step."""
    shared: Any = module  # torch leaves these methods without types
    if isinstance(module, nn.parallel.DistributedDataParallel) and not last:
        with shared.no_sync():
            yield
        return
    if hasattr(module, "set_requires_gradient_sync"):
        shared.set_requires_gradient_sync(last)
    yield


def whole(value: Tensor) -> Tensor:
    """All of a tensor, also where its parts lie on several ranks, which must call this together."""
    return value.full_tensor() if isinstance(value, DTensor) else value
