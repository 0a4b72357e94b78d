"""The model card: metadata checked by huggingface_hub, text from a template, figures from the evaluation."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import EvalResult, ModelCard, ModelCardData
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from profiles.schema import Profile
from tasks.errors import PublishError
from tasks.evaluate.models import EvaluationReport, TauEstimate
from tasks.publish.models import Decision
from tasks.publish.privacy import public_values, target_name
from tasks.serve.models import TargetIdentity
from tasks.stream.models import CaptureManifest
from tasks.train.models import DraftCheckpoint
from tasks.validate.models import ValidationReport

_LINEAGE = ("run_id", "git_commit", "flow_run_id", "mlflow_parent_run_id", "profile_digest")
_MACHINE = ("machine", "id", "version", "kernel_release", "python", "cores", "page_size_bytes")


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
    speculative_config: dict[str, Any]


def render_card(inputs: CardInputs) -> str:
    """The card as Markdown with YAML metadata.

    Raises:
        PublishError: The metadata is not valid.
    """
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        undefined=StrictUndefined,
        trim_blocks=True,
        autoescape=False,  # Markdown, not HTML
    )
    template = environment.get_template("card.md.jinja")
    text = template.render(**_overview(inputs), **_measured(inputs), **_made(inputs)).strip() + "\n"
    check_card(text, inputs)
    return text


def check_card(text: str, inputs: CardInputs) -> None:
    """Read the card back as the hub would.

    Raises:
        PublishError: The metadata is not there, or says something else than the results.
    """
    try:
        data = ModelCard(text).data.to_dict()
    except (ValueError, yaml.YAMLError) as error:
        raise PublishError(f"the card's metadata is not valid: {error}", where="README.md") from error
    index = data.get("model-index") or [{"results": []}]
    results = index[0]["results"]
    measured = [d for d, tau in inputs.evaluation.replay.domains.items() if tau.value is not None]
    if data.get("base_model") != target_name(inputs.profile) or len(results) != len(measured):
        raise PublishError("the card's metadata does not repeat target and results", where="README.md")


def metadata(inputs: CardInputs) -> ModelCardData:
    """Metadata with one acceptance-length result a domain."""
    evaluation = inputs.evaluation
    results = [
        EvalResult(
            task_type="text-generation",
            task_name="Speculative decoding",
            dataset_type=domain,
            dataset_name=domain,
            dataset_revision=inputs.captures.digest,
            metric_type="acceptance_length",
            metric_name="Acceptance length (replay, bonus token included)",
            metric_value=round(tau.value, 4),
            metric_config=f"draft tokens {evaluation.block_size}, temperature {evaluation.temperature:g}",
        )
        for domain, tau in evaluation.replay.domains.items()
        if tau.value is not None
    ]
    return ModelCardData(
        license=inputs.profile.publish.license,
        base_model=target_name(inputs.profile),
        base_model_relation="adapter",
        library_name="speculators",
        pipeline_tag="text-generation",
        tags=["speculative-decoding", "dspark", "speculators"],
        model_name=inputs.profile.publish.name,
        eval_results=results or None,
    )


def _overview(inputs: CardInputs) -> dict[str, Any]:
    config, profile = inputs.config, inputs.profile
    markov = f"{config.get('markov_head_type', 'vanilla')}, rank {config['markov_rank']}"
    return {
        "metadata": metadata(inputs).to_yaml().strip(),
        "name": profile.publish.name,
        "version": inputs.version,
        "target": target_name(profile),
        "block_size": inputs.evaluation.block_size,
        "identity": inputs.identity,
        "draft": inputs.draft,
        "layers": config["transformer_layer_config"]["num_hidden_layers"],
        "markov": markov if config["markov_rank"] else "none",
        "confidence_head": "yes" if config["enable_confidence_head"] else "no",
        "aux_layers": ", ".join(map(str, config["aux_hidden_state_layer_ids"])),
        "speculative_config": json.dumps({**inputs.speculative_config, "model": "."}),
        "interpreter": profile.evaluate.live.triton_interpreter,
        "held": not inputs.decision.promote,
        "reasons": inputs.decision.reasons,
        "margin": inputs.decision.margin,
        "license": profile.publish.license,
    }


def _measured(inputs: CardInputs) -> dict[str, Any]:
    evaluation, settings = inputs.evaluation, inputs.profile.evaluate
    live = evaluation.live.domains
    rows = [_row(domain, tau, live.get(domain)) for domain, tau in evaluation.replay.domains.items()] + [
        _row("**macro**", evaluation.replay.macro, evaluation.live.macro)
    ]
    old = evaluation.incumbent_replay
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
        "speed_is_meaningless": any(not arm.speed_is_meaningful for arm in evaluation.arms),
    }


def _made(inputs: CardInputs) -> dict[str, Any]:
    captures, facts = inputs.captures, inputs.validation.facts
    versions = {name: value for name, value in (facts.get("versions") or {}).items() if value}
    groups = [facts.get("os") or {}, facts.get("host") or {}]
    host = {name: value for group in groups for name, value in group.items() if name in _MACHINE and value}
    gpus = [gpu["name"] for gpu in facts.get("gpus") or () if gpu.get("name")]
    if gpus:
        host["gpus"] = gpus
    return {
        "captures": captures,
        "stream": inputs.profile.stream,
        "thinking": "on" if inputs.profile.prompts.thinking else "off",
        "splits": ", ".join(f"{name} {count}" for name, count in captures.splits.items()),
        "layer_ids": ", ".join(map(str, captures.layer_ids)),
        "training_config": _yaml(public_values(inputs.draft.config)),
        "environment": _yaml({"hardware": host, "versions": versions}),
        "provenance": {
            **{name.replace("_", " "): inputs.lineage[name] for name in _LINEAGE if inputs.lineage.get(name)},
            "capture digest": captures.digest,
            "target digest": inputs.identity.model_digest,
            "tokenizer digest": inputs.identity.tokenizer_digest,
            "chat template digest": inputs.identity.template_digest,
        },
    }


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
    return "unknown" if value is None else f"{value:.2f}"


def _yaml(value: Any) -> str:
    return str(yaml.safe_dump(json.loads(json.dumps(value)), sort_keys=True, width=100)).strip()
