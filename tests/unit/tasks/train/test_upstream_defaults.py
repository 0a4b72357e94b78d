"""The pinned upstream's defaults, as a snapshot: a test fails when one moves, and says which and how.

Where upstream moved on purpose, read its release notes, decide for each value, and write the snapshot again:
    python tests/unit/tasks/train/test_upstream_defaults.py
"""

from __future__ import annotations

import inspect
import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

SNAPSHOT = Path(__file__).with_name("upstream_defaults.json")


def defaults() -> dict[str, Any]:
    """Everything that upstream would choose for us: command line, configurations, signatures, heads."""
    return {
        "versions": {name: version(name) for name in ("speculators", "hs-connectors")},
        "train": _shown(_command_line()),
        "train_dspark": _shown(_command_line("--speculator-type", "dspark")),
        "dspark_config": _shown(_config("dspark")),
        "dflash_config": _shown(_config("dflash")),
        "signatures": _shown(_signatures()),
        "heads": _shown(_heads()),
    }


def _command_line(*words: str) -> dict[str, Any]:
    from speculators.train.config import TrainConfig

    found = TrainConfig.resolve(["--verifier-name-or-path", "target", "--data-path", "data", *words])
    return dict(found.flatten())


def _config(kind: str) -> dict[str, Any]:
    from speculators.models.dflash.config import DFlashSpeculatorConfig
    from speculators.models.dspark.config import DSparkSpeculatorConfig

    made = {"dspark": DSparkSpeculatorConfig, "dflash": DFlashSpeculatorConfig}[kind]
    left_out = {"transformers_version", "transformer_layer_config"}
    return {
        name: field.get_default(call_default_factory=True)
        for name, field in made.model_fields.items()
        if name not in left_out
    }


def _signatures() -> dict[str, Any]:
    """Defaults of the functions that training, loss and saving go through."""
    from speculators.losses import compound_loss, dflash_loss_decay, resolve_loss_config, tv_loss
    from speculators.models.dflash.core import DFlashDraftModel
    from speculators.models.dspark.core import DSparkDraftModel
    from speculators.models.dspark.metrics import compute_metrics

    functions = [
        DSparkDraftModel.forward, DFlashDraftModel.forward, DFlashDraftModel._backbone_forward,
        compute_metrics, compound_loss, dflash_loss_decay, resolve_loss_config, tv_loss,
    ]  # fmt: skip
    return {
        f"{function.__module__}.{function.__qualname__}": {
            name: parameter.default
            for name, parameter in inspect.signature(inspect.unwrap(function)).parameters.items()
            if parameter.default is not inspect.Parameter.empty
        }
        for function in functions
    }


def _heads() -> dict[str, Any]:
    """How the new parts of a draft start, which no option says."""
    import torch
    from speculators.models.dspark.model_definitions import ConfidenceHead, MarkovHead

    torch.manual_seed(0)
    made = {
        f"markov {kind}": MarkovHead(
            verifier_vocab_size=2000, draft_vocab_size=1000, markov_rank=16, hidden_size=32, head_type=kind
        )
        for kind in ("vanilla", "gated", "rnn")
    }
    modules: dict[str, torch.nn.Module] = {**made, "confidence": ConfidenceHead(48)}
    return {
        head: {
            name: [list(value.shape), round(float(value.detach().std()), 2)]
            for name, value in module.named_parameters()
            if value.numel() > 1
        }
        for head, module in modules.items()
    }


def _shown(value: Any) -> Any:
    """As JSON holds it; functions and classes by their name."""
    if isinstance(value, dict):
        return {
            str(name): _shown(part) for name, part in sorted(value.items(), key=lambda item: str(item[0]))
        }
    if isinstance(value, list | tuple):
        return [_shown(part) for part in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return getattr(value, "__qualname__", None) or str(value)


def _flat(value: Any, name: str = "") -> dict[str, Any]:
    if not isinstance(value, dict) or not value:
        return {name: value}
    parts = [_flat(part, f"{name}.{key}" if name else key) for key, part in value.items()]
    return {key: part for flat in parts for key, part in flat.items()}


def test_upstreams_defaults_are_those_that_this_project_was_written_for() -> None:
    known, found = _flat(json.loads(SNAPSHOT.read_text(encoding="utf-8"))), _flat(defaults())
    moved = [
        f"{name}: {known.get(name, 'absent')!r} -> {found.get(name, 'absent')!r}"
        for name in sorted(known.keys() | found.keys())
        if known.get(name, "absent") != found.get(name, "absent")
    ]
    assert not moved, "upstream's defaults moved:\n" + "\n".join(moved)


def test_the_snapshot_holds_what_has_moved_before() -> None:
    """Rates, losses and the anchor's convention changed between releases without a word in the options."""
    known = json.loads(SNAPSHOT.read_text(encoding="utf-8"))
    chosen = {"lr", "muon_lr", "optimizer", "loss_fn", "sample_from_anchor", "sliding_window"}
    assert chosen <= known["train"].keys() & known["train_dspark"].keys()
    assert known["dspark_config"]["sample_from_anchor"] is True
    assert known["dflash_config"]["sample_from_anchor"] is False
    assert known["signatures"]["speculators.models.dspark.core.DSparkDraftModel.forward"]["gamma"] == 4.0


if __name__ == "__main__":
    SNAPSHOT.write_text(json.dumps(defaults(), indent=1) + "\n", encoding="utf-8")
