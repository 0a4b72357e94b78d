"""Drafts that are wrong, on the real target and the real trained draft: `make verify PART=evaluate`.

Each fault is planted in a copy of the draft that the demo's run trained, and the evaluate stage's own checks
look at it over answers of that run. No engine is started: what is wrong has to be known before one is.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import planted_drafts as planted
import pytest
from planted_drafts import Fault, judged, plant

from tasks.errors import StageInputError
from tasks.evaluate.draft_check import TrainingRecord, record_of
from tasks.evaluate.replays import Evaluation
from tasks.processes.launcher import LocalLauncher
from tasks.report.progress import SilentProgress
from tasks.run_folder import RunFolder, create_run
from tasks.serve.target_folder import resolve_target
from tasks.stages import STREAM, TRAIN
from tasks.stream.log import HiddenStateLog
from tasks.stream.models import CaptureManifest
from tasks.train.models import DraftCheckpoint

pytestmark = [pytest.mark.verify("evaluate"), pytest.mark.timeout(1800)]
Record = Callable[[str, object], None]
PER_DOMAIN = 4
"""Answers of each of nine domains: 36."""
SHIFTED = (3, 9, 16, 23, 29)
ORDER = (0, 1, 2, 4, 3)


@pytest.fixture(scope="module")
def checkpoint(demo_run: RunFolder) -> DraftCheckpoint:
    path = demo_run.stage(TRAIN).path / "result.json"
    return DraftCheckpoint.model_validate_json(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def draft(demo_run: RunFolder, checkpoint: DraftCheckpoint) -> Path:
    return demo_run.stage(TRAIN).path / checkpoint.path


@pytest.fixture(scope="module")
def log(demo_run: RunFolder) -> HiddenStateLog:
    return HiddenStateLog(demo_run.stage(STREAM).path / "log")


@pytest.fixture(scope="module")
def few(demo_run: RunFolder, log: HiddenStateLog, tmp_path_factory: pytest.TempPathFactory) -> Evaluation:
    """An evaluation of `PER_DOMAIN` captured answers of each domain, without what no verdict looks at."""
    root, laptop = tmp_path_factory.mktemp("planted"), demo_run.profile()
    replay = laptop.evaluate.replay.model_copy(update={"overlap": False})
    profile = laptop.model_copy(update={"evaluate": laptop.evaluate.model_copy(update={"replay": replay})})
    manifest = json.loads((demo_run.stage(STREAM).path / "manifest.json").read_text(encoding="utf-8"))
    return Evaluation(
        profile=profile,
        run=create_run(root / "runs", "planted", profile),
        folder=root / "evaluate",
        captures=CaptureManifest.model_validate(manifest["result"]),
        log_dir=planted.copy_log(log, planted.picked(log, PER_DOMAIN), root / "log"),
        target_dir=resolve_target(profile),
        launcher=LocalLauncher(),
        progress=SilentProgress(),
    )


def record(checkpoint: DraftCheckpoint, known: bool) -> TrainingRecord | None:
    """What this run's training says of the draft, or nothing, as of a draft from elsewhere."""
    return record_of(checkpoint) if known else None


@pytest.mark.parametrize(
    ("known", "whole"),
    [(True, True), (True, False), (False, False)],
    ids=["trained here, 108 answers", "trained here, 36 answers", "from elsewhere, 36 answers"],
)
def test_the_draft_as_it_is_raises_nothing(
    known: bool,
    whole: bool,
    few: Evaluation,
    log: HiddenStateLog,
    draft: Path,
    checkpoint: DraftCheckpoint,
    tmp_path: Path,
    record_property: Record,
) -> None:
    """The unmodified draft is not suspected"""
    here = replace(few, folder=tmp_path, log_dir=log.folder if whole else few.log_dir)
    verdict = judged(here, draft, record(checkpoint, known))
    record_property("first", f"{verdict['first']:.3f}")
    record_property("expected", f"{verdict['expected']:.3f}")
    assert verdict["diagnosis"] is None and verdict["notes"] == []
    assert bool(verdict["trials"]) is not known


