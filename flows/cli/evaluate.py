"""`retrain-dspark evaluate`: measure a draft, or servers that already run, without training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from flows.cli.options import profile_option, set_option
from profiles.load import builtin_names, load_profile, parse_assignments


@click.command("evaluate")
@click.option(
    "--draft",
    metavar="FOLDER|OWNER/NAME[@REVISION]",
    help="Draft to serve and measure. [default: the one that the profile's publish.incumbent names]",
)
@click.option("--target", metavar="FOLDER", help="Target to serve it with. [default: the profile's]")
@click.option(
    "--prompts",
    multiple=True,
    metavar="FILE|FOLDER|set:NAME",
    help="Evaluation prompts; may be repeated. [default: the profile's]",
)
@click.option(
    "--arm",
    "arms",
    multiple=True,
    metavar="NAME=URL",
    help="A server that already runs, instead of --draft; none=URL is the one without a draft.",
)
@click.option(
    "--arm-key-env",
    "arm_keys",
    multiple=True,
    metavar="NAME=VARIABLE",
    help="Environment variable that holds an arm's key; *=VARIABLE is for all others.",
)
@click.option("--full", is_flag=True, help="Measure everything: loads, long contexts, public prompt sets.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON, progress on standard error.")
@profile_option
@set_option
def command(
    draft: str | None,
    target: str | None,
    prompts: tuple[str, ...],
    arms: tuple[str, ...],
    arm_keys: tuple[str, ...],
    full: bool,
    as_json: bool,
    profile: str,
    assignments: tuple[str, ...],
) -> int:
    """Measure a draft on your prompts, without training: is it worth serving?

    Serves the target, captures its answers to the evaluation prompts, replays the draft on them, and measures
    it on the real engine. With --arm, servers that already run are measured instead, and nothing is started.

    Ends with 0 when it has measured, 1 if a stage failed, 2 for bad input.
    """
    from tasks.evaluate.alone import measuring, overrides_for
    from tasks.evaluate.attach import arms_of, pairs
    from tasks.run_folder import private_run_root
    from tasks.validate.inputs import check_inputs

    urls, keys = pairs(arms, "--arm", "URL"), pairs(arm_keys, "--arm-key-env", "VARIABLE")
    given = tuple(_absolute(source) for source in prompts)
    target = _absolute(target) if target else None
    base = load_profile(profile).profile
    draft = draft or (None if urls else base.publish.incumbent)
    asked = measuring(draft, arms_of(urls, keys) if urls else (), target)
    own = parse_assignments(assignments)
    values = overrides_for(base, asked, target=target, prompts=given, full=full, overrides=own)
    whole = load_profile(profile, values, overrides_origin="--set").profile
    if asked.draft is not None:
        check_inputs(whole, private_run_root(), trains=False)
    else:
        for address in asked.arms:
            address.key()
    from flows.cli.pipeline import EVALUATE, run_pipeline

    named: Any = profile if profile in builtin_names() else base
    return run_pipeline(
        flow_name=EVALUATE,
        as_json=as_json,
        draft=_absolute(draft) if draft and Path(draft).expanduser().is_dir() else draft,
        target=target,
        prompts=list(given) or None,
        profile=named,
        overrides=own or None,
        full=full,
        arms=urls or None,
        arm_keys=keys or None,
    )


def _absolute(source: str) -> str:
    """A path that means the same elsewhere; sets and our own files stay as they are."""
    if source.startswith(("set:", "package:")):
        return source
    return str(Path(source).expanduser().absolute())
