"""Prefect plugin: `prefect deployment run retrain-dspark` finds `retrain-dspark/retrain-dspark`.

Prefect's client wants `<flow>/<deployment>`. A name without a slash is tried as both. Only what the hook
needs is imported here: Prefect loads plugins whenever they are enabled (`[tool.prefect] plugins.enabled`).
"""

from __future__ import annotations

import functools
from typing import Any

from prefect.plugins import register_hook


@register_hook
def setup_environment(*, ctx: Any) -> None:
    """Let a deployment's name stand alone. If Prefect has changed inside, names with a slash still work."""
    try:
        from prefect.client.orchestration._deployments.client import DeploymentAsyncClient

        original = DeploymentAsyncClient.read_deployment_by_name
    except (ImportError, AttributeError):
        return
    if getattr(original, "takes_bare_names", False):
        return

    @functools.wraps(original)
    async def read_deployment_by_name(self: Any, name: str) -> Any:
        return await original(self, name if "/" in name else f"{name}/{name}")

    read_deployment_by_name.takes_bare_names = True  # type: ignore[attr-defined]
    DeploymentAsyncClient.read_deployment_by_name = read_deployment_by_name  # type: ignore[method-assign]
