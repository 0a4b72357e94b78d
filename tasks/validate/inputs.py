"""What can be refused before a run exists: files, sizes, ports and disk; nothing is started or made."""

from __future__ import annotations

from pathlib import Path

from profiles.schema import Profile
from tasks.errors import UsageError
from tasks.profile_secrets import refuse_secrets
from tasks.prompts.load import load_prompts
from tasks.publish.refusals.early import refuse_unpublishable
from tasks.serve.target_folder import check_target, converted_folder, resolve_target
from tasks.train.earlier import check_initial
from tasks.validate.checks import CHECKS, judge, worst
from tasks.validate.collectors import own_requirements, user_facts
from tasks.validate.core import raise_if_failed
from tasks.validate.models import ValidationReport
from tasks.validate.requirements import requirements_of


def check_inputs(profile: Profile, root: Path, machine: bool = True, trains: bool = True) -> None:
    """Refuse input that the validate stage would refuse, in seconds and without a trace of a run.

    A target that is still inside its wheel is left to the validate stage.

    Args:
        root: The run root; its disk is measured.
        machine: Look at ports and disk too; a run that goes on was checked when it began, and its own
            captures fill the disk.
        trains: Refuse a profile without training prompts.

    Raises:
        UsageError: Names field, value and remedy; `UnmetRequirement` for ports and disk.
    """
    if trains and not profile.prompts.train:
        raise UsageError(
            "prompts.train is empty: there is nothing to train on",
            where="prompts.train",
            hint="name training prompts; a draft is measured without them by retrain-dspark evaluate",
        )
    refuse_secrets(profile)
    if trains:
        refuse_unpublishable(profile)
    load_prompts(profile)
    target = None
    if profile.target.source.kind == "path" or converted_folder(profile).is_dir():
        target = check_target(profile, resolve_target(profile))
    check_initial(profile, root, target)
    if not machine:
        return
    results = judge((user_facts(profile, root),), requirements_of(profile, own_requirements()))
    mine = tuple(result for result in results if CHECKS[result.id].user_input)
    raise_if_failed(ValidationReport(facts={}, checks=mine, worst=worst(mine)))
