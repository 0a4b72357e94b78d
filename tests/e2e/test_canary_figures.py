"""How far own states and wrong ones lie apart on the demo's captures: `make verify PART=controls`."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tasks.run_folder import RunFolder
from tasks.serve.target_folder import resolve_target
from tasks.stages import STREAM
from tasks.stream.continuity import broken_links, layer_links, mean_links
from tasks.stream.explain import MAX_ROWS, Explained, QuickCheck, answer_rows, explain
from tasks.stream.head import OutputHead
from tasks.stream.log import HiddenStateLog, IndexEntry
from tasks.stream.sample import SampleRejected

pytestmark = [pytest.mark.verify("controls"), pytest.mark.timeout(4500)]
SAMPLES = 40

Sample = tuple[IndexEntry, Tensor]
# What the states `[T, L, H]` of a sample become, given another sample's of the same length.
FAULTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "another_sample": lambda own, other: other,
    "one_row_late": lambda own, other: own.roll(1, 0),
    "one_row_early": lambda own, other: own.roll(-1, 0),
    "earlier_layer": lambda own, other: own[:, :-1],
}


def some_samples(log: HiddenStateLog) -> list[Sample]:
    """Samples with an answer of 16 tokens or more, chosen at random."""
    entries = [entry for entry in log.entries() if len(entry.answer_ids) >= MAX_ROWS]
    chosen = random.Random(0).sample(entries, min(SAMPLES, len(entries)))
    return [(entry, log.load(entry)[0]) for entry in chosen]


def judged(head: OutputHead, entry: IndexEntry, states: Tensor) -> Explained:
    return explain(head, [answer_rows(states, entry.prompt_tokens, entry.answer_ids, MAX_ROWS)], 0.0)[0]


def other_of(samples: list[Sample], place: int) -> Tensor:
    """States of the sample before, repeated to the length of this one."""
    own, other = samples[place][1], samples[place - 1][1]
    return other.repeat(-(-len(own) // len(other)), 1, 1)[: len(own)]


def figures(head: OutputHead, samples: list[Sample]) -> dict[str, float]:
    """Largest and smallest values that own and wrong states have, and what the quick check caught."""
    own = [judged(head, entry, states) for entry, states in samples]
    found: dict[str, float] = {
        "samples": len(samples),
        "own_misses": sum(one.misses for one in own),
        "own_largest_surprise": max(one.surprise for one in own),
    }
    quick = QuickCheck(head)
    for name, fault in FAULTS.items():
        wrong = [(entry, fault(states, other_of(samples, k))) for k, (entry, states) in enumerate(samples)]
        seen = [judged(head, entry, states) for entry, states in wrong]
        found[f"{name}_fewest_misses"] = min(one.misses for one in seen)
        found[f"{name}_least_surprise"] = min(one.surprise for one in seen)
        found[f"{name}_caught_quickly"] = sum(caught(quick, entry, states) for entry, states in wrong)
    return found | link_figures(samples)


def caught(quick: QuickCheck, entry: IndexEntry, states: Tensor) -> bool:
    try:
        quick(states, entry.prompt_tokens, entry.answer_ids, 0.0)
    except SampleRejected:
        return True
    return False


def link_figures(samples: list[Sample]) -> dict[str, float]:
    """Similarity of neighbouring layers: own ones at least, another sample's at most; refusals."""
    answers = [states[entry.prompt_tokens - 1 :] for entry, states in samples]
    own = [layer_links(states) for states in answers]
    mixed = []
    for place, states in enumerate(answers):
        other = answers[place - 1]
        other = other.repeat(-(-len(states) // len(other)), 1, 1)[: len(states)]
        mixed.append(layer_links(torch.cat([other[:, :-1], states[:, -1:]], dim=1)))
    usual = mean_links(own)
    return {
        "own_least_link": min(map(min, own)),
        "mixed_largest_link": max(links[-1] for links in mixed),
        "own_refused": sum(bool(broken_links(links, usual)) for links in own),
        "mixed_refused": sum(bool(broken_links(links, usual)) for links in mixed),
    }


def test_own_states_explain_answers_and_wrong_ones_do_not(
    demo_run: RunFolder, record_property: Callable[[str, object], None]
) -> None:
    """Own states explain every answer; another sample's, moved rows and earlier layers explain none."""
    log = HiddenStateLog(demo_run.stage(STREAM).path / "log")
    profile = demo_run.profile()
    head = OutputHead(Path(resolve_target(profile)), profile.target.dtype)
    found = figures(head, some_samples(log))
    for name, value in found.items():
        record_property(name, f"{value:.3g}")
    assert found["own_misses"] == 0 and found["own_largest_surprise"] < 2
    assert min(found[f"{name}_fewest_misses"] for name in FAULTS) >= 1
    assert found["another_sample_caught_quickly"] == found["samples"]
    # One sample of 32 is enough to refuse captures; none may be refused that is good.
    assert found["own_refused"] == 0
    assert found["mixed_refused"] >= 0.9 * found["samples"]
