"""`vllm bench serve` as a program: `python -m tasks.evaluate.load.benchmark --backend openai ...`.

vLLM's own console script asks for the metadata of a distribution called `vllm`, which its CPU build has not.
Arguments, requests, timing and the result file are vLLM's own; this only calls them.
"""

from __future__ import annotations

import os


def main() -> None:
    """Parse the arguments of `vllm bench serve` and run it; ends when its parent does."""
    from tasks.processes.tie import die_with_parent

    die_with_parent(os.getppid())
    from vllm.benchmarks.serve import add_cli_args
    from vllm.benchmarks.serve import main as benchmark
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = FlexibleArgumentParser(prog="vllm bench serve")
    add_cli_args(parser)
    benchmark(parser.parse_args())


if __name__ == "__main__":
    main()
