"""Use a server that already runs. It is asked, and never started, changed or ended."""

from __future__ import annotations

import os

from profiles.schema import Profile
from tasks.errors import ServiceError, UsageError
from tasks.serve.command import engine_version
from tasks.serve.models import TargetEndpoint
from tasks.serve.vllm_http import Server


def attach(profile: Profile, run_id: str) -> tuple[str, TargetEndpoint]:
    """Check the running server and return its engine and where it answers.

    Raises:
        UsageError: The profile does not say where the store is, or the key's variable is not set.
        ServiceError: It does not answer, serves another model or version, or captures no hidden states.
    """
    key = _key(profile)
    if not profile.store.rpc_port:
        raise UsageError(
            "serve.kind is attach, so the store's master must be named",
            where="store.rpc_port",
            hint="set store.host and store.rpc_port to the master that the running server writes to",
        )
    server = Server(str(profile.serve.url).rstrip("/").removesuffix("/v1"), profile.serve.served_name, key)
    version = _same_version(server)
    served = server.models()
    if server.served_name not in served:
        raise ServiceError(
            f"the server serves {', '.join(sorted(served)) or 'nothing'}, not '{server.served_name}'",
            where=f"serve.url: {server.url}",
            hint="set serve.served_name to a name that it serves",
        )
    server.generate(profile.serve.progress_timeout_s, f"{run_id}-ready", extraction=True)
    return f"vllm {version}", TargetEndpoint(
        url=server.url,
        served_name=server.served_name,
        api_key=key,
        store_master=f"{profile.store.host}:{profile.store.rpc_port}",
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


def _same_version(server: Server) -> str:
    """The running server's version, which must be that of the engine installed here, if one is."""
    version = server.version()
    try:
        here = engine_version().split()[1]
    except ServiceError:
        return version
    if version.split("+")[0] != here.split("+")[0]:
        raise ServiceError(
            f"the running server is vLLM {version}, the engine installed here is {here}",
            where=f"serve.url: {server.url}",
            hint="install the same version: captures and measurements of two versions do not mix",
        )
    return version
