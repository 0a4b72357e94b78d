"""The laptop's target for real: store master, vLLM with our connector, one extraction response."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import httpx
import pytest

from profiles.load import load_profile
from profiles.schema import Profile
from tasks.errors import PortInUse
from tasks.processes.guard import close_registry
from tasks.processes.identity import is_running, process_table
from tasks.processes.launcher import LocalLauncher, ProcessSpec
from tasks.processes.ports import free_port
from tasks.processes.service import running
from tasks.report.progress import SilentProgress
from tasks.run_folder import RunFolder, create_run
from tasks.serve.models import TargetEndpoint, TargetIdentity
from tasks.serve.target import TargetServer, target_identity
from tasks.serve.target_folder import check_target, resolve_target
from tasks.serve.vllm_http import Server

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed; run: make setup"),
]

FAKE = Path(__file__).parents[1] / "fakes" / "vllm_server.py"

Opened = tuple[TargetServer, TargetIdentity, TargetEndpoint, RunFolder]


@pytest.fixture(scope="module")
def profile() -> Profile:
    over = {"store": {"segment_bytes": 64 * 2**20, "local_buffer_bytes": 32 * 2**20}}
    return load_profile("laptop", {**over, "stream": {"in_flight_bytes": 16 * 2**20}}).profile


@pytest.fixture(scope="module")
def opened(profile: Profile, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    run = create_run(tmp_path_factory.mktemp("runs"), "run-1", profile)
    server = TargetServer(profile, run, LocalLauncher(), SilentProgress())
    try:
        identity, endpoint = server.open()
        yield server, identity, endpoint, run
    finally:
        server.close()
        close_registry(run.services)


def post(endpoint: TargetEndpoint, body: dict[str, object], key: str | None) -> httpx.Response:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    with httpx.Client(base_url=endpoint.url, timeout=120, headers=headers, trust_env=False) as client:
        return client.post("/v1/completions", json=body)


@pytest.mark.timeout(600)
def test_hidden_states_come_with_the_answer(opened: Opened) -> None:
    _, identity, endpoint, _ = opened
    body = {
        "model": endpoint.served_name,
        "prompt": [504, 3575, 282, 4649, 314],
        "max_tokens": 6,
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
        "kv_transfer_params": {"include_output_tokens": True},
    }
    answer = post(endpoint, body, endpoint.api_key).json()
    assert len(answer["choices"][0]["token_ids"]) == 6
    transfer = answer["kv_transfer_params"]
    assert transfer["handle"]
    shape = [5 + 6 - 1, len(identity.layer_ids), identity.hidden_size]
    assert str(shape) in json.dumps(transfer)


def shape_of(value: object) -> object:
    """Names and types of an answer, without its values."""
    if isinstance(value, dict):
        return {name: shape_of(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [shape_of(value[0])] if value else []
    return type(value).__name__


def contains(real: object, fake: object) -> bool:
    """Whether everything that the fake's answer has is in the real one, with the same type."""
    if isinstance(fake, dict) and isinstance(real, dict):
        return all(name in real and contains(real[name], inner) for name, inner in fake.items())
    if isinstance(fake, list) and isinstance(real, list):
        return not fake or (bool(real) and contains(real[0], fake[0]))
    return real == fake


def conversation(endpoint: TargetEndpoint) -> dict[str, object]:
    """The same questions to any server that speaks vLLM's HTTP."""
    headers = {"Authorization": f"Bearer {endpoint.api_key}"}
    body = {"model": endpoint.served_name, "prompt": [504, 3575], "max_tokens": 2, "return_token_ids": True}
    body |= {"kv_transfer_params": {"include_output_tokens": True}, "ignore_eos": True}
    with httpx.Client(base_url=endpoint.url, timeout=120, trust_env=False) as client:
        metrics = client.get("/metrics").text
        names = (
            "num_requests_running",
            "num_requests_waiting",
            "prompt_tokens_total",
            "generation_tokens_total",
        )
        return {
            "open": [client.get(path).status_code for path in ("/health", "/metrics")],
            "without key": [client.get("/v1/models").status_code, client.get("/version").status_code],
            "metrics": [f"\nvllm:{name}{{" in metrics for name in names],
            "models": shape_of(client.get("/v1/models", headers=headers).json()),
            "answer": shape_of(client.post("/v1/completions", headers=headers, json=body).json()),
            "unknown model": client.post(
                "/v1/completions", headers=headers, json={**body, "model": "no-such"}
            ).status_code,
        }


