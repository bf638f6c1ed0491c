"""`proctor demo`: what Proctor does, shown on an example that ships with it, offline.

It calls what a user would call and prints the command that does the same, so that every line
can be tried again.
"""

import shlex
from typing import TYPE_CHECKING

import click

from proctor.cli.lazy import Command, Example

if TYPE_CHECKING:
    from proctor.trace import Trace

SPAN_QUERIES = (
    ("{kind: tool, has_status: error}", "Which tool calls failed?"),
    ("{min_duration: 0.8, no_child_has: {}}", "Which steps took 0.8 s or more?"),
)
TRACE_QUERY = (
    "after: [{tool_name: track_parcel, not_: {has_status: error}}, {has_status: error}]",
    "Did the agent recover: a good call after the last error?",
)


@click.command(
    cls=Command, examples=[Example("proctor demo", "no network, no key, about a second")]
)
def demo() -> None:
    """Show what Proctor does, on an example it brings."""
    from importlib.resources import as_file

    from proctor.data import example_trace
    from proctor.trace.load import load_traces

    with as_file(example_trace()) as path:
        (found,) = load_traces(path)
        file = shlex.quote(str(path))
        _heading("What did the agent do?", f"proctor trace show {file}")
        _show(found)
        for query, question in SPAN_QUERIES:
            _heading(question, f"proctor trace query {file} {shlex.quote(query)}")
            _spans(found, query)
        query, question = TRACE_QUERY
        _heading(question, f"proctor trace query {file} {shlex.quote(query)}")
        _holds(found, query)
    _next_steps(file)


def _heading(question: str, command: str) -> None:
    from proctor.cli.colour import wants_colour

    colour = wants_colour()
    click.echo(
        f"\n{click.style(question, bold=True)}\n{click.style('$ ' + command, dim=True)}\n",
        color=colour,
    )


def _show(found: "Trace") -> None:
    from proctor.cli.colour import painted, wants_colour
    from proctor.trace.render import header, tree_lines

    colour = wants_colour()
    lines = header(found)
    lines += [painted(line) if colour else line.plain() for line in tree_lines(found)]
    click.echo("\n".join(lines), color=colour)


def _spans(found: "Trace", query: str) -> None:
    from proctor.trace import SpanQuery
    from proctor.trace.query_text import read_query_text
    from proctor.trace.render import span_row

    asked = read_query_text(query)
    assert isinstance(asked, SpanQuery)
    for node in found.find(asked):
        click.echo(span_row(node.span))


def _holds(found: "Trace", query: str) -> None:
    from proctor.trace import TraceQuery
    from proctor.trace.query_text import read_query_text
    from proctor.trace.text import safe

    asked = read_query_text(query)
    assert isinstance(asked, TraceQuery)
    result = asked.evaluate(found.index)
    verdict = "holds" if result.holds else "does not hold"
    click.echo(f"{found.trace_id}  {verdict}: {safe(result.reason, 400)}")


def _next_steps(file: str) -> None:
    steps = (
        ("your own traces, whatever wrote them", "proctor trace show FILE_OR_FOLDER"),
        (
            "another format, secrets removed",
            f"proctor trace convert {file} --to jsonl -o out.jsonl",
        ),
        ("all there is", "proctor --help"),
    )
    click.echo("\nWhat next?")
    for what, command in steps:
        click.echo(f"  # {what}\n  {command}")
