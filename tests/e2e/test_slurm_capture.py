"""Captures across the nodes of an emulated cluster: real store and capture client, the fake target.

Master and target are on the serving node, client and hidden-state log on the training node, this process
beside the cluster's controller.
"""

from __future__ import annotations

import json
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from cluster_runs import made_ready, new_cluster, nothing_is_left, until
from slurm_cluster import NODES, SlurmCluster
from streaming_bench import FAKE, KEY, SERVED, stage_folder, write_prompts
from word_target import AUX_LAYERS, write_tiny_target

from profiles.load import load_profile
from profiles.schema import Profile
from tasks.errors import NodeLost
from tasks.processes.guard import close_registry
from tasks.processes.launcher import ProcessSpec
from tasks.processes.slurm.handle import SlurmHandle
from tasks.processes.slurm.launcher import SlurmLauncher
from tasks.report.progress import SilentProgress
from tasks.run_folder import RunFolder, create_run
from tasks.serve.deaths import telling_deaths
from tasks.serve.target import TargetServer
from tasks.serve.target_folder import resolve_target
from tasks.stream.core import capture
from tasks.stream.models import CaptureManifest
from tasks.validate.core import validate

pytestmark = [pytest.mark.e2e, pytest.mark.verify("slurm"), pytest.mark.timeout(1200)]
PROMPTS, MANY = 60, 1060


class FakeTargets(SlurmLauncher):
    """Starts the fake program where the pipeline starts vLLM, on the node where that would be.

    Args:
        token_s: Seconds of each generated token.
    """

    def __init__(self, profile: Profile, run: RunFolder, token_s: float = 0.0):
        super().__init__(profile, run, lambda seconds, note: None)
        self._token_s = token_s
        self.started: list[str] = []

    def start(self, spec: ProcessSpec, run: RunFolder) -> SlurmHandle:
        self.started.append(spec.name)
        if spec.name != "target":
            return super().start(spec, run)
        given = dict(zip(spec.argv[3:], spec.argv[4:], strict=False))
        mooncake = json.loads(given["--kv-transfer-config"])["kv_connector_extra_config"]["mooncake"]
        assert mooncake["local_hostname"] == given["--host"]
        words = [sys.executable, str(FAKE), "--master", mooncake["master_server_address"]]
        for name in ("--host", "--port", "--model", "--served-model-name", "--max-model-len"):
            words += [name, given[name]]
        words += ["--layers", str(len(AUX_LAYERS) + 1), "--segment-bytes", str(32 * 2**20)]
        words += ["--token-s", str(self._token_s)]
        return super().start(replace(spec, argv=tuple(words)), run)


@pytest.fixture(scope="module")
def running_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    with new_cluster(tmp_path_factory) as found:
        yield found


