"""`proctor diagnose`: what broke in traces, and where, without any model of a provider.

Exit code 0 whatever is found: this is a look, not a gate. 2 when a file gave nothing.
"""

import json
from typing import TYPE_CHECKING

import click

from proctor.cli.lazy import Command, Example
from proctor.errors import EXIT_CANNOT_JUDGE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from proctor.diagnose.model import Diagnosis
    from proctor.trace.assemble import Problem

METHODS = ("offline", "off", "rules")


@click.command(
    cls=Command,
    examples=[
        Example("proctor diagnose run.json", "what broke, where, and how sure that is"),
        Example("proctor diagnose traces/ --format json", "for other programs"),
    ],
)
@click.argument("files", nargs=-1, required=True, metavar="TRACE...")
@click.option("--method", type=click.Choice(METHODS), default="offline", show_default=True)
@click.option(
    "--format",
    "shape",
    type=click.Choice(("console", "json")),
    default="console",
    show_default=True,
)
@click.option("--no-redact", is_flag=True, help="Leave secrets as they are.")
def diagnose(files: tuple[str, ...], *, method: str, shape: str, no_redact: bool) -> None:
    """Find what broke in traces."""
    from proctor.diagnose.api import diagnose as find
    from proctor.trace.load import iter_traces
    from proctor.trace.redact import redactor_for
    from proctor.trace.text import safe

    problems: list[Problem] = []

    def tell(problem: "Problem") -> None:
        problems.append(problem)
        level = "error" if problem.fatal else "warning"
        click.echo(f"{level}: {safe(str(problem), 500)}", err=True)

    redactor = redactor_for(not no_redact)
    for trace in iter_traces(files, tell):
        shown = trace if redactor is None else redactor.trace(trace)
        found = find(shown, method)
        lines = [json.dumps(found.to_dict())] if shape == "json" else _lines(found)
        click.echo("\n".join(lines))
    if any(problem.fatal for problem in problems):
        raise click.exceptions.Exit(EXIT_CANNOT_JUDGE)


def _lines(found: "Diagnosis") -> "Iterator[str]":
    from proctor.trace.text import safe

    count = len(found.findings)
    yield f"trace {safe(found.trace_id, 64)}: {count or 'no'} finding{'s' * (count != 1)}"
    for finding in found.findings:
        place = safe(finding.location, 64)
        yield f"  {finding.category.value} at {place} ({finding.confidence:.0%})"
        yield f"    {safe(finding.description, 200)}"
        yield f"    > {safe(finding.evidence, 200)}"
