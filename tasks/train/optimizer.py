"""Optimizers and the learning-rate schedule."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from profiles.training import Train
from tasks.train.muon import ShardedMuon

# Matrices that Muon leaves to AdamW: vocabulary factors, as upstream does.
_NOT_FOR_MUON = ("embed_tokens", "lm_head", "markov_w1", "markov_w2")


def build_optimizers(parameters: Mapping[str, Tensor], settings: Train) -> dict[str, torch.optim.Optimizer]:
    """One optimizer (`adamw`), or Muon for matrices and AdamW for the rest. All options are explicit."""
    muon: list[tuple[str, Tensor]] = []
    adamw: list[tuple[str, Tensor]] = []
    for name, value in parameters.items():
        matrix = value.ndim == 2 and min(value.shape) > 1 and not any(n in name for n in _NOT_FOR_MUON)
        (muon if settings.optimizer == "muon" and matrix else adamw).append((name, value))
    optimizers: dict[str, torch.optim.Optimizer] = {}
    if muon:
        assert settings.muon_lr is not None
        sharded = any(isinstance(value, DTensor) for _, value in muon)
        optimizers["muon"] = (ShardedMuon if sharded else torch.optim.Muon)(
            muon,
            lr=settings.muon_lr,
            weight_decay=settings.weight_decay,
            momentum=0.95,
            nesterov=True,
            ns_steps=5,
            adjust_lr_fn="match_rms_adamw",
        )
    if adamw:
        optimizers["adamw"] = torch.optim.AdamW(
            adamw,
            lr=settings.lr,
            betas=(0.9, 0.95),
            eps=1e-8,
            weight_decay=settings.weight_decay,
            fused=True,
        )
    return optimizers


def rate_factor(step: int, total: int, settings: Train) -> float:
    """Factor on the peak learning rate for optimizer step `step` (from 0) of `total`."""
    warm = max(1, round(settings.warmup * total)) if settings.warmup > 0 else 0
    if step < warm:
        return (step + 1) / warm
    if settings.schedule == "constant" or total <= warm:
        return 1.0
    share = (step - warm) / (total - warm)
    if settings.schedule == "linear":
        return 1.0 - share
    return 0.5 * (1.0 + math.cos(math.pi * share))


def set_rates(optimizers: Mapping[str, torch.optim.Optimizer], factor: float, settings: Train) -> float:
    """Set the rates of a step and return AdamW's, which is the one that is logged."""
    for name, optimizer in optimizers.items():
        peak = settings.muon_lr if name == "muon" else settings.lr
        for group in optimizer.param_groups:
            group["lr"] = float(peak or 0.0) * factor
    return settings.lr * factor


def optimizer_tensors(optimizers: Mapping[str, torch.optim.Optimizer]) -> dict[str, Tensor]:
    """Every state tensor by a stable name, `<optimizer>/<parameter index>/<state>`."""
    tensors = {}
    for name, optimizer in optimizers.items():
        for index, state in optimizer.state_dict()["state"].items():
            for key, value in state.items():
                tensors[f"{name}/{index}/{key}"] = torch.as_tensor(value)
    return tensors


def load_optimizer_tensors(
    optimizers: Mapping[str, torch.optim.Optimizer], tensors: Mapping[str, Tensor]
) -> None:
    """Inverse of `optimizer_tensors`."""
    for name, optimizer in optimizers.items():
        state: dict[int, dict[str, Tensor]] = {}
        for path, value in tensors.items():
            owner, index, key = path.split("/")
            if owner == name:
                state.setdefault(int(index), {})[key] = value
        groups = optimizer.state_dict()["param_groups"]
        optimizer.load_state_dict({"state": state, "param_groups": groups})


def empty_optimizer_tensors(
    optimizers: Mapping[str, torch.optim.Optimizer], stored: Mapping[str, torch.Size]
) -> dict[str, Tensor]:
    """Tensors of the stored names and sizes, into which a checkpoint can be read.

    Args:
        stored: Name as of `optimizer_tensors` -> whole size. What is as large as its parameter is sharded
            like it, whatever it was when it was written.

    Raises:
        KeyError: A name belongs to none of these optimizers.
    """
    tensors = {}
    for path, size in stored.items():
        owner, index, _ = path.split("/")
        parameters = [value for group in optimizers[owner].param_groups for value in group["params"]]
        like = parameters[int(index)]
        tensors[path] = torch.zeros_like(like) if size == like.shape else torch.zeros(size)
    return tensors
