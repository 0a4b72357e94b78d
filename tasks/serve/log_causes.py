"""Known causes of a vLLM server's death, read from its log."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tasks.errors import ServiceError


@dataclass(frozen=True)
class Cause:
    """A pattern in the log, what it means, and what to do."""

    pattern: re.Pattern[str]
    what: str
    hint: str


def _cause(pattern: str, what: str, hint: str) -> Cause:
    return Cause(re.compile(pattern, re.IGNORECASE), what, hint)


# The most specific come first: the first that matches any line is taken.
CAUSES = (
    _cause(
        r"address already in use|Errno 98",
        "its port was taken while it started",
        "let the profile take a free port (0), or end the program that holds it",
    ),
    _cause(
        r"CUDA out of memory|OutOfMemoryError|HIP out of memory",
        "the GPU has too little free memory",
        "end other programs on the GPU (nvidia-smi shows them), or lower serve.max_num_seqs, "
        "serve.max_num_batched_tokens or target.max_model_len",
    ),
    _cause(
        r"Free memory on device.*less than desired|No available memory for the cache blocks",
        "there is too little memory for the KV cache",
        "end other programs on the device, or set serve.engine.gpu_memory_utilization",
    ),
    _cause(
        r"on kv cache allocation is less than requested memory",
        "the machine has too little free memory for the KV cache",
        "end other programs, or lower serve.kv_cache_gib",
    ),
    _cause(
        r"KV cache is needed, which is larger than the available|max seq len .* larger than the maximum",
        "the KV cache is too small for target.max_model_len",
        "raise serve.kv_cache_gib or lower target.max_model_len",
    ),
    _cause(
        r"User-specified max_model_len .* is greater than the derived|max_model_len.*greater than",
        "target.max_model_len is longer than the model allows",
        "lower target.max_model_len to the model's own limit (max_position_embeddings)",
    ),
    _cause(
        r"Model architectures .* are not supported|does not recognize this architecture",
        "this vLLM does not know the model's architecture",
        "use a newer engine, or a target that it supports",
    ),
    _cause(
        r"(lib[\w.+-]+\.so[\w.]*): cannot open shared object file",
        "a shared library is missing",
        "install the library that the log names (libibverbs1, libnuma1 and libcurl4 for the store)",
    ),
    _cause(
        r"No module named '?([\w.]+)",
        "a Python module is missing in the server's environment",
        "install the project and its extra in the environment of the server",
    ),
    _cause(
        r"error: unrecognized arguments|error: argument ",
        "it does not know an argument",
        "look at serve.extra_args; this engine's version may have other options",
    ),
    _cause(
        r"custom code.*must be executed|may contain custom code|pass the argument .trust_remote_code"
        r"|use the .--trust-remote-code",
        "the model asks to run its own Python code",
        "read that code first, then set target.trust_remote_code and target.allow_code",
    ),
    _cause(
        r"No such file or directory: '?lscpu|lscpu: not found",
        "the program lscpu is missing",
        "install util-linux",
    ),
)


# An engine tells its whole configuration, in which the names of causes stand too.
_INFORMS = re.compile(r"^(\([^)]*\) )?INFO\b")


def find_cause(lines: Iterable[str]) -> tuple[Cause, str] | None:
    """First known cause with the line that shows it."""
    kept = [line for line in lines if not _INFORMS.search(line)]
    for cause in CAUSES:
        for line in kept:
            if cause.pattern.search(line):
                return cause, line.strip()
    return None


def service_error(name: str, happened: str, log: str, lines: Sequence[str], shown: int = 25) -> ServiceError:
    """The error of a server that failed, with its known cause if the log shows one.

    Args:
        happened: What was seen from outside, e.g. `ended with exit status 1`.
        lines: End of its log, long enough to hold the cause; the last `shown` are shown.
    """
    found = find_cause(lines)
    if found is None:
        return ServiceError(f"{name} {happened}", where=log, hint="see the log", log_tail=lines[-shown:])
    cause, line = found
    return ServiceError(
        f"{name} {happened}: {cause.what}\n  its log says: {line[-300:]}",
        where=log,
        hint=cause.hint,
        log_tail=lines[-shown:],
    )
