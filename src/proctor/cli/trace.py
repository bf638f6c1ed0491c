"""`proctor trace`: look at, query and convert the traces of agents, whatever wrote them.

Every command takes files, folders, globs and `-`, compressed or not. What is wrong with a file
goes to standard error, one line each; the good traces are still worked on, and the exit code is 2
when a file gave nothing.
"""

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from proctor.cli.lazy import Command, Entry, Example, LazyGroup
from proctor.cli.terminal import tell_problem
from proctor.errors import EXIT_CANNOT_JUDGE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from proctor.trace import Span, SpanQuery, Trace, TraceQuery
    from proctor.trace.assemble import Problem

EXIT_DOES_NOT_HOLD = 1

_HERE = "proctor.cli.trace"

_MAX_SPANS = 1000
"""More lines than this are not read by anyone; `--max-spans` asks for them."""

COMMANDS = {
    "show": Entry(_HERE, "show", "Show what an agent did, as a tree."),
    "query": Entry(_HERE, "query", "Find spans, or test what holds of a trace."),
    "convert": Entry(_HERE, "convert", "Write traces in another format."),
    "score": Entry("proctor.cli.trace_score", "score", "Score the quality of traces."),
}


@click.group(
    cls=LazyGroup,
    table=COMMANDS,
    examples=[
        Example("proctor trace show run.json", "what did the agent do?"),
        Example("proctor trace query runs/ '{kind: tool, has_status: error}'", "what failed?"),
        Example("proctor trace convert run.json --to otlp-json -o out.json", "for other tools"),
    ],
)
def trace() -> None:
    """Look at, query and convert agent traces."""


F = TypeVar("F", bound=Callable[..., Any])


def _files(command: F) -> F:
    return click.argument("files", nargs=-1, required=True, metavar="FILE...")(command)


def _redaction(command: F) -> F:
    off = click.option("--no-redact", is_flag=True, help="Leave secrets as they are.")
    return off(command)


def _as_json(command: F) -> F:
    option = click.option(
        "--json", "as_json", is_flag=True, help="One JSON document on standard output."
    )
    return option(command)


@click.command(
    cls=Command,
    examples=[
        Example("proctor trace show run.json", "one file; the format is found from its content"),
        Example("proctor trace show 'runs/*.json.gz' --max-spans 50", "many, shortened"),
        Example("zstdcat runs/1.jsonl.zst | proctor trace show -", "from a pipe"),
    ],
)
@_files
@_as_json
@click.option(
    "--max-spans",
    type=click.IntRange(min=1),
    default=None,
    help=f"Spans shown of each trace.  [default: {_MAX_SPANS}]",
)
@_redaction
def show(files: tuple[str, ...], as_json: bool, max_spans: int | None, no_redact: bool) -> None:
    """Show what an agent did, as a tree."""
    from proctor.trace.redact import redactor_for
    from proctor.trace.render_json import described

    if as_json and max_spans is not None:
        raise click.UsageError("--max-spans shortens the tree; --json always has every span")
    loaded = _Loaded(files)
    traces = map(redactor.trace, loaded) if (redactor := redactor_for(not no_redact)) else loaded
    if as_json:
        _write_json("traces", map(described, traces), loaded)
    else:
        for number, found in enumerate(traces):
            _echo_trace(found, max_spans or _MAX_SPANS, first=number == 0)
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
@_files
@click.argument("query")
@_as_json
@_redaction
def query(files: tuple[str, ...], query: str, as_json: bool, no_redact: bool) -> None:
    """Find spans, or test what holds of a trace.

    QUERY is YAML or JSON, or @FILE. A span query lists the spans that match. A trace query
    (any, all, none, count, before, after) tells for each trace whether it holds, and exits
    with 1 when it does not hold of all of them.
    """
    from proctor.trace import SpanQuery
    from proctor.trace.query_text import read_query_text

    asked = read_query_text(query)
    loaded = _Loaded(files)
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
@_files
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
@_redaction
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
    loaded = _Loaded(files)
    redact = not no_redact and Redactor({f"pattern-{i + 1}": p for i, p in enumerate(patterns)})
    if not loaded.begin():
        loaded.leave()
    elif output == "-":
        write_traces(loaded, sys.stdout.buffer, to, redact=redact)
    else:
        written = save_traces(loaded, output, to, redact=redact)
        told = "" if redact else ", secrets not redacted"
        click.echo(f"{output}: {written} trace{'' if written == 1 else 's'}{told}", err=True)
    loaded.leave()