REFUSED = {
    "sample_from_anchor": (
        Fault(planted.shifted_anchor),
        "sample_from_anchor is false, the train stage trained with true",
    ),
    "no sample_from_anchor": (
        Fault(lambda config: config.pop("sample_from_anchor")),
        "sample_from_anchor is absent, expected true or false",
    ),
    "layer ids": (
        Fault(lambda config: config.update(aux_hidden_state_layer_ids=list(SHIFTED))),
        "it reads layers [3, 9, 16, 23, 29], the captures hold [2, 8, 15, 22, 28]",
    ),
    "order of layer ids": (
        Fault(lambda config: config["aux_hidden_state_layer_ids"].reverse()),
        "it reads layers [28, 22, 15, 8, 2], the captures hold [2, 8, 15, 22, 28]",
    ),
    "verifier": (
        Fault(lambda config: config["speculators_config"]["verifier"].update(name_or_path="other/Llama-1B")),
        "its target is called other/Llama-1B, this one smollm2-135m-instruct",
    ),
    "stale vocabulary map": (Fault(tensors=planted.stale_map), "its vocabulary map is stale: "),
    "rotary settings": (
        Fault(planted.other_rotary(10_000.0)),
        "rotary settings are {'rope_type': 'default', 'rope_theta': 10000.0}, the target's, with which",
    ),
    "no draft tokens": (Fault(planted.no_tokens), "it drafts nothing: a block of 1"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_its_files_give_away_is_refused_by_name(
    name: str,
    few: Evaluation,
    draft: Path,
    checkpoint: DraftCheckpoint,
    tmp_path: Path,
    record_property: Record,
) -> None:
    """A wrong draft of this run is refused before it is measured"""
    fault, words = REFUSED[name]
    wrong = plant(draft, tmp_path / "draft", fault)
    with pytest.raises(StageInputError) as refused:
        judged(replace(few, folder=tmp_path), wrong, record_of(checkpoint))
    record_property("said", refused.value.what)
    assert words in refused.value.what


MEASURED = {
    "sample_from_anchor": (
        Fault(planted.shifted_anchor),
        False,
        "with sample_from_anchor: true the same draft reaches",
    ),
    "rotary settings": (
        Fault(planted.other_rotary(500.0)),
        False,
        "its rotary settings are {'rope_type': 'default', 'rope_theta': 500.0}, the target's {'rope_type'",
    ),
    "layers of the draft": (
        Fault(tensors=planted.swapped_layers),
        True,
        "with its own layers 1 and 2 swapped the same draft reaches",
    ),
    "order of layers": (
        Fault(tensors=planted.read_in_order(ORDER)),
        True,
        "with layers in the order [2, 8, 15, 28, 22] the same draft reaches",
    ),
    "zero weights": (Fault(tensors=planted.emptied), True, "everywhere: its weights say nothing"),
    "untrained": (Fault(tensors=planted.forgotten), True, "it is untrained, or was trained for another"),
}


@pytest.mark.parametrize("name", MEASURED)
def test_what_only_a_measurement_shows_is_named(
    name: str,
    few: Evaluation,
    draft: Path,
    checkpoint: DraftCheckpoint,
    tmp_path: Path,
    record_property: Record,
) -> None:
    """A wrong draft that its files do not give away is found on 36 answers, and what is wrong is named"""
    fault, known, words = MEASURED[name]
    wrong = plant(draft, tmp_path / "draft", fault)
    verdict = judged(replace(few, folder=tmp_path), wrong, record(checkpoint, known))
    record_property("first", f"{verdict['first']:.3f}")
    said = "; ".join([verdict["diagnosis"] or "", *verdict["notes"]])
    record_property("said", said)
    assert words in said
