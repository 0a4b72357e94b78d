"""Answers of another model are refused before they are learnt; those of the same weights are not."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from tasks.errors import ServiceError
from tasks.stream.answerer import MAX_NEW_TOKENS, AnswererCheck, Served, refuse_shorter
from tasks.stream.backoff import BackOff
from tasks.stream.head import OutputHead
from tasks.stream.probe import FIRST_NUMBER, Probed
from tasks.stream.sample import Answer, GivenAnswer, Request, SampleRejected
from tests.support.tiny_target import answer, make_target

PROMPTS = tuple(tuple(range(first, first + 11)) for first in (40, 60, 100, 150))
TARGET = Served("ours", "http://target", "/models/a", 256)
ANSWERING = Served("theirs", "http://answers", "/models/b", 256)
Target = tuple[Path, list[Probed]]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    folder = tmp_path_factory.mktemp("target")
    model = make_target(folder)
    made = [answer(model, ids, 12) for ids in PROMPTS]
    return folder, [Probed(Answer(one.answer_ids, "length", {}), 11, one.states) for one in made]


def requests() -> list[Request]:
    return [
        Request(n, f"p{n}", "qa", "train", ids, 12, temperature=0.7, top_p=0.9, seed=n, source="served")
        for n, ids in enumerate(PROMPTS)
    ]


class Both:
    """The two servers; what the second one does instead of answering comes first."""

    url = "http://answers"

    def __init__(self, good: list[Probed], answers: list[tuple[int, ...]], failures: int = 0):
        self._good, self._answers, self.failures = list(good), list(answers), failures
        self.asked: list[Request] = []

    async def probe(self, prompt_ids: tuple[int, ...], max_new_tokens: int) -> Probed:
        assert max_new_tokens == 12 < MAX_NEW_TOKENS
        return self._good[PROMPTS.index(prompt_ids)]

    async def ask_without_states(self, request: Request, attempt: int) -> GivenAnswer:
        if self.failures:
            self.failures -= 1
            raise SampleRejected("server_error", "500")
        self.asked.append(request)
        return GivenAnswer(self._answers[PROMPTS.index(request.prompt_ids)], "length")


def compare(both: Both, head: OutputHead | None) -> None:
    async def no_outage(error: SampleRejected) -> bool:
        return False

    double: Any = both
    check = AnswererCheck(double, double, no_outage, BackOff(first_s=0.001), head)
    asyncio.run(check.same_answers(requests(), TARGET, ANSWERING))


def answers_of(good: list[Probed]) -> list[tuple[int, ...]]:
    return [one.answer.answer_ids for one in good]


def changed(ids: tuple[int, ...], place: int, token: int) -> tuple[int, ...]:
    return (*ids[:place], token, *(499 - one for one in ids[place + 1 :]))


@pytest.fixture(params=["head", "no head"])
def head(request: pytest.FixtureRequest, target: Target) -> OutputHead | None:
    return OutputHead(target[0], "float32") if request.param == "head" else None


def test_the_same_answers_pass_and_are_asked_greedily(target: Target, head: OutputHead | None) -> None:
    both = Both(target[1], answers_of(target[1]), failures=2)
    compare(both, head)
    assert {(one.temperature, one.top_p) for one in both.asked} == {(0.0, 1.0)}
    assert all(one.n > FIRST_NUMBER for one in both.asked) and len(both.asked) == 4


def test_answers_of_another_model_are_refused_with_both_names(
    target: Target, head: OutputHead | None
) -> None:
    others = [changed(ids, 1, (ids[1] + 250) % 500) for ids in answers_of(target[1])]
    with pytest.raises(ServiceError, match="4 of 4 greedy answers are not the target's") as info:
        compare(Both(target[1], others), head)
    assert "probe 0 at answer token 1" in info.value.what
    assert "'ours' (root /models/a, 256 tokens)" in info.value.what
    assert "'theirs' (root /models/b, 256 tokens)" in info.value.what
    assert info.value.where == "stream.answer_url: http://answers"


def test_half_of_the_probes_is_too_much_and_one_is_not(target: Target) -> None:
    head = OutputHead(target[0], "float32")
    good = answers_of(target[1])
    bad = [changed(ids, 0, (ids[0] + 250) % 500) for ids in good]
    compare(Both(target[1], [bad[0], *good[1:]]), head)
    with pytest.raises(ServiceError, match="2 of 4"):
        compare(Both(target[1], [*bad[:2], *good[2:]]), head)


def test_a_tied_token_is_no_other_model(tmp_path: Path) -> None:
    """Each token has a twin with the same row of the head: from a twin on the answers may differ."""
    model = make_target(tmp_path, tied=False)
    made = [answer(model, ids, 12) for ids in PROMPTS]
    probed = [Probed(Answer(one.answer_ids, "length", {}), 11, one.states) for one in made]
    twins = [changed(ids, 2, 400 + number) for number, ids in enumerate(answers_of(probed))]
    with pytest.raises(ServiceError, match="at answer token 2 by a logit gap of"):
        compare(Both(probed, twins), OutputHead(tmp_path, "float32"))
    weights = load_file(tmp_path / "model.safetensors")
    for number, ids in enumerate(answers_of(probed)):
        weights["lm_head.weight"][400 + number] = weights["lm_head.weight"][ids[2]]
    save_file(weights, tmp_path / "model.safetensors")
    compare(Both(probed, twins), OutputHead(tmp_path, "float32"))


def test_an_answer_that_ends_early_is_not_the_target_s(target: Target) -> None:
    head = OutputHead(target[0], "float32")
    with pytest.raises(ServiceError, match="at answer token 5"):
        compare(Both(target[1], [ids[:5] for ids in answers_of(target[1])]), head)


def test_without_a_head_the_first_half_decides(target: Target) -> None:
    late = [changed(ids, 6, (ids[6] + 250) % 500) for ids in answers_of(target[1])]
    compare(Both(target[1], late), None)
    early = [changed(ids, 5, (ids[5] + 250) % 500) for ids in answers_of(target[1])]
    with pytest.raises(ServiceError, match="4 of 4"):
        compare(Both(target[1], early), None)


def test_a_server_that_gives_nothing_is_named(target: Target) -> None:
    with pytest.raises(ServiceError, match="failed 3 times before the first sample") as info:
        compare(Both(target[1], [], failures=9), None)
    assert "server_error" in info.value.what and "http://answers" in info.value.where


def test_a_shorter_context_is_refused_with_both_lengths() -> None:
    refuse_shorter(ANSWERING, 256)
    refuse_shorter(replace(ANSWERING, max_model_len=None), 4096)
    with pytest.raises(ServiceError, match=r"takes 256 tokens, target\.max_model_len is 512"):
        refuse_shorter(ANSWERING, 512)