# -- what the commands share ------------------------------------------------------------------


class _Loaded:
    """Traces as they are read, file by file; problems are told at once and counted."""

    def __init__(self, files: tuple[str, ...]) -> None:
        from proctor.trace.load import iter_traces

        self.problems: list[Problem] = []
        self._traces = iter_traces(files, self._problem)
        self._first: list[Trace] = []

    def _problem(self, problem: "Problem") -> None:
        self.problems.append(problem)
        tell_problem(problem)

    def __iter__(self) -> "Iterator[Trace]":
        yield from self._first
        yield from self._traces

    def begin(self) -> bool:
        """Whether there is a trace at all; reads up to the first."""
        self._first = [found for found in [next(self._traces, None)] if found is not None]
        return bool(self._first)

    def leave(self, code: int = 0) -> None:
        """End the command: 2 when some file gave nothing, else the given code."""
        if any(problem.fatal for problem in self.problems):
            code = EXIT_CANNOT_JUDGE
        if code:
            raise click.exceptions.Exit(code)


def _write_json(key: str, items: "Iterable[Any]", loaded: _Loaded) -> None:
    from proctor.trace.render_json import document

    for piece in document(key, items, loaded.problems):
        sys.stdout.buffer.write(piece)
    sys.stdout.buffer.flush()


def _echo_trace(found: "Trace", max_spans: int, *, first: bool) -> None:
    from proctor.cli.colour import painted, wants_colour
    from proctor.trace.render import header, tree_lines

    colour = wants_colour()
    lines = [] if first else [""]
    lines += header(found)
    lines += [painted(line) if colour else line.plain() for line in tree_lines(found, max_spans)]
    click.echo("\n".join(lines), color=colour)


def _list_spans(loaded: _Loaded, asked: "SpanQuery", as_json: bool, redact: bool) -> None:
    """Ask the spans as they are; only what is told about them is redacted."""
    from proctor.trace.redact import redactor_for
    from proctor.trace.render import span_row
    from proctor.trace.render_json import described_span

    redactor = redactor_for(redact)
    traces: list[int] = []

    def matches() -> "Iterator[Span]":
        for found in loaded:
            traces.append(len(found.spans))
            for node in found.find(asked):
                yield redactor.span(node.span) if redactor else node.span

    if as_json:
        _write_json("matches", map(described_span, matches()), loaded)
        return
    found = 0
    for span in matches():
        found += 1
        click.echo(span_row(span))
    click.echo(f"{found} of {sum(traces)} spans in {len(traces)} traces match", err=True)


def _test_traces(loaded: _Loaded, asked: "TraceQuery", as_json: bool, redact: bool) -> bool:
    from proctor.trace.redact import redactor_for
    from proctor.trace.text import safe

    redactor = redactor_for(redact)
    verdicts: list[bool] = []

    def results() -> "Iterator[dict[str, Any]]":
        for found in loaded:
            result = asked.evaluate(found.index)
            verdicts.append(result.holds)
            reason = redactor.text(result.reason) if redactor else result.reason
            yield {"trace_id": found.trace_id, **result._asdict(), "reason": reason}

    if as_json:
        _write_json("results", results(), loaded)
    else:
        for result in results():
            verdict = "holds" if result["holds"] else "does not hold"
            trace_id, reason = safe(result["trace_id"], 80), safe(result["reason"], 400)
            click.echo(f"{trace_id}  {verdict}: {reason}")
    return all(verdicts)
