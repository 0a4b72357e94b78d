"""Use a server that already runs. It is asked, and never started, changed or ended.

Here is what its HTTP interface says, before anything is captured. No answer is asked for: the connector of
such a server stores the states of every request, and nothing here could take them out of the store again.
What only an answer shows (connector, layers, shape, type, states that fit) the capture client's canary proves
before the first sample; it removes its own objects.
"""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path
from typing import Any

from profiles.schema import Profile
from tasks.errors import ServiceError, UsageError
from tasks.serve.command import engine_version
from tasks.serve.models import TargetEndpoint
from tasks.serve.target_digest import model_digest
from tasks.serve.vllm_http import Server

_CONNECT_S = 5.0
_SNAPSHOT = re.compile(r"/snapshots/([0-9a-f]{40})/?$")


def attach(profile: Profile, target_dir: Path) -> tuple[str, TargetEndpoint]:
    """Check the running server and return its engine and where it answers.

    Args:
        target_dir: The target in Hugging Face format, as it is here.

    Raises:
        UsageError: The key's variable is not set.
        ServiceError: Names everything that does not fit: no answer, another model, revision, version or
            length, or a store that cannot be reached.
    """
    server = Server(
        str(profile.serve.url).rstrip("/").removesuffix("/v1"), profile.serve.served_name, _key(profile)
    )
    version = server.version()
    wrong = [
        *_version_faults(version),
        *_model_faults(profile, server.model_rows(), target_dir),
        *_store_faults(profile.store.master),
    ]
    if wrong:
        raise ServiceError(
            "the running server cannot be used: " + "; ".join(wrong),
            where=f"serve.url: {server.url}",
            hint="change the named fields, or attach to a server that fits; nothing of it was changed",
        )
    return f"vllm {version}", TargetEndpoint(
        url=server.url,
        served_name=server.served_name,
        api_key=server.api_key,
        store_master=profile.store.master,
        store_host=profile.store.host,
    )


def _key(profile: Profile) -> str | None:
    name = profile.serve.api_key_env
    if name is None:
        return None
    key = os.environ.get(name)
    if not key:
        raise UsageError(
            f"the environment variable {name} is not set",
            where="serve.api_key_env",
            hint=f"export {name}=... before the run",
        )
    return key


def _version_faults(version: str) -> list[str]:
    """The running server's version must be that of the engine installed here, if one is."""
    try:
        here = engine_version().split()[1]
    except ServiceError:
        return []
    if version.split("+")[0] == here.split("+")[0]:
        return []
    return [f"it is vLLM {version}, the engine installed here is {here}: their captures do not mix"]


def _model_faults(profile: Profile, rows: dict[str, dict[str, Any]], target_dir: Path) -> list[str]:
    name = profile.serve.served_name
    row = rows.get(name)
    if row is None:
        return [f"it serves {', '.join(sorted(rows)) or 'nothing'}, not '{name}' (serve.served_name)"]
    faults = []
    length = row.get("max_model_len")
    if isinstance(length, int) and length < profile.target.max_model_len:
        faults.append(
            f"it takes {length} tokens, target.max_model_len is {profile.target.max_model_len}: longer "
            "samples would be refused"
        )
    return faults + _root_faults(profile, str(row.get("root") or ""), target_dir)


def _root_faults(profile: Profile, root: str, target_dir: Path) -> list[str]:
    """Compare the server's model with ours, as far as its name allows; the canary compares the weights."""
    wanted = profile.target.revision
    snapshot = _SNAPSHOT.search(root)
    if snapshot and wanted and not snapshot[1].startswith(wanted):
        return [f"it serves revision {snapshot[1]}, target.revision is {wanted}"]
    theirs = Path(root)
    if not theirs.is_absolute() or not (theirs / "config.json").is_file():
        return []
    if theirs.resolve() != target_dir.resolve() and model_digest(theirs) != model_digest(target_dir):
        return [f"its model in {root} is not target.model: config, tokenizer or weights differ"]
    return []


def _store_faults(master: str) -> list[str]:
    host, _, port = master.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_S).close()
    except (OSError, ValueError, OverflowError) as error:
        return [f"the store's master at {master} (store.master) cannot be reached from here: {error}"]
    return []
