"""A server over two nodes: one command line each."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from profiles.load import load_profile
from tasks.processes.launcher import ProcessSpec
from tasks.serve.command import target_argv
from tasks.serve.multi_node import across_nodes


def server() -> ProcessSpec:
    profile = load_profile("gb300-kimi-k3").profile
    argv = target_argv(profile, Path("/models/k3"), (24, 93), 8000, "10.0.0.1:50051", "10.0.0.1")
    return ProcessSpec(
        "target", "serve", "serve", argv, env={"A": "1"}, secret_env={"VLLM_API_KEY": "k"}, ports=(8000,)
    )


def test_one_node_needs_nothing() -> None:
    assert across_nodes(server(), 1, "10.0.0.1", 0) == (server(),)


def test_the_first_answers_and_the_other_computes() -> None:
    """Both meet at the head; the key, the address and the port of the API are the head's alone."""
    first, second = across_nodes(server(), 2, "10.0.0.1", 29501)
    meet = ("--master-addr", "10.0.0.1", "--master-port", "29501")
    assert first.argv == (*server().argv, "--nnodes", "2", "--node-rank", "0", *meet)
    assert first.ports == (8000, 29501) and first.secret_env == {"VLLM_API_KEY": "k"}
    assert second.argv[-len(meet) - 5 :] == ("--nnodes", "2", "--node-rank", "1", *meet, "--headless")
    assert second.argv[1:4] == ("-m", "vllm.entrypoints.cli.main", "serve")
    assert (second.name, second.node, second.ports, second.secret_env) == ("target-1", 1, (), {})
    assert "--host" not in second.argv and "--port" not in second.argv and "8000" not in second.argv
    kept = [word for word in server().argv[3:] if word not in ("--host", "192.0.2.1", "--port", "8000")]
    assert list(second.argv[4 : 4 + len(kept)]) == kept and second.env == first.env


@pytest.mark.verify("slurm")
@pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed; run: make setup")
def test_vllm_knows_every_word() -> None:
    """Both command lines go through the engine's own parser."""
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = make_arg_parser(FlexibleArgumentParser())
    first, second = across_nodes(server(), 2, "10.0.0.1", 29501)
    read = parser.parse_args(list(first.argv[3:]))
    assert (read.nnodes, read.node_rank, read.master_addr, read.master_port) == (2, 0, "10.0.0.1", 29501)
    read = parser.parse_args(list(second.argv[4:]))
    assert (read.node_rank, read.headless, read.model) == (1, True, "/models/k3")
