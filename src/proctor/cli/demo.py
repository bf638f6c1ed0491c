"""`proctor demo` and `proctor init`: a built-in example, and files to start from.

The demo runs offline and without a key. It does what `proctor run` does, and prints the commands
to continue with.
"""

from __future__ import annotations

import importlib
import shlex
from importlib.resources import as_file, files
from pathlib import Path
from typing import TYPE_CHECKING

import click

from proctor.cli._command import Command
from proctor.cli._options import FOLDER, option
from proctor.cli._output import coloured, wants_colour
from proctor.errors import EXIT_CANNOT_JUDGE
from proctor.sanitize import line, printable

if TYPE_CHECKING:
    from proctor.runs.run import Run

INTRODUCTION = {
    None: """\
Two versions of a support agent for a bicycle shop, with real tools: a database, policy files, a
calculator. The agent follows rules: no model is called, nothing is spent.
6 questions × 2 agents × 5 trials.
""",
    "local": """\
A language model on this machine (SmolLM2, 135 million parameters) answers customers of a bicycle
shop. It is tiny and mostly wrong, but its calls are real.
""",
}


@click.command(cls=Command)
@option("--model", "Use a local model instead of rules.", choices=["local"])
@option(
    "--results", "The results folder.", type=click.Path(path_type=Path), default=Path("results")
)
@click.pass_context
def demo(ctx: click.Context, model: str | None, results: Path) -> None:
    """Run a built-in example.

    Examples:
      # no network, no key, a few seconds
      proctor demo
      # with a small local model
      proctor demo --model local
    """
    from proctor.cli.run import execute_run
    from proctor.imports import absent_extra
    from proctor.llm.local import bundled_weights
    from proctor.report import console
    from proctor.report.facts import ReportFacts
    from proctor.spec import Configuration, Settings, load_suite
    from proctor.spec.config import DEFAULT
    from proctor.spec.located import Tree
    from proctor.trials.options import RunOptions
    from proctor.trials.prepare import prepare
    from proctor.trials.session import new_folder

    if model == "local":  # checked before the introduction promises anything
        try:
            importlib.import_module("xllamacpp")
        except ImportError:
            raise absent_extra("a local model", "local-llm") from None
        bundled_weights()
    name = "suite.yaml" if model is None else f"{model}.yaml"
    click.echo(INTRODUCTION[model])
    with as_file(files("proctor.demo") / name) as path:
        suite = load_suite(path)
        # The demo ignores the user's settings, so that it is the same everywhere.
        settings = Configuration(Settings(), suite.folder, (), Tree(DEFAULT, {}))
        options = RunOptions(concurrency=None if model is None else 1)
        context = prepare(suite, options, configuration=settings)
        ended = execute_run(context, new_folder(context, results, "demo"))
        click.echo(console.render(ReportFacts(ended.run)), color=wants_colour(), nl=False)
        if ended.signal is not None:
            ctx.exit(ended.exit_code)
        _show_failure(ended.run)
        _next_steps(ended.run, path)
    # Failing agents are the point of the demo; infrastructure errors are not.
    ctx.exit(EXIT_CANNOT_JUDGE if ended.run.totals.unjudged else 0)


def _show_failure(run: Run) -> None:
    """Show the trace of a trial with the most serious failure."""
    from proctor.trace.render import tree_lines

    # The most serious failure: a forbidden tool, then other blocking checks.
    ranked = sorted(run.failures, key=lambda f: (f.check_id != "forbidden_tools", not f.blocking))
    sample = ranked[0].samples[0] if ranked else None
    found = next((t for t in run.trials() if sample and t.trace_id == sample.trace_id), None)
    trace = None if found is None else run.trace(found)
    if trace is None or sample is None:
        return
    colour = wants_colour()
    title = line(f"What the agent did: {sample.trial}, {sample.reason}")
    click.echo(f"\n{click.style(title, bold=True)}", color=colour)
    for row in tree_lines(trace):
        click.echo(coloured(row) if colour else row.plain(), color=colour)


def _next_steps(run: Run, suite: Path) -> None:
    place, file = shlex.quote(str(run.path)), shlex.quote(str(suite))
    # The commands are copied by users, so they must find something in this very run.
    forbidden = any(failure.check_id == "forbidden_tools" for failure in run.failures)
    calls = "{tool_name: cancel_order}" if forbidden else "{kind: llm}"
    steps = (
        ("open the full report in a browser", f"proctor report {place} --open"),
        ("find what the failures have in common", f"proctor diagnose {place} --failed"),
        ("show the calls in question", f"proctor trace query {place} '{calls}'"),
        ("run more trials, stopping early", f"proctor run {file} --trials 20 --early-stop"),
        ("retry what failed", f"proctor run --retry-failed {place}"),
        ("start with your own agent", "proctor init"),
    )
    click.echo("\nNext steps:")
    for what, command in steps:
        click.echo(f"  # {what}\n  {command}")


@click.command(cls=Command)
@click.argument("directory", default=".", type=FOLDER)
@option(
    "--from TRACE|MODULE",
    "source",
    "Draft cases from recorded traces (a file, a folder, a run), or from the examples in the"
    " docstring of an agent (package.module:name).",
)
def init(directory: Path, source: str | None) -> None:
    """Write a suite, an example agent and a CI workflow to start from.

    Existing files are not overwritten.

    Examples:
      # start in this folder
      proctor init
      # start in a folder of its own
      proctor init evals
      # draft cases from what an agent did
      proctor init drafted --from run.json
    """
    import re

    from proctor.cli._options import run_or_files, settings_redactor
    from proctor.imports import IMPORT_PATH
    from proctor.spec.scaffold import draft_from_module, draft_from_traces, scaffold

    suite = shlex.quote(str(directory / "suite.yaml"))
    draft, steps = None, [f"proctor validate {suite}", f"proctor run {suite}"]
    then = "replace the example with your own agent and cases"
    if source is not None and re.fullmatch(IMPORT_PATH, source) and not Path(source).exists():
        # Found from the working folder, where the drafted suite will look for it too.
        draft = draft_from_module(source, Path.cwd())
        then = "read the drafted cases, and add what every right answer must contain"
    elif source is not None:
        from proctor.trace.load import load_traces

        redactor = settings_redactor()
        traces = map(redactor.trace, load_traces(run_or_files(source)))
        draft = draft_from_traces(traces, source)
        steps[1] = f"proctor test {suite} --traces {shlex.quote(source)}"
        then = f"name your agent in {suite}, and run it: proctor run {suite}"
    for file in scaffold(directory, draft):
        verb = "wrote" if file.written else "kept "
        click.echo(printable(f"{verb} {file.path}  ({file.what})"))
    click.echo(printable("\nnext:\n" + "\n".join(f"  {step}" for step in steps), keep="\n"))
    click.echo(printable(f"then {then}"))
