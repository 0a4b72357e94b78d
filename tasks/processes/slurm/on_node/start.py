"""Becomes a process of the run: `python -I -S start.py ORDER_FILE`, as a step of the allocation.

The order says what to run, in which environment, and with which secrets. It is readable by its owner alone
and is removed before anything else happens, so that secrets stand neither in an argument list nor in the
environment of a job. What the node alone knows, its address and interface, is added here for the store, NCCL,
gloo and vLLM alike. Standard library only.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Mapping
from typing import Any

_NOT_FOUND = 127


def read_order(path: str) -> dict[str, Any]:
    """The order; its file is gone afterwards."""
    with open(path, encoding="utf-8") as stream:
        os.unlink(path)
        order: dict[str, Any] = json.load(stream)
    return order


def fabric_environment(address: str, interface: str) -> dict[str, str]:
    """One address and one interface for everything that talks to other nodes."""
    named = {"NCCL_SOCKET_IFNAME": interface, "GLOO_SOCKET_IFNAME": interface} if interface else {}
    return {
        **named,
        "VLLM_HOST_IP": address,
        "MC_TCP_BIND_ADDRESS": address,
        "MOONCAKE_LOCAL_HOSTNAME": address,
        "RETRAIN_DSPARK_NODE_ADDRESS": address,
        **({"MC_USE_IPV6": "1"} if ":" in address else {}),
    }


def environment_of(order: Mapping[str, Any], own: Mapping[str, str], node: str) -> dict[str, str]:
    """The flow's variables, over them what the set-up lines made on the node, over them the order's own."""
    place = order["nodes"][node]
    fabric = fabric_environment(place["address"], place["interface"])
    return {**order["inherited"], **own, **fabric, **order["env"], **order["secret_env"]}


def tell(path: str, node: str) -> None:
    """Let the flow know which step this is; readers see the whole file or none."""
    row = {"step": os.environ["SLURM_STEP_ID"], "node": node, "pid": os.getpid()}
    temporary = f"{path}.{os.getpid()}.tmp"
    with open(temporary, "w", encoding="utf-8") as stream:
        json.dump(row, stream)
    os.replace(temporary, path)


def main() -> None:
    order = read_order(sys.argv[1])
    node = os.environ["SLURMD_NODENAME"]
    environment = environment_of(order, os.environ, node)
    with contextlib.suppress(OSError):  # it leads a group already
        os.setsid()
    for folder in order["folders"]:
        os.makedirs(folder, mode=0o700, exist_ok=True)
    if order["cwd"] and os.path.isdir(order["cwd"]):
        os.chdir(order["cwd"])
    tell(order["started"], node)
    try:
        os.execvpe(order["argv"][0], order["argv"], environment)
    except OSError as error:
        print(f"{order['argv'][0]}: {error.strerror}", file=sys.stderr)
        raise SystemExit(_NOT_FOUND) from None


if __name__ == "__main__":
    main()
