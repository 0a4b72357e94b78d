"""The probe: `python -m tasks.validate.collect.probe` prints one JSON document, the facts of this node.

It changes nothing. With `-` as its argument it takes a request (`ProbeRequest`) from standard input.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from tasks.validate.collect.assemble import node_facts
from tasks.validate.collect.request import ProbeRequest
from tasks.validate.collect.run import collect_all
from tasks.validate.collect.software import software
from tasks.validate.facts import NodeFacts


def probe(request: ProbeRequest) -> NodeFacts:
    """Facts of this node; it never raises for what the node lacks."""
    with ThreadPoolExecutor(1) as beside:
        found = beside.submit(collect_all, request)
        more = software()
        return node_facts(request, found.result(), more)


def main(arguments: Sequence[str]) -> int:
    """Exit status 0, or 2 for a request that cannot be read."""
    try:
        request = ProbeRequest.from_json(sys.stdin.read()) if "-" in arguments else ProbeRequest()
    except ValueError as error:
        print(f"probe: {error}", file=sys.stderr)
        return 2
    print(probe(request).model_dump_json())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
