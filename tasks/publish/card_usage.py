"""How the card says to serve the draft: with an installed vLLM, and in a container."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from tasks.publish.serving import CPU_FOLDER

_IN_CONTAINER = "/draft"
_OWN_IMAGE = "retrain-dspark:cpu"
_WIDTH = 100


def server_command(settings: Mapping[str, Any], target: str, revision: str) -> str:
    """vLLM's command line, to be run in the published folder."""
    words = ["vllm", "serve", *_model(target, revision), *settings["arguments"]]
    return _shell([*words, "--speculative-config", _config(settings, ".")], settings)


def container_command(settings: Mapping[str, Any], engine: str, target: str, revision: str) -> str:
    """The same in a container, to be run in the published folder.

    Args:
        engine: Name and version that was measured, e.g. `vllm 0.32.0`; vLLM's image has the same version.
    """
    start = ["docker", "run", "--rm", "-p", "8000:8000", "-v", f'"$PWD":{_IN_CONTAINER}:ro']
    if settings["cpu"]:
        inside = ["-e", "HOST=0.0.0.0", "-e", "PYTHON=/app/.venv/bin/python", "-v", "TARGET:/target:ro"]
        program = ["--entrypoint", f"{_IN_CONTAINER}/serve.sh", _OWN_IMAGE, "/target"]
        build = f"# In a checkout of retrain-dspark: docker build -f docker/cpu.Dockerfile -t {_OWN_IMAGE} ."
        return f"{build}\n{_wrapped([*start, '--shm-size=2g', *inside, *program])}"
    environment = [word for name, value in _exports(settings) for word in ("-e", f"{name}={value}")]
    version = re.search(r"\d+(?:\.\d+)+(?:\.?(?:rc|post)\d+)?", engine)
    image = f"vllm/vllm-openai:v{version.group()}" if version else "vllm/vllm-openai"
    words = [*_model(target, revision), *settings["arguments"]]
    quoted = map(shlex.quote, [*words, "--speculative-config", _config(settings, _IN_CONTAINER)])
    return _wrapped([*start, "--gpus", "all", "--ipc=host", *environment, image, *quoted])


def _model(target: str, revision: str) -> list[str]:
    """The target by its hub name and revision; a target without a hub name is the reader's own folder."""
    if target.count("/") != 1:
        return ["TARGET"]
    return [target, *(("--revision", revision) if revision else ())]


def _config(settings: Mapping[str, Any], model: str) -> str:
    return json.dumps({**settings["speculative_config"], "model": model})


def _exports(settings: Mapping[str, Any]) -> list[tuple[str, str]]:
    return sorted(settings["environment"].items())


def _shell(words: Sequence[str], settings: Mapping[str, Any]) -> str:
    assignments = [f"{name}={shlex.quote(value)}" for name, value in _exports(settings)]
    if settings["interpreter"]:
        assignments.insert(0, f'PYTHONPATH="$PWD/{CPU_FOLDER}"')
    return _wrapped([*assignments, *map(shlex.quote, words)])


def _wrapped(words: Sequence[str]) -> str:
    """Shell words over several lines; an option and its value stay together."""
    lines, line = [], ""
    for place, word in enumerate(words):
        opens = word.startswith("-") and place + 1 < len(words) and not words[place + 1].startswith("-")
        length = len(word) + (len(words[place + 1]) + 1 if opens else 0)
        belongs = place and words[place - 1].startswith("-") and not word.startswith("-")
        if line and not belongs and len(line) + length > _WIDTH:
            lines.append(line)
            line = ""
        line = f"{line} {word}".strip()
    return " \\\n    ".join([*lines, line])
