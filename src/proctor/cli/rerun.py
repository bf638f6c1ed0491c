"""`proctor rerun`: a run once more, from its spec alone; did it come out the same?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from proctor.cli._command import Command, Example
from proctor.sanitize import printable
from proctor.words import clipped, plural

if TYPE_CHECKING:
    from proctor.trials.rerun import Rerun

EXAMPLES = [
    Example("proctor rerun results/suite/2026-01-31_001", "is it reproducible?"),
    Example("proctor rerun RUN --results /tmp/again --json", "elsewhere, for a program"),
]

MOST_TOLD = 20
"""Differences told to people; `--json` has more."""


@click.command(cls=Command, examples=EXAMPLES)
@click.argument("run")
@click.option("--results", type=click.Path(path_type=Path), help="The folder of runs.")
@click.option("--concurrency", type=click.IntRange(min=1), metavar="N", help="Trials at a time.")
@click.option("--quiet", is_flag=True, help="No progress.")
@click.option("--json", "as_json", is_flag=True, help="Events on stderr, one document on stdout.")
@click.pass_context
def rerun(
    ctx: click.Context,
    run: str,
    results: Path | None,
    concurrency: int | None,
    quiet: bool,
    as_json: bool,
) -> None:
    """Repeat a run and say whether it came out the same.

    RUN is a folder, <experiment>/<date>_<seq>, a tag or `latest`.

    Everything comes from the run's _spec_.yaml: plan, agents, scenarios, settings. Model calls
    that it recorded are answered from the recording. Clocks and ids are not compared.

    Exits with 0 when all results are identical, 1 when they differ, 2 when it cannot be told.
    """
    from proctor.cli._options import results_root
    from proctor.cli.carrying import carry_out_here
    from proctor.cli.run import find_modules_here
    from proctor.runs.find import find_run
    from proctor.trials.rerun import compared, ready_again

    find_modules_here()
    options: dict[str, Any] = {} if concurrency is None else {"concurrency": concurrency}
    first, ready, folder = ready_again(
        find_run(run, results_root(None)), results=results, **options
    )
    carried = carry_out_here(ready, folder, quiet=quiet, events=as_json)
    done = compared(first, carried.run)
    if as_json:
        click.echo(_document(done))
    else:
        _tell(done)
    if carried.signal is not None:
        ctx.exit(carried.exit_code)
    ctx.exit(0 if done.sameness.identical else 1)


def _tell(done: Rerun) -> None:
    same = done.sameness
    for line in done.changed:
        click.echo(printable(f"not as it was: {line}"))
    for each in same.differences[:MOST_TOLD]:
        was, now = (clipped(repr(value), 80) for value in (each.first, each.second))
        click.echo(printable(f"  {each.trial}: {each.field} was {was}, is {now}"))
    if len(same.differences) > MOST_TOLD:
        click.echo("  and more")
    for words, names in (("only then", same.only_first), ("only now", same.only_second)):
        if names:
            click.echo(printable(f"{words}: {plural(len(names), 'trial')}, such as {names[0]}"))
    if same.identical:
        click.echo(
            f"identical: {same.compared} of {plural(same.compared, 'trial')}, clocks and ids apart"
        )
    else:
        equal = same.compared - same.differing
        click.echo(f"not identical: {equal} of {plural(same.compared, 'trial')} the same")
    click.echo(printable(f"kept in {done.second.path}"))


def _document(done: Rerun) -> str:
    import msgspec

    document = {
        "first": str(done.first.path),
        "second": str(done.second.path),
        "identical": done.sameness.identical,
        "changed": done.changed,
        **msgspec.structs.asdict(done.sameness),
    }
    encoded = msgspec.json.encode(document, enc_hook=str)
    return msgspec.json.format(encoded, indent=2).decode()
