"""Upstream's own sequence on the same prompts: regenerate answers, prepare the data, train online.

Three command lines of `speculators` 0.9.0, with a plain vLLM for the first and an extracting one behind its
Mooncake backend for the last, as its guide has it. Servers' start-up times are left out, as they are for us.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from servers import (
    BENCH,
    TargetTokens,
    Workplace,
    finish,
    plain,
    target_tokens,
    upstream_extracting,
)

from profiles.schema import Train
from tasks.prompts.load import Prompt
from tasks.train import adapter

_LIMIT_S = 3600.0


@dataclass(frozen=True)
class Steps:
    """What upstream's sequence cost."""

    answering: TargetTokens
    """Counted by the plain server."""
    extracting: TargetTokens
    """Counted by the extracting server, readiness request included."""
    step_tokens: int
    """Tokens of all optimizer steps of all epochs."""
    seconds: dict[str, float]
    """Of each command line."""

    @property
    def target_tokens(self) -> int:
        return self.answering.total + self.extracting.total


def upstream_sequence(
    place: Workplace, prompts: Sequence[Prompt], validation: int, draft_vocab: int
) -> Steps:
    """Answer, prepare and train `train.epochs` epochs; returns tokens and seconds.

    Args:
        validation: Rows that upstream keeps for validation.
        draft_vocab: Draft vocabulary, at most the distinct answer tokens.

    Raises:
        JobError, ServiceError: With the log of what failed.
    """
    work = place.run.path / "upstream"
    work.mkdir(parents=True, exist_ok=True)
    asked = work / "prompts.jsonl"
    rows = [{"id": prompt.id, "messages": prompt.turns()} for prompt in prompts]
    asked.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    name, env = str(place.target), {"HF_DATASETS_CACHE": str(work / "cache")}
    seconds = {}
    with plain(place, name) as server:
        before = target_tokens(server)  # the readiness request is none of upstream's
        argv = _regenerate(place, f"{server.url}/v1/chat/completions", asked, work / "answers.jsonl")
        seconds["regenerate-responses"] = finish(place, "regenerate", argv, env, _LIMIT_S)
        after = target_tokens(server)
    answering = TargetTokens(after.prompt - before.prompt, after.generated - before.generated)
    seconds["prepare-data"] = finish(place, "prepare-data", _prepare(place, work), env, _LIMIT_S)
    with upstream_extracting(place, name) as (server, master):
        before = target_tokens(server)
        share = train_share(len(prompts), validation)
        argv = train_argv(place, work, f"{server.url}/v1", master, share, draft_vocab)
        seconds["train"] = finish(
            place, "upstream-train", argv, {**env, "MOONCAKE_LOCAL_HOSTNAME": "127.0.0.1"}, _LIMIT_S
        )
        after = target_tokens(server)
    extracted = TargetTokens(after.prompt - before.prompt, after.generated - before.generated)
    counts = json.loads((work / "counts.json").read_text(encoding="utf-8"))
    return Steps(answering, extracted, int(counts["tokens"]), seconds)


def _regenerate(place: Workplace, endpoint: str, asked: Path, answers: Path) -> list[str]:
    stream = place.profile.stream
    sampling = {"temperature": stream.temperature, "top_p": stream.top_p, "seed": stream.seed}
    return [
        sys.executable, "-m", "speculators", "regenerate-responses",
        "--endpoint", endpoint,
        "--model", str(place.target),
        "--dataset", str(asked),
        "--outfile", str(answers),
        "--concurrency", str(stream.concurrency),
        "--max-tokens", str(stream.max_new_tokens),
        "--sampling-params", json.dumps(sampling),
    ]  # fmt: skip


def _prepare(place: Workplace, work: Path) -> list[str]:
    return [
        sys.executable, "-m", "speculators", "prepare-data",
        "--model", str(place.target),
        "--data", str(work / "answers.jsonl"),
        "--output", str(work / "data"),
        "--seq-length", str(place.profile.target.max_model_len),
        "--num-preprocessing-workers", "1",
        "--no-skip-token-freq",
    ]  # fmt: skip


def train_share(rows: int, validation: int) -> float:
    """Share for which upstream, which rounds down, trains on `rows - validation` rows."""
    return (rows - validation + 0.5) / rows


def train_argv(
    place: Workplace, work: Path, endpoint: str, master: str, share: float, draft_vocab: int
) -> list[str]:
    """The trainer's command line with our profile's values; nothing is left to a default that differs."""
    train, gib = place.profile.train, 2**30
    decoder = work / "decoder"
    adapter.decoder_config(place.target, train.draft).save_pretrained(decoder)
    return [
        sys.executable, str(BENCH / "upstream_shims.py"), str(work / "counts.json"), "train",
        "--verifier-name-or-path", str(place.target),
        "--speculator-type", "dspark",
        "--draft-config", str(decoder),
        "--data-path", str(work / "data"),
        "--save-path", str(work / "checkpoints"),
        "--log-dir", str(work / "logs"),
        "--hidden-states-backend", "mooncake",
        "--mooncake-master", master,
        "--mooncake-global-segment-gib", "0",
        "--mooncake-local-buffer-gib", str(place.profile.store.local_buffer_bytes / gib),
        "--vllm-endpoint", endpoint,
        "--train-data-ratio", f"{share:.6f}",
        "--draft-vocab-size", str(draft_vocab),
        "--target-layer-ids", *map(str, place.profile.target.aux_layer_ids),
        *_training(train),
    ]  # fmt: skip


def _training(train: Train) -> list[str]:
    draft = train.draft
    return [
        "--block-size", str(draft.block_size),
        "--markov-rank", str(draft.markov_rank),
        "--max-anchors", str(train.anchors),
        "--total-seq-len", str(train.batch_tokens),
        "--hidden-states-dtype", train.autocast,
        "--loss-fn", json.dumps({"ce": train.loss_ce, "tv": train.loss_tv}),
        "--loss-implementation", "eager",
        "--draft-attn-impl", "sdpa",
        "--optimizer", train.optimizer,
        "--lr", str(train.lr),
        "--muon-lr", str(train.muon_lr or train.lr),
        "--scheduler-type", "cosine",
        "--epochs", str(train.epochs),
        "--seed", str(train.seed),
        "--num-workers", "0",
        "--log-freq", "1",
    ]  # fmt: skip
