"""The canary passes on the target's own states and names each fault that had the right shape in the field."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tasks.errors import ServiceError
from tasks.stream.canary import Canary
from tasks.stream.canary_report import read_report
from tasks.stream.head import OutputHead
from tasks.stream.probe import Probed
from tasks.stream.sample import Answer
from tests.support.tiny_target import LAYER_IDS, answer, make_target

PROMPTS = (tuple(range(40, 52)), tuple(range(60, 71)), tuple(range(100, 113)))
Fault = Callable[[list[Probed]], list[Probed]]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Probed], list[Probed]]:
    """Folder, the probes as a good server answers them, and as one with a repetition penalty does."""
    folder = tmp_path_factory.mktemp("target")
    model = make_target(folder)

    def probed(**how: Any) -> list[Probed]:
        made = [answer(model, ids, 12, **how) for ids in PROMPTS]
        return [Probed(Answer(one.answer_ids, "length", {}), len(one.prompt_ids), one.states) for one in made]

    return folder, probed(), probed(repetition_penalty=1.5)


class Server:
    """Answers the probes in turn, with a fault from run `since` on."""

    def __init__(self, good: list[Probed], fault: Fault = lambda good: good, since: int = 0):
        self._good, self._bad, self._since = good, fault(good), since
        self.asked = self.read = 0

    async def probe(self, prompt_ids: tuple[int, ...], max_new_tokens: int) -> Probed:
        run, place = divmod(self.asked, len(PROMPTS))
        self.asked += 1
        for _ in range(20):
            await asyncio.sleep(0)
        self.read += 1
        return (self._bad if run >= self._since else self._good)[place]


def canary(folder: Path, server: Server, path: Path, **changes: Any) -> Canary:
    values: dict[str, Any] = {
        "prober": server,
        "prompts": PROMPTS,
        "max_new_tokens": 12,
        "head": OutputHead(folder, "float32"),
        "why_not": "",
        "layer_ids": LAYER_IDS,
        "revision": None,
        "every": 4,
        "path": path / "canary.json",
    }
    return Canary(**(values | changes))


Target = tuple[Path, list[Probed], list[Probed]]


def test_good_states_pass_and_are_reported(target: Target, tmp_path: Path) -> None:
    folder, good, _ = target
    bird = canary(folder, Server(good), tmp_path)
    asyncio.run(bird.check())
    asyncio.run(bird.check())
    report = read_report(tmp_path / "canary.json")
    assert report.checked and not report.not_checked and report.runs == 2
    assert report.answer_tokens == report.generated_tokens == 72 and report.prompt_tokens == 72
    assert report.largest_gap < 1e-3 and not report.layer_ids_announced
    assert len(report.layer_links) == 3 and min(report.layer_links) > 0.3


def moved(rows: int) -> Fault:
    return lambda good: [replace(one, states=one.states.roll(rows, 0)) for one in good]


def exchanged(good: list[Probed]) -> list[Probed]:
    """Rows as many as the probe has, but the first two probes' states change places."""
    return [replace(good[0], states=good[1].states), replace(good[1], states=good[0].states), good[2]]


def order(*places: int) -> Fault:
    return lambda good: [replace(one, states=one.states[:, list(places)]) for one in good]


def scaled_noise(good: list[Probed]) -> list[Probed]:
    """A hybrid model's extraction that reads the wrong cache: finite, not constant, of the right shape."""
    return [replace(one, states=one.states.flip(-1)) for one in good]


@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        (moved(1), "one row after"),
        (moved(-1), "one row before"),
        (exchanged, "are those of probe 1"),
        (order(3, 1, 2, 0), "place 0 of the captured layers is the last layer"),
        (order(0, 1, 2, 2), "Is the last captured layer num_hidden_layers?"),
        (scaled_noise, "hidden states of this model"),
    ],
    ids=["late", "early", "other sample", "layer order", "layer before the last", "wrong cache"],
)
def test_each_fault_is_named(target: Target, tmp_path: Path, fault: Fault, cause: str) -> None:
    folder, good, _ = target
    with pytest.raises(ServiceError, match="does not explain the target's greedy answer") as info:
        asyncio.run(canary(folder, Server(good, fault), tmp_path).check())
    assert cause in info.value.hint
    assert not (tmp_path / "canary.json").exists()


def test_a_server_with_a_penalty_is_found(target: Target, tmp_path: Path) -> None:
    folder, _, penalised = target
    with pytest.raises(ServiceError) as info:
        asyncio.run(canary(folder, Server(penalised), tmp_path).check())
    assert "--generation-config vllm" in info.value.hint