def test_the_fake_of_the_unit_tests_conforms(opened: Opened) -> None:
    _, _, endpoint, run = opened
    port = free_port()
    argv = (sys.executable, "-S", str(FAKE), "--port", str(port), "--served-model-name", endpoint.served_name)
    spec = ProcessSpec("fake", "serve", "serve", argv, secret_env={"VLLM_API_KEY": "k"}, ports=(port,))
    fake = TargetEndpoint(f"http://127.0.0.1:{port}", endpoint.served_name, "k")
    with running(LocalLauncher(), spec, run):
        deadline = time.monotonic() + 300
        while not Server(fake.url, fake.served_name).is_healthy():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        said = conversation(fake)
    real = conversation(endpoint)
    assert contains(real, said), (real, said)


def test_key_is_required(opened: Opened) -> None:
    _, _, endpoint, _ = opened
    body = {"model": endpoint.served_name, "prompt": "x", "max_tokens": 1}
    assert post(endpoint, body, None).status_code == 401
    assert post(endpoint, body, "wrong").status_code == 401


def test_identity_is_that_of_every_start(opened: Opened, profile: Profile) -> None:
    _, identity, endpoint, run = opened
    folder = resolve_target(profile)
    assert identity == target_identity(profile, folder, check_target(profile, folder), identity.engine)
    assert identity.layer_ids == (2, 8, 15, 22, 28, 30) and identity.hidden_size == 576
    written = "".join(path.read_text() for path in run.services.glob("*.json")) + identity.model_dump_json()
    assert endpoint.api_key and endpoint.api_key not in written
    logs = "".join(path.read_text(errors="replace") for path in run.logs.glob("*.log"))
    assert endpoint.api_key not in logs


def test_servers_listen_on_loopback_only(opened: Opened) -> None:
    """All but the two sockets of Mooncake's transfer engine, which has no option for its address."""
    import psutil

    _, _, endpoint, run = opened
    entries = [json.loads(path.read_text()) for path in run.services.glob("*.json")]
    leaders = {entry["pid"] for entry in entries}
    ours = {row.pid for row in process_table().values() if row.session in leaders}
    sockets = psutil.net_connections("tcp")
    listening = {
        (c.laddr.ip, c.laddr.port) for c in sockets if c.pid in ours and c.status == psutil.CONN_LISTEN
    }
    served = {port for entry in entries for port in entry["ports"]}
    assert int(endpoint.url.rsplit(":", 1)[1]) in served and len(served) == 3
    assert {("127.0.0.1", port) for port in served} <= listening
    assert len([ip for ip, _ in listening if ip not in ("127.0.0.1", "::1")]) <= 2, listening


def test_port_of_a_running_server_is_refused(opened: Opened, profile: Profile, tmp_path: Path) -> None:
    _, _, endpoint, _ = opened
    port = int(endpoint.url.rsplit(":", 1)[1])
    serve = profile.serve.model_copy(update={"port": port})
    taken = profile.model_copy(update={"serve": serve})
    other = TargetServer(taken, create_run(tmp_path, "run-2", taken), LocalLauncher(), SilentProgress())
    with pytest.raises(PortInUse, match=f"port {port}"):
        other.open()
    assert not list((tmp_path / "run-2" / "services").glob("*.json"))


def test_close_leaves_no_process(opened: Opened) -> None:
    """Last in this file: it ends the server that the others use."""
    server, _, endpoint, run = opened
    leaders = {json.loads(path.read_text())["pid"] for path in run.services.glob("*.json")}
    started = [row for row in process_table().values() if row.session in leaders]
    assert len(started) >= 3
    server.close()
    assert not [row.pid for row in started if is_running(row.pid, row.start_ticks)]
    assert not list(run.services.glob("*.json"))
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{endpoint.url}/health", trust_env=False)
    assert os.getpid() not in {row.pid for row in started}
