"""How a draft is served to users: the profile's `deploy` part, read by `retrain-dspark serve`."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, StrictBool, StrictFloat, StrictInt, StrictStr, field_validator, model_validator

from profiles.part import Part, Positive, Seconds
from profiles.publishing import VariableName

FlagValue = StrictBool | StrictInt | StrictFloat | StrictStr | dict[str, Any]
SET_ELSEWHERE = frozenset(
    (
        "model",
        "revision",
        "host",
        "port",
        "served-model-name",
        "speculative-config",
        "nnodes",
        "node-rank",
        "master-addr",
        "master-port",
        "headless",
        "api-key",
        "config",
    )
)
"""vLLM's flags that are made from other fields, or that would put a secret on a command line."""
_SPREADING = ("tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size")
_FLAG = re.compile(r"^[a-z][a-z0-9]*(-[a-z0-9]+)*$")
_SECRET = re.compile(r"TOKEN(?!IZER)|SECRET|PASSWORD|PASSWD|API_?KEY|ACCESS_KEY|PRIVATE_KEY|CREDENTIAL")


class Deploy(Part):
    """How a draft is served to users, besides the options it was measured with."""

    image: str = ""
    """Container image of the engine; pin it by digest where you can. Empty takes vLLM's own `latest`, or the
    image of `docker/cpu.Dockerfile` for a draft that was measured without a GPU."""
    nodes: Positive = 1
    """Nodes of one server."""
    gpus_per_node: Positive = 1
    """GPUs of each node that the server uses; without `tensor-parallel-size` it is split over all of them."""
    interface: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]*$")] = ""
    """Network interface of the fabric between the nodes, for NCCL and gloo; empty asks where it runs."""
    privileged: bool = False
    """Start the container with all rights on the machine, which some fabrics need."""
    draft_attention_backend: str | None = None
    """Attention backend of the draft, where the engine's own choice does not suit it."""
    arguments: dict[str, FlagValue] = {}
    """Further vLLM arguments: name without dashes -> value. `true` sets a switch, `false` sets its `no-`
    form, a mapping becomes JSON. Replaces an argument of the same name that the draft was measured with."""
    environment: dict[VariableName, str] = {}
    """Environment of the server. Never secrets."""
    ready_timeout_s: Seconds = 3600.0
    """Longest time from start to the first healthy answer, seconds."""

    @field_validator("arguments")
    @classmethod
    def _one_name_for_one_flag(cls, arguments: dict[str, FlagValue]) -> dict[str, FlagValue]:
        """Only full names as vLLM writes them: then no flag can stand twice."""
        for name in arguments:
            if not _FLAG.match(name) or name.startswith("no-"):
                raise ValueError(
                    f"'{name}' is not the full name of a flag without dashes in front; write "
                    "max-num-seqs: 16, or enable-prefix-caching: false in place of its no- form"
                )
        if given := sorted(SET_ELSEWHERE & set(arguments)):
            raise ValueError(
                f"{', '.join(given)}: set from other fields (target, serve.served_name, deploy) or, for "
                "secrets, from the environment"
            )
        return arguments

    @field_validator("environment")
    @classmethod
    def _no_secrets(cls, environment: dict[str, str]) -> dict[str, str]:
        if found := [name for name in environment if _SECRET.search(name.upper())]:
            raise ValueError(
                f"{', '.join(found)} looks like a secret; the server takes VLLM_API_KEY and HF_TOKEN by name"
            )
        return environment

    @model_validator(mode="after")
    def _fits_the_nodes(self) -> Deploy:
        spread = spread_of(self.arguments)
        gpus = self.nodes * self.gpus_per_node
        if spread and math.prod(spread.values()) != gpus:
            told = " x ".join(f"{name} {size}" for name, size in spread.items())
            raise ValueError(
                f"{told} is not nodes {self.nodes} x gpus_per_node {self.gpus_per_node} = {gpus} GPUs"
            )
        return self

    def flags(self) -> dict[str, FlagValue]:
        """The arguments, with the split over all GPUs where none is given."""
        gpus = self.nodes * self.gpus_per_node
        split = {} if spread_of(self.arguments) or gpus == 1 else {_SPREADING[0]: gpus}
        return {**split, **self.arguments}


def spread_of(arguments: Mapping[str, FlagValue]) -> dict[str, int]:
    """The arguments that spread a server over GPUs."""
    return {name: int(str(arguments[name])) for name in _SPREADING if name in arguments}
