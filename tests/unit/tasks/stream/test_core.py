"""What the flow tells the capture client: names of its own node's things stay names."""

from __future__ import annotations

from pathlib import Path

from profiles.load import load_profile
from tasks.run_folder import create_run
from tasks.serve.models import TargetEndpoint
from tasks.stream.core import settings_for
from tests.unit.tasks.train.test_trainer import IDENTITY


def test_the_interface_is_looked_up_where_the_client_runs(tmp_path: Path) -> None:
    """The flow's node need not have the fabric's interface."""
    store = {"protocol": "rdma", "device": "mlx5_9", "gid_index": 3, "interface": "fabric-of-another-node"}
    profile = load_profile("laptop", {"store": store}).profile
    endpoint = TargetEndpoint(
        url="http://h:1", served_name="m", api_key=None, store_master="h:2", store_host="192.0.2.1"
    )
    run = create_run(tmp_path, "r", profile)
    told = settings_for(profile, run, tmp_path, endpoint, IDENTITY, tmp_path)
    assert (told.store_interface, told.store_host) == ("fabric-of-another-node", "192.0.2.1")
    assert (told.store_device, told.store_gid_index) == ("mlx5_9", 3)
