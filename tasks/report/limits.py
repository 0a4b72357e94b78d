"""What the figures of a run do not say, worked out from how they were measured."""

from __future__ import annotations

from tasks.report.record import RunRecord

PREVIEW_TOOLKIT = "The CUDA toolkit is a developer preview: no speed measured with it may be published."


def limits(record: RunRecord) -> list[str]:
    """Sentences for the end of the report and for the model card."""
    lines: list[str] = []
    evaluation, draft, profile = record.evaluation, record.draft, record.profile
    if record.validation is not None and record.validation.toolkit_channel == "preview":
        lines.append(PREVIEW_TOOLKIT)
    if evaluation is not None:
        domains = evaluation.replay.domains.values()
        fewest = min((tau.prompts for tau in domains), default=0)
        live = min((tau.prompts for tau in evaluation.live.domains.values()), default=0)
        lines.append(
            f"Acceptance was measured at temperature {evaluation.temperature:g} with blocks of "
            f"{evaluation.block_size}, drafting {evaluation.draft_sample_method}. "
            "Other settings accept differently."
        )
        lines.append(
            f"Replay walked at least {fewest} prompts in each domain, live asked at least {live}. "
            "The intervals cover the choice of prompts, not another training seed "
            "and not the prompts of your users."
        )
        if any(not arm.speed_is_meaningful for arm in evaluation.arms):
            lines.append(
                "The draft's kernels ran in Triton's interpreter. Acceptance and losslessness are those "
                "of the real engine; every speed figure of these arms is meaningless."
            )
        lines += evaluation.notes
    if draft is not None:
        lines.append(f"One training run with one seed, on {draft.epochs} passes over the captures.")
        if record.target and draft.draft_vocab_size < record.target.vocab_size:
            lines.append(
                f"The draft can propose {draft.draft_vocab_size:,} of the target's "
                f"{record.target.vocab_size:,} tokens. "
                "Text made of other tokens, such as another language, is accepted less."
            )
    if profile is not None and record.captures is not None:
        lines.append(
            f"Training answers end after {profile.stream.max_new_tokens} tokens. "
            "Later positions of longer answers were not seen."
        )
    return lines
