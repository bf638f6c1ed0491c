"""`proctor doctor`: is everything here that Proctor needs, and what to do where it is not.

Exits with 0 when nothing stands in the way, 1 when something does. Keys are never shown; nobody
outside this machine is asked unless `--online` says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from proctor.cli._command import Command, Example
from proctor.words import plural

if TYPE_CHECKING:
    from collections.abc import Sequence

    from proctor.cli.examining import DoctorFinding

EXAMPLES = [
    Example("proctor doctor", "what is installed, configured and writable here"),
    Example("proctor doctor --json", "the same for a bug report, or a program"),
    Example("proctor doctor --online", "also: do the providers of the keys that are set answer?"),
]

MARKS = {"ok": ("✓", "green"), "note": ("·", None), "problem": ("✗", "red")}


@click.command(cls=Command, examples=EXAMPLES)
@click.option("--online", is_flag=True, help="Ask the providers whose keys are set for an answer.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.pass_context
def doctor(ctx: click.Context, online: bool, as_json: bool) -> None:
    """Check what Proctor needs here, and what to do about it.

    Exits with 0 when nothing stands in the way, 1 when something does.
    """
    from proctor.cli.examining import examine

    findings = list(examine(online))
    problems = [finding for finding in findings if finding.state == "problem"]
    if as_json:
        import json

        document = {
            "ok": not problems,
            "findings": [finding._asdict() for finding in findings],
        }
        click.echo(json.dumps(document, indent=2, ensure_ascii=False))
    else:
        _show(findings)
        _conclude(problems)
    ctx.exit(1 if problems else 0)


def _show(findings: Sequence[DoctorFinding]) -> None:
    from proctor.cli._output import wants_colour
    from proctor.sanitize import printable

    colour = wants_colour()
    widest = max(len(finding.name) for finding in findings)
    area = None
    for finding in findings:
        if finding.area != area:
            area = finding.area
            click.echo(click.style(area.capitalize(), bold=True), color=colour)
        mark, paint = MARKS[finding.state]
        name = printable(finding.name).ljust(widest)
        click.echo(
            f"  {click.style(mark, fg=paint)} {name}  {printable(finding.what)}", color=colour
        )
        if finding.todo:
            click.echo(f"    {'':{widest}}  → {printable(finding.todo)}", color=colour)


def _conclude(problems: Sequence[DoctorFinding]) -> None:
    if not problems:
        click.echo("\nnothing stands in the way")
        return
    count = plural(len(problems), "problem")
    names = ", ".join(finding.name for finding in problems)
    click.echo(f"\n{count}: {names}")
