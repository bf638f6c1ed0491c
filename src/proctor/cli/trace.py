"""`proctor trace`: list, show, query, convert and score trace files of any format.

Every command takes files, folders, globs and `-`, compressed or not, runs by their name, a tag or
`latest`, and single trials of runs. Problems with a file go to standard error, one line each; the
readable traces are still processed, and the exit code is 2 if a file yields no trace.
"""

from __future__ import annotations

import sys
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from proctor import api
from proctor.cli._command import CommandGroup
from proctor.cli._options import (
    FILE,
    complete_runs_or_files,
    json_option,
    near_file,
    option,
    settings_redactor,
    trial_or_files,
)
from proctor.cli._output import coloured, wants_colour
from proctor.errors import EXIT_CANNOT_JUDGE, EXIT_FAIL, ProctorError
from proctor.formatting import at_least, duration_ms, plural
from proctor.sanitize import line
from proctor.tables import table

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from proctor.checks.quality import Quality, QualityConfig
    from proctor.runs.trial import Trial
    from proctor.trace import Span, SpanQuery, Trace, TraceQuery
    from proctor.trace.assemble import TraceProblem
    from proctor.trace.redact import Redactor

MAX_SPANS = 1000
"""Spans shown per trace by default; more are rarely read."""

MAX_TRACES = 20
"""Trees shown by default: a run has hundreds, and `trace list` has a line for each."""

MAX_QUERY = 48
"""Characters of a query that fit next to the figures in a terminal of usual width."""


@click.group(cls=CommandGroup)
def trace() -> None:
    """List, show, query, convert and score traces.

    Examples:
      # which of these is worth a look?
      proctor trace list runs/
      # what did the agent do?
      proctor trace show run.json
      # what failed?
      proctor trace query runs/ '{kind: tool, has_status: error}'
      # for other tools
      proctor trace convert run.json --to otlp-json -o out.json
    """


# -- trace files ---------------------------------------------------------------------------------


files_argument = click.argument(
    "files",
    nargs=-1,
    required=True,
    metavar="FILE|RUN|RUN:TRIAL...",
    shell_complete=complete_runs_or_files,
)
redaction_option = option("--no-redact", "Do not redact secrets.", is_flag=True)


