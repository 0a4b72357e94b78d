"""Upstream's Mooncake connector inside vLLM, unchanged but for one thing: it also starts without a GPU.

Loaded by module path in the baseline's server only. As it ships, it asks torch for the accelerator's
streams and raises where there is none; here they do nothing there, as all work is done by the host in order.
"""

from __future__ import annotations

import contextlib
from typing import Any

from hs_connectors.mooncake_hidden_states_connector import MooncakeHiddenStatesConnector
from vllm.platforms import current_platform


class _Nothing:
    def wait_event(self, event: object) -> None:
        """Nothing runs beside the host."""

    def record(self) -> None:
        """Nothing runs beside the host."""


class _Host:
    Stream = _Nothing
    Event = _Nothing

    @staticmethod
    def stream(stream: object) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()


class UpstreamConnector(MooncakeHiddenStatesConnector):  # type: ignore[misc]
    """`MooncakeHiddenStatesConnector` of hs-connectors, on CPU too."""

    def _device(self) -> Any:
        return _Host if current_platform.is_cpu() else super()._device()
