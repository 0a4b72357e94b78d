"""A scheduler for captures on CPU, loaded inside vLLM: no token is computed only to be verified.

vLLM's `extract_hidden_states` keeps the states where a draft model would run, and hands out the token just
sampled as its draft. That draft is verified like any other: each decoding step computes two tokens for every
request, and the second is of use only where a token repeats itself. An accelerator that waits for its memory
hardly notices; two cores spend a third of a capture on it.
"""

from __future__ import annotations

from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import DraftTokenIds


class UndraftedScheduler(Scheduler):
    """vLLM's scheduler (0.32, the synchronous one) without what `extract_hidden_states` drafts."""

    def update_draft_token_ids(self, draft_token_ids: DraftTokenIds) -> None:
        """Leave every request without a draft: its next step computes the one token that it needs."""
