"""The store's master: a small server that knows which client holds which object."""

from __future__ import annotations

import socket
import time

from profiles.address import join_address
from profiles.schema import Profile
from tasks.errors import ServiceError, UsageError
from tasks.processes.launcher import Handle, Launcher, ProcessSpec
from tasks.processes.places import Place
from tasks.run_folder import RunFolder
from tasks.serve.command import master_argv
from tasks.serve.log_causes import service_error
from tasks.serve.readiness import require_ours

_READY_S = 30.0
_POLL_S = 0.05


def start_master(
    profile: Profile, run: RunFolder, launcher: Launcher, name: str = "store-master"
) -> tuple[Handle, str]:
    """Start a master on `store.host`, or on the serving node, and wait until it accepts connections.

    Returns:
        Its handle and its address as `host:port`.

    Raises:
        UsageError: `store.host` is not an address of this machine.
        PortInUse: `store.rpc_port` belongs to another program.
        ServiceError: It died or does not listen.
    """
    place = launcher.place(profile, run, "serve", "serve")
    host = place.profile.store.host
    metrics_port = _own_port(place, host)
    rpc_port = place.port(host, profile.store.rpc_port, "store.rpc_port")
    spec = ProcessSpec(
        name=name,
        stage="serve",
        role="serve",
        argv=master_argv(host, rpc_port, metrics_port),
        ports=(rpc_port, metrics_port),
    )
    handle = launcher.start(spec, run)
    try:
        _wait_listening(handle, host, rpc_port)
    except BaseException:
        handle.stop()
        raise
    return handle, join_address(host, rpc_port)


def _own_port(place: Place, host: str) -> int:
    try:
        return place.port(host)
    except OSError as error:
        raise UsageError(
            f"the store's master cannot bind '{host}' on this machine: {error}",
            where="store.host",
            hint="name an address of the machine that serves (`ip -brief address`)",
        ) from None


def _wait_listening(handle: Handle, host: str, port: int) -> None:
    deadline = time.monotonic() + _READY_S
    while time.monotonic() < deadline:
        status = handle.poll()
        if status is not None:
            raise service_error(
                "the store's master", f"ended with status {status}", str(handle.log), handle.tail(100)
            )
        try:
            with socket.create_connection((host, port), timeout=1.0):
                require_ours(handle, port)
                return
        except OSError:
            time.sleep(_POLL_S)
    raise ServiceError(
        f"the store's master does not listen on {host}:{port} after {_READY_S:.0f} s",
        where=str(handle.log),
        log_tail=handle.tail(),
    )
