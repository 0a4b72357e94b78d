"""Publishers killed at requests of their work: main holds one whole version, and a re-run ends it."""

from __future__ import annotations

import json
import multiprocessing
import random
import struct
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from hub_publishers import Publisher, publish_folder, take_back
from publishing_hub import RunningHub, published, running_hub, use_hub

from tasks.publish.gate import decide, rules_of
from tasks.publish.package import Package
from tasks.publish.versions import add_version
from tests.unit.tasks.publish.drafts import config, export, publish_inputs, save, shapes_of, tensors_of

KILLS = 20
SEED = 7
FEW = {
    "before an upload": {"on": "PUT ", "when": "before"},
    "after the candidate's commit": {"on": "POST .*/commit/release-", "when": "after"},
    "before the tag": {"on": "POST .*/tag/", "when": "before"},
    "before main moves": {"on": "POST .*/commit/main", "when": "before"},
    "after main moved": {"on": "POST .*/commit/main", "when": "after"},
}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningHub]:
    with running_hub(tmp_path / "hub") as found:
        use_hub(monkeypatch, found)
        yield found


def version_folder(root: Path, number: int, files: int = 1) -> Path:
    """The folder of version `number`, as the publish stage leaves it, with weights of its own."""
    draft = export(root / f"draft-{number}")
    with open(draft / "model.safetensors", "r+b") as weights:
        weights.seek(-8, 2)
        weights.write(struct.pack("<q", number))
    if files > 1:
        split(draft, files)
    inputs = publish_inputs(root, f"r{number}", draft_dir=draft)
    for name in ("run", "folder"):
        inputs.pop(name)
    decision = decide(
        rules_of(inputs["profile"]), inputs["evaluation"], inputs["draft"], inputs["captures"], None
    )
    package = Package(**inputs, run_id=f"r{number}", decision=decision, private_folders=(root,))
    place = root / "published"
    return place / add_version(place, package.build, number - 1)


def split(draft: Path, files: int) -> None:
    """Weights in several files, as large drafts have them."""
    (draft / "model.safetensors").unlink()
    tensors, shapes = tensors_of(config()), shapes_of(config())
    where = {name: f"model-{n % files + 1:05d}-of-{files:05d}.safetensors" for n, name in enumerate(tensors)}
    for file in set(where.values()):
        held = [name for name in tensors if where[name] == file]
        save(draft / file, {n: tensors[n] for n in held}, {n: shapes[n] for n in held})
    (draft / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))


def whole(hub: RunningHub) -> list[str | None]:
    """Versions that `main` ever held, each of its commits compared with its manifest."""
    return [hub.version_at(commit) for commit in hub.state()["refs"]["refs/heads/main"]]


def requests_of(hub: RunningHub, log: Path, work: Callable[..., None], *args: object) -> int:
    """How many requests a work makes that nobody disturbs."""
    hub.fail()
    assert Publisher(hub, log, work, *args).run() == 0, log.read_text()
    return len(hub.requests())


def killed(
    hub: RunningHub, log: Path, rule: dict[str, object], work: Callable[..., None], *args: object
) -> None:
    """Let a publisher be killed where the rule says."""
    publisher = Publisher(hub, log, work, *args)
    hub.fail({"do": "kill", "pid": publisher.pid, **rule})
    assert publisher.run() == -9, log.read_text()
    hub.fail()


@pytest.mark.parametrize("point", FEW)
def test_a_publisher_killed_at_a_point_leaves_one_version_and_is_finished(
    hub: RunningHub, tmp_path: Path, point: str
) -> None:
    first, second = version_folder(tmp_path, 1), version_folder(tmp_path, 2)
    published(first)
    killed(hub, tmp_path / "log", FEW[point], publish_folder, second, None)
    assert hub.version() == ("v0002" if point == "after main moved" else "v0001")
    published(second)
    assert whole(hub) == [None, "v0001", "v0002"]