def test_announced_layers_must_be_the_profile_s(target: Target, tmp_path: Path) -> None:
    folder, good, _ = target

    def announcing(*layers: int) -> Fault:
        manifest = {"metadata": {"layer_ids": list(layers)}}
        return lambda good: [replace(one, answer=replace(one.answer, manifest=manifest)) for one in good]

    asyncio.run(canary(folder, Server(good, announcing(*LAYER_IDS)), tmp_path).check())
    assert read_report(tmp_path / "canary.json").layer_ids_announced
    with pytest.raises(ServiceError, match=r"captures layers \[0, 1, 2, 4\].*needs \[1, 2, 3, 4\]") as info:
        asyncio.run(canary(folder, Server(good, announcing(0, 1, 2, 4)), tmp_path).check())
    assert info.value.where == "target.aux_layer_ids"


def test_states_of_another_tap_point_end_the_capture(target: Target, tmp_path: Path) -> None:
    """They have the same shape and type, and may even explain the answers."""
    folder, good, _ = target

    def tapped(point: str | None) -> Fault:
        manifest = {"metadata": {"layer_ids": list(LAYER_IDS), "tap_point": point}}
        return lambda good: [replace(one, answer=replace(one.answer, manifest=manifest)) for one in good]

    wanted = {"tap_point": "prefix_only"}
    asyncio.run(canary(folder, Server(good, tapped("prefix_only")), tmp_path, **wanted).check())
    for point in ("attn_res_stream", None):
        with pytest.raises(ServiceError, match="the profile needs them at prefix_only"):
            asyncio.run(canary(folder, Server(good, tapped(point)), tmp_path, **wanted).check())


def test_what_cannot_be_checked_stands_in_the_report(
    target: Target, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, good, _ = target
    bird = canary(folder, Server(good), tmp_path, head=None, why_not="the head is packed")
    asyncio.run(bird.check())
    report = read_report(tmp_path / "canary.json")
    assert not report.checked and report.not_checked == "the head is packed"
    assert "NOT CHECKED" in capsys.readouterr().out


def test_probes_are_asked_again_and_a_late_fault_ends_the_capture(target: Target, tmp_path: Path) -> None:
    """Every four samples; the third run finds that states are of other rows by now."""
    folder, good, _ = target
    server = Server(good, moved(1), since=2)
    bird = canary(folder, server, tmp_path)
    captured = 0

    async def capture() -> None:
        nonlocal captured
        for _ in range(1000):
            captured += 1
            bird.sample_done()
            await asyncio.sleep(0.005)

    async def whole() -> None:
        await bird.check()
        await bird.beside(capture())

    with pytest.raises(ServiceError, match="does not explain"):
        asyncio.run(whole())
    assert 8 <= captured < 1000 and server.asked == 9
    assert read_report(tmp_path / "canary.json").runs == 2


def test_probes_under_way_at_the_end_are_read(target: Target, tmp_path: Path) -> None:
    """An object that nobody reads would stay in the store, which may be somebody else's."""
    folder, good, _ = target
    server = Server(good)
    bird = canary(folder, server, tmp_path)

    async def capture() -> None:
        for _ in range(4):
            bird.sample_done()
        while server.asked < 3:
            await asyncio.sleep(0)

    asyncio.run(bird.beside(capture()))
    assert server.asked == server.read == 3 and read_report(tmp_path / "canary.json").runs == 1


def test_the_other_probes_are_read_before_one_that_fails_is_named(target: Target, tmp_path: Path) -> None:
    folder, good, _ = target

    class OneFails(Server):
        async def probe(self, prompt_ids: tuple[int, ...], max_new_tokens: int) -> Probed:
            if self.asked == 0:
                self.asked += 1
                raise ServiceError("no states")
            return await super().probe(prompt_ids, max_new_tokens)

    server = OneFails(good)
    with pytest.raises(ServiceError, match="no states"):
        asyncio.run(canary(folder, server, tmp_path).check())
    assert server.asked == 3 and server.read == 2


def test_the_error_of_the_capture_is_kept(target: Target, tmp_path: Path) -> None:
    async def capture() -> None:
        raise ServiceError("gone")

    with pytest.raises(ServiceError, match="gone"):
        asyncio.run(canary(target[0], Server(target[1]), tmp_path).beside(capture()))


def test_switched_off_it_asks_nothing(target: Target, tmp_path: Path) -> None:
    server = Server(target[1])
    bird = canary(target[0], server, tmp_path, prompts=(), head=None, every=0)
    asyncio.run(bird.check())
    bird.sample_done()
    assert server.asked == 0 and not (tmp_path / "canary.json").exists()
