"""The model card: metadata checked by huggingface_hub, text from a template, figures from the evaluation."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from profiles.schema import Profile
from tasks.evaluate.models import EvaluationReport, TauEstimate
from tasks.publish.card_metadata import metadata
from tasks.publish.card_usage import container_command, server_command
from tasks.publish.models import Decision
from tasks.publish.plots import Plot
from tasks.publish.privacy import public_values, revision_of, target_name
from tasks.publish.refusals.measured import speeds_in
from tasks.publish.speculation_profile import SpeculationProfile
from tasks.serve.models import TargetIdentity
from tasks.stream.models import CaptureManifest
from tasks.train.models import DraftCheckpoint
from tasks.validate.models import ValidationReport

_LINEAGE = ("run_id", "git_commit", "flow_run_id", "mlflow_parent_run_id", "profile_digest")
_MACHINE = ("machine", "id", "version", "kernel_release", "python", "cores", "page_size_bytes")
_DSPARK = "@misc{dspark, title = {DSpark}, eprint = {2607.05147}, archivePrefix = {arXiv}}"


@dataclass(frozen=True)
class CardInputs:
    """Everything that a card is made from."""

    profile: Profile
    version: str
    decision: Decision
    draft: DraftCheckpoint
    config: dict[str, Any]
    """The published config.json."""
    evaluation: EvaluationReport
    identity: TargetIdentity
    captures: CaptureManifest
    validation: ValidationReport
    lineage: dict[str, str]
    settings: dict[str, Any]
    """The published serve.json."""
    speculation: SpeculationProfile
    """The published speculation_profile.json, which says whether speeds may be told."""
    plots: Sequence[Plot] = ()


def render_card(inputs: CardInputs) -> str:
    """The card as Markdown with YAML metadata. What is not known is left out; `refusals` judges the rest."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        undefined=StrictUndefined,
        trim_blocks=True,
        autoescape=False,  # Markdown, not HTML
    )
    environment.filters |= {"cell": cell, "figure": number}
    template = environment.get_template("card.md.jinja")
    parts = {**_overview(inputs), **_usage(inputs), **_measured(inputs), **_made(inputs)}
    return template.render(**parts).strip() + "\n"


def cell(value: object) -> str:
    """A text that stays in its cell of a Markdown table."""
    return " ".join(str(value).split()).replace("|", r"\|")


def _overview(inputs: CardInputs) -> dict[str, Any]:
    profile, identity, draft = inputs.profile, inputs.identity, inputs.draft
    target, revision = target_name(profile), revision_of(inputs.config)
    overview = {
        "Target": f"{target} ({identity.architecture})",
        "Target revision": revision,
        "Input and output": "text",
        "Algorithm": "DSpark, Speculators format",
        "Library": f"speculators {inputs.config.get('speculators_version', '')}".strip(),
        "Version": inputs.version,
        "Draft tokens per block": draft.block_size,
        "Context": f"up to {profile.target.max_model_len:,} tokens in training and measurement",
    }
    return {
        "metadata": metadata(profile, inputs.evaluation, inputs.captures.digest).to_yaml().strip(),
        "name": profile.publish.name,
        "target": target,
        "target_link": f"[{target}](https://huggingface.co/{target})" if target.count("/") == 1 else target,
        "revision": revision,
        "block_size": inputs.evaluation.block_size,
        "overview": _known(overview),
        "architecture": _known(_architecture(inputs)),
        "identity": identity,
        "draft": draft,
        "held": not inputs.decision.promote,
        "reasons": _told(inputs.decision.reasons, inputs.speculation),
        "margin": inputs.decision.margin,
        "license": profile.publish.license,
        "limits": profile.publish.card.limits.strip(),
        "data": profile.publish.card.data.strip(),
        "citation": "\n\n".join(filter(None, (_DSPARK, profile.publish.card.citation.strip()))),
    }


def _architecture(inputs: CardInputs) -> dict[str, Any]:
    config, draft = inputs.config, inputs.draft
    layer = config.get("transformer_layer_config") or {}
    rank = config.get("markov_rank")
    heads, pairs = layer.get("num_attention_heads"), layer.get("num_key_value_heads")
    return {
        "Parameters": f"{draft.parameters:,} in serving, {draft.trained_parameters:,} trained",
        "Layers": layer.get("num_hidden_layers"),
        "Hidden size": layer.get("hidden_size"),
        "Feed-forward size": layer.get("intermediate_size"),
        "Attention heads": f"{heads}, {pairs} for keys and values" if heads else "",
        "Sliding window": layer.get("sliding_window"),
        "Type of the weights": config.get("dtype"),
        "Draft vocabulary": f"{draft.draft_vocab_size:,} of {inputs.identity.vocab_size:,} tokens",
        "Markov head": f"{config.get('markov_head_type', 'vanilla')}, rank {rank}" if rank else "none",
        "Confidence head": "yes" if config.get("enable_confidence_head") else "no",
        "Drafts from the anchor": "yes" if config.get("sample_from_anchor") else "no",
        "Auxiliary layers": ", ".join(map(str, config.get("aux_hidden_state_layer_ids") or ()))
        + " (vLLM's numbering)",
    }


