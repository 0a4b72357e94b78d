"""The store's round trip on one machine, with a real master and two real clients; then causes it must tell.

Between two hosts it is in `test_store_roundtrip_hosts.py`.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from profiles.schema import Profile
from tasks.processes.launcher import ProcessSpec, launcher_for
from tasks.run_folder import RunFolder, create_run
from tasks.serve import command
from tasks.validate import store_roundtrip, store_roundtrip_plan
from tasks.validate.store_facts import StoreFacts
from tasks.validate.store_roundtrip import round_trip
from tasks.validate.store_roundtrip_verdict import problems

pytestmark = pytest.mark.integration
TARGET: Any = SimpleNamespace(hidden_size=576)
MIB = 2**20


@pytest.fixture
def profile() -> Profile:
    return Profile.model_validate(
        {
            "name": "t",
            "target": {"model": "m", "aux_layer_ids": [2, 8], "max_model_len": 2700},
            "store": {"segment_bytes": 256 * MIB, "local_buffer_bytes": 64 * MIB},
            "stream": {"max_new_tokens": 64, "in_flight_bytes": 128 * MIB},
        }
    )


@pytest.fixture
def run(tmp_path: Path, profile: Profile) -> RunFolder:
    return create_run(tmp_path, "r1", profile)


@pytest.fixture(autouse=True)
def short_series(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every size in both placements, but few repetitions: the times are not what the tests are about."""
    monkeypatch.setattr(store_roundtrip_plan, "SERIES_LIMIT_S", 0.05)


def measured(profile: Profile, run: RunFolder) -> StoreFacts:
    return round_trip(profile, TARGET, run, run.path / "01-validate", launcher_for(profile))


def change_end(
    monkeypatch: pytest.MonkeyPatch, role: str, change: Callable[[ProcessSpec], ProcessSpec]
) -> None:
    """Start one end otherwise than planned."""
    real = store_roundtrip._spec

    def spec(settings: Any, exchange: Path) -> ProcessSpec:
        made = real(settings, exchange)
        return change(made) if settings.role == role else made

    monkeypatch.setattr(store_roundtrip, "_spec", spec)


def python(code: str) -> Callable[[ProcessSpec], ProcessSpec]:
    """The end as other Python code; its configuration stays the first argument."""
    return lambda spec: dataclasses.replace(spec, argv=(spec.argv[0], "-c", code, spec.argv[-1]))


def configured(**values: Any) -> Callable[[ProcessSpec], ProcessSpec]:
    def change(spec: ProcessSpec) -> ProcessSpec:
        path = Path(spec.argv[-1])
        path.write_text(json.dumps({**json.loads(path.read_text()), **values}))
        return spec

    return change


def nothing_runs(run: RunFolder) -> bool:
    lines = (" ".join(p.info["cmdline"] or ()) for p in psutil.process_iter(["cmdline"]))
    ours = [line for line in lines if "store" in line and str(run.path) in line]
    return list(run.services.glob("*.json")) == [] and ours == []


def test_tensors_of_the_runs_sizes_come_back_in_both_placements(profile: Profile, run: RunFolder) -> None:
    facts = measured(profile, run)
    assert facts.cause == "" and problems(facts) == ()
    assert facts.sample_bytes and facts.sample_bytes > 2699 * 3 * 576 * 2
    assert {one.size_bytes for one in facts.transfers} >= {4096, facts.sample_bytes}
    assert {one.concurrency for one in facts.transfers} == {1, profile.store.writer_threads}
    assert {(one.operation, one.placement) for one in facts.transfers} == {
        ("put", "producer"), ("get", "producer"), ("put", "consumer"), ("get", "consumer"),
    }  # fmt: skip
    assert all(one.succeeded and one.gb_per_s and one.p50_ms for one in facts.transfers)
    assert (facts.spans_hosts, facts.interface, facts.protocol) == (False, "lo -> lo", "tcp")
    assert facts.crossed_bytes and facts.payload_bytes
    assert facts.crossed_bytes > facts.payload_bytes, "the copy in memory is off, so loopback carried it"
    assert list((run.path / "01-validate").iterdir()) == [], "nothing of the exchange stays"
    assert nothing_runs(run)


