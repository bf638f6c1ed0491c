"""`proctor trace`: look at, query and convert the traces of agents, whatever wrote them.

Every command takes files, folders, globs and `-`, compressed or not. What is wrong with a file
goes to standard error, one line each; the good traces are still worked on, and the exit code is 2
when a file gave nothing.
"""

import sys
from typing import TYPE_CHECKING, Any

import click

from proctor.cli._command import Command, Entry, Example, LazyGroup
from proctor.cli.trace_files import (
    Loaded,
    files_argument,
    json_option,
    redaction_option,
    write_json,
)
from proctor.words import plural

if TYPE_CHECKING:
    from collections.abc import Iterator

    from proctor.trace import Span, SpanQuery, Trace, TraceQuery

EXIT_DOES_NOT_HOLD = 1

_HERE = "proctor.cli.trace"

_MAX_SPANS = 1000
"""More lines than this are not read by anyone; `--max-spans` asks for them."""

COMMANDS = {
    "list": Entry("proctor.cli.trace_list", "list_traces", "List traces, one line each."),
    "show": Entry(_HERE, "show", "Show what an agent did, as a tree."),
    "query": Entry(_HERE, "query", "Find spans, or test what holds of a trace."),
    "convert": Entry(_HERE, "convert", "Write traces in another format."),
    "score": Entry("proctor.cli.trace_score", "score", "Score the quality of traces."),
}


@click.group(
    cls=LazyGroup,
    table=COMMANDS,
    examples=[
        Example("proctor trace list runs/", "which of these is worth a look?"),
        Example("proctor trace show run.json", "what did the agent do?"),
        Example("proctor trace query runs/ '{kind: tool, has_status: error}'", "what failed?"),
        Example("proctor trace convert run.json --to otlp-json -o out.json", "for other tools"),
    ],
)
def trace() -> None:
    """Look at, query and convert agent traces."""


@click.command(
    cls=Command,
    examples=[
        Example("proctor trace show run.json", "one file; the format is found from its content"),
        Example("proctor trace show 'runs/*.json.gz' --max-spans 50", "many, shortened"),
        Example("zstdcat runs/1.jsonl.zst | proctor trace show -", "from a pipe"),
    ],
)
@files_argument
@json_option
@click.option(
    "--max-spans",
    type=click.IntRange(min=1),
    default=None,
    help=f"Spans shown of each trace.  [default: {_MAX_SPANS}]",
)
@redaction_option
def show(files: tuple[str, ...], as_json: bool, max_spans: int | None, no_redact: bool) -> None:
    """Show what an agent did, as a tree."""
    from proctor.trace.render import described

    if as_json and max_spans is not None:
        raise click.UsageError("--max-spans shortens the tree; --json always has every span")
    loaded = Loaded(files)
    traces = loaded.priced_and_clean(redact=not no_redact)
    if as_json:
        write_json("traces", map(described, traces), loaded)
    else:
        for number, found in enumerate(traces):
            _echo_trace(found, max_spans or _MAX_SPANS, loaded.where(), first=number == 0)
    loaded.leave()


@click.command(
    cls=Command,
    examples=[
        Example("proctor trace query run.json '{kind: llm, min_duration: 5}'", "slow model calls"),
        Example(
            "proctor trace query run.json 'before: [{tool_name: search}, {tool_name: book}]'",
            "did it search before it booked? (exit 0: yes, 1: no)",
        ),
        Example("proctor trace query runs/ @failed.yaml --json", "the query stands in a file"),
    ],
)
@files_argument
@click.argument("query")
@json_option
@redaction_option
def query(files: tuple[str, ...], query: str, as_json: bool, no_redact: bool) -> None:
    """Find spans, or test what holds of a trace.

    QUERY is YAML or JSON, or @FILE. A span query lists the spans that match. A trace query
    (any, all, none, count, before, after) tells for each trace whether it holds, and exits
    with 1 when it does not hold of all of them.
    """
    from proctor.trace import SpanQuery
    from proctor.trace.query import read_query_text

    asked = read_query_text(query)
    loaded = Loaded(files)
    if isinstance(asked, SpanQuery):
        _list_spans(loaded, asked, as_json, not no_redact)
        loaded.leave()
    else:
        holds = _test_traces(loaded, asked, as_json, not no_redact)
        loaded.leave(0 if holds else EXIT_DOES_NOT_HOLD)