def test_what_was_uploaded_before_a_kill_is_not_sent_again(hub: RunningHub, tmp_path: Path) -> None:
    folder = version_folder(tmp_path, 1, files=5)
    killed(hub, tmp_path / "log", {"on": "PUT ", "skip": 2, "when": "before"}, publish_folder, folder, None)
    assert hub.version() is None
    missing = {path.name for path in folder.glob("*.safetensors") if not hub.blob_of(path).is_file()}
    published(folder)
    assert 1 <= len(missing) <= 3 and len(hub.requests("PUT ")) == len(missing)
    assert hub.version() == "v0001"


@pytest.mark.timeout(3600)
@pytest.mark.verify("publish")
def test_twenty_kills_of_a_publication(
    hub: RunningHub, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """A publisher is killed at 20 random requests: main holds one whole version, and a re-run finishes."""
    chance, log = random.Random(SEED), tmp_path / "log"
    published(version_folder(tmp_path, 1))
    count = requests_of(hub, log, publish_folder, version_folder(tmp_path, 2), None)
    resumed = 0
    for kill in range(KILLS):
        number = kill + 3
        folder = version_folder(tmp_path, number)
        rule = {"on": ".", "skip": chance.randrange(count), "when": chance.choice(["before", "after"])}
        killed(hub, log, rule, publish_folder, folder, None)
        names = {f"v{number - 1:04d}", f"v{number:04d}"}
        assert hub.version() in names, rule
        uploaded = hub.blob_of(folder / "model.safetensors").is_file()
        assert Publisher(hub, log, publish_folder, folder, None).run() == 0, log.read_text()
        assert hub.version() == hub.version(f"refs/tags/v{number:04d}") == f"v{number:04d}"
        resumed += uploaded and not hub.requests("PUT ")
    assert whole(hub) == [None, *(f"v{number:04d}" for number in range(1, KILLS + 3))]
    record_property("requests", count)
    record_property("kills", KILLS)
    record_property("weights_not_sent_again", resumed)


@pytest.mark.timeout(3600)
@pytest.mark.verify("publish")
def test_twenty_kills_of_a_rollback(
    hub: RunningHub, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """A rollback is killed at 20 random requests: main holds one whole version, and a re-run finishes."""
    chance, log = random.Random(SEED), tmp_path / "log"
    for number in (1, 2):
        published(version_folder(tmp_path, number))
    now, other = "v0002", "v0001"
    count = requests_of(hub, log, take_back, now, other)
    for _ in range(KILLS):
        now, other = other, now
        rule = {"on": ".", "skip": chance.randrange(count), "when": chance.choice(["before", "after"])}
        killed(hub, log, rule, take_back, now, other)
        assert hub.version() in (now, other), rule
        assert Publisher(hub, log, take_back, now, other).run() == 0, log.read_text()
        assert hub.version() == other
    held = whole(hub)
    assert held[:3] == [None, "v0001", "v0002"] and len(held) == KILLS + 4
    assert all(before != after for before, after in pairwise(held))
    record_property("requests", count)
    record_property("kills", KILLS)


@pytest.mark.timeout(3600)
@pytest.mark.verify("publish")
def test_two_publishers_at_once(hub: RunningHub, tmp_path: Path) -> None:
    """Two publishers at once, five times: one version is on main, the other says so and changes nothing."""
    published(version_folder(tmp_path, 1))
    for pair in range(5):
        numbers = (2 * pair + 2, 2 * pair + 3)
        together = multiprocessing.get_context("forkserver").Barrier(2)
        both = [
            Publisher(hub, tmp_path / f"log-{n}", publish_folder, version_folder(tmp_path, n), together)
            for n in numbers
        ]
        for one in both:
            one.begin()
        ended = [one.end() for one in both]
        assert sorted(ended) == [0, 1], [one.log.read_text() for one in both]
        winner, loser = ended.index(0), ended.index(1)
        assert hub.version() == f"v{numbers[winner]:04d}"
        said = both[loser].log.read_text()
        assert f"v{numbers[winner]:04d} of run r{numbers[winner]} came first and is on main" in said
    assert len(whole(hub)) == 7
