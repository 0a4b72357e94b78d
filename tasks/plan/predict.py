"""Seconds of every stage from rates and work, and who waits for whom."""

from __future__ import annotations

from dataclasses import dataclass, field

from profiles.schema import DOMAINS, Profile
from tasks.plan.figures import Figure, Source, estimated
from tasks.plan.models import Flow
from tasks.plan.rates import RateName, Rates, levels_of

PROFILE_RATE = "hardware.transfer.tokens_per_s"


@dataclass(frozen=True)
class Load:
    """Work whose time is asked for.

    Args:
        samples: Captured samples, evaluation ones included.
        sample_tokens: Tokens of a typical sample, as the sizes estimate them.
        arms: Servers that the evaluation starts.
        servers: Servers that capture at once.
        train_ranks: Ranks of the trainer on all nodes.
    """

    samples: int
    trained: int
    held_out: int
    answers: int
    sample_tokens: float
    token_bytes: int
    arms: int
    servers: int
    train_ranks: int


@dataclass(frozen=True)
class Prediction:
    """Seconds by stage; a stage whose parts are not all known is unknown.

    Args:
        capture_s: Of stage stream, the part that the trainer can work beside.
    """

    stages: dict[str, Figure]
    around: Figure
    flow: Flow
    steps: int
    capture_s: float | None = None
    replay_s: float | None = None
    notes: tuple[str, ...] = field(default=())


def predict(profile: Profile, load: Load, rates: Rates | None) -> Prediction:
    """Predict the stages; without rates only what the profile plans itself has a time."""
    if rates is None:
        return _from_profile(profile, load)
    model = _Model(profile, load, rates)
    return Prediction(
        stages=model.stages(),
        around=rates.get("around_s"),
        flow=flow_of(profile, load, model.capture_rate(), model.train_rate(), rates.get("store_bytes_per_s")),
        steps=model.steps(),
        capture_s=model.capture_s(),
        replay_s=model.replay_s(),
        notes=tuple(model.notes()),
    )


@dataclass(frozen=True)
class _Model:
    profile: Profile
    load: Load
    rates: Rates

    def stages(self) -> dict[str, Figure]:
        return {
            "validate": self.rates.get("validate_s"),
            "serve": self.rates.get("serve_start_s"),
            "stream": self._figure(self.stream_s(), ("capture_start_s", "capture_tokens_per_s")),
            "train": self._figure(self.train_s(), ("train_start_s", "step_s")),
            "evaluate": self._figure(self.evaluate_s(), ("arm_start_s", "live_token_s", "replay_answer_s")),
            "publish": self.rates.get("publish_s"),
        }

    def _figure(self, value: float | None, names: tuple[RateName, ...]) -> Figure:
        """A sum of rates times work is an estimate, however well its rates are known."""
        if value is None:
            return Figure(unit="s")
        origins = dict.fromkeys(self.rates.get(name).origin for name in names)
        return estimated(value, "s", f"work x rates: {'; '.join(origins)}")

    @property
    def sample_tokens(self) -> float:
        """As long as the measured ones, where answers may be as long; else the sizes' estimate."""
        measured = self.rates.value("sample_tokens")
        same = self.rates.max_new_tokens in (None, self.profile.stream.max_new_tokens)
        return measured if measured and same else self.load.sample_tokens

    def capture_rate(self) -> Figure:
        """Tokens per second of all planned servers: as many times one as there are."""
        one = self.rates.get("capture_tokens_per_s")
        if one.value is None:
            return one
        each = one.value / self.rates.servers
        return _scaled(one, each * self.load.servers, self.load.servers, self.rates.servers, "servers")

    def step_s(self) -> Figure:
        """One optimizer step: its packs are shared out among the ranks, and take as long as their tokens."""
        one = self.rates.get("step_s")
        if one.value is None:
            return one
        train, rates = self.profile.train, self.rates
        here = train.packs_per_step / self.load.train_ranks * train.batch_tokens
        there = rates.packs_per_step / rates.train_ranks * rates.batch_tokens
        return _scaled(one, one.value * here / there, self.load.train_ranks, rates.train_ranks, "ranks")

    def step_tokens(self) -> float:
        train = self.profile.train
        fill = self.rates.value("step_fill") or 1.0
        return train.packs_per_step * train.batch_tokens * fill

    def train_rate(self) -> Figure:
        """Tokens per second that the trainer consumes."""
        step = self.step_s()
        if not step.value:
            return Figure(unit="tokens/s")
        return Figure(
            value=self.step_tokens() / step.value, unit="tokens/s", source=step.source, where=step.where
        )

    def steps(self) -> int:
        train = self.profile.train
        tokens = self.load.trained * self.sample_tokens
        steps = train.epochs * max(1, round(tokens / self.step_tokens())) if self.load.trained else 0
        return steps if train.max_steps is None else min(steps, train.max_steps)

    def capture_s(self) -> float | None:
        rate = self.capture_rate().value
        return None if not rate else self.load.samples * self.sample_tokens / rate

    def stream_s(self) -> float | None:
        start, capture = self.rates.value("capture_start_s"), self.capture_s()
        return None if start is None or capture is None else start + capture

    def train_s(self) -> float | None:
        start, step = self.rates.value("train_start_s"), self.step_s().value
        if start is None or step is None:
            return None
        # Held-out samples are measured before the first step and after each epoch, or at the last step.
        measurements = 1 + self.profile.train.epochs if self.profile.train.max_steps != 0 else 1
        held_out = (self.rates.value("held_out_sample_s") or 0.0) * self.load.held_out * measurements
        return start + self.steps() * step + held_out

    def replay_s(self) -> float | None:
        each = self.rates.value("replay_answer_s")
        return None if each is None else each * self.load.answers

    def evaluate_s(self) -> float | None:
        live, start = self.profile.evaluate.live, self.rates.value("arm_start_s")
        token, replay = self.rates.value("live_token_s"), self.replay_s()
        if start is None or token is None:
            return None
        again = live.per_domain if live.again_per_domain is None else live.again_per_domain
        prompts = len(DOMAINS) * (self.load.arms * live.per_domain * live.repetitions + again)
        return (replay or 0.0) + self.load.arms * start + prompts * live.max_new_tokens * token

    def notes(self) -> list[str]:
        found = []
        if (levels := levels_of(self.profile)) != self.rates.load_levels:
            found.append(
                f"the rates' arms were measured at {self.rates.load_levels} levels of load, this profile has "
                f"{levels}"
            )
        wanted, fitted = self.profile.train.draft.vocab_size, self.rates.draft_vocab_size
        if wanted is not None and fitted is not None and wanted > 1.5 * fitted:
            found.append(
                f"the rates come from a draft of {fitted:,} tokens, as its samples had no more; one of "
                f"{wanted:,} takes longer for a step"
            )
        longest = self.rates.max_new_tokens
        if longest not in (None, self.profile.stream.max_new_tokens):
            found.append(
                f"the rates come from answers of up to {longest:,} tokens: with longer ones a captured token "
                "costs more, with shorter ones less"
            )
        waves = self.rates.samples / (self.rates.concurrency * self.rates.servers)
        if self.rates.runs and waves < 4:
            found.append(
                f"the rates come from {self.rates.samples} samples at {self.rates.concurrency} at once: "
                "starts and ends of so short a capture blur its rate; measure more prompts, or fewer at once"
            )
        return found