@click.command(
    cls=Command,
    examples=[
        Example("proctor trace convert run.json --to otlp-json -o out.json", "one file"),
        Example("proctor trace convert runs/ --to jsonl -o all.jsonl.zst", "a folder, packed"),
        Example("proctor trace convert run.json --to jsonl | head -c 300", "into a pipe"),
    ],
)
@files_argument
@click.option(
    "--to",
    "to",
    required=True,
    type=click.Choice(["otlp-json", "otlp-proto", "openinference", "jsonl"]),
    help="The format to write.",
)
@click.option("-o", "--output", default="-", metavar="OUT", help="A file; - is standard output.")
@click.option(
    "--redact-pattern",
    "patterns",
    multiple=True,
    metavar="REGEX",
    help="Also redact what matches; may be given several times.",
)
@redaction_option
def convert(
    files: tuple[str, ...], to: str, output: str, patterns: tuple[str, ...], no_redact: bool
) -> None:
    """Write traces in another format.

    Secrets (keys, tokens, passwords) are replaced by [redacted:...] unless told otherwise. A
    name that ends in .gz or .zst is compressed.
    """
    from proctor.trace.export import save_traces, write_traces
    from proctor.trace.redact import Redactor

    if no_redact and patterns:
        raise click.UsageError("--redact-pattern and --no-redact contradict each other")
    binary = to == "otlp-proto"
    if output == "-" and binary and sys.stdout.isatty():
        raise click.UsageError("otlp-proto is not text; name a file with -o")
    loaded = Loaded(files)
    redact = not no_redact and Redactor({f"pattern-{i + 1}": p for i, p in enumerate(patterns)})
    if not loaded.begin():
        loaded.leave()
    elif output == "-":
        write_traces(loaded, sys.stdout.buffer, to, redact=redact)
    else:
        written = save_traces(loaded, output, to, redact=redact)
        told = "" if redact else ", secrets not redacted"
        click.echo(f"{output}: {plural(written, 'trace')}{told}", err=True)
    loaded.leave()


# -- what is written ----------------------------------------------------------------------------


def _echo_trace(found: "Trace", max_spans: int, file: str, *, first: bool) -> None:
    from proctor.cli._output import coloured, wants_colour
    from proctor.trace.render import header, tree_lines

    colour = wants_colour()
    named, *facts = header(found)
    lines = [*([] if first else [""]), named, *([f"  file     {file}"] if file else []), *facts]
    lines += [coloured(line) if colour else line.plain() for line in tree_lines(found, max_spans)]
    click.echo("\n".join(lines), color=colour)


def _list_spans(loaded: Loaded, asked: "SpanQuery", as_json: bool, redact: bool) -> None:
    """Ask the spans as they are; only what is told about them is redacted."""
    from proctor.trace.redact import redactor_for
    from proctor.trace.render import described_span, span_row

    redactor = redactor_for(redact)
    traces: list[int] = []

    def matches() -> "Iterator[Span]":
        for found in loaded:
            traces.append(len(found.spans))
            for node in found.find(asked):
                yield redactor.span(node.span) if redactor else node.span

    if as_json:
        told = ({"file": loaded.file, **described_span(span)} for span in matches())
        write_json("matches", told, loaded)
        return
    found = 0
    for span in matches():
        found += 1
        click.echo("  ".join(filter(None, (span_row(span), loaded.where()))))
    asked_of = f"{plural(sum(traces), 'span')} in {plural(len(traces), 'trace')}"
    click.echo(f"{found} of {asked_of} match", err=True)


def _test_traces(loaded: Loaded, asked: "TraceQuery", as_json: bool, redact: bool) -> bool:
    from proctor.sanitize import line
    from proctor.trace.redact import redactor_for

    redactor = redactor_for(redact)
    verdicts: list[bool] = []

    def results() -> "Iterator[dict[str, Any]]":
        for found in loaded:
            result = asked.evaluate(found.index)
            verdicts.append(result.holds)
            reason = redactor.text(result.reason) if redactor else result.reason
            told = {**result._asdict(), "reason": reason}
            yield {"file": loaded.file, "trace_id": found.trace_id, **told}

    if as_json:
        write_json("results", results(), loaded)
    else:
        for result in results():
            verdict = "holds" if result["holds"] else "does not hold"
            trace_id, reason = line(result["trace_id"], 80), line(result["reason"], 400)
            told = f"{trace_id}  {verdict}: {reason}"
            click.echo("  ".join(filter(None, (told, loaded.where()))))
    return all(verdicts)
