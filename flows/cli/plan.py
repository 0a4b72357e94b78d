"""`retrain-dspark plan`: what a run would do."""

from __future__ import annotations

import click

from flows.cli.options import load, profile_option, set_option
from tasks.errors import EXIT_DONE, EXIT_USAGE


@click.command("plan")
@profile_option
@set_option
@click.option("--json", "as_json", is_flag=True, help="Print the plan as JSON (docs/plan.md).")
@click.option(
    "--rates",
    metavar="FILE|RUN",
    help="Rates for time and cost: a document, or a finished run to fit them to; else the last pilot's.",
)
@click.option("--write-rates", metavar="FILE", help="Keep the rates that --rates was fitted to.")
@click.option("--run", "run_id", metavar="RUN", help="Say what a resume of RUN would reuse; else the newest.")
@click.option("--compare", metavar="SETS", help="Sets of serving + training nodes, e.g. 1+1,2+1,3+1.")
@click.option(
    "--samples", type=click.IntRange(1), help="Plan for so many training samples; reads no prompts."
)
@click.option("--sample-tokens", type=click.IntRange(2), help="Tokens of each of them (with --samples).")
def command(
    profile: str,
    assignments: tuple[str, ...],
    as_json: bool,
    rates: str | None,
    write_rates: str | None,
    run_id: str | None,
    compare: str | None,
    samples: int | None,
    sample_tokens: int | None,
) -> int:
    """Show processes, memory, disk, time, cost and risks; starts nothing and needs no GPU.

    Ends with 2 if the plan cannot work.
    """
    loaded, _ = load(profile, assignments)
    if sample_tokens is not None and samples is None:
        raise click.UsageError("--sample-tokens belongs to --samples")
    if write_rates is not None and rates is None:
        raise click.UsageError("--write-rates keeps what --rates found: give both")
    from pathlib import Path

    from tasks.plan.compare import parse_sets
    from tasks.plan.core import examine_plan
    from tasks.plan.keep import stored_rates
    from tasks.plan.rates import rates_of
    from tasks.plan.rates import write_rates as keep
    from tasks.plan.render import plan_text
    from tasks.plan.work import assumed_work
    from tasks.run_folder import open_run, run_root

    known = stored_rates(run_root(), loaded.profile.name) if rates is None else rates_of(rates)
    if known is not None and write_rates is not None:
        keep(Path(write_rates), known)
    plan = examine_plan(
        loaded.profile,
        work=assumed_work(loaded.profile, samples, sample_tokens) if samples is not None else None,
        rates=known,
        run=open_run(run_root(), run_id) if run_id is not None else None,
        sets=parse_sets(compare) if compare is not None else (),
    )
    if as_json:
        click.echo(plan.model_dump_json(indent=2))
    else:
        click.echo(plan_text(plan), nl=False)
        for field, origin in loaded.origins.items():
            if origin == "--set":
                click.echo(f"{field}: from --set")
    for risk in plan.refused:
        click.echo(f"error: {risk.what}\n  where: {risk.where}\n  to do: {risk.remedy}", err=True)
    return EXIT_USAGE if plan.refused else EXIT_DONE
