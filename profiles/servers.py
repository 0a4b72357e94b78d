"""The servers that a profile starts, with everything that decides whether they can work."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from profiles.address import is_loopback
from profiles.evaluation import Live, engine_of_arms
from profiles.serving import Engine, Runner, TapPoint

if TYPE_CHECKING:
    from profiles.schema import Profile

CAPTURE = "serve.engine"
ARMS = "evaluate.live.engine"
_SEQS = "max_num_seqs"
_FIELDS = {
    _SEQS: "serve.max_num_seqs",
    "max_num_batched_tokens": "serve.max_num_batched_tokens",
    "max_model_len": "target.max_model_len",
}
_OF_SPECULATION = ("method", "adaptive_verification", "rejection_sample_method", "num_speculative_tokens")


@dataclass(frozen=True)
class Server:
    """One server that a profile starts, as far as the profile says.

    Args:
        field: Dotted field of its options.
        speculative: Its speculative config; empty where it does not draft.
        runner: Model runner; None leaves it to vLLM.
        role_nodes: Machines of the role that serves.
        gpus_per_node: GPUs of each; None where the profile does not say.
        local: Its address reaches no other machine.
        confidence: The profile's draft has a confidence head.
    """

    field: str
    engine: Engine
    speculative: Mapping[str, Any]
    runner: Runner | None
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    tap_point: TapPoint | None
    cpu: bool
    local: bool
    role_nodes: int
    gpus_per_node: int | None
    confidence: bool = True

    @property
    def captures(self) -> bool:
        """Whether hidden states are taken out of it."""
        return self.field == CAPTURE

    @property
    def method(self) -> str:
        """How it drafts; empty if it does not."""
        return str(self.speculative.get("method", "")) if self.speculative else ""

    @property
    def drafted(self) -> int:
        """Tokens that it drafts in a round; 0 if it does not draft, or does not say."""
        count = self.speculative.get("num_speculative_tokens")
        return count if isinstance(count, int) else 0

    @property
    def adaptive(self) -> bool:
        """Whether it trims what is verified."""
        return bool(self.speculative.get("enable_adaptive_verification"))

    def field_of(self, option: str) -> str:
        """Full name of an option that a rule names."""
        if "." in option:
            return option
        if option in _FIELDS:
            return "evaluate.live.max_num_seqs" if option == _SEQS and not self.captures else _FIELDS[option]
        if option in _OF_SPECULATION:
            inside = f"{self.field}.speculative_config" if self.field != ARMS else "evaluate.live"
            return f"{inside}.{option}"
        return f"{self.field if self.field in (CAPTURE, ARMS) else ARMS}.{option}"

    def value_of(self, option: str) -> str:
        """Value of an option that a rule names, for people."""
        known = {
            "adaptive_verification": self.adaptive,
            "runner": self.runner,
            "serve.host": "a loopback address",
            "hardware.roles.serve.nodes": self.role_nodes,
            "hardware.roles.serve.gpus_per_node": self.gpus_per_node,
            "train.draft.confidence_head": self.confidence,
        }
        for place in (known, self.speculative, vars(self), dict(self.engine)):
            if option in place:
                value = place[option]
                return "empty" if value is None else str(getattr(value, "value", value)).lower()
        return "empty"

    @property
    def hybrid(self) -> bool:
        """Its layers are known to keep a recurrent state beside the KV cache: so do those of Kimi K3, the one
        target that a profile names a tap point for."""
        return self.tap_point is not None


def servers_of(profile: Profile) -> Iterator[Server]:
    """Every server whose options the profile says: capture, the draft's arm, and arms of one's own."""
    engine, live = profile.serve.engine, profile.evaluate.live
    if profile.serve.kind == "launch":
        yield _server(profile, CAPTURE, engine, profile.serve.max_num_seqs, {}, engine.runner)
    arms = engine_of_arms(live, profile.serve)
    draft = draft_options(live, profile.train.draft.block_size)
    yield _server(profile, ARMS, arms, live.max_num_seqs, draft, arms.runner)
    for name, own in live.own_arms.items():
        field = f"evaluate.live.own_arms.{name}"
        config, runner = own.speculative_config, own.runner or arms.runner
        yield _server(profile, field, arms, live.max_num_seqs, config, runner)


def draft_options(live: Live, block_size: int) -> dict[str, Any]:
    """Speculative config of a DSpark draft without its folder; the same for profile, plan and server."""
    adaptive = {"enable_adaptive_verification": True} if live.adaptive_verification else {}
    return {
        "method": "dspark",
        "num_speculative_tokens": block_size,
        "draft_sample_method": live.draft_sample_method,
        "rejection_sample_method": live.rejection_sample_method,
        **adaptive,
    }


def _server(
    profile: Profile,
    field: str,
    engine: Engine,
    max_num_seqs: int,
    speculative: Mapping[str, Any],
    runner: Runner | None,
) -> Server:
    role = profile.hardware.roles.serve
    return Server(
        field=field,
        engine=engine,
        speculative=speculative,
        runner=runner,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=profile.serve.max_num_batched_tokens,
        max_model_len=profile.target.max_model_len,
        tap_point=profile.target.tap_point,
        cpu=profile.hardware.mode == "none",
        local=is_loopback(profile.serve.host),
        role_nodes=role.nodes,
        gpus_per_node=role.gpus_per_node,
        confidence=profile.train.draft.confidence_head,
    )
