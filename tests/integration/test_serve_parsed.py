"""Every rendered command line, read by the installed engine's own parser in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
from rendered import command_lines

from profiles.load import builtin_names, load_profile
from tasks.publish.serving import serve_arguments
from tasks.publish.serving_compose import compose
from tasks.publish.serving_kubernetes import kubernetes
from tasks.publish.serving_slurm import slurm
from tasks.publish.serving_source import find_served, recipe_of

PARSER = """
import json, sys
from dataclasses import fields
from vllm.config.speculative import SpeculativeConfig
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = make_arg_parser(FlexibleArgumentParser())
known = {field.name for field in fields(SpeculativeConfig)}
answers = []
for words in json.load(sys.stdin):
    try:
        read, strange = parser.parse_known_args(words)
        given = dict(read.speculative_config or {})
        strange += [f"--speculative-config {name}" for name in given if name not in known]
        values = {name: str(getattr(read, name, None)) for name in (
            "model_tag", "nnodes", "node_rank", "tensor_parallel_size", "headless", "enable_prefix_caching")}
        answers.append({"strange": strange, "config": given, "values": values})
    except SystemExit as ended:
        answers.append({"strange": [f"refused: {ended}"], "config": {}, "values": {}})
print(json.dumps(answers))
"""
NOT_KNOWN: dict[str, str] = {}
"""Flag -> why the installed engine does not know it; 0.32 knows all that the published recipes have."""
RENDERINGS = {"compose": compose, "slurm": slurm, "k8s": kubernetes}
PUBLISHED = [name for name in builtin_names() if load_profile(name).profile.publish.incumbent]


def rendered() -> list[tuple[str, list[str]]]:
    """Every rendering of every profile that names a draft, and what a published folder is served with."""
    found = []
    for profile in PUBLISHED:
        recipe = replace(recipe_of(find_served(profile, weights=False), target=None), interface="ib0")
        for name, render in RENDERINGS.items():
            found += [(f"{profile} {name}", words[2:]) for words in command_lines(name, render(recipe))]
    measured = serve_arguments(load_profile("laptop").profile)
    return [*found, ("laptop serve.json", ["--model", "m", *measured])]


@pytest.fixture(scope="module")
def parsed() -> list[tuple[str, list[str], dict[str, Any]]]:
    lines = rendered()
    done = subprocess.run(
        [sys.executable, "-c", PARSER],
        input=json.dumps([words for _, words in lines]),
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    answers = json.loads(done.stdout.splitlines()[-1])
    return [(name, words, answer) for (name, words), answer in zip(lines, answers, strict=True)]


def test_the_engine_knows_every_flag_but_those_that_are_listed(parsed: Any) -> None:
    strange = {word for _, _, answer in parsed for word in answer["strange"] if word.startswith("-")}
    assert strange == set(NOT_KNOWN)
    assert not [answer for _, _, answer in parsed if "refused" in " ".join(answer["strange"])]


def test_what_the_engine_read_is_what_was_meant(parsed: Any) -> None:
    for name, words, answer in parsed:
        values = answer["values"]
        if "serve.json" in name:
            assert values["enable_prefix_caching"] == "False"
            continue
        assert values["model_tag"] == words[0] == "moonshotai/Kimi-K3", name
        given = json.loads(words[words.index("--speculative-config") + 1])
        assert answer["config"] == given and given["num_speculative_tokens"] in (7, 8)
        if "published" in name:
            assert (values["tensor_parallel_size"], values["nnodes"]) == ("16", "2")
            assert (values["headless"] == "True") == (values["node_rank"] == "1")
