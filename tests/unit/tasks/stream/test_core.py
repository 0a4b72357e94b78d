"""What the flow tells the capture client: names of its own node's things stay names."""

from __future__ import annotations

from pathlib import Path

import pytest

from profiles.load import load_profile
from profiles.streaming import put_timeout_s
from tasks.run_folder import create_run
from tasks.serve.models import TargetEndpoint
from tasks.stream.core import settings_for
from tasks.stream.settings import CaptureSettings
from tests.unit.tasks.train.test_trainer import IDENTITY

ENDPOINT = TargetEndpoint(
    url="http://h:1", served_name="m", api_key=None, store_master="h:2", store_host="192.0.2.1"
)


def told_by(folder: Path, **changes: dict[str, object]) -> CaptureSettings:
    profile = load_profile("laptop", changes).profile
    return settings_for(profile, create_run(folder, "r", profile), folder, ENDPOINT, IDENTITY, folder)


def test_the_interface_is_looked_up_where_the_client_runs(tmp_path: Path) -> None:
    """The flow's node need not have the fabric's interface."""
    store = {"protocol": "rdma", "device": "mlx5_9", "gid_index": 3, "interface": "fabric-of-another-node"}
    told = told_by(tmp_path, store=store)
    assert (told.store_interface, told.store_host) == ("fabric-of-another-node", "192.0.2.1")
    assert (told.store_device, told.store_gid_index) == ("mlx5_9", 3)


@pytest.mark.parametrize("read_timeout_s", [30.0, 60.0, 300.0])
def test_the_last_sweep_waits_longer_than_a_put_may(tmp_path: Path, read_timeout_s: float) -> None:
    """Else a sample that finds space at last would stay in the store behind its run."""
    told = told_by(tmp_path, stream={"read_timeout_s": read_timeout_s})
    stream = load_profile("laptop", {"stream": {"read_timeout_s": read_timeout_s}}).profile.stream
    assert told.sweep_limit_s >= max(60.0, put_timeout_s(stream) + 10)
