"""The plan that a run keeps from its beginning, and the rates that a pilot leaves for later plans."""

from __future__ import annotations

import logging
from pathlib import Path

from profiles.schema import Profile
from tasks.errors import UsageError
from tasks.plan.core import examine_plan
from tasks.plan.models import Plan
from tasks.plan.rates import Rates, read_rates
from tasks.run_folder import RunFolder
from tasks.stage import write_atomic

PLAN = "plan.json"
log = logging.getLogger("retrain_dspark")


def rates_path(root: Path, profile_name: str) -> Path:
    """Where a pilot of a profile leaves its rates, below the run root."""
    return root / "rates" / f"{profile_name}.json"


def stored_rates(root: Path, profile_name: str) -> Rates | None:
    """Rates of the last pilot of a profile; None without one. A damaged document is said and left out."""
    path = rates_path(root, profile_name)
    if not path.is_file():
        return None
    try:
        return read_rates(path)
    except UsageError as error:
        log.warning("the rates of the last pilot are left out: %s (%s)", error.what, error.where)
        return None


def keep_plan(run: RunFolder, profile: Profile) -> Plan | None:
    """Make the plan of a run and write it into its folder; one that cannot be made changes nothing.

    A plan may be wrong about a run that works, so nothing of it stops the run: the stages refuse themselves.
    """
    try:
        plan = examine_plan(profile, rates=stored_rates(run.path.parent, profile.name), run=run)
        write_atomic(run.path / PLAN, plan.model_dump_json(indent=2))
        return plan
    except Exception as error:
        log.warning(
            "the run has no plan: %s", str(error).splitlines()[0] if str(error) else type(error).__name__
        )
        return None


def plan_of_run(run: Path) -> Plan | None:
    """The plan that was made when a run started; None where there is none that can be read."""
    try:
        return Plan.model_validate_json((run / PLAN).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
