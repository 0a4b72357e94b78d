"""The plan of the large profile, on a machine that has neither its weights nor a GPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from profiles.load import load_profile
from profiles.prompting import Prompts
from profiles.schema import Profile
from tasks.errors import UsageError
from tasks.plan.core import build_plan, examine_plan
from tasks.plan.models import Plan
from tasks.plan.work import assumed_work

GIB = 2**30


def k3(**parts: Any) -> Profile:
    return load_profile("gb300-kimi-k3", parts).profile


def plan_of(profile: Profile, samples: int = 1000, tokens: int = 8192, **more: Any) -> Plan:
    return examine_plan(profile, work=assumed_work(profile, samples, tokens), **more)


@pytest.fixture(scope="module")
def plan() -> Plan:
    return plan_of(k3())


def test_known_sizes(plan: Plan) -> None:
    assert plan.draft_parameters == 4_744_900_481
    states = plan.token_bytes - 8
    assert 8192 * states == 672 * 2**20
    assert plan.sample_bytes == 8192 * plan.token_bytes + 512
    assert plan.epoch_bytes == (1000 - 1) * plan.sample_bytes  # one of a thousand is held out
    assert (plan.target, plan.target_from) == ("kimi-k3", "profile")
    assert (plan.weights_bytes.value, plan.weights_bytes.source) == (1561e9, "profile")


def test_one_tray_is_refused_and_two_are_accepted(plan: Plan) -> None:
    assert plan.refused == ()
    one = k3(hardware={"roles": {"serve": {"nodes": 1}}})
    risks = plan_of(one).refused
    assert [risk.where for risk in risks] == ["hardware.roles.serve.nodes"]
    assert "1,561 GB of weights do not fit into 1,116 GB: 1 x 4 GPUs of 294 GB" in risks[0].what
    assert "plan 2 serving nodes" in risks[0].remedy
    # By the data sheet: four GPUs of 288 GB, all of their memory.
    sheet = {"memory_total_mib_min": int(288e9 / 2**20)}
    for nodes, refused in ((1, True), (2, False)):
        roles = {"serve": {"nodes": nodes, **sheet}}
        assert bool(plan_of(k3(hardware={"roles": roles, "utilisation": 1.0})).refused) is refused


def test_all_captures_on_a_disk_that_is_too_small_are_refused() -> None:
    profile = k3(budget={"disk_gb": 15_000})
    found = plan_of(profile, 150_000)
    assert (
        "150,000 samples of 8,192 tokens and 704.7 MB are 105.7 TB, 15.0 TB are free" in found.refused[0].what
    )
    assert "stream.retention to window" in found.refused[0].remedy
    assert plan_of(k3(budget={"disk_gb": 106_000}), 150_000).refused == ()
    window = {"retention": "window", "window_bytes": 14 * 10**12}
    smaller = k3(budget={"disk_gb": 15_000}, stream=window, prompts={"held_out": 0.01})
    assert plan_of(smaller, 150_000).refused == ()


def test_a_plan_that_is_refused_is_an_error_where_it_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RETRAIN_DSPARK_RUNS", str(tmp_path))
    with pytest.raises(UsageError, match="weights do not fit"):
        build_plan(k3(hardware={"roles": {"serve": {"nodes": 1}}}, prompts={"train": Prompts().train}))


def test_every_process_has_its_node_and_command(plan: Plan) -> None:
    where = {process.name: process.node for process in plan.processes}
    assert where == {
        "store-master": "serve-0", "target-0": "serve-0", "target-1": "serve-1", "capture": "train-0",
        "trainer": "train-0", "replay": "train-0", "arm-draft-0": "serve-0", "arm-draft-1": "serve-1",
        "arm-ngram-0": "serve-0", "arm-ngram-1": "serve-1", "arm-plain-0": "serve-0",
        "arm-plain-1": "serve-1",
    }  # fmt: skip
    for process in plan.processes:
        spans = process.name.startswith(("target", "arm"))
        assert ("--nnodes" in process.argv) is spans
        if spans:
            rank = process.name[-1]
            argv = dict(zip(process.argv, process.argv[1:], strict=False))
            assert (argv["--nnodes"], argv["--node-rank"], argv["--master-addr"]) == ("2", rank, "192.0.2.1")
            assert argv["--tensor-parallel-size"] == "8"
            assert ("--headless" in process.argv) is (rank == "1")
    trainer = next(process for process in plan.processes if process.name == "trainer")
    assert "--nproc-per-node=4" in trainer.argv


def test_secrets_are_names_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANSWERS_KEY", "sesame")
    served = {"answers": "served", "answer_url": "http://a:1", "answer_api_key_env": "ANSWERS_KEY"}
    text = plan_of(k3(stream=served)).model_dump_json()
    capture = next(one for one in json.loads(text)["processes"] if one["name"] == "capture")
    assert capture["secret_environment"] == ["VLLM_API_KEY", "RETRAIN_DSPARK_ANSWER_KEY"]
    assert "sesame" not in text


def test_memory_of_every_node(plan: Plan) -> None:
    serve, second, train = plan.nodes
    assert serve.gpu_bytes == pytest.approx(1561e9 / 8 + 2 * plan.draft_parameters, abs=2)
    assert serve.gpu_usable_bytes == int(280_000 * 2**20 * 0.95)
    assert serve.host_bytes - second.host_bytes == 32 * GIB + 60 * 10**6  # segment and store master
    assert train.gpus == 4 and train.gpu_bytes < (train.gpu_usable_bytes or 0)


def test_risks_name_what_is_missing(plan: Plan) -> None:
    said = {risk.where: risk for risk in plan.risks}
    assert said["store.host"].severity == "warning" and "192.0.2.1" in said["store.host"].what
    assert "serve.host" not in said
    assert "has no price" in said["evaluate.prices.serving_gpu_hour"].what
    assert "sizes are those of the profile" in said["hardware.target"].what
    assert "run --pilot" in said["--rates"].remedy
    assert all(risk.remedy for risk in plan.risks)
    apart = {"hardware": {"roles": {"colocated": False}}, "store": {"host": "192.0.2.1"}}
    alone = {risk.where: risk for risk in plan_of(load_profile("laptop", apart).profile).risks}
    assert "training node does not reach" in alone["serve.host"].what
    small = plan_of(k3(store={"local_buffer_bytes": 2 * GIB}))
    assert any("transfer buffer of 2.1 GB" in risk.what for risk in small.risks)


def test_only_known_times_have_a_value(plan: Plan) -> None:
    assert plan.seconds.value is None and plan.cost.gpu_hours is None and plan.timeline == ()
    stream = next(stage.seconds for stage in plan.stages if stage.name == "stream")
    assert stream.value == pytest.approx(1000 * 8192 / 20_000) and "tokens_per_s" in stream.where
    assert all(stage.seconds.source == "unknown" for stage in plan.stages if stage.name != "stream")
    assert plan.flow.needed_gb_per_s.value == pytest.approx(20_000 * plan.token_bytes / 1e9)


def test_without_layers_the_profile_is_not_enough() -> None:
    shape = {"target": {"num_hidden_layers": None}}
    with pytest.raises(UsageError, match="does not say how many layers") as info:
        plan_of(k3(hardware=shape))
    assert info.value.where == "hardware.target.num_hidden_layers"


def test_a_trainer_on_two_nodes_has_a_process_on_each() -> None:
    scale = {"ranks": 4, "nodes": 2, "rendezvous": "train-0:29400"}
    train = {"scale": scale, "packs_per_step": 8}
    plan = plan_of(k3(train=train, hardware={"roles": {"train": {"nodes": 2}}}))
    trainers = {one.name: one for one in plan.processes if one.name.startswith("trainer")}
    assert [one.node for one in trainers.values()] == ["train-0", "train-1"]
    assert "--rdzv-conf=is_host=1" in trainers["trainer-0"].argv
    assert "--rdzv-conf=is_host=0" in trainers["trainer-1"].argv
