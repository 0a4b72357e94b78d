"""One recipe from which a server is started, or its files are rendered: each option stands in it once."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from profiles.deploying import FlagValue
from tasks.errors import UsageError

KEY = "VLLM_API_KEY"
HUB_TOKEN = "HF_TOKEN"
MODULE = "vllm.entrypoints.openai.api_server"
PORT = 8000
MASTER_PORT = 29501


class Variable(str):
    """A word that only the place where the server runs knows; each rendering has its own way to say it."""


HEAD_ADDRESS = Variable("HEAD_ADDRESS")
NODE_RANK = Variable("NODE_RANK")
INTERFACE = Variable("FABRIC_INTERFACE")
"""What several nodes need besides the recipe."""


@dataclass(frozen=True)
class Place:
    """Weights: a folder on this machine, or a repository on a hub."""

    name: str
    """`OWNER/NAME`, or the folder's name."""
    folder: Path | None = None
    revision: str | None = None

    def at(self, mount: str) -> str:
        """What the server calls it where a folder is mounted at `mount`."""
        return mount if self.folder is not None else self.name

    def here(self) -> str:
        """What a server on this machine calls it."""
        return str(self.folder) if self.folder is not None else self.name


@dataclass(frozen=True)
class Recipe:
    """How one draft is served with its target."""

    name: str
    source: str
    """What the user named, for the header of files."""
    target: Place
    draft: Place
    served_name: str
    speculation: Mapping[str, Any]
    """vLLM's speculative configuration without the place of the draft."""
    arguments: Mapping[str, FlagValue]
    """Further vLLM arguments by their full name without dashes."""
    environment: Mapping[str, str]
    image: str
    ready_timeout_s: float
    port: int = PORT
    nodes: int = 1
    gpus_per_node: int = 1
    interface: str = ""
    privileged: bool = False
    cpu: bool = False
    """Served without a GPU."""
    interpreter: bool = False
    """The draft's kernels run in Triton's interpreter."""
    notes: tuple[str, ...] = field(default=())
    """What a user should know."""

    def model_words(self, target: str) -> tuple[str, ...]:
        """The program and the target: the engine's build for CPUs has no `vllm` command that starts."""
        return ("-m", MODULE, "--model", target) if self.cpu else ("vllm", "serve", target)

    def words(self, *, host: str, draft: str, rank: str | None = None) -> tuple[str, ...]:
        """vLLM's arguments behind the target, in a fixed order.

        Args:
            host: Address that the server binds.
            draft: Folder or repository of the draft, as the server sees it.
            rank: Number of the node, where several nodes are one server; all but `0` have no HTTP.
        """
        headless = ("--headless",) if rank not in (None, "0") else ("--host", host, "--port", str(self.port))
        spread: tuple[str, ...] = ()
        if rank is not None:
            spread = ("--nnodes", str(self.nodes), "--node-rank", rank)
            spread += ("--master-addr", HEAD_ADDRESS, "--master-port", str(MASTER_PORT))
        revision = ("--revision", self.target.revision) if self.target.revision else ()
        return (
            *revision,
            "--served-model-name",
            self.served_name,
            *headless,
            *spread,
            *flag_words(self.arguments),
            "--speculative-config",
            json.dumps(self.speculative_config(draft)),
        )

    def speculative_config(self, draft: str) -> dict[str, Any]:
        """vLLM's speculative configuration with the draft at `draft`."""
        revision = {"revision": self.draft.revision} if self.draft.revision else {}
        return {"model": draft, **revision, **self.speculation}


def flag_words(arguments: Mapping[str, FlagValue]) -> tuple[str, ...]:
    """Arguments as words of a command line."""
    words: list[str] = []
    for name, value in arguments.items():
        if isinstance(value, bool):
            words.append(f"--{name}" if value else f"--no-{name}")
        else:
            words += [f"--{name}", json.dumps(value) if isinstance(value, dict) else str(value)]
    return tuple(words)


def flags_of(words: Sequence[str], where: str) -> dict[str, FlagValue]:
    """The inverse of `flag_words`, for the words of a published `serve.json`.

    Raises:
        UsageError: A word belongs to no flag, or a flag stands twice: vLLM would silently take the last.
    """
    flags: dict[str, FlagValue] = {}
    rest = list(words)
    while rest:
        flag, equals, value = rest.pop(0).partition("=")
        name = flag.removeprefix("--").replace("_", "-")
        if not flag.startswith("--") or not name:
            raise UsageError(f"'{flag}' belongs to no flag", where=where, hint="publish the draft again")
        given: FlagValue = not name.startswith("no-")
        if equals:
            given = value
        elif rest and not rest[0].startswith("--"):
            given = rest.pop(0)
        name = name.removeprefix("no-")
        if name in flags:
            raise UsageError(f"--{name} stands there twice", where=where, hint="keep one of the two")
        flags[name] = given
    return flags
