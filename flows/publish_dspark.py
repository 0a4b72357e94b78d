"""Decide about the draft of a finished run again, and publish it: nothing is measured anew.

Run it with `retrain-dspark publish RUN`, from the Prefect UI, or with
`prefect deployment run publish-dspark`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from prefect import flow

from flows.hooks import close_run, name_of_flow_run
from flows.opening import ending, opened_run
from profiles.overrides import ProfileOverrides, override_values
from tasks.errors import UsageError
from tasks.execute import StageRow
from tasks.publish.finished import NEEDED, finished
from tasks.publish.task import publish
from tasks.publish.words import new_word, speak
from tasks.run_folder import open_run, run_root

DECIDES = ("publish", "report", "evaluate.slo")
"""What may be changed for a new decision. Everything else belongs to what was measured."""


@flow(
    name="publish-dspark",
    description="Decides about a finished run's draft again and publishes it; nothing is measured anew.",
    flow_run_name=name_of_flow_run,
    on_failure=[close_run],
    on_cancellation=[close_run],
    on_crashed=[close_run],
    persist_result=False,
    validate_parameters=True,
)
def publish_dspark(
    run_id: str,
    force: bool = False,
    agree: bool = False,
    by: str = "",
    why: str = "",
    overrides: ProfileOverrides | None = None,
) -> Any:
    """Decide again and publish.

    Args:
        run_id: Run whose draft was evaluated.
        force: Promote although the gate holds it; refusals stay. Needs `by` and `why`.
        agree: A person's yes to a draft that passed the gate. Needs `by` and `why`.
        by: Name of the person who decides.
        why: The person's reason.
        overrides: What differs from the run's profile: `publish`, `report` or `evaluate.slo`.
    """
    check_request(run_id, force or agree, by, why, override_values(overrides))
    with opened_run("", overrides, run_id, None) as ctx:
        found = finished(ctx.run)
        ctx.rows += [StageRow(stage.name, "reused", 0.0) for stage in NEEDED]
        if force or agree:
            speak(ctx.run, new_word("force" if force else "approval", by, why))
        publish(ctx, found.draft, found.evaluation, found.identity, found.captures, found.validation)
    return ending(ctx)


def check_request(run_id: str, speaks: bool, by: str, why: str, overrides: Mapping[str, Any]) -> None:
    """Refuse what cannot be done, before anything starts.

    Raises:
        UsageError: No such run, it is not finished, a word without name or reason, or a field that was
            measured with.
    """
    finished(open_run(run_root(), run_id))
    if speaks:
        new_word("force", by, why)
    elif by or why:
        raise UsageError(
            "a name and a reason belong to a person's word, and none is said",
            where="--by, --why",
            hint="add --force to promote what the gate holds, or use retrain-dspark promote to agree",
        )
    other = [path for path in _paths(overrides) if not path.startswith(DECIDES)]
    if other:
        raise UsageError(
            f"{', '.join(other)} belongs to what was measured and cannot change now",
            where="--set",
            hint=f"change {', '.join(DECIDES)} only, or retrain-dspark resume {run_id} --set ...",
        )


def _paths(values: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in values.items():
        if isinstance(value, Mapping) and value and f"{prefix}{name}" not in DECIDES:
            yield from _paths(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"
