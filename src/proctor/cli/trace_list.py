"""`proctor trace list`: one line for each trace, to see which of many is worth a look.

Exit code 2 when a file gave nothing.
"""

from typing import TYPE_CHECKING, Any

import click

from proctor.cli._command import Command, Example
from proctor.cli.trace_files import (
    Loaded,
    files_argument,
    json_option,
    redaction_option,
    write_json,
)
from proctor.tables import table
from proctor.words import at_least, plural

if TYPE_CHECKING:
    from collections.abc import Iterator

    from proctor.trace import Trace

LONGEST_QUERY = 48
"""Characters of a question that fit beside the figures in a usual terminal."""


@click.command(
    "list",
    cls=Command,
    examples=[
        Example("proctor trace list runs/", "what is in this folder?"),
        Example("proctor trace list runs/ --json", "for other programs"),
    ],
)
@files_argument
@json_option
@redaction_option
def list_traces(files: tuple[str, ...], as_json: bool, no_redact: bool) -> None:
    """List traces, one line each."""
    loaded = Loaded(files)
    traces = loaded.priced_and_clean(redact=not no_redact)
    if as_json:
        write_json("traces", _described(traces, loaded), loaded)
    else:
        _echo(traces, loaded)
    loaded.leave()


def _described(traces: "Iterator[Trace]", loaded: Loaded) -> "Iterator[dict[str, Any]]":
    from proctor.trace.render import described

    for trace in traces:
        facts = described(trace)
        del facts["spans"]
        yield {"file": loaded.file, **facts}


def _echo(traces: "Iterator[Trace]", loaded: Loaded) -> None:
    from proctor.sanitize import line
    from proctor.words import seconds

    head = ("spans", "tools", "errors", "time", "cost", "asked", "file")
    rows: list[list[str]] = []
    for trace in traces:
        duration = trace.duration
        rows.append(
            [
                str(len(trace.spans)),
                str(len(trace.tool_calls)),
                str(len(trace.errors)),
                "–" if duration is None else seconds(duration * 1000),
                at_least(trace.usage.cost_usd, trace.usage.unpriced) or "–",
                "–" if trace.query is None else line(trace.query, LONGEST_QUERY),
                line(loaded.file),
            ]
        )
    if rows:
        click.echo("\n".join(table(head, rows, indent="")))
    click.echo(plural(len(rows), "trace"), err=True)