def _scaled(one: Figure, value: float, here: int, there: int, what: str) -> Figure:
    if here == there:
        return Figure(value=value, unit=one.unit, source=one.source, where=one.where)
    rule = f"{here} {what} work {here / there:g} times as fast as {there}: {one.origin}"
    return estimated(value, one.unit, rule)


def _from_profile(profile: Profile, load: Load) -> Prediction:
    """Only the rate that the profile plans for the capture; nothing else is known."""
    planned = profile.hardware.transfer.tokens_per_s
    rate = Figure(unit="tokens/s")
    if planned is not None:
        rate = Figure(value=planned, unit="tokens/s", source="profile", where=PROFILE_RATE)
    seconds = load.samples * load.sample_tokens / planned if planned else None
    unknown = Figure(unit="s")
    stages = dict.fromkeys(("validate", "serve", "stream", "train", "evaluate", "publish"), unknown)
    stages["stream"] = estimated(seconds, "s", f"tokens / {PROFILE_RATE}")
    flow = flow_of(profile, load, rate, Figure(unit="tokens/s"), Figure(unit="B/s"))
    return Prediction(stages, unknown, flow, 0, capture_s=seconds)


def flow_of(profile: Profile, load: Load, capture: Figure, train: Figure, store: Figure) -> Flow:
    """The three rates in tokens per second, and who waits for whom."""
    tokens = Figure(unit="tokens/s")
    if store.value is not None:
        tokens = Figure(
            value=store.value / load.token_bytes, unit="tokens/s", source=store.source, where=store.where
        )
    needed = estimated(
        None if capture.value is None else capture.value * load.token_bytes / 1e9,
        "GB/s",
        f"captured tokens/s x bytes of a token: {capture.origin}",
    )
    return Flow(
        capture_tokens_per_s=capture,
        store_tokens_per_s=tokens,
        train_tokens_per_s=train,
        needed_gb_per_s=needed,
        sentence=_who_waits(profile, capture.value, tokens.value, train.value),
    )


def _who_waits(profile: Profile, capture: float | None, store: float | None, train: float | None) -> str:
    """One sentence; empty where a rate is not known."""
    if capture is None or train is None or not capture or not train:
        return ""
    if store is not None and store < min(capture, train):
        return (
            f"the store carries {store:,.0f} tokens/s, less than is captured ({capture:,.0f}) and trained "
            f"({train:,.0f}): both wait for it"
        )
    ratio = train / capture
    if not profile.stream.overlaps:
        return (
            f"one after the other: training takes {train:,.0f} tokens/s, {ratio:.1f} times what is captured "
            f"({capture:,.0f}); the serving nodes wait while the draft trains"
        )
    if ratio >= 1:
        return (
            f"the trainer waits for the capture: it could take {ratio:.1f} times the {capture:,.0f} tokens/s "
            "that arrive"
        )
    return f"the capture runs ahead of the trainer: {capture:,.0f} tokens/s arrive, it takes {train:,.0f}" + (
        ", so the window fills and the capture waits" if profile.stream.retention == "window" else ""
    )


def source_of(figures: list[Figure]) -> Source:
    """Of a sum: unknown if a part is."""
    return "unknown" if any(one.value is None for one in figures) else "estimated"