@pytest.fixture
def cluster(running_cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> SlurmCluster:
    return made_ready(running_cluster, monkeypatch)


@pytest.fixture
def run(cluster: SlurmCluster, tmp_path: Path) -> Iterator[RunFolder]:
    found = new_run(cluster, tmp_path, PROMPTS)
    yield found
    close_registry(found.services)


def new_run(cluster: SlurmCluster, folder: Path, prompts: int) -> RunFolder:
    tmp_path = folder / f"{prompts}"
    (tmp_path / "prompts").mkdir(parents=True)
    over: dict[str, Any] = {
        "target": {
            "model": str(write_tiny_target(tmp_path / "target")),
            "source": {"kind": "path"},
            "aux_layer_ids": list(AUX_LAYERS),
            "max_model_len": 128,
        },
        "hardware": {"min_memory_gib": 1, "roles": {"colocated": False}},
        "serve": {"served_name": SERVED, "progress_timeout_s": 60},
        "store": {"segment_bytes": 32 * 2**20, "local_buffer_bytes": 32 * 2**20},
        "prompts": {
            **write_prompts(tmp_path / "prompts", prompts),
            "train_per_domain": None,
            "evaluate_per_domain": None,
        },
        "stream": {"concurrency": 8, "max_new_tokens": 24, "in_flight_bytes": 16 * 2**20},
        "evaluate": {"replay_max_new_tokens": 24},
        "launch": {
            "kind": "slurm",
            "scratch": f"{cluster.private}/logs",
            "slurm": {"time_limit_minutes": 5, "node_silence_s": 10, "driver_silence_s": 10},
        },
    }
    return create_run(tmp_path / "runs", f"r{prompts}", load_profile("laptop", over).profile)


def captured(launcher: SlurmLauncher, run: RunFolder) -> CaptureManifest:
    """The stream stage, as its task does it."""
    profile = run.profile()
    server = TargetServer(profile, run, launcher, SilentProgress())
    try:
        identity, endpoint = server.open()
        with telling_deaths(server.handles):
            return capture(
                profile,
                run,
                stage_folder(run),
                endpoint,
                identity,
                resolve_target(profile),
                launcher,
                SilentProgress(),
                server.watch(),
            )
    finally:
        server.close()


def samples_of(cluster: SlurmCluster, node: str) -> set[str]:
    return {path.name for path in cluster.content(node).glob("logs/*/*.safetensors")}


def test_nodes_are_validated_where_they_are(cluster: SlurmCluster, run: RunFolder) -> None:
    """Facts come from the nodes themselves, and the store's round trip crosses the link between them."""
    launcher = FakeTargets(run.profile(), run)
    folder = run.path / "01-validate"
    folder.mkdir()
    try:
        report = validate(run.profile(), run, folder, launcher, SilentProgress())
        serve = launcher.place(run.profile(), run, "serve", "serve").nodes[0]
        train = launcher.place(run.profile(), run, "stream", "train").nodes[0]
    finally:
        launcher.close()
    wrong = [(check.id, check.subject, check.message) for check in report.checks if check.status == "fail"]
    assert not wrong and {"store-check-master", "store-check-produce"} < set(launcher.started)
    assert {check.subject for check in report.checks if check.id == "net.address"} == {serve, train}
    (trip,) = [check for check in report.checks if check.id == "store.roundtrip"]
    assert trip.status == "pass" and "eth0 -> eth0" in trip.observed
    nothing_is_left(cluster)


@dataclass(frozen=True)
class Measured:
    """One capture. Bytes on the interfaces of its nodes, and on this process's side of the bridge."""

    manifest: CaptureManifest
    sent_by_serving: int
    received_by_training: int
    moved_here: int


def measured(cluster: SlurmCluster, run: RunFolder) -> Measured:
    launcher = FakeTargets(run.profile(), run)
    try:
        serve = launcher.place(run.profile(), run, "serve", "serve").nodes[0]
        train = launcher.place(run.profile(), run, "stream", "train").nodes[0]
        before = cluster.bytes_sent(serve), cluster.bytes_received(train), cluster.bytes_here()
        manifest = captured(launcher, run)
        after = cluster.bytes_sent(serve), cluster.bytes_received(train), cluster.bytes_here()
    finally:
        launcher.close()
        close_registry(run.services)
    assert manifest.counters.lost == 0
    log = stage_folder(run) / "log"
    assert log.is_symlink() and not log.exists(), "this side sees the log"
    assert len(samples_of(cluster, train)) == manifest.samples and not samples_of(cluster, serve)
    assert KEY not in "".join(path.read_text(errors="replace") for path in run.logs.iterdir())
    return Measured(manifest, *(new - old for old, new in zip(before, after, strict=True)))


def test_hidden_states_go_from_the_serving_to_the_training_node(
    cluster: SlurmCluster, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Interface counters: the training node gets all; the flow's side grows by less than 1 MB per 1,000."""
    small = measured(cluster, new_run(cluster, tmp_path, PROMPTS))
    nothing_is_left(cluster)
    for node in NODES:
        shutil.rmtree(cluster.content(node) / "logs", ignore_errors=True)
    large = measured(cluster, new_run(cluster, tmp_path, MANY))
    for one in (small, large):
        assert one.sent_by_serving >= one.manifest.bytes and one.received_by_training >= one.manifest.bytes
    assert small.manifest.samples == PROMPTS and large.manifest.samples == MANY
    per_thousand = (large.moved_here - small.moved_here) / (MANY - PROMPTS) * 1000
    record_property("captured_bytes", large.manifest.bytes)
    record_property("sent_by_serving_node", large.sent_by_serving)
    record_property("received_by_training_node", large.received_by_training)
    record_property("flow_side_bytes", large.moved_here)
    record_property("flow_side_bytes_per_1000_samples", round(per_thousand))
    print(small.moved_here, large.moved_here, per_thousand, large.received_by_training, large.manifest.bytes)
    assert per_thousand < 1e6
    nothing_is_left(cluster)


@pytest.mark.parametrize("role", ["serve", "train"])
def test_a_node_lost_in_a_capture_is_named_and_a_resume_brings_the_rest(
    cluster: SlurmCluster, run: RunFolder, role: str
) -> None:
    """What was captured is on the training node's disk, also after its fall; a resume asks for the rest."""
    launcher = FakeTargets(run.profile(), run, token_s=0.05)
    stage = {"serve": "serve", "train": "stream"}[role]
    node = launcher.place(run.profile(), run, stage, role).nodes[0]
    train = launcher.place(run.profile(), run, "stream", "train").nodes[0]
    falls = threading.Thread(
        target=lambda: (until(lambda: len(samples_of(cluster, train)) >= 10, 120.0), cluster.remove(node))
    )
    falls.start()
    try:
        with pytest.raises(NodeLost) as raised:
            captured(launcher, run)
        assert raised.value.where == node and node in raised.value.what
    finally:
        falls.join()
        launcher.close()
        cluster.restore(node)
    nothing_is_left(cluster)
    before = samples_of(cluster, train)
    assert 10 <= len(before) < PROMPTS
    again = FakeTargets(run.profile(), run)
    try:
        manifest = captured(again, run)
        assert again.place(run.profile(), run, "stream", "train").nodes[0] == train
        assert again.started == ["store-master", "target", "capture"]
    finally:
        again.close()
    assert manifest.samples == PROMPTS and manifest.counters.lost == 0
    assert len(samples_of(cluster, train)) == PROMPTS and before <= samples_of(cluster, train)
    assert manifest.counters.requests < PROMPTS + len(before)
    nothing_is_left(cluster)
