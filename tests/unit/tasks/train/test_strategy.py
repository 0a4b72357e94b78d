"""What is said where torch.compile cannot work."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from tasks.errors import StageInputError
from tasks.train.strategy import compile_layers


class Mlp(nn.Module):
    """As wide as a layer's MLP says by its gate."""

    def __init__(self) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.gate_proj(x).sin() + 1.0


def test_missing_compiler_is_named_before_the_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import config

    monkeypatch.setattr(config.cpp, "cxx", ("/nowhere/c++",))
    monkeypatch.setattr(config, "force_disable_caches", True)
    model = SimpleNamespace(layers=[SimpleNamespace(mlp=Mlp())])
    with pytest.raises(StageInputError, match=r"torch.compile does not work here") as raised:
        compile_layers(model, torch.device("cpu"))
    assert raised.value.where == "train.compile" and "C++ compiler" in raised.value.hint
