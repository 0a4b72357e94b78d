"""Reading of the machine: all I/O of the validate stage but the store's round trip.

What needs no profile is read by the collectors of `collect/`, each in a process with a deadline; what the
profile asks for is read here. A collector that fails leaves its facts unobserved and its reason in
`NodeFacts.errors`; it never raises.
"""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from profiles.schema import Profile
from tasks.processes.ending import port_is_free
from tasks.processes.ports import port_holder
from tasks.serve.target_digest import cache_root
from tasks.validate.collect.assemble import node_facts
from tasks.validate.collect.request import ProbeRequest
from tasks.validate.collect.run import collect_all, settled
from tasks.validate.collect.software import software
from tasks.validate.fact_group import FactGroup
from tasks.validate.facts import DiskFacts, NetFacts, NodeFacts
from tasks.validate.requirements import asked_ports

_DISTRIBUTION = "retrain-dspark"


def collect(profile: Profile, run_folder: Path) -> NodeFacts:
    """Everything observed on this node.

    A fabric registration in progress is waited for, at most `hardware.retry.fabric_s` seconds.

    Args:
        run_folder: Folder of the run; the disk below it is the run root's.
    """
    request = request_of(profile)
    found = settled(lambda: collect_all(request), profile.hardware.retry.fabric_s)

    def guarded(name: str, read: Callable[[], FactGroup]) -> dict[str, Any]:
        try:
            return read().model_dump(exclude_unset=True)
        except Exception as error:  # one unreadable fact must not hide the others
            found.errors[name] = f"{type(error).__name__}: {error}"
            return {}

    more = {
        "disk": guarded("disk", lambda: disk_facts(run_folder)),
        "net": guarded("net", lambda: network_facts(profile)),
        **software(),
    }
    return node_facts(request, found, more)


def request_of(profile: Profile) -> ProbeRequest:
    """What this node is asked for. The master is not tried: validate runs before it starts."""
    target = profile.target
    local = target.source.kind == "path"
    return ProbeRequest(
        gpus=profile.hardware.mode != "none",
        data_ip=profile.store.host,
        weights_path=str(Path(target.model).expanduser().absolute()) if local else "",
    )


def disk_facts(run_folder: Path) -> DiskFacts:
    return DiskFacts(
        run_root_free_bytes=shutil.disk_usage(_existing(run_folder)).free,
        cache_free_bytes=shutil.disk_usage(_existing(cache_root())).free,
        run_folder_writable=run_folder.is_dir() and os.access(run_folder, os.W_OK | os.X_OK),
        run_folder_mode=run_folder.stat().st_mode & 0o777 if run_folder.is_dir() else None,
    )


def _existing(path: Path) -> Path:
    """The nearest existing folder at or above `path`."""
    path = path.absolute()
    return next(folder for folder in (path, *path.parents) if folder.exists())


def network_facts(profile: Profile) -> NetFacts:
    try:
        found = {str(info[4][0]) for info in socket.getaddrinfo("localhost", None)}
    except OSError:
        found = set()
    ports = {
        f"{field}={port}": "" if port_is_free(host, port) else port_holder(port)
        for field, (host, port) in asked_ports(profile).items()
    }
    return NetFacts(loopback_addresses=tuple(sorted(found)), ports=ports)


def own_requirements() -> list[str]:
    """`Requires-Dist` lines of this project, where it is installed."""
    try:
        return importlib.metadata.requires(_DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        return []
