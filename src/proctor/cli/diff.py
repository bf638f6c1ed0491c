"""`proctor diff`: what changed since a baseline was saved."""

from __future__ import annotations

from pathlib import Path

import click

from proctor.cli._command import Command, Example
from proctor.cli._options import SuiteSelection, suite_options

FORMATS = ("console", "json", "markdown")

EXAMPLES = [
    Example("proctor diff suite.yaml --baseline v1", "how does the agent behave now?"),
    Example("proctor diff suite.yaml --baseline v1 --compare v2", "two saved versions"),
    Example("proctor diff suite.yaml --baseline v1 --format markdown -o diff.md", "for a review"),
]


@click.command(cls=Command, examples=EXAMPLES)
@suite_options
@click.option("--baseline", required=True, help="The saved version to compare with.")
@click.option("--compare", help="Another saved version; without it the agent is run.")
@click.option(
    "--format", "form", type=click.Choice(FORMATS), default="console", help="How it is written."
)
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="Write to this file."
)
@click.pass_context
def diff(
    ctx: click.Context,
    *,
    selection: SuiteSelection,
    baseline: str,
    compare: str | None,
    form: str,
    as_json: bool,
    output: Path | None,
) -> None:
    """Show what changed since a baseline.

    Exits with 1 when a change is an error, else with 2 when a case could not be compared.
    """
    from proctor.report.diff import DIFF_FORMATS, summary
    from proctor.runs.folder import write_atomic
    from proctor.trials.comparing import diff_with
    from proctor.user_dirs import room_for

    if compare is not None and selection.recorded:
        raise click.UsageError("give --compare or --traces, not both")
    target = None if output is None else room_for(output)
    found = diff_with(
        selection.suite,
        baseline,
        compare=compare,
        cases=selection.cases,
        agents=selection.agents,
        options=selection.options,
    )
    text = DIFF_FORMATS["json" if as_json else form](found)
    if target is None:
        click.echo(text, nl=False)
    else:
        write_atomic(target, text.encode())
        click.echo(summary(found))
    ctx.exit(found.exit_code)
