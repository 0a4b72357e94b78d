"""One server on several nodes: vLLM's own processes, one a node, without Ray."""

from __future__ import annotations

from dataclasses import replace

from tasks.processes.launcher import ProcessSpec
from tasks.serve.options import Node

_HEADLESS = ("-m", "vllm.entrypoints.cli.main", "serve")
_OF_THE_API = frozenset({"--host", "--port"})


def across_nodes(spec: ProcessSpec, nodes: int, head: str, port: int) -> tuple[ProcessSpec, ...]:
    """The processes of a server whose model is spread over `nodes` nodes.

    The first one answers requests; the others only compute, without an API, a port or its key.

    Args:
        spec: The server as it would run on one node: `python -m MODULE ARGUMENTS`.
        head: Address of the first node on the fabric.
        port: Where its processes meet, free on the first node.
    """
    if nodes == 1:
        return (spec,)
    of_rank = [Node(rank, nodes, head, port) for rank in range(nodes)]
    first = replace(spec, argv=argv_on(spec.argv, of_rank[0]), ports=(*spec.ports, port))
    others = tuple(
        replace(
            spec,
            name=f"{spec.name}-{node.rank}",
            node=node.rank,
            argv=argv_on(spec.argv, node),
            secret_env={},
            ports=(),
        )
        for node in of_rank[1:]
    )
    return (first, *others)


def argv_on(argv: tuple[str, ...], node: Node) -> tuple[str, ...]:
    """A server's command line on one of its nodes: those after the first compute, without an API."""
    if node.rank == 0:
        return (*argv, *node.arguments())
    return (argv[0], *_HEADLESS, *_without_api(argv[3:]), *node.arguments())


def _without_api(arguments: tuple[str, ...]) -> tuple[str, ...]:
    kept: list[str] = []
    skip = False
    for word in arguments:
        if skip or word in _OF_THE_API:
            skip = not skip
            continue
        kept.append(word)
    return tuple(kept)