class TraceFiles:
    """Iterates over the traces of files; prints problems at once and counts them."""

    def __init__(self, files: tuple[str, ...]) -> None:
        from proctor.trace.load import iter_traces

        self.problems: list[TraceProblem] = []
        self.file = ""
        """The file of the last trace."""
        self.trial = ""
        """The trial of the last trace; empty unless it is of a run."""
        self.several = len(files) > 1 or not all(f == "-" or Path(f).is_file() for f in files)
        """Whether traces may come from several files, so that each must be named."""

        def set_file(file: str) -> None:
            self.file = file

        self._hints: dict[str, str | None] = {}
        self._trials: dict[str | None, Trial] = {}
        single: list[Trace] = []
        self._files: list[str] = []
        for name in files:
            found = self._found(name)
            if isinstance(found, str):
                self._files.append(found)
            else:
                single.append(found)
        self._traces = chain(single, iter_traces(self._files, self._problem, on_file=set_file))
        self._first: list[Trace] = []

    def _found(self, name: str) -> str | Trace:
        """Return the trace of a single trial, else the path of files or of a run."""
        from proctor.runs.run import Run

        try:
            found = trial_or_files(name)
        except ProctorError as error:
            if name == "latest" or ":" in name:
                raise
            # The reader of the file says that there is none; here is what there is instead.
            self._hints[name] = near_file(name) or error.hint
            return name
        if isinstance(found, str):
            if (Path(found) / "_spec_.yaml").is_file():
                self._trials |= {each.trace_id: each for each in Run(Path(found)).trials()}
            return found
        run, trial = found
        if (trace := run.trace(trial)) is None:
            raise ProctorError(f"the trial {trial.name} has no trace", where=str(run.path))
        self._trials[trace.trace_id] = trial
        return trace

    def _problem(self, problem: TraceProblem) -> None:
        """Print a problem; the same hint only once."""

        # At once and not at the end: reading a large folder takes minutes.
        level = "error" if problem.fatal else "warning"
        click.echo(f"{level}: {line(str(problem), 500)}", err=True)
        hint = problem.hint or self._hints.get(problem.file)
        if hint and all(hint != before.hint for before in self.problems):
            click.echo(f"hint: {line(hint, 1000)}", err=True)
        self.problems.append(problem)

    def label(self) -> str:
        """Return the trial or the file of the last trace, made safe; empty if there is one file."""
        if self.trial:
            return line(self.trial, 400)
        return line(self.file, 400) if self.several and self.file else ""

    def source(self) -> dict[str, str]:
        """Return the file of the last trace, and its trial if it has one, for JSON."""
        return {"file": self.file, **({"trial": self.trial} if self.trial else {})}

    def __iter__(self) -> Iterator[Trace]:
        for trace in chain(self._first, self._traces):
            trial = self._trials.get(trace.trace_id)
            self.trial = "" if trial is None else trial.name
            yield trace

    def with_results(self) -> Iterator[Trace]:
        """Yield the traces; those of a run have the results of its checks as events."""
        from proctor.checks.base import record_results

        for trace in self:
            trial = self._trials.get(trace.trace_id)
            record_results(trace, () if trial is None else trial.checks)
            yield trace

    def begin(self) -> bool:
        """Read up to the first trace; return whether there is one."""
        self._first = [found for found in [next(self._traces, None)] if found is not None]
        return bool(self._first)

    def exit(self, code: int = 0) -> None:
        """End the command: with 2 if a file yielded nothing, else with the given code."""
        if any(problem.fatal for problem in self.problems):
            code = EXIT_CANNOT_JUDGE
        if code:
            raise click.exceptions.Exit(code)

    def priced_and_redacted(self, *, redact: bool) -> Iterator[Trace]:
        """Yield the traces for display: priced as trials are, and without secrets."""
        from proctor.llm.prices import price_trace

        settings = api.settings().settings
        prices = settings.price_table()
        redactor = settings.redactor() if redact else None
        for trace in self:  # one at a time, so that memory does not grow with the folder
            price_trace(trace, prices)
            yield redactor.trace(trace) if redactor else trace


def _write_json(key: str, items: Iterable[Any], loaded: TraceFiles) -> None:
    """Write one document: the items as they come, then the problems."""
    from proctor.trace.render import document

    # In pieces: thousands of traces need not fit into memory.
    for piece in document(key, items, loaded.problems):
        sys.stdout.buffer.write(piece)
    sys.stdout.buffer.flush()


# -- list and show -------------------------------------------------------------------------------


@trace.command("list")
@files_argument
@json_option
@redaction_option
def list_traces(files: tuple[str, ...], as_json: bool, no_redact: bool) -> None:
    """List traces, one line each.

    Examples:
      # what is in this folder?
      proctor trace list runs/
      # as JSON
      proctor trace list runs/ --json
    """
    loaded = TraceFiles(files)
    traces = loaded.priced_and_redacted(redact=not no_redact)
    if as_json:
        from proctor.trace.render import described

        # A list of traces has no spans; `trace show --json` has them.
        facts = ({**loaded.source(), **described(trace)} for trace in traces)
        rows = ({key: row[key] for key in row if key != "spans"} for row in facts)
        _write_json("traces", rows, loaded)
    else:
        _echo_table(traces, loaded)
    loaded.exit()


