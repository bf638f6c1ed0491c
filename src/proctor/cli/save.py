"""`proctor save`: keep what the agent does now as a version to compare with later."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from proctor.cli._command import Command, Example
from proctor.cli._options import SuiteSelection, suite_options
from proctor.errors import EXIT_CANNOT_JUDGE

if TYPE_CHECKING:
    from proctor.trials.comparing import SavedCase

EXAMPLES = [
    Example("proctor save suite.yaml --version v1", "keep what the agent does now"),
    Example("proctor save suite.yaml --version v1 --force", "replace it, failing cases included"),
    Example("proctor save suite.yaml --version v1 --traces runs/", "keep recorded traces instead"),
]

EXIT_REFUSED = 1
"""The precheck is a gate: a case that fails its checks fails it."""


@click.command(cls=Command, examples=EXAMPLES)
@suite_options
@click.option("--version", required=True, help="The name to keep it under, such as v1.")
@click.option("--force", is_flag=True, help="Keep cases that fail too, and replace saved ones.")
@click.pass_context
def save(ctx: click.Context, *, selection: SuiteSelection, version: str, force: bool) -> None:
    """Save what the agent does as a baseline.

    Runs each case once and checks it first. Exits with 1 when a case failed its checks and was
    not saved, else with 2 when one could not be run or exists already.
    """
    from proctor.trials.comparing import save_baselines

    if not version.strip():
        raise click.BadParameter("is empty", param_hint="--version")
    saved = save_baselines(
        selection.suite,
        version,
        cases=selection.cases,
        agents=selection.agents,
        options=selection.options,
        force=force,
    )
    for each in saved:
        _tell(each)
    ctx.exit(_exit_code(saved))


def _tell(each: SavedCase) -> None:
    from proctor.sanitize import line
    from proctor.trials.comparing import SaveOutcome

    name = f"{line(each.case, 120)} ({line(each.agent, 120)})"
    path = line(each.path, 500)
    if each.outcome == SaveOutcome.SAVED:
        why = f"; forced: {line(each.reason, 300)}" if each.reason else ""
        click.echo(f"saved {name}: {path}{why}")
        return
    what = {
        SaveOutcome.FAILED: "it fails its checks",
        SaveOutcome.INFRA: "it could not be judged",
        SaveOutcome.EXISTS: path,
    }[each.outcome]
    click.echo(f"not saved {name}: {what}: {line(each.reason, 300)}", err=True)
    if each.outcome == SaveOutcome.EXISTS:
        click.echo("  hint: choose another --version, or replace it with --force", err=True)


def _exit_code(saved: list[SavedCase]) -> int:
    from proctor.trials.comparing import SaveOutcome

    outcomes = {each.outcome for each in saved}
    if SaveOutcome.FAILED in outcomes:
        return EXIT_REFUSED
    return 0 if outcomes == {SaveOutcome.SAVED} else EXIT_CANNOT_JUDGE