def test_the_path_is_the_run_s_own_its_interface_is_looked_up_by_the_ends(
    profile: Profile, run: RunFolder
) -> None:
    store = profile.store.model_copy(update={"interface": "none0"})
    facts = measured(profile.model_copy(update={"store": store}), run)
    assert "'none0' does not exist on this node" in facts.cause and "store.interface" in facts.cause
    assert [one.cause_id for one in problems(facts)] == ["setup_failed"]
    assert nothing_runs(run)


def test_a_master_that_dies_is_told_with_its_last_lines(
    profile: Profile, run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "mooncake_master"
    program.write_text("#!/bin/sh\necho cannot bind >&2\nexit 3\n")
    program.chmod(0o755)
    monkeypatch.setattr(command, "_master_program", lambda: str(program))
    facts = measured(profile, run)
    assert facts.ran and "status 3" in facts.cause and "cannot bind" in facts.cause
    assert [one.cause_id for one in problems(facts)] == ["process_died"]


def test_changed_bytes_are_noticed(profile: Profile, run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """The consumer reads other bytes than the producer wrote, as after a mix-up in the store."""
    change_end(
        monkeypatch,
        "consume",
        python(
            "import sys, tasks.stream.roundtrip as r; real = r.digest; "
            "r.digest = lambda tensor: real(tensor.flip(0)); raise SystemExit(r.main(sys.argv[1]))"
        ),
    )
    facts = measured(profile, run)
    assert [one.cause_id for one in problems(facts)] == ["checksum"]
    assert sum(one.checksum_mismatches for one in facts.transfers) == facts.failures["checksum"] >= 8


def test_segments_that_are_too_small_are_told_from_a_small_buffer(
    profile: Profile, run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both answer -200, and the client logs the same line for both."""
    change_end(monkeypatch, "produce", configured(segment_bytes=16 * MIB))
    facts = measured(profile, run)
    assert set(facts.failures) == {"segment_full"} and "-200" in facts.cause
    assert {one.placement for one in facts.transfers if one.return_codes} == {"producer"}
    assert [one.cause_id for one in problems(facts)] == ["segment_full"]


def test_a_small_buffer_of_the_reader_is_named(
    profile: Profile, run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A get then answers nothing at all; the log of the consumer tells why."""
    change_end(monkeypatch, "consume", configured(local_buffer_bytes=16 * MIB))
    facts = measured(profile, run)
    assert set(facts.failures) == {"local_buffer"}
    assert facts.cause.startswith("the local buffer of the consumer is too small")
    assert {code for one in facts.transfers for code in one.return_codes} == {"none"}


def test_an_end_that_dies_is_told_with_its_status(
    profile: Profile, run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    change_end(monkeypatch, "consume", python("print('no such library'); raise SystemExit(7)"))
    facts = measured(profile, run)
    assert facts.cause_id == "process_died"
    assert "store-check-consume ended with status 7" in facts.cause and "no such library" in facts.cause
    assert nothing_runs(run)


def test_an_end_that_hangs_is_ended_at_the_deadline(
    profile: Profile, run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_roundtrip, "TIMEOUT_S", 3.0)
    change_end(monkeypatch, "consume", python("import time; time.sleep(600)"))
    facts = measured(profile, run)
    assert (facts.cause_id, facts.observed_gb_per_s) == ("timeout", None)
    assert nothing_runs(run)


def test_a_store_that_cannot_be_loaded_is_told(
    profile: Profile, run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    change_end(
        monkeypatch,
        "produce",
        python(
            "import sys; sys.modules['mooncake.store'] = None; "
            "import tasks.stream.roundtrip as r; raise SystemExit(r.main(sys.argv[1]))"
        ),
    )
    facts = measured(profile, run)
    assert facts.cause_id == "not_installed" and facts.cause.startswith(
        "producer: the store cannot be loaded"
    )
