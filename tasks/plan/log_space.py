"""A hidden-state log that no disk of the run can hold is refused before anything starts."""

from __future__ import annotations

from pathlib import Path

from profiles.schema import Profile
from tasks.errors import UsageError
from tasks.plan.sizes import SampleSizes
from tasks.plan.wording import size_text
from tasks.run_folder import run_root
from tasks.stream.durable import free_bytes


def refuse_planned_log(profile: Profile, samples: int, evaluate_samples: int, sizes: SampleSizes) -> None:
    """Refuse the log that a profile would write: under this machine's run folder, or beyond `budget.disk_gb`.

    Where the training node is another machine, only the profile can say how large its disk is.

    Raises:
        UsageError: It cannot fit.
    """
    free, where = planned_space(profile)
    if free is None:
        return
    trained = samples - evaluate_samples
    refuse_log_that_cannot_fit(
        samples=samples,
        sample_tokens=sizes.typical_tokens,
        sample_bytes=sizes.typical_bytes,
        kept_samples=evaluate_samples + round(trained * profile.prompts.held_out),
        free_bytes=free,
        window_bytes=getattr(profile.stream, "window_bytes", None),
        where=where,
    )


def planned_space(profile: Profile) -> tuple[int | None, Path | str]:
    """Bytes that the log may take, and where that is known from; None where nothing says it."""
    root = run_root()
    known: list[tuple[int, Path | str]] = []
    if not profile.hardware.roles.span_hosts:
        known.append((free_bytes(root), root))
    if profile.budget.disk_gb is not None:
        known.append((int(profile.budget.disk_gb * 1e9), "budget.disk_gb"))
    return min(known, key=lambda one: one[0]) if known else (None, root)


def refuse_log_that_cannot_fit(
    *,
    samples: int,
    sample_tokens: int,
    sample_bytes: int,
    kept_samples: int,
    free_bytes: int,
    window_bytes: int | None,
    where: Path | str,
) -> None:
    """Refuse a log that its disk, or its window, cannot hold.

    Args:
        sample_tokens: Tokens of a typical sample.
        sample_bytes: Bytes of a typical sample.
        kept_samples: Held-out and evaluation samples, which a window keeps for good.
        free_bytes: Free where the log would be.
        window_bytes: Byte budget of retention `window`; None for retention `all`.
        where: Folder of the log, or the field that says how much is free.

    Raises:
        UsageError: It cannot fit; with all sizes.
    """
    whole = samples * sample_bytes
    each = f"{samples:,} samples of {sample_tokens:,} tokens and {size_text(sample_bytes)}"
    if window_bytes is None:
        if whole > free_bytes:
            raise UsageError(
                f"the hidden-state log cannot fit: {each} are {size_text(whole)}, "
                f"{size_text(free_bytes)} are free",
                where=str(where),
                hint="set stream.retention to window with stream.window_bytes, plan fewer prompts or shorter "
                "answers, or point RETRAIN_DSPARK_RUNS to a larger disk",
            )
        return
    if window_bytes > free_bytes:
        raise UsageError(
            f"the window of the hidden-state log cannot fit: stream.window_bytes is "
            f"{size_text(window_bytes)}, {size_text(free_bytes)} are free",
            where=str(where),
            hint="lower stream.window_bytes, or point RETRAIN_DSPARK_RUNS to a larger disk",
        )
    kept = kept_samples * sample_bytes
    if kept + sample_bytes > window_bytes:
        raise UsageError(
            f"the window of the hidden-state log is too small: {kept_samples:,} held-out and evaluation "
            f"samples stay for good and take {size_text(kept)}, one more {size_text(sample_bytes)}; "
            f"stream.window_bytes is {size_text(window_bytes)}",
            where="stream.window_bytes",
            hint="raise it, or lower prompts.held_out or the number of evaluation prompts",
        )
