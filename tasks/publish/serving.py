"""`serve.json` and `serve.sh`: how others load the draft in vLLM."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from profiles.schema import Profile
from tasks.publish.privacy import target_name
from tasks.serve.command import dspark_speculative_config, is_cpu, server_argv
from tasks.serve.cpu import TRITON_FOLDER, cpu_environment
from tasks.serve.options import runner_environment, tap_environment

CPU_FOLDER = "cpu"
"""Folder of the published draft that holds what the interpreter needs."""
_OWN_FLAGS = ("--model", "--host", "--port")


def serve_settings(profile: Profile, model_digest: str, architecture: str) -> dict[str, Any]:
    """Content of `serve.json`; `model` is the folder itself."""
    return {
        "speculative_config": dspark_speculative_config(profile, "."),
        "target": {"name": target_name(profile), "architecture": architecture, "digest": model_digest},
        "arguments": serve_arguments(profile),
        "environment": serve_environment(profile),
        "cpu": is_cpu(profile),
        "interpreter": profile.evaluate.live.triton_interpreter,
    }


def serve_arguments(profile: Profile) -> list[str]:
    """vLLM arguments of the measurement, without model, address and the profile's own extras."""
    plain = profile.model_copy(update={"serve": profile.serve.model_copy(update={"extra_args": ()})})
    live = profile.evaluate.live
    argv = server_argv(
        plain,
        model=Path("TARGET"),
        served_name=profile.serve.served_name,
        port=0,
        dtype=live.dtype,
        max_num_seqs=live.max_num_seqs,
    )
    words = list(argv[argv.index("-m") + 2 :])
    for flag in _OWN_FLAGS:
        place = words.index(flag)
        del words[place : place + 2]
    return words


def serve_environment(profile: Profile) -> dict[str, str]:
    """Environment under which the draft was measured; the profile's own additions are not repeated."""
    environment = {**runner_environment("v2"), **tap_environment(profile.target.tap_point)}
    if is_cpu(profile):
        known = cpu_environment(profile)
        environment |= {name: value for name, value in known.items() if name.startswith("VLLM_")}
    if profile.evaluate.live.triton_interpreter:
        environment["TRITON_INTERPRET"] = "1"
    return environment


def serve_script(settings: dict[str, Any]) -> str:
    """Content of `serve.sh`: verify, then start vLLM with the draft."""
    exports = "\n".join(
        f'export {name}="${{{name}:-{value}}}"' for name, value in sorted(settings["environment"].items())
    )
    if settings["interpreter"]:
        exports += f'\nexport PYTHONPATH="$HERE/{CPU_FOLDER}${{PYTHONPATH:+:$PYTHONPATH}}"'
    if settings["cpu"]:
        exports += _CPU_EXPORTS
    arguments = " ".join(shlex.quote(word) for word in settings["arguments"])
    return _SCRIPT.format(target=settings["target"]["name"], exports=exports, arguments=arguments)


def interpreter_files() -> dict[str, str]:
    """Files that let the DSpark kernels run without a GPU: path in the published folder -> text."""
    source = TRITON_FOLDER / "sitecustomize.py"
    return {f"{CPU_FOLDER}/{source.name}": source.read_text(encoding="utf-8")}


def serve_command(folder: Path, target_dir: Path, python: str, port: int = 8000) -> str:
    """Command that serves the draft of `folder` on this machine."""
    words = (str(folder / "serve.sh"), str(target_dir), str(port))
    return f"PYTHON={shlex.quote(python)} {shlex.join(words)}"


_CPU_EXPORTS = """
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-$(nproc)}"
OPENMP="$("$PYTHON" -c 'import sys; print(sys.prefix)')/lib/libiomp5.so"
if [ -f "$OPENMP" ]; then export LD_PRELOAD="$OPENMP${LD_PRELOAD:+:$LD_PRELOAD}"; fi"""
"""In place of this machine's own values: threads, and Intel's OpenMP beside the Python that serves."""

_SCRIPT = """#!/usr/bin/env bash
# Serves {target} with this draft:  ./serve.sh TARGET [PORT] [further vLLM arguments]
# TARGET: folder or name of the target's weights. Also from the environment: TARGET, PORT, HOST, PYTHON
# (one that has vLLM). Set VLLM_API_KEY to ask clients for a key.
set -euo pipefail
HERE="$(cd -- "$(dirname -- "${{BASH_SOURCE[0]}}")" && pwd)"
if [ $# -gt 0 ] && ! [[ "$1" =~ ^([0-9]+$|--) ]]; then TARGET="$1"; shift; fi
if [ $# -gt 0 ] && [[ "$1" =~ ^[0-9]+$ ]]; then PORT="$1"; shift; fi
if [ -z "${{TARGET:-}}" ]; then
    echo "serve.sh: which target? Give the folder of {target} as first argument or in TARGET." >&2
    exit 2
fi
PYTHON="${{PYTHON:-$(command -v python || command -v python3)}}"
# A damaged draft may load and propose garbage: it is refused here.
CONFIG="$("$PYTHON" "$HERE/verify.py" "$HERE" --speculative-config)"
{exports}
exec "$PYTHON" -m vllm.entrypoints.openai.api_server --model "$TARGET" \\
    --host "${{HOST:-127.0.0.1}}" --port "${{PORT:-8000}}" \\
    {arguments} \\
    --speculative-config "$CONFIG" "$@"
"""
