"""Recorded facts: JSON out and in, salted identifiers, files that cannot be used."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tasks.validate.collect.recorded import from_text, read, to_text
from tasks.validate.collect.salting import Salt
from tasks.validate.facts import NetFacts, NodeFacts, RdmaPort
from tasks.validate.gpu_facts import Fabric, GpuFacts, Platform

UUID = "7b1d5e2a-0c44-4f7e-9a63-52f0a1b2c3d4"
ZERO = "00000000-0000-0000-0000-000000000000"


def gpu(index: int, **parts: object) -> GpuFacts:
    known: dict[str, object] = {
        "index": index,
        "uuid": f"GPU-{UUID[:-1]}{index}",
        "serial": f"165000000{index // 2}",
        "bus_id": "00000008:06:00.0",
        "fabric": Fabric(state="Completed", cluster_uuid=UUID, clique_id=32766),
        "platform": Platform(chassis_serial="1820000000001", slot=3),
    }
    return GpuFacts.model_validate({**known, **parts})


def node(name: str = "gb300-a17", **parts: object) -> NodeFacts:
    known: dict[str, object] = {
        "node_id": name,
        "role": "serve",
        "collected_at": datetime(2026, 11, 30, 6, tzinfo=UTC),
        "gpus": tuple(gpu(index) for index in range(4)),
        "net": NetFacts(hostname=name, resolved_ip="127.0.1.1", data_ip="10.20.30.40"),
        "rdma": (RdmaPort(device="mlx5_0", state="ACTIVE"),),
    }
    return NodeFacts.model_validate({**known, **parts})


def saved(tmp_path: Path, *nodes: NodeFacts, salt: Salt | None = None) -> tuple[NodeFacts, ...]:
    path = tmp_path / "facts.json"
    path.write_text(to_text(nodes, salt or Salt(b"s")))
    return read(path)


def test_what_is_no_identifier_comes_back_unchanged(tmp_path: Path) -> None:
    (back,) = saved(tmp_path, node())
    assert back.collector == "recorded" and back.rdma == node().rdma
    first, known = (back.gpus or ())[0], gpu(0)
    hidden = {"uuid", "serial", "fabric", "platform"}
    assert first.model_dump(exclude=hidden) == known.model_dump(exclude=hidden)
    assert (first.fabric.clique_id, first.platform.slot) == (32766, 3)


def test_no_identifier_is_left_in_the_text() -> None:
    lost = node(errors={"gpus[3]": f"GPU-{UUID} is lost", "net.data_ip": "gb300-a17 does not resolve"})
    text = to_text([lost], Salt(b"s"))
    for secret in (UUID[:8], "165000000", "1820000000001", "gb300-a17", "10.20.30.40"):
        assert secret not in text
    assert "127.0.1.1" in text and "does not resolve" in text


def test_what_nodes_share_stays_shared_in_one_set_of_files() -> None:
    salt = Salt()
    one, other = (json.loads(to_text([node(name)], salt)) for name in ("a-host", "b-host"))
    assert one["gpus"][0]["fabric"] == other["gpus"][0]["fabric"]
    assert [unit["serial"] for unit in one["gpus"]] == [unit["serial"] for unit in other["gpus"]]
    assert one["gpus"][0]["serial"] == one["gpus"][1]["serial"] != one["gpus"][2]["serial"]
    assert len({unit["uuid"] for unit in one["gpus"]}) == 4
    assert one["node_id"] == one["net"]["hostname"] != other["node_id"]


def test_another_set_of_files_has_other_names() -> None:
    assert to_text([node()], Salt()) != to_text([node()], Salt())


def test_what_names_nobody_stays() -> None:
    bare = gpu(0, serial="N/A", fabric=Fabric(cluster_uuid=ZERO), platform=Platform(), uuid=None)
    document = json.loads(to_text([node(gpus=(bare,))], Salt()))
    assert document["gpus"][0]["serial"] == "N/A" and document["gpus"][0]["uuid"] is None
    assert document["gpus"][0]["fabric"]["cluster_uuid"] == ZERO


@pytest.mark.parametrize(
    ("address", "kept"),
    [
        ("127.0.1.1", True),
        ("::1", True),
        ("fe80::1", True),
        ("0.0.0.0", True),
        ("10.1.2.3", False),
        ("2001:db8::5", False),
    ],
)
def test_addresses_keep_their_kind(address: str, kept: bool) -> None:
    document = json.loads(to_text([node(net=NetFacts(data_ip=address))], Salt()))
    new = document["net"]["data_ip"]
    assert (new == address) is kept and (":" in new) == (":" in address)


def test_several_nodes_in_one_file(tmp_path: Path) -> None:
    assert len(saved(tmp_path, node("a-host"), node("b-host"))) == 2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no complete JSON"),
        ('{"schema_version": 1, "node_id": "x", ', "was cut"),
        ("[]", "empty"),
        ("3", "not int"),
        ('{"node_id": "x"}', "schema_version is none"),
        ('{"schema_version": 2, "node_id": "x"}', "schema_version is 2, this program reads 1"),
        ('{"schema_version": 1, "node_id": "x"}', "role: Field required"),
        ('{"schema_version": 1, "node_id": 5, "role": "serve"}', "node_id"),
    ],
)
def test_text_that_cannot_be_used_becomes_a_record_that_says_why(text: str, words: str) -> None:
    (back,) = from_text(text, "facts")
    assert words in back.errors["recorded"]
    assert (back.gpus, back.driver.loaded) == (None, None)


def test_an_unknown_field_is_named(tmp_path: Path) -> None:
    document = json.loads(to_text([node()], Salt())) | {"later": 1}
    (back,) = from_text(json.dumps(document), "facts")
    assert "later: Extra inputs are not permitted" in back.errors["recorded"]
    assert back.node_id == document["node_id"]


def test_a_cut_file_and_no_file(tmp_path: Path) -> None:
    path = tmp_path / "serve-0.json"
    path.write_text(to_text([node()], Salt())[:300])
    (cut,) = read(path)
    assert cut.node_id == "serve-0" and "cut" in cut.errors["recorded"]
    (absent,) = read(tmp_path / "none.json")
    assert "none.json cannot be read" in absent.errors["recorded"]
    path.write_bytes(b"\xff\xfe\x00")
    assert "cannot be read" in read(path)[0].errors["recorded"]
