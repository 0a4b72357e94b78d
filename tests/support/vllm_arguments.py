"""Puts command lines through the installed vLLM's own argument parser, and looks up what they name.

A program: lines `{"argv", "environment"}` as JSON on its standard input, one list of faults for each on its
output. It imports vLLM once, which takes far longer than all the parsing.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any


class _Refused(Exception):
    """What the parser says instead of ending the process."""


def telling_parser() -> Any:
    """The server's parser, which raises `_Refused` where it would end the process."""
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    def refuse(message: str) -> None:
        raise _Refused(message)

    parser = make_arg_parser(FlexibleArgumentParser())
    parser.error = refuse
    return parser


def unknown_names(arguments: Any) -> Iterator[str]:
    """Values that the parser takes as any text, and the engine looks up later."""
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
    from vllm.model_executor.model_loader import _LOAD_FORMAT_TO_MODEL_LOADER
    from vllm.reasoning import ReasoningParserManager
    from vllm.tool_parsers import ToolParserManager
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    if str(arguments.load_format) not in _LOAD_FORMAT_TO_MODEL_LOADER:
        yield f"--load-format {arguments.load_format}"
    if arguments.attention_backend and str(arguments.attention_backend).split(".")[-1] not in _names(
        AttentionBackendEnum
    ):
        yield f"--attention-backend {arguments.attention_backend}"
    for flag, name, known in (
        ("--reasoning-parser", arguments.reasoning_parser, ReasoningParserManager.list_registered()),
        ("--tool-call-parser", arguments.tool_call_parser, ToolParserManager.list_registered()),
    ):
        if name and name not in known:
            yield f"{flag} {name}"
    transfer = as_mapping(arguments.kv_transfer_config)
    connector = transfer.get("kv_connector")
    ours = bool(transfer.get("kv_connector_module_path"))
    if connector and not ours and connector not in KVConnectorFactory._registry:
        yield f"--kv-transfer-config kv_connector {connector}"
    yield from unknown_speculation(as_mapping(arguments.speculative_config))


def unknown_speculation(config: dict[str, Any]) -> Iterator[str]:
    """Fields and values of a speculative config, without the models that building it would load."""
    import dataclasses

    from pydantic import TypeAdapter, ValidationError
    from vllm.config.speculative import SpeculativeConfig
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    types: dict[str, Any] = {field.name: field.type for field in dataclasses.fields(SpeculativeConfig)}
    for name, value in config.items():
        if name not in types:
            yield f"--speculative-config {name}"
        elif name == "attention_backend":
            if value not in _names(AttentionBackendEnum):
                yield f"--speculative-config {name} {value}"
        elif name != "draft_model_config":
            try:
                TypeAdapter(types[name]).validate_python(value)
            except ValidationError:
                yield f"--speculative-config {name} {value}"


def unknown_variables(environment: dict[str, str]) -> Iterator[str]:
    """Variables that look like vLLM's and are none."""
    from vllm import envs

    yield from (
        name for name in environment if name.startswith("VLLM_") and name not in envs.environment_variables
    )


def as_mapping(value: Any) -> dict[str, Any]:
    """A configuration as it was written, whether the parser leaves it a mapping or makes an object of it."""
    if value is None:
        return {}
    if isinstance(value, dict):
        return value
    import dataclasses

    defaults = type(value)()
    fields = [field.name for field in dataclasses.fields(value)]
    return {name: getattr(value, name) for name in fields if getattr(value, name) != getattr(defaults, name)}


def _names(enumeration: Any) -> set[str]:
    return set(enumeration.__members__)


def faults_of(parser: Any, line: dict[str, Any]) -> list[str]:
    """What the engine does not know of one command line."""
    from vllm.entrypoints.launchers.cli_args import validate_parsed_serve_args

    faults = list(unknown_variables(line["environment"]))
    try:
        arguments = parser.parse_args(line["argv"])
        validate_parsed_serve_args(arguments)
    except _Refused as error:
        return [*faults, str(error)]
    return [*faults, *unknown_names(arguments)]


if __name__ == "__main__":
    lines, one = json.load(sys.stdin), telling_parser()
    print("FAULTS " + json.dumps([faults_of(one, line) for line in lines]))
