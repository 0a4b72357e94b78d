"""States of other rows, layers and samples do not explain an answer; a sample's own do."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tasks.stream.continuity import broken_links, layer_links, mean_links
from tasks.stream.explain import MAX_ROWS, Explained, QuickCheck, Rows, answer_rows, explain
from tasks.stream.head import OutputHead
from tasks.stream.sample import SampleRejected
from tests.support.tiny_target import Answered, answer, make_target

Samples = tuple[OutputHead, dict[float, list[Answered]]]


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Samples:
    """The head, and eight answers drawn at each of three temperatures."""
    folder = tmp_path_factory.mktemp("target")
    model = make_target(folder)
    made = {
        heat: [
            answer(model, tuple(range(30 + 7 * k, 42 + 8 * k)), 24, temperature=heat, seed=k)
            for k in range(8)
        ]
        for heat in (0.0, 0.7, 1.0)
    }
    return OutputHead(folder, "float32"), made


def judged(head: OutputHead, rows: Rows, temperature: float | None) -> Explained:
    return explain(head, [rows], temperature)[0]


FAULTS: dict[str, Callable[[Answered, Answered], Tensor]] = {
    "another sample": lambda one, other: torch.cat([other.states, other.states])[: len(one.states)],
    "one row late": lambda one, _: one.states.roll(1, 0),
    "one row early": lambda one, _: one.states.roll(-1, 0),
    "layer before the last": lambda one, _: one.states[:, :-1],
}


@pytest.mark.parametrize("heat", [0.0, 0.7, 1.0])
def test_own_states_explain_an_answer(samples: Samples, heat: float) -> None:
    head, made = samples
    quick = QuickCheck(head)
    for one in made[heat]:
        prompt = len(one.prompt_ids)
        quick(one.states, prompt, one.answer_ids, heat)
        assert judged(head, answer_rows(one.states, prompt, one.answer_ids, MAX_ROWS), heat).good
        assert judged(head, answer_rows(one.states, prompt, one.answer_ids, MAX_ROWS), None).good


@pytest.mark.parametrize("fault", FAULTS)
def test_other_states_do_not_explain_a_greedy_answer(samples: Samples, fault: str) -> None:
    head, made = samples
    quick = QuickCheck(head)
    for place, one in enumerate(made[0.0]):
        states = FAULTS[fault](one, made[0.0][place - 1])
        prompt = len(one.prompt_ids)
        assert not judged(head, answer_rows(states, prompt, one.answer_ids, MAX_ROWS), 0.0).good
        with pytest.raises(SampleRejected, match="not_explained"):
            quick(states, prompt, one.answer_ids, 0.0)


@pytest.mark.parametrize("fault", ["another sample", "one row late", "one row early"])
def test_other_states_make_a_drawn_answer_surprising(samples: Samples, fault: str) -> None:
    head, made = samples
    for place, one in enumerate(made[1.0]):
        states = FAULTS[fault](one, made[1.0][place - 1])
        assert not judged(head, answer_rows(states, len(one.prompt_ids), one.answer_ids, MAX_ROWS), 1.0).good


def test_rows_are_those_that_predicted_the_answer() -> None:
    states = torch.arange(9.0).view(9, 1, 1)  # P = 4, G = 6
    rows = answer_rows(states, 4, (10, 11, 12, 13, 14, 15), None)
    assert rows.states.flatten().tolist() == [3, 4, 5, 6, 7, 8] and rows.tokens.tolist() == [
        10,
        11,
        12,
        13,
        14,
        15,
    ]
    few = answer_rows(states, 4, (10, 11, 12, 13, 14, 15), 3)
    assert few.tokens[0] == 10 and few.tokens[-1] == 15 and len(few.tokens) == 3
    assert len(answer_rows(states, 4, (), 3).tokens) == 0


def test_a_layer_of_another_sample_breaks_its_links(samples: Samples) -> None:
    made = samples[1][0.0]
    answers = [one.states[len(one.prompt_ids) - 1 :] for one in made]
    links = [layer_links(states) for states in answers]
    usual = mean_links(links)
    assert len(usual) == 3 and min(usual) > 0.3
    assert not any(broken_links(own, usual) for own in links)
    for place, states in enumerate(answers):
        mixed = states.clone()
        mixed[:, :-1] = answers[place - 1][:, :-1]
        assert broken_links(layer_links(mixed), usual) == [2]
        assert broken_links(layer_links(mixed), ()) == []


def test_samples_are_judged_together_as_alone(samples: Samples) -> None:
    head, made = samples
    rows = [
        answer_rows(one.states, len(one.prompt_ids), one.answer_ids, 5 + k) for k, one in enumerate(made[0.7])
    ]
    together = explain(head, rows, 0.7)
    for one, alone in zip(together, (judged(head, own, 0.7) for own in rows), strict=True):
        assert (one.rows, one.misses) == (alone.rows, alone.misses)
        assert one.surprise == pytest.approx(alone.surprise, abs=1e-4)
    assert explain(head, [], 0.7) == []
