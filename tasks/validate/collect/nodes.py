"""Many nodes at once, each with its own deadline; a node that does not answer is reported like the others."""

from __future__ import annotations

import platform
import queue
import sys
import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from tasks.validate.collect.programs import NotInstalled, Unanswered, ask
from tasks.validate.collect.recorded import from_text
from tasks.validate.collect.request import ProbeRequest
from tasks.validate.collect.run import environment
from tasks.validate.facts import NodeFacts

NODE_DEADLINE_S = 40.0
_ARGV = ("-m", "tasks.validate.collect.probe", "-")

Probe = Callable[[ProbeRequest], NodeFacts]
"""Probes the node that the request names; raises OSError or ValueError if it cannot be reached."""


def collect_nodes(
    requests: Sequence[ProbeRequest], probe: Probe, deadline_s: float = NODE_DEADLINE_S
) -> tuple[NodeFacts, ...]:
    """Facts of all nodes in the order of the requests; never longer than `deadline_s`.

    A probe that hangs is left behind in a thread that does not hold the process.
    """
    answers: queue.SimpleQueue[tuple[int, NodeFacts]] = queue.SimpleQueue()
    for place, request in enumerate(requests):
        threading.Thread(
            target=lambda place, request: answers.put((place, _guarded(probe, request))),
            args=(place, request),
            name=f"probe {request.node_id}",
            daemon=True,
        ).start()
    ends = time.monotonic() + deadline_s
    facts: dict[int, NodeFacts] = {}
    while len(facts) < len(requests):
        try:
            place, answer = answers.get(timeout=max(0.0, ends - time.monotonic()))
        except queue.Empty:
            break
        facts[place] = answer
    late = f"timed out after {deadline_s:g} s"
    return tuple(facts.get(place) or unanswered(request, late) for place, request in enumerate(requests))


def _guarded(probe: Probe, request: ProbeRequest) -> NodeFacts:
    try:
        return probe(request)
    except Exception as error:  # one node must not hide the others
        return unanswered(request, f"{type(error).__name__}: {error}")


def unanswered(request: ProbeRequest, why: str) -> NodeFacts:
    """A record without facts: every required check of the node then says *not observed*."""
    return NodeFacts(
        node_id=request.node_id or platform.node(),
        role=request.role,
        collected_at=datetime.now(UTC).replace(microsecond=0),
        errors={"node": why},
    )


def program_probe(
    prefix: Sequence[str] = (), python: str = sys.executable, deadline_s: float = NODE_DEADLINE_S
) -> Probe:
    """A probe that runs the program `probe`, here or through `prefix` (such as `ssh -o BatchMode=yes HOST`).

    The argument list is fixed: the request goes through standard input, so that no text of it meets a shell.
    """

    def probe(request: ProbeRequest) -> NodeFacts:
        try:
            answer = ask((*prefix, python, *_ARGV), deadline_s, request.to_json(), environment())
        except (NotInstalled, Unanswered) as why:
            return unanswered(request, str(why))
        if answer.status or not answer.output.strip():
            return unanswered(request, f"the probe ended with status {answer.status}: {answer.why}")
        # Some hosts greet on standard output; the document is the last line.
        facts = from_text(answer.output.strip().splitlines()[-1], request.node_id)[0]
        unusable = facts.errors.get("recorded")
        return unanswered(request, f"the probe's answer cannot be used: {unusable}") if unusable else facts

    return probe