def _echo_table(traces: Iterator[Trace], loaded: TraceFiles) -> None:

    rows: list[list[str]] = []
    files: set[str] = set()
    for trace in traces:
        duration = trace.duration
        rows.append(
            [
                str(len(trace.spans)),
                str(len(trace.tool_calls)),
                str(len(trace.errors)),
                "–" if duration is None else duration_ms(duration * 1000),
                at_least(trace.usage.cost_usd, trace.usage.unpriced) or "–",
                "–" if trace.query is None else line(trace.query, MAX_QUERY),
                loaded.trial or line(loaded.file),
            ]
        )
        files.add("" if loaded.trial else loaded.file)
    head = (
        "spans",
        "tools",
        "errors",
        "time",
        "cost",
        "query",
        "trial" if files == {""} else "file",
    )
    if rows:
        click.echo("\n".join(table(head, rows, indent="")))
    click.echo(plural(len(rows), "trace"), err=True)


@trace.command()
@files_argument
@json_option
@option(
    "--max-spans N",
    f"Show at most N spans per trace.  [default: {MAX_SPANS}]",
    type=click.IntRange(min=1),
    default=None,
)
@option(
    "--max-traces N",
    f"Show at most N traces.  [default: {MAX_TRACES}]",
    type=click.IntRange(min=1),
    default=None,
)
@redaction_option
def show(
    files: tuple[str, ...],
    as_json: bool,
    max_spans: int | None,
    max_traces: int | None,
    no_redact: bool,
) -> None:
    """Show a trace as a tree.

    Examples:
      # one file; its format is detected
      proctor trace show run.json
      # one trial of the last run
      proctor trace show latest:refund/hasty/0/1
      # many files, shortened
      proctor trace show 'runs/*.json.gz' --max-spans 50
      # from a pipe
      zstdcat runs/1.jsonl.zst | proctor trace show -
    """
    from proctor.trace.render import described, header, tree_lines

    # The default is None and not 1000, so that this can tell whether the option was given.
    if as_json and max_spans is not None:
        raise click.UsageError("--max-spans shortens the tree; --json always has all spans")
    if as_json and max_traces is not None:
        raise click.UsageError("--max-traces shortens the list; --json always has all traces")
    loaded = TraceFiles(files)
    traces = loaded.priced_and_redacted(redact=not no_redact)
    if as_json:
        _write_json("traces", map(described, traces), loaded)
    else:
        colour = wants_colour()
        for number, found in enumerate(traces):
            if number == (max_traces or MAX_TRACES):
                click.echo(
                    "\n… more traces not shown: --max-traces shows more, `proctor trace list`"
                    " has a line for each"
                )
                break
            name, *facts = header(found)
            kind = "trial" if loaded.trial else "file"
            source = [f"  {kind:<9}{label}"] if (label := loaded.label()) else []
            lines = [*([""] if number else []), name, *source]
            lines += facts
            lines += [
                coloured(line) if colour else line.plain()
                for line in tree_lines(found, max_spans or MAX_SPANS)
            ]
            click.echo("\n".join(lines), color=colour)
    loaded.exit()


# -- query ---------------------------------------------------------------------------------------


@trace.command()
@files_argument
@click.argument("query")
@json_option
@redaction_option
def query(files: tuple[str, ...], query: str, as_json: bool, no_redact: bool) -> None:
    """Find spans, or test a condition on traces.

    QUERY is YAML or JSON, or @FILE. A span query lists the matching spans. A trace query (any, all,
    none, count, before, after) reports for each trace whether it holds, and exits with 1 if it does
    not hold for all of them.

    Examples:
      # slow model calls
      proctor trace query run.json '{kind: llm, min_duration: 5}'
      # did it search before it booked? (exit 0: yes, 1: no)
      proctor trace query run.json 'before: [{tool_name: search}, {tool_name: book}]'
      # the query is in a file
      proctor trace query runs/ @failed.yaml --json
    """
    from proctor.trace import SpanQuery
    from proctor.trace.query import read_query_text

    parsed = read_query_text(query)
    loaded = TraceFiles(files)
    # The query sees the spans as they are; only the output is redacted.
    redactor = None if no_redact else settings_redactor()
    if isinstance(parsed, SpanQuery):
        _list_spans(loaded, parsed, redactor, as_json)
        loaded.exit()
    else:
        holds = _test_traces(loaded, parsed, redactor, as_json)
        loaded.exit(0 if holds else EXIT_FAIL)


