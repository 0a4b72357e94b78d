"""Counters of real metric pages: summed over engines, as differences, restarts noticed."""

import pytest

from tasks.errors import ServiceError
from tasks.measure.counters import delta, parse_scrape


def page(engines: dict[int, tuple[int, int, list[int]]], created: float = 100.0, generated: int = 0) -> str:
    """A page as vLLM writes it: engine -> (drafts, accepted, accepted per position)."""
    lines = []

    def counter(name: str, rows: list[tuple[str, float]]) -> None:
        lines.append(f"# HELP {name}_total text\n# TYPE {name}_total counter")
        lines.extend(f"{name}_total{{{labels}}} {float(value)}" for labels, value in rows)
        lines.append(f"# TYPE {name}_created gauge")
        lines.extend(f"{name}_created{{{labels}}} {created}" for labels, _ in rows)

    label = 'engine="{}",model_name="m"'.format
    counter("vllm:spec_decode_num_drafts", [(label(e), v[0]) for e, v in engines.items()])
    counter("vllm:spec_decode_num_draft_tokens", [(label(e), v[0] * len(v[2])) for e, v in engines.items()])
    counter("vllm:spec_decode_num_accepted_tokens", [(label(e), v[1]) for e, v in engines.items()])
    counter(
        "vllm:spec_decode_num_accepted_tokens_per_pos",
        [(f'{label(e)},position="{i}"', n) for e, v in engines.items() for i, n in enumerate(v[2])],
    )
    counter("vllm:generation_tokens", [(label(e), generated) for e in engines])
    lines.append('# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{engine="0"} 1.0')
    return "\n".join(lines) + "\n"


def test_differences_are_summed_over_engines_that_start_high() -> None:
    before = parse_scrape(page({0: (1000, 900, [600, 300]), 1: (5000, 100, [80, 20])}, generated=7))
    after = parse_scrape(page({0: (1010, 912, [608, 304]), 1: (5004, 103, [82, 21])}, generated=12))
    change = delta(before, after)
    assert (change.drafts, change.accepted, change.draft_tokens) == (14, 15, 28)
    assert change.per_position == (10, 5)
    assert change.generated == 10
    assert change.invalid == ""


def test_a_second_domain_is_not_polluted_by_the_first() -> None:
    scrapes = [parse_scrape(page({0: (n, n // 2, [n // 2])})) for n in (10, 30, 36)]
    assert delta(scrapes[0], scrapes[1]).drafts == 20
    assert delta(scrapes[1], scrapes[2]).drafts == 6


def test_a_restart_of_one_engine_is_noticed_although_the_sum_rises() -> None:
    before = parse_scrape(page({0: (1000, 10, [10]), 1: (50, 5, [5])}))
    after = parse_scrape(page({0: (9000, 90, [90]), 1: (3, 1, [1])}))
    assert "fell from 50 to 3" in delta(before, after).invalid


def test_a_restart_is_noticed_when_the_new_counters_are_already_higher() -> None:
    before = parse_scrape(page({0: (5, 1, [1])}, created=100.0))
    after = parse_scrape(page({0: (50, 10, [10])}, created=200.0))
    assert "created again" in delta(before, after).invalid


def test_an_engine_that_is_gone_is_noticed() -> None:
    before = parse_scrape(page({0: (5, 1, [1]), 1: (5, 1, [1])}))
    after = parse_scrape(page({0: (9, 2, [2])}))
    assert "disappeared" in delta(before, after).invalid


def test_an_engine_that_joins_with_a_past_of_its_own_is_noticed() -> None:
    before = parse_scrape(page({0: (5, 1, [1])}))
    after = parse_scrape(page({0: (9, 2, [2]), 1: (5000, 1000, [1000])}))
    assert "another engine joined" in delta(before, after).invalid


def test_a_server_without_a_draft_counts_none() -> None:
    text = '# TYPE vllm:generation_tokens_total counter\nvllm:generation_tokens_total{engine="0"} 4.0\n'
    scrape = parse_scrape(text)
    assert not scrape.has_speculation
    change = delta(parse_scrape(""), scrape)
    assert (change.drafts, change.per_position, change.generated) == (0, (), 4)


def test_a_page_that_is_not_metrics_is_an_error_naming_the_page() -> None:
    with pytest.raises(ServiceError, match="cannot be read") as caught:
        parse_scrape("<html>no</html>", where="http://x/metrics")
    assert caught.value.where == "http://x/metrics"
