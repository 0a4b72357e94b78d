"""Says which address a node has and then, over and over, that the node lives.

`python -I -S keep.py INTERFACE TOWARDS`, one on each node of an allocation. A line of JSON first, then the
node's name every two seconds: the flow misses it within seconds, Slurm often only after minutes. It ends when
nobody reads it any more. Standard library only.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

BEAT_S = 2.0


def beside(name: str) -> Any:
    """A module of this folder; the bare interpreter knows no packages."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None and spec.loader is not None, "a file beside this one"
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def first_line(interface: str, towards: str) -> str:
    network = beside("network")
    try:
        address = network.own_address(interface, towards)
        said = {"address": address, "interface": interface or network.interface_of(address)}
    except OSError as error:
        said = {"fault": str(error)}
    return json.dumps({"node": os.environ.get("SLURMD_NODENAME", ""), **said})


def main() -> None:
    name = os.environ.get("SLURMD_NODENAME", "")
    line = first_line(sys.argv[1], sys.argv[2])
    try:
        while True:
            print(line, flush=True)
            line = name
            time.sleep(BEAT_S)
    except OSError:
        return


if __name__ == "__main__":
    main()
