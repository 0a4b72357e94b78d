"""The environment of a child: what it needs, and no secrets of its parent."""

from __future__ import annotations

from collections.abc import Mapping

from tasks.redaction import looks_secret

_DROPPED_PREFIXES = ("PREFECT_", "MLFLOW_")
# Without compiled modules every engine process spends 13 s more of CPU on imports.
_DROPPED_NAMES = ("PYTHONDONTWRITEBYTECODE",)

DEFAULTS = {
    "PYTHONUNBUFFERED": "1",
    "HF_HUB_OFFLINE": "1",  # targets and drafts are folders; a child that asks a hub is a mistake
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
}


def child_environment(
    inherited: Mapping[str, str], env: Mapping[str, str], secret_env: Mapping[str, str]
) -> dict[str, str]:
    """Inherited variables without orchestration and secrets, then defaults, `env` and `secret_env`.

    `LD_LIBRARY_PATH` passes through: on machines without the system packages it is how the store's
    libraries are found.
    """
    kept = {
        name: value
        for name, value in inherited.items()
        if not name.startswith(_DROPPED_PREFIXES)
        and name not in _DROPPED_NAMES
        and not looks_secret(name, value)
    }
    return {**kept, **DEFAULTS, **env, **secret_env}