def _list_spans(
    loaded: TraceFiles, query: SpanQuery, redactor: Redactor | None, as_json: bool
) -> None:
    from proctor.trace.render import described_span, span_row

    span_counts: list[int] = []  # of all traces, for the denominator

    def matches() -> Iterator[Span]:
        for found in loaded:
            span_counts.append(len(found.spans))
            for node in found.find(query):
                yield redactor.span(node.span) if redactor else node.span

    if as_json:
        rows = ({**loaded.source(), **described_span(span)} for span in matches())
        _write_json("matches", rows, loaded)
        return
    count = 0
    for span in matches():
        count += 1
        click.echo("  ".join(filter(None, (span_row(span), loaded.label()))))
    total = f"{plural(sum(span_counts), 'span')} in {plural(len(span_counts), 'trace')}"
    click.echo(f"{count} of {total} match", err=True)


def _test_traces(
    loaded: TraceFiles, query: TraceQuery, redactor: Redactor | None, as_json: bool
) -> bool:
    """Print for each trace whether the query holds; return whether it holds for all."""

    verdicts: list[bool] = []

    def results() -> Iterator[dict[str, Any]]:
        for found in loaded:
            result = query.evaluate(found.index)
            verdicts.append(result.holds)
            reason = redactor.text(result.reason) if redactor else result.reason
            facts = {**result._asdict(), "reason": reason}
            yield {**loaded.source(), "trace_id": found.trace_id, **facts}

    if as_json:
        _write_json("results", results(), loaded)
    else:
        for result in results():
            verdict = "holds" if result["holds"] else "does not hold"
            trace_id, reason = line(result["trace_id"], 80), line(result["reason"], 400)
            text = f"{trace_id}  {verdict}: {reason}"
            click.echo("  ".join(filter(None, (text, loaded.label()))))
    return all(verdicts)


# -- convert -------------------------------------------------------------------------------------


@trace.command()
@files_argument
@option(
    "--to",
    "to",
    "Output format.",
    required=True,
    choices=["otlp-json", "otlp-proto", "openinference", "jsonl", "atif"],
)
@option("-o", "--output OUT", "A file, or - for standard output.", default="-")
@option(
    "--redact-pattern REGEX",
    "patterns",
    "Also redact matches of this pattern; repeatable.",
    multiple=True,
)
@redaction_option
def convert(
    files: tuple[str, ...], to: str, output: str, patterns: tuple[str, ...], no_redact: bool
) -> None:
    """Write traces in another format.

    Secrets (keys, tokens, passwords) are replaced by [redacted:...]. A file whose name ends in .gz
    or .zst is compressed. Traces of a run have the results of its checks as events
    (gen_ai.evaluation.result).

    Examples:
      # one file
      proctor trace convert run.json --to otlp-json -o out.json
      # a folder, compressed
      proctor trace convert runs/ --to jsonl -o all.jsonl.zst
      # into a pipe
      proctor trace convert run.json --to jsonl | head -c 300
    """
    from proctor.trace.export import save_traces, write_traces

    if no_redact and patterns:
        raise click.UsageError("--redact-pattern and --no-redact contradict each other")
    # Binary output can put a terminal into a strange state.
    if output == "-" and to == "otlp-proto" and sys.stdout.isatty():
        raise click.UsageError("otlp-proto is binary; name a file with -o")
    loaded = TraceFiles(files)
    more = {f"pattern-{number}": pattern for number, pattern in enumerate(patterns, 1)}
    redact = not no_redact and api.settings().settings.redactor(more)
    # Without a readable trace, an existing output file is left alone.
    if not loaded.begin():
        loaded.exit()
    elif output == "-":
        write_traces(loaded.with_results(), sys.stdout.buffer, to, redact=redact)
    else:
        written = save_traces(loaded.with_results(), output, to, redact=redact)
        note = "" if redact else ", secrets not redacted"
        click.echo(f"{output}: {plural(written, 'trace')}{note}", err=True)
    loaded.exit()


