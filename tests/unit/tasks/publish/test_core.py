"""What is published, what is not, and what a reader of the folder sees."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest
from drafts import better_than, checkpoint, evaluation, export, measurement, profile, publish_inputs
from huggingface_hub import ModelCard

from tasks.errors import PublishError
from tasks.evaluate.worth.models import Worth
from tasks.publish.core import publish
from tasks.publish.verify import verify_folder
from tasks.publish.versions import find_incumbent, read_pointer, versions


def texts(folder: Path) -> str:
    return "\n".join(p.read_text(errors="replace") for p in folder.rglob("*") if p.is_file())


def test_a_first_draft_becomes_the_champion(tmp_path: Path) -> None:
    inputs = publish_inputs(tmp_path)
    result = publish(**inputs)
    place = tmp_path / "runs" / "published" / "tiny"
    assert (result.revision, result.location) == ("v0001", str(place / "v0001"))
    assert read_pointer(place, "champion") == "v0001" and read_pointer(place, "previous") is None
    assert find_incumbent(inputs["profile"], tmp_path / "runs") == ("v0001", place / "v0001")
    assert sorted(p.name for p in place.iterdir()) == [
        ".lock",
        "champion",
        "moves.jsonl",
        "records",
        "v0001",
    ]
    assert stat.S_IMODE(place.stat().st_mode) == stat.S_IMODE((place / "v0001").stat().st_mode) == 0o700
    assert os.access(place / "v0001" / "serve.sh", os.X_OK)
    assert not (place / "v0001" / "config.py").exists()
    assert set(result.files) == {
        p.relative_to(place / "v0001").as_posix() for p in (place / "v0001").rglob("*") if p.is_file()
    }


def test_the_second_must_beat_the_first_and_previous_follows(tmp_path: Path) -> None:
    publish(**publish_inputs(tmp_path, "r1"))
    held = publish(**publish_inputs(tmp_path, "r2"))
    assert held.revision == "" and "v0001 was not measured" in held.decision.reasons[-1]
    result = publish(**publish_inputs(tmp_path, "r3", evaluation=evaluation(**better_than("v0001"))))
    place = tmp_path / "runs" / "published" / "tiny"
    assert result.revision == "v0002"
    assert (read_pointer(place, "champion"), read_pointer(place, "previous")) == ("v0002", "v0001")
    assert versions(place) == ["v0001", "v0002"]


def test_a_run_that_is_resumed_after_publication_publishes_once(tmp_path: Path) -> None:
    first = publish(**publish_inputs(tmp_path, "r1"))
    again = publish(**publish_inputs(tmp_path, "r1"))
    assert first == again
    assert versions(tmp_path / "runs" / "published" / "tiny") == ["v0001"]


def test_a_held_draft_stays_in_the_run_and_can_be_tried(tmp_path: Path) -> None:
    inputs = publish_inputs(tmp_path, evaluation=evaluation(replay=measurement(1.02, 1.0)))
    result = publish(**inputs)
    assert not result.decision.promote and result.revision == ""
    assert result.location == str(inputs["folder"] / "held")
    assert str(inputs["folder"] / "held" / "serve.sh") in result.serve_command
    verify_folder(inputs["folder"] / "held")
    assert "Held, not promoted" in (inputs["folder"] / "held" / "README.md").read_text()
    assert not (tmp_path / "runs" / "published").exists()
    assert find_incumbent(inputs["profile"], tmp_path / "runs") is None


def test_no_path_and_no_secret_is_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "canary-in-environment")
    for changes in ({}, {"evaluation": evaluation(lossless="different")}):
        text = texts(Path(publish(**publish_inputs(tmp_path, f"r{len(changes)}", **changes)).location))
        for forbidden in (
            "canary",
            "/secret/place",
            str(tmp_path),
            "secret-hostname",
            "424242",
            str(Path.home()),
        ):
            assert forbidden not in text, forbidden


def test_a_leak_is_refused_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_PASSWORD", "greedy-canary")
    leaking = evaluation(notes=("the password is greedy-canary",))
    with pytest.raises(PublishError, match="a secret of the environment") as caught:
        publish(**publish_inputs(tmp_path, evaluation=leaking))
    assert "greedy-canary" not in str(caught.value)
    place = tmp_path / "runs" / "published" / "tiny"
    assert [p.name for p in place.iterdir()] == [".lock"]


def test_a_path_in_a_note_is_refused(tmp_path: Path) -> None:
    inputs = publish_inputs(tmp_path)
    inputs["draft"] = checkpoint(inputs["draft_dir"], notes=(f"read {tmp_path}/runs/r1/x",))
    with pytest.raises(PublishError, match="a path of this machine"):
        publish(**inputs)


@pytest.mark.parametrize(
    "tensor", ["fc.weight", "layers.1.mlp.up_proj.weight", "d2t", "confidence_head.proj.bias"]
)
def test_an_incomplete_draft_is_not_published(tmp_path: Path, tensor: str) -> None:
    draft_dir = export(tmp_path / "draft", without=tensor)
    with pytest.raises(PublishError, match=tensor):
        publish(**publish_inputs(tmp_path, draft_dir=draft_dir))
    assert versions(tmp_path / "runs" / "published" / "tiny") == []


def test_an_implicit_anchor_setting_is_not_published(tmp_path: Path) -> None:
    draft_dir = export(tmp_path / "draft")
    settings = json.loads((draft_dir / "config.json").read_text())
    del settings["sample_from_anchor"]
    (draft_dir / "config.json").write_text(json.dumps(settings))
    with pytest.raises(PublishError, match="does not write out sample_from_anchor"):
        publish(**publish_inputs(tmp_path, draft_dir=draft_dir))


def test_the_card_is_valid_and_tells_what_was_measured(tmp_path: Path) -> None:
    folder = Path(publish(**publish_inputs(tmp_path)).location)
    text = (folder / "README.md").read_text()
    data = ModelCard(text).data.to_dict()
    assert (data["base_model"], data["license"], data["library_name"]) == (
        "target",
        "apache-2.0",
        "speculators",
    )
    results = data["model-index"][0]["results"]
    assert len(results) == 9 and results[0]["metrics"][0]["value"] == 1.7
    for words in (
        "`1 + accepted / drafts`",
        "bonus token included",
        "Speed is meaningless",
        "| qa | 1.70 | 1.50 to 1.80",
        "abc123",
        "ml-1",
        "d" * 64,
        "torch: 2.13.0+cpu",
        "lr: 0.003",
        "clamped from 64 to 50",
        "identical",
    ):
        assert words in text, words


def test_the_card_says_in_which_range_the_draft_helps(tmp_path: Path) -> None:
    sentence = "WORTH IT up to concurrency 12: 1.9x [1.7, 2.1] at 1; not above 24; best K 5"
    arms = tuple(arm.model_copy(update={"speed_is_meaningful": True}) for arm in evaluation().arms)
    decided = evaluation(worth=Worth(verdict="worth", sentence=sentence), arms=arms)
    folder = Path(publish(**publish_inputs(tmp_path, evaluation=decided)).location)
    text = (folder / "README.md").read_text()
    assert f"## Evaluation\n\n**Is it worth serving?** {sentence}.\n\nAcceptance length" in text


def test_serve_json_is_what_vllm_needs(tmp_path: Path) -> None:
    folder = Path(publish(**publish_inputs(tmp_path)).location)
    settings = json.loads((folder / "serve.json").read_text())
    assert settings["speculative_config"] == {
        "method": "dspark",
        "model": ".",
        "num_speculative_tokens": 8,
        "draft_sample_method": "greedy",
        "rejection_sample_method": "standard",
    }
    assert settings["environment"]["TRITON_INTERPRET"] == "1"
    assert (folder / "cpu" / "sitecustomize.py").is_file()
    config = json.loads((folder / "config.json").read_text())
    assert config["speculators_config"]["verifier"]["name_or_path"] == "target"
    assert "auto_map" not in config


def test_a_chosen_folder_is_used(tmp_path: Path) -> None:
    settings = profile(folder=str(tmp_path / "elsewhere"))
    assert publish(**publish_inputs(tmp_path, profile=settings)).location == str(
        tmp_path / "elsewhere/tiny/v0001"
    )


def test_the_card_of_a_draft_without_held_out_data_tells_no_figure(tmp_path: Path) -> None:
    inputs = publish_inputs(tmp_path)
    result = publish(**{**inputs, "draft": checkpoint(inputs["draft_dir"], held_out_eal=None)})
    text = (Path(result.location) / "README.md").read_text()
    assert "Last checkpoint: step 40 of 50 (3 epochs); nothing was held out to choose by." in text
    assert "chosen by greedy acceptance length" not in text
