from __future__ import annotations

import os
import socket

import pytest

from tasks.errors import EXIT_USAGE, PortInUse
from tasks.processes.ports import free_port, listening_pids, require_free


def test_holder_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert listening_pids(port) == {os.getpid()}
        with pytest.raises(
            PortInUse, match=f"port {port} on 127.0.0.1 is in use by .*pid {os.getpid()}"
        ) as info:
            require_free("127.0.0.1", port, "serve.port")
        assert info.value.where == "serve.port" and info.value.exit_code == EXIT_USAGE
    require_free("127.0.0.1", port)


def test_ports_are_given_once() -> None:
    ports = [free_port() for _ in range(20)]
    assert len(set(ports)) == 20
