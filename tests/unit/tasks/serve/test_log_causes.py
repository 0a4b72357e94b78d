"""Causes of a server's death: the line that says it, not a line in which the same words stand."""

from __future__ import annotations

import pytest

from tasks.serve.log_causes import find_cause

CONFIGURATION = (
    "(EngineCore pid=6773) INFO 12-01 00:42:34 [core.py:133] Initializing a V1 LLM engine (v0.32.0) with "
    "config: model='/models/small', tokenizer_mode=auto, revision=None, trust_remote_code=False, "
    "dtype=torch.float32, max_seq_len=1024"
)
"""What every engine tells when it starts."""
LINES = {
    "the machine has too little free memory for the KV cache": (
        "ValueError: Available memory on node 0 (1.86/23.54 GiB) on kv cache allocation is less than "
        "requested memory for kv (2.0 GiB). Decrease --kv-cache-memory-bytes, VLLM_CPU_KVCACHE_SPACE, "
        "or reduce CPU memory used by other processes."
    ),
    "the model asks to run its own Python code": (
        "ValueError: The repository /models/small contains custom code which must be executed to correctly "
        "load the model. You can inspect the repository content at /models/small ."
    ),
    "its port was taken while it started": (
        "ERROR:    [Errno 98] error while attempting to bind on address ('127.0.0.1', 8000): address already "
        "in use"
    ),
}


@pytest.mark.parametrize("what", LINES)
def test_the_line_that_says_it_is_found(what: str) -> None:
    found = find_cause(
        [CONFIGURATION, "Traceback (most recent call last):", LINES[what], "RuntimeError: failed"]
    )
    assert found is not None
    cause, line = found
    assert (cause.what, line) == (what, LINES[what])


def test_an_engines_own_configuration_is_no_cause() -> None:
    assert find_cause([CONFIGURATION, "RuntimeError: Engine core initialization failed."]) is None
