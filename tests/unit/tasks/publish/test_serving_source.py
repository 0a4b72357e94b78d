"""What a user may name: a folder, a run, a profile, a repository; and what is not taken from a hub."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from drafts import evaluation, measurement, profile, publish_inputs
from small_hub import COMMIT, repository, running_hub

from profiles.load import load_profile
from tasks.errors import PublishError, UsageError
from tasks.publish.core import publish
from tasks.publish.models import Publication
from tasks.publish.serving_recipe import Recipe
from tasks.publish.serving_source import find_served, recipe_of
from tasks.run_folder import RUNS_ENV, RunFolder
from tasks.stage import sha256_file

NAME = "someone/tiny.dspark"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(RUNS_ENV, str(tmp_path / "runs"))
    return tmp_path


@pytest.fixture
def hub(root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = root / "hub"
    folder.mkdir()
    monkeypatch.setenv("HF_HUB_CACHE", str(root / "cache"))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    with running_hub(folder) as url:
        monkeypatch.setenv("HF_ENDPOINT", url)
        yield folder


def published(root: Path, run_id: str = "r1", **changes: Any) -> Publication:
    """A run that published; its manifest says so, as the stage's contract writes it."""
    inputs = publish_inputs(root, run_id, **changes)
    result = publish(**inputs)
    manifest = RunFolder(root / "runs" / run_id).path / "06-publish" / "manifest.json"
    manifest.parent.mkdir(exist_ok=True)
    manifest.write_text(json.dumps({"result": result.model_dump(mode="json")}))
    return result


def recipe(text: str | None, target: str | None = "/weights") -> Recipe:
    return recipe_of(find_served(text, weights=False), target=target)


def test_folder_run_profile_and_champion_are_one_draft(root: Path) -> None:
    result = published(root)
    values = profile().model_dump(mode="json")
    path = root / "mine.yaml"
    path.write_text(json.dumps(values))
    recipes = [recipe(text) for text in (result.location, "r1", str(path), None)]
    assert {str(one.draft.folder) for one in recipes} == {result.location}
    settings = json.loads((Path(result.location) / "serve.json").read_text())
    for one in recipes:
        assert one.speculative_config(".") == settings["speculative_config"]
        assert one.environment == settings["environment"]
        assert one.cpu and one.interpreter and one.image == "retrain-dspark:cpu"
        assert one.arguments["enable-prefix-caching"] is False and "served-model-name" not in one.arguments


def test_a_held_draft_is_served_by_its_run_and_said_to_be_held(root: Path) -> None:
    held = published(root, evaluation=evaluation(replay=measurement(1.01, 1.0)))
    assert held.revision == ""
    found = recipe("r1")
    assert str(found.draft.folder) == held.location
    assert found.notes == ("This draft was held, not promoted.",)


def test_what_the_profile_deploys_with_replaces_what_was_measured_with(root: Path) -> None:
    result = published(root)
    served = find_served(
        result.location,
        {"deploy": {"arguments": {"max-num-seqs": 99, "enable-prefix-caching": True}, "image": "mine:1"}},
        weights=False,
    )
    found = recipe_of(served, target="/weights")
    assert found.arguments["max-num-seqs"] == 99 and found.arguments["enable-prefix-caching"] is True
    assert found.image == "mine:1" and "max-model-len" in found.arguments


def test_a_damaged_folder_is_refused(root: Path) -> None:
    result = published(root)
    with open(Path(result.location) / "config.json", "a") as stream:
        stream.write(" ")
    with pytest.raises(PublishError, match=r"config\.json was changed"):
        recipe(result.location)


def test_a_key_that_stands_twice_in_serve_json_is_named(root: Path) -> None:
    """JSON readers take the last one without a word."""
    path = Path(published(root).location) / "serve.json"
    text = path.read_text()
    path.write_text(text.replace('"method"', '"num_speculative_tokens": 4,\n    "method"', 1))
    with pytest.raises(UsageError, match="num_speculative_tokens' stands twice"):
        recipe(str(path.parent))


def test_a_profile_without_a_draft_says_how_to_get_one(root: Path) -> None:
    with pytest.raises(UsageError) as caught:
        recipe("laptop")
    assert "publish.incumbent" in str(caught.value) and "retrain-dspark run -p laptop" in str(caught.value)
    with pytest.raises(UsageError, match="no published draft 'nothing'"):
        recipe("nothing")


