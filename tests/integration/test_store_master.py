"""A real mooncake_master through our launcher: up, on loopback only, gone."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from profiles.load import load_profile
from profiles.schema import Profile
from tasks.errors import PortInUse, ServiceError
from tasks.processes.guard import close_registry
from tasks.processes.launcher import LocalLauncher
from tasks.run_folder import RunFolder, create_run
from tasks.serve import store_master
from tasks.serve.store_master import start_master

pytestmark = pytest.mark.integration


@pytest.fixture
def profile() -> Profile:
    return load_profile("laptop").profile


@pytest.fixture
def run(profile: Profile, tmp_path: Path) -> Iterator[RunFolder]:
    folder = create_run(tmp_path, "run-1", profile)
    yield folder
    close_registry(folder.services)


def test_master_listens_on_loopback_and_ends(profile: Profile, run: RunFolder) -> None:
    handle, address = start_master(profile, run, LocalLauncher())
    try:
        host, port = address.split(":")
        socket.create_connection((host, int(port))).close()
        listening = psutil.Process(handle.pid).net_connections("tcp")
        bound = {(c.laddr.ip, c.laddr.port) for c in listening if c.status == psutil.CONN_LISTEN}
        assert ("127.0.0.1", int(port)) in bound
        assert {ip for ip, _ in bound} == {"127.0.0.1"}
    finally:
        handle.stop()
    assert handle.poll() is not None and not list(run.services.glob("*.json"))
    for taken in handle.spec.ports:
        socket.create_server(("127.0.0.1", taken)).close()


def test_port_of_another_program(profile: Profile, run: RunFolder) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        store = profile.store.model_copy(update={"rpc_port": other.getsockname()[1]})
        with pytest.raises(PortInUse) as info:
            start_master(profile.model_copy(update={"store": store}), run, LocalLauncher())
    assert info.value.where == "store.rpc_port"


def test_master_that_dies_says_why(profile: Profile, run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    real = store_master.master_argv

    def with_unknown_flag(host: str, rpc: int, metrics: int) -> tuple[str, ...]:
        return (*real(host, rpc, metrics), "-no_such_flag=1")

    monkeypatch.setattr(store_master, "master_argv", with_unknown_flag)
    with pytest.raises(ServiceError, match="ended with status") as info:
        start_master(profile, run, LocalLauncher())
    assert any("no_such_flag" in line for line in info.value.log_tail)
    assert not list(run.services.glob("*.json"))
