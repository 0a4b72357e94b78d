"""Where the nodes of a plan are, and which address one gives to its peers."""

from __future__ import annotations

from typing import Any

import pytest

from profiles.schema import Profile
from tasks.processes.identity import host_name
from tasks.processes.launcher import LocalLauncher
from tasks.processes.nodes import Node, address_towards


@pytest.fixture(autouse=True)
def no_named_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MOONCAKE_LOCAL_HOSTNAME", raising=False)


def profile(host: str, **roles: Any) -> Profile:
    target = {"model": "m", "aux_layer_ids": [2]}
    store, hardware = {"host": host}, {"roles": roles}
    return Profile.model_validate({"name": "t", "target": target, "store": store, "hardware": hardware})


def test_this_machine_plays_every_role_at_the_stores_address() -> None:
    assert LocalLauncher().nodes(profile("10.1.2.3")) == (Node(host_name(), "serve+train", "10.1.2.3"),)


def test_one_node_of_several_gives_its_own_address() -> None:
    head = "192.0.2.1"
    (node,) = LocalLauncher("train").nodes(profile(head, colocated=False))
    assert (node.role, node.address) == ("train", address_towards(head))
    assert address_towards("127.0.0.5") == "127.0.0.1" and node.address != head, (
        "the head's is not the trainer's"
    )


def test_the_address_that_the_store_is_told_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOONCAKE_LOCAL_HOSTNAME", "10.9.8.7")
    assert address_towards("127.0.0.1") == "10.9.8.7"


def test_no_way_to_a_host_leaves_the_address_open() -> None:
    assert address_towards("no-such-host.invalid") == ""