# -- score ---------------------------------------------------------------------------------------


@trace.command()
@files_argument
@json_option
@option("--expect TOOLS", "The expected tools, separated by commas.")
@option("--config", "A YAML file with targets, weights, query rules and penalties.", type=FILE)
@option("--judge MODEL", "A model that judges the reasoning.")
@option("--judge-url URL", "The endpoint of that model.")
@redaction_option
def score(
    files: tuple[str, ...],
    *,
    as_json: bool,
    expect: str | None,
    config: Path | None,
    judge: str | None,
    judge_url: str | None,
    no_redact: bool,
) -> None:
    """Score the quality of traces.

    In nine dimensions, without a case or a model. The exit code does not depend on the scores; to
    gate on them, use `path: {quality: …}` in a suite.

    Examples:
      # what is good, what is not, and what to do
      proctor trace score run.json
      # as JSON
      proctor trace score runs/ --expect search,book --json
      # let a model judge the reasoning, too
      proctor trace score run.json --judge openai:gpt-4o-mini
    """
    from proctor.background import run_sync
    from proctor.checks.quality import score_trace, score_traces_with
    from proctor.report.quality import average_lines, averages, quality_lines

    chosen = _quality_config(config, expect)
    judging = None
    if judge is not None:
        from proctor.checks.judge import Judge
        from proctor.llm import get_model

        judging = Judge(get_model(judge, base_url=judge_url))
    elif judge_url is not None:
        raise click.UsageError("--judge-url needs --judge")
    loaded = TraceFiles(files)
    # The file of each trace, noted while reading: scores come only after all traces are read.
    places: list[tuple[dict[str, str], str]] = []

    def traces() -> Iterator[Trace]:
        for trace in loaded:
            places.append((loaded.source(), loaded.label()))
            yield trace

    if judging is None:
        found = [score_trace(trace, chosen) for trace in traces()]
    else:
        # One event loop for all, because a model's connections belong to the loop that opened them.
        found = list(run_sync(score_traces_with(judging, traces(), chosen)))
    # Scored first, redacted afterwards: a redacted text would change the scores.
    redact = None if no_redact else settings_redactor().value
    shown: list[Quality] = found if redact is None else list(map(redact, found))
    if as_json:
        pairs = zip(places, shown, strict=True)
        rows = ({**source, **each.to_dict()} for (source, _), each in pairs)
        _write_json("scores", rows, loaded)
    else:
        for number, ((_, label), each) in enumerate(zip(places, shown, strict=True)):
            name, *lines = quality_lines(each)
            first = "  ".join(filter(None, (name, label)))
            click.echo("\n".join([*([""] if number else []), first, *lines]))
        if len(shown) > 1:
            click.echo("\n" + "\n".join(average_lines(averages(shown), len(shown))))
    loaded.exit()


def _quality_config(path: Path | None, expect: str | None) -> QualityConfig:
    from proctor.checks.quality import QualityConfig

    config = QualityConfig()
    if path is not None:
        from proctor.spec.located import SpecError
        from proctor.spec.validation import validated
        from proctor.spec.yaml_reader import read

        document = read(path)
        read_config = document.tree and validated(document.tree, QualityConfig, document.problems)
        if document.problems or read_config is None:
            raise SpecError(document.problems)
        config = read_config
    if expect is None:
        return config
    tools = tuple(tool.strip() for tool in expect.split(",") if tool.strip())
    return config.model_copy(update={"expected_tools": tools})