def _known(rows: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(name, value) for name, value in rows.items() if value not in (None, "")]


def _usage(inputs: CardInputs) -> dict[str, Any]:
    target, revision = target_name(inputs.profile), revision_of(inputs.config)
    return {
        "command": server_command(inputs.settings, target, revision),
        "container": container_command(inputs.settings, inputs.identity.engine, target, revision),
        "interpreter": inputs.settings["interpreter"],
    }


def _measured(inputs: CardInputs) -> dict[str, Any]:
    evaluation, settings = inputs.evaluation, inputs.profile.evaluate
    live, told = evaluation.live.domains, inputs.speculation
    rows = [_row(domain, tau, live.get(domain)) for domain, tau in evaluation.replay.domains.items()] + [
        _row("**macro**", evaluation.replay.macro, evaluation.live.macro)
    ]
    old = evaluation.incumbent_replay
    may_tell = not told.speed_is_withheld
    worth = evaluation.worth.sentence if evaluation.worth else ""
    return {
        "evaluation": evaluation,
        "rows": rows,
        "replay_tokens": settings.replay_max_new_tokens,
        "live_tokens": settings.live.max_new_tokens,
        "level": f"{settings.confidence:.0%}",
        "live_pooled": number(evaluation.live.pooled.value),
        "common_pooled": number(evaluation.common_replay_pooled),
        "gap": "unknown" if evaluation.live_gap is None else f"{evaluation.live_gap:.2%}",
        "incumbent": number(old.macro.value) if old else "",
        "positions": [f"{share:.2f}" for share in evaluation.replay.pooled.per_position],
        "lossless": evaluation.lossless.replace("_", " "),
        "equal": sum(c.equal for c in evaluation.comparisons),
        "compared": len(evaluation.comparisons),
        "conditions": _conditions(told),
        "plots": inputs.plots,
        "arms": evaluation.arms,
        "speeds": told.speed or (),
        "speed_is_told": may_tell,
        "speed_absent": told.speed_absent if not may_tell else "",
        "worth": worth if may_tell or not speeds_in(worth) else "",
        "evaluation_notes": _told(evaluation.notes, told),
    }


def _told(lines: Sequence[str], speculation: SpeculationProfile) -> list[str]:
    """The sentences; where speeds are withheld, those without a figure of speed or time."""
    return [line for line in lines if not (speculation.speed_is_withheld and speeds_in(line))]


def _conditions(told: SpeculationProfile) -> list[tuple[str, Any]]:
    live = told.measured("live")
    if live is None:
        return []
    known = live.setting.model_dump(exclude_none=True, exclude_defaults=True)
    return [(name.replace("_", " "), value) for name, value in known.items()]


def _made(inputs: CardInputs) -> dict[str, Any]:
    captures, facts = inputs.captures, inputs.validation.facts
    versions = {name: value for name, value in (facts.get("versions") or {}).items() if value}
    return {
        "captures": captures,
        "stream": inputs.profile.stream,
        "thinking": "on" if inputs.profile.prompts.thinking else "off",
        "splits": ", ".join(f"{name} {count}" for name, count in captures.splits.items()),
        "layer_ids": ", ".join(map(str, captures.layer_ids)),
        "training_config": _yaml(public_values(inputs.draft.config)),
        "environment": _yaml({"hardware": _hardware(facts), "versions": versions}),
        "provenance": {
            **{name.replace("_", " "): inputs.lineage[name] for name in _LINEAGE if inputs.lineage.get(name)},
            "capture digest": captures.digest,
            "target digest": inputs.identity.model_digest,
            "tokenizer digest": inputs.identity.tokenizer_digest,
            "chat template digest": inputs.identity.template_digest,
            **{f"{name} SHA-256": digest for name, digest in inputs.speculation.draft.items()},
        },
    }


def _hardware(facts: dict[str, Any]) -> dict[str, Any]:
    groups = [facts.get("os") or {}, facts.get("host") or {}]
    host = {name: value for group in groups for name, value in group.items() if name in _MACHINE and value}
    gpus = [gpu["name"] for gpu in facts.get("gpus") or () if gpu.get("name")]
    return {**host, "gpus": gpus} if gpus else host


def _row(domain: str, replay: TauEstimate, live: TauEstimate | None) -> dict[str, Any]:
    bounded = replay.low is not None and replay.high is not None
    return {
        "domain": domain,
        "replay": number(replay.value),
        "interval": f"{replay.low:.2f} to {replay.high:.2f}" if bounded else "unknown",
        "prompts": replay.prompts,
        "live": number(live.value) if live else "not measured",
        "live_prompts": live.prompts if live else 0,
    }


def number(value: float | None) -> str:
    """A figure of the card with two decimals; never a zero for what was not measured."""
    return "unknown" if value is None or value != value else f"{value:.2f}"


def _yaml(value: Any) -> str:
    return str(yaml.safe_dump(json.loads(json.dumps(value)), sort_keys=True, width=100)).strip()
