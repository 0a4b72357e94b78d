"""Prints what vLLM drafts in each verification round: `engine_drafts.py TARGET DRAFT BLOCK PROMPT_IDS`.

Started with the environment of a live arm. The last line of its output is JSON: a list of
[position of the anchor, drafted ids].
"""

from __future__ import annotations

import json
import sys
from typing import Any

from vllm import LLM, SamplingParams


def speculator_of(llm: Any) -> Any:
    """The draft side of the model runner, in this very process."""
    engine: Any = llm.llm_engine
    executor = getattr(engine, "model_executor", None) or engine.engine_core.engine_core.model_executor
    return executor.driver_worker.worker.model_runner.speculator


def main() -> None:
    target, draft, block, ids = sys.argv[1:]
    llm = LLM(
        target,
        dtype="float32",
        enforce_eager=True,
        max_model_len=512,
        max_num_seqs=2,
        distributed_executor_backend="uni",
        enable_prefix_caching=False,
        generation_config="vllm",
        speculative_config={"method": "dspark", "model": draft, "num_speculative_tokens": int(block)},
    )
    speculator = speculator_of(llm)
    drafted: list[tuple[int, list[int]]] = []
    sample = speculator._sample_sequential

    def recording(num_reqs: int, head_hidden: Any) -> None:
        sample(num_reqs, head_hidden)
        first = int(speculator.sample_pos[0])  # of the first drafted token, right after the anchor
        drafted.append((first - 1, speculator.draft_tokens[0].tolist()))

    speculator._sample_sequential = recording
    greedy = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
    llm.generate([{"prompt_token_ids": json.loads(ids)}], greedy, use_tqdm=False)
    print("\n" + json.dumps(drafted))


if __name__ == "__main__":
    main()
