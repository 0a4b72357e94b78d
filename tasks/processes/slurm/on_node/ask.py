"""One question to a node: `python -I -S ask.py port HOST WANTED FIRST LAST` or `ask.py listens PID PORT`.

Prints the answer, a number. Standard library only.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path


def main() -> None:
    spec = importlib.util.spec_from_file_location("network", Path(__file__).with_name("network.py"))
    assert spec is not None and spec.loader is not None, "a file beside this one"
    network = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(network)
    question, *words = sys.argv[1:]
    if question == "port":
        host, wanted, first, last = words
        print(network.take_port(host, int(wanted), int(first), int(last)))
    else:
        print(int(network.listens(int(words[0]), int(words[1]))))


if __name__ == "__main__":
    main()
