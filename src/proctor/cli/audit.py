"""`proctor audit`: who did what with these results, when, with which commit, on which machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from proctor.cli._command import Command, Example
from proctor.cli._options import results_option, results_root

if TYPE_CHECKING:
    from proctor.runs.audit import AuditEntry

EXAMPLES = [
    Example("proctor audit", "everything, the latest last"),
    Example("proctor audit --command gate --last 5", "the last five judgements"),
    Example("proctor audit --json", "the same for a program to read"),
]


@click.command(cls=Command, examples=EXAMPLES)
@click.option("--command", metavar="NAME", help="Only this command, such as run or gate.")
@click.option("--run", metavar="TEXT", help="Only what is about runs with this in their path.")
@click.option("--last", type=click.IntRange(1), metavar="N", help="Only the last N.")
@results_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def audit(
    command: str | None, run: str | None, last: int | None, results: Path | None, as_json: bool
) -> None:
    """Show who did what with these results.

    When, with which commit and on which host. The log is only ever added to.
    """
    import msgspec

    from proctor.errors import hint_among
    from proctor.runs.audit import entries
    from proctor.sanitize import printable

    root = results_root(results)
    problems: list[str] = []
    every = list(entries(root, problems))
    found = [
        entry
        for entry in every
        if (command is None or entry.command == command)
        and (run is None or run in (entry.run or ""))
    ][-(last or 0) :]
    for problem in problems:
        click.echo(f"warning: {printable(problem)}; skipped", err=True)
    if as_json:
        encoded = msgspec.json.encode({"root": str(root), "entries": found})
        click.echo(msgspec.json.format(encoded, indent=2).decode())
        return
    for entry in found:
        click.echo(printable(_line(entry)))
    if not found and every and command is not None:
        click.echo(printable(f"nothing is on record in {root} of the command {command!r}"))
        known = list(dict.fromkeys(entry.command for entry in every))
        click.echo(f"hint: {hint_among(command, known)}", err=True)
    elif not found:
        click.echo(printable(f"nothing is on record in {root}"))


def _line(entry: AuditEntry) -> str:
    commit = "no commit" if entry.commit is None else entry.commit[:10]
    changed = "+changes" if entry.dirty else ""
    code = "" if entry.exit_code is None else f" → {entry.exit_code}"
    outcome = f" ({entry.outcome})" if entry.outcome else ""
    about = f" {entry.run}" if entry.run else ""
    return (
        f"{entry.at} {entry.who}@{entry.host} {commit}{changed} {entry.command}{about}"
        f"{code}{outcome}: {entry.line}"
    )