def test_an_own_repository_on_a_hub_keeps_its_exact_options(root: Path, hub: Path) -> None:
    local = Path(published(root).location)
    repository(hub, "models", NAME, {p.name: p.read_bytes() for p in local.iterdir() if p.is_file()})
    found = recipe(NAME)
    assert found.draft.revision == COMMIT and found.draft.folder is None
    settings = json.loads((local / "serve.json").read_text())
    config = found.speculative_config(NAME)
    assert config == {**settings["speculative_config"], "model": NAME, "revision": COMMIT}
    here = find_served(f"{NAME}@{COMMIT}", weights=True)
    assert here.draft.folder is not None and not here.script
    assert sha256_file(here.draft.folder / "model.safetensors") == sha256_file(local / "model.safetensors")
    fetched = {path.name for path in here.draft.folder.iterdir()}
    assert not fetched & {"serve.sh", "verify.py", "cpu"}, "no program of a hub is fetched"


@pytest.mark.parametrize(
    ("field", "value", "word"),
    [
        ("arguments", ["--tool-parser-plugin", "x.py"], "--tool-parser-plugin"),
        ("arguments", ["--trust-remote-code"], "--trust-remote-code"),
        ("environment", {"LD_PRELOAD": "x.so"}, "LD_PRELOAD"),
        ("speculative_config", {"method": "custom_class", "draft_model_config": {}}, "draft_model_config"),
    ],
)
def test_settings_of_a_hub_cannot_run_code_here(
    root: Path, hub: Path, field: str, value: Any, word: str
) -> None:
    local = Path(published(root).location)
    settings = json.loads((local / "serve.json").read_text())
    files = {p.name: p.read_bytes() for p in local.iterdir() if p.is_file()}
    files["serve.json"] = json.dumps({**settings, field: value}).encode()
    repository(hub, "models", NAME, files)
    with pytest.raises(UsageError) as caught:
        recipe(NAME)
    assert word in str(caught.value) and "if you trust it" in str(caught.value)


def test_weights_that_are_not_those_of_the_manifest_are_refused(root: Path, hub: Path) -> None:
    local = Path(published(root).location)
    files = {p.name: p.read_bytes() for p in local.iterdir() if p.is_file()}
    files["model.safetensors"] = files["model.safetensors"][:-1] + b"\x07"
    repository(hub, "models", NAME, files)
    with pytest.raises(UsageError, match=r"model\.safetensors is not what was published"):
        find_served(NAME, weights=True)


def test_a_foreign_draft_is_served_with_what_its_config_proposes(root: Path, hub: Path) -> None:
    """No `serve.json`: the number of draft tokens and the target come from its configuration."""
    config = {
        "speculators_model_type": "dspark",
        "block_size": 8,
        "sample_from_anchor": False,
        "speculators_config": {"verifier": {"name_or_path": "someone/target"}},
    }
    repository(
        hub, "models", "RedHatAI/Kimi-K3-speculator.dspark", {"config.json": json.dumps(config).encode()}
    )
    found = recipe("RedHatAI/Kimi-K3-speculator.dspark", target=None)
    assert found.speculation == {"method": "dspark", "num_speculative_tokens": 7}
    assert found.target.name == "someone/target"
    assert found.notes == ("The profile kimi-k3-published has the published recipe of this draft.",)
    repository(hub, "models", "a/b", {"config.json": b"{}"})
    with pytest.raises(UsageError, match="not a DSpark draft"):
        recipe("a/b")


@pytest.mark.parametrize(
    ("deploy", "word"),
    [
        ({"arguments": {"--max-num-seqs": 8}}, "full name"),
        ({"arguments": {"no-enable-prefix-caching": True}}, "full name"),
        ({"arguments": {"max_num_seqs": 8}}, "full name"),
        ({"arguments": {"api-key": "x"}}, "from the environment"),
        ({"arguments": {"tensor-parallel-size": 8}, "nodes": 2, "gpus_per_node": 8}, "= 16 GPUs"),
        ({"environment": {"HF_TOKEN": "x"}}, "looks like a secret"),
    ],
)
def test_a_profile_cannot_say_a_flag_twice_or_hold_a_secret(deploy: dict[str, Any], word: str) -> None:
    from profiles.load import ProfileProblem

    with pytest.raises(ProfileProblem, match=word):
        load_profile("laptop", {"deploy": deploy})


def test_a_server_is_split_over_all_its_gpus(root: Path) -> None:
    result = published(root)
    values = {"deploy": {"nodes": 2, "gpus_per_node": 4}}
    found = recipe_of(find_served(result.location, values, weights=False), target="/weights")
    assert found.arguments["tensor-parallel-size"] == 8
