"""A deployment's name may stand alone."""

from __future__ import annotations

import asyncio
from importlib.metadata import entry_points
from typing import Any

import pytest
from prefect.client.orchestration._deployments.client import DeploymentAsyncClient

from flows.prefect_plugin import setup_environment


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names that the client was asked for."""
    names: list[str] = []

    async def read_deployment_by_name(self: Any, name: str) -> str:
        names.append(name)
        return name

    monkeypatch.setattr(DeploymentAsyncClient, "read_deployment_by_name", read_deployment_by_name)
    return names


def read(name: str) -> str:
    return str(asyncio.run(DeploymentAsyncClient.read_deployment_by_name(object(), name)))  # type: ignore[arg-type]


def test_a_bare_name_is_flow_and_deployment(asked: list[str]) -> None:
    setup_environment(ctx=None)
    assert read("retrain-dspark") == "retrain-dspark/retrain-dspark"
    assert read("retrain-dspark/retrain-dspark-nightly") == "retrain-dspark/retrain-dspark-nightly"


def test_it_is_wrapped_once(asked: list[str]) -> None:
    setup_environment(ctx=None)
    wrapped = DeploymentAsyncClient.read_deployment_by_name
    setup_environment(ctx=None)
    assert DeploymentAsyncClient.read_deployment_by_name is wrapped
    read("a")
    assert asked == ["a/a"]


def test_a_client_that_changed_inside_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(DeploymentAsyncClient, "read_deployment_by_name")
    setup_environment(ctx=None)
    assert not hasattr(DeploymentAsyncClient, "read_deployment_by_name")


def test_prefect_finds_the_plugin() -> None:
    found = entry_points(group="prefect.plugins", name="retrain_dspark")
    assert [entry.value for entry in found] == ["flows.prefect_plugin"]
