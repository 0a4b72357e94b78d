"""Many nodes at once: what is slow or gone is reported and delays nobody."""

from __future__ import annotations

import sys
import threading
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tasks.validate.collect.nodes import collect_nodes, program_probe
from tasks.validate.collect.request import ProbeRequest
from tasks.validate.facts import NodeFacts

ROOT = Path(__file__).parents[5]


def answer(request: ProbeRequest) -> NodeFacts:
    return NodeFacts(
        node_id=request.node_id, role=request.role, collected_at=datetime.now(UTC), gpus_attached=4
    )


def requests(count: int) -> list[ProbeRequest]:
    return [ProbeRequest(node_id=f"node-{number}", role="serve") for number in range(count)]


def test_nodes_are_probed_at_the_same_time() -> None:
    """Each probe waits until all have begun: one after another would never end."""
    together = threading.Barrier(18)

    def probe(request: ProbeRequest) -> NodeFacts:
        together.wait(timeout=20)
        return answer(request)

    facts = collect_nodes(requests(18), probe, deadline_s=30)
    assert [node.node_id for node in facts] == [f"node-{number}" for number in range(18)]
    assert all(node.errors == {} for node in facts)


def test_a_slow_node_and_one_that_is_gone() -> None:
    def probe(request: ProbeRequest) -> NodeFacts:
        if request.node_id == "node-1":
            threading.Event().wait()
        if request.node_id == "node-2":
            raise ConnectionRefusedError("no route to it")
        return answer(request)

    facts = collect_nodes(requests(4), probe, deadline_s=1.0)  # the slow one never ends
    assert [node.gpus_attached for node in facts] == [4, None, None, 4]
    assert facts[1].errors == {"node": "timed out after 1 s"}
    assert facts[2].errors == {"node": "ConnectionRefusedError: no route to it"}
    assert (facts[2].node_id, facts[2].role) == ("node-2", "serve")


def test_no_nodes() -> None:
    assert collect_nodes([], answer) == ()


def test_the_probe_runs_as_a_program(monkeypatch: pytest.MonkeyPatch) -> None:
    request = ProbeRequest(node_id="here", role="train", gpus=False)
    (facts,) = collect_nodes([request], program_probe(), deadline_s=60)
    assert (facts.node_id, facts.role, facts.errors) == ("here", "train", {})
    assert facts.os.page_size_bytes and facts.collector == "sysfs"


def test_a_prefix_carries_the_probe_to_the_node(tmp_path: Path) -> None:
    """As `ssh` would, with its greeting: the program gets fixed arguments, the request comes on its input."""
    carrier = tmp_path / "carrier"
    carrier.write_text(f'#!/bin/sh\necho Welcome; echo "$@" > {tmp_path}/arguments\nshift\nexec "$@"\n')
    carrier.chmod(0o755)
    request = ProbeRequest(node_id="a; rm -rf $HOME", role="serve", gpus=False)
    (facts,) = collect_nodes([request], program_probe([str(carrier), "host-7"]), deadline_s=60)
    assert facts.node_id == "a; rm -rf $HOME" and facts.errors == {}
    asked = (tmp_path / "arguments").read_text().split()
    assert asked == ["host-7", sys.executable, "-m", "tasks.validate.collect.probe", "-"]


@pytest.mark.parametrize(
    ("prefix", "words"),
    [
        (["/no/such/ssh"], "/no/such/ssh is not installed"),
        (["sh", "-c", "echo 'Permission denied (publickey)' >&2; exit 255"], "status 255: Permission denied"),
        (["sh", "-c", "echo '{'"], "no complete JSON"),
        (["sh", "-c", "exec sleep 60"], "timed out after 0.5 s"),
    ],
)
def test_a_node_that_is_not_reached(prefix: list[str], words: str) -> None:
    (facts,) = collect_nodes(requests(1), program_probe(prefix, deadline_s=0.5), deadline_s=20)
    assert facts.node_id == "node-0" and facts.gpus is None
    assert list(facts.errors) == ["node"] and words in facts.errors["node"]
