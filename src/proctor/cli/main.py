"""The command `proctor`: finds a subcommand, runs it, turns what went wrong into an exit code.

Promises a start near that of bare Python, one line for every error a user can put right, and
exit code 2 (never 1, which says that a gate failed) for whatever could not be judged.
"""

import io
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

import click

from proctor import __version__
from proctor.cli.lazy import Entry, Example, LazyGroup
from proctor.cli.terminal import printable
from proctor.errors import EXIT_CANNOT_JUDGE, ProctorError

EXIT_INTERRUPTED = 128 + 2
"""What a shell reports for a process ended by SIGINT."""

EXIT_PIPE_CLOSED = 128 + 13
"""What a shell reports for a process ended by SIGPIPE."""

COMPLETE_VARIABLE = "_PROCTOR_COMPLETE"
"""Set when a shell asks what could come next, by the lines `proctor completion` printed."""

COMMANDS = {
    "demo": Entry("proctor.cli.demo", "demo", "Show what Proctor does, on an example it brings."),
    "run": Entry(
        "proctor.cli.run", "run", "Run a suite, an experiment or a scenario and keep every trial."
    ),
    "batch": Entry(
        "proctor.cli.batch",
        "batch",
        "Run cases, agents and seeds against each other without a file.",
    ),
    "schedule": Entry(
        "proctor.cli.schedule",
        "schedule",
        "Run suites and experiments by themselves, at the times of cron expressions.",
    ),
    "rerun": Entry(
        "proctor.cli.rerun", "rerun", "Repeat a run and say whether it came out the same."
    ),
    "check": Entry("proctor.cli.check", "check", "Check that scenarios build, and can be solved."),
    "list": Entry("proctor.cli.list", "list_all", "List cases, agents and experiments."),
    "trace": Entry("proctor.cli.trace", "trace", "Look at, query and convert agent traces."),
    "diagnose": Entry(
        "proctor.cli.diagnose", "diagnose", "Find what broke in traces, or in the trials of a run."
    ),
    "trail": Entry("proctor.cli.trail", "trail", "Measure diagnosis against TRAIL's annotations."),
    "report": Entry(
        "proctor.cli.report",
        "report",
        "Show what a run says: as a page, Markdown, charts, or here.",
    ),
    "share": Entry("proctor.cli.share", "share", "Write a run to one file to give away."),
    "view": Entry("proctor.cli.view", "view", "Look at runs in the browser."),
    "serve": Entry(
        "proctor.cli.serve", "serve", "Receive live traces over OTLP, keep and show them."
    ),
    "init": Entry(
        "proctor.cli.init",
        "init",
        "Write a suite, an example agent and a CI workflow to start from.",
    ),
    "test": Entry(
        "proctor.cli.test", "test", "Try every case of suites once and judge what the agent did."
    ),
    "validate": Entry(
        "proctor.cli.validate",
        "validate",
        "Check suites, experiments, templates and settings without running anything.",
    ),
    "save": Entry("proctor.cli.save", "save", "Save what the agent does as a baseline."),
    "baselines": Entry("proctor.cli.baselines", "baselines", "List saved baselines."),
    "diff": Entry("proctor.cli.diff", "diff", "Show what changed since a baseline."),
    "build": Entry("proctor.cli.build", "build", "Build a scenario from a template and a seed."),
    "store": Entry(
        "proctor.cli.store", "store", "Keep built scenarios, and look after live traces."
    ),
    "fetch": Entry("proctor.cli.fetch", "fetch", "Bring a stored scenario back."),
    "results": Entry(
        "proctor.cli.results", "results", "Show what runs came to, finished or running."
    ),
    "sql": Entry(
        "proctor.cli.sql", "sql", "Answer a SELECT over the views trials, runs, cases and checks."
    ),
    "export": Entry("proctor.cli.export", "export", "Write the trials of runs for other programs."),
    "import": Entry(
        "proctor.cli.import_",
        "import_",
        "Keep results of other programs as runs, to query, compare and gate on.",
    ),
    "compare": Entry("proctor.cli.compare", "compare", "Compare two runs or two agents."),
    "leaderboard": Entry(
        "proctor.cli.leaderboard", "leaderboard", "Rank agents, with the places each may hold."
    ),
    "gate": Entry("proctor.cli.gate", "gate", "Say whether a run is worse than its baseline."),
    "plan": Entry("proctor.cli.plan", "plan", "Say how many cases and trials are needed."),
    "annotate": Entry("proctor.cli.annotate", "annotate", "Say something about a run or a trial."),
    "tag": Entry("proctor.cli.tag", "tag", "Give a run a name, such as baseline."),
    "audit": Entry("proctor.cli.audit", "audit", "Show who did what with these results."),
    "status": Entry("proctor.cli.status", "status", "Say how a run under way is doing."),
    "sync": Entry("proctor.cli.sync", "sync", "Send runs to an object store, or bring them back."),
    "agent": Entry("proctor.cli.agent", "agent", "Register, list, try and remove agents."),
    "schema": Entry(
        "proctor.cli.schema", "schema", "Print the JSON Schema of suites, experiments or settings."
    ),
    "config": Entry("proctor.cli.config", "config", "Look at the settings in force."),
    "doctor": Entry(
        "proctor.cli.doctor",
        "doctor",
        "Check what Proctor needs here, and what to do about it.",
    ),
    "completion": Entry(
        "proctor.cli.completion",
        "completion",
        "Print what makes the tab key complete commands, options and files.",
    ),
    "judge": Entry("proctor.cli.judge", "judge", "Check how far an LLM judge can be trusted."),
    "mock-llm": Entry(
        "proctor.cli.mock_llm",
        "mock_llm",
        "Serve a scripted model: OpenAI and Anthropic protocols.",
    ),
}

SECTIONS = {
    "Begin": ("demo", "init", "doctor", "config", "schema", "completion"),
    "Suites and CI": ("validate", "test", "save", "baselines", "diff"),
    "Trials and experiments": ("run", "batch", "rerun", "status", "schedule", "list", "agent"),
    "Scenarios": ("build", "check", "store", "fetch"),
    "Results": ("results", "sql", "report", "view", "leaderboard", "compare", "gate", "plan"),
    "Traces and diagnosis": ("trace", "diagnose", "trail", "serve"),
    "Keeping and sharing": ("annotate", "tag", "audit", "export", "import", "share", "sync"),
    "Models": ("judge", "mock-llm"),
}
"""How `--help` groups the commands."""

EXAMPLES = [
    Example("proctor demo", "see the whole thing work, offline, in a few seconds"),
    Example("proctor test suite.yaml", "is the agent right?"),
    Example("proctor trace show run.json", "what did the agent do?"),
    Example(
        "proctor trace query traces/ '{tool_name: search, has_status: error}'",
        "which calls of a tool failed?",
    ),
]


@click.group(
    name="proctor",
    cls=LazyGroup,
    table=COMMANDS,
    sections=SECTIONS,
    examples=EXAMPLES,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, prog_name="proctor", message="%(prog)s %(version)s")
@click.option(
    "--debug", is_flag=True, help="Log what is done, and show tracebacks; before the command."
)
def cli(debug: bool) -> None:
    """Put LLM agents through repeated, traced, honestly counted trials.

    Says what broke, where, and whether it is real.
    """


def main(args: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and leave the process with its exit code."""
    code = run(sys.argv[1:] if args is None else args)
    if "obstore" in sys.modules:
        # Its threads may still call an interpreter that is taking itself apart, which aborts.
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def run(args: Sequence[str]) -> int:
    """Run the command line and return its exit code."""
    for stream in (sys.stdout, sys.stderr):
        # A character that the terminal cannot show must not end the program.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    if COMPLETE_VARIABLE in os.environ:
        cli.main(list(args), prog_name="proctor")  # answers the shell's question and exits
    try:
        code = _guarded(list(args))
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read our output has gone. What is still buffered goes nowhere, quietly.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_PIPE_CLOSED
    return code


def _guarded(args: list[str]) -> int:
    debug = False
    try:
        with cli.make_context("proctor", list(args)) as context:
            debug = bool(context.params["debug"])
            if debug:
                from proctor.cli.debugging import start_debug_log

                start_debug_log(args)
            cli.invoke(context)
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except (KeyboardInterrupt, click.Abort):
        _traceback(debug)
        _say("interrupted")
        return EXIT_INTERRUPTED
    except click.ClickException as error:
        return _usage(error)
    except BrokenPipeError:
        raise
    except ProctorError as error:
        _traceback(debug)
        _say(f"error: {error}", error.hint)
        return error.exit_code
    except Exception as error:  # noqa: BLE001  the last guard: a bug must not look like a failed gate
        _traceback(debug)
        hint = None if debug else _reported(error, args)
        _say(_redacted(f"error: unexpected {type(error).__name__}: {error}"), hint)
        return EXIT_CANNOT_JUDGE
    return 0


def _reported(error: Exception, args: list[str]) -> str:
    from proctor.cli.debugging import keep_report

    path = keep_report(error, args)
    if path is None:
        return "this is a bug; `proctor --debug ...` shows where it happened"
    return f"this is a bug; {path} says where it happened (nothing left this machine)"


def _usage(error: click.ClickException) -> int:
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        error.show()
        return error.exit_code
    context = error.ctx if isinstance(error, click.UsageError) else None
    hint = f"`{context.command_path} --help` shows how to use it" if context else None
    if isinstance(error, click.NoSuchOption) and error.option_name == "--debug":
        hint = "`--debug` stands before the command: proctor --debug run suite.yaml"
    _say(f"error: {_in_our_words(error.format_message())}", hint)
    # click calls a file it cannot open 1; for us that is something that could not be judged.
    return EXIT_CANNOT_JUDGE


_NUMBERS = {
    "a valid float range": "a number",
    "a valid float": "a number",
    "a valid integer range": "a whole number",
    "a valid integer": "a whole number",
}
"""What click calls a number, and what people do."""


def _in_our_words(said: str) -> str:
    """What click says, as everything else here is said: no capital, no full stop, no types."""
    for theirs, ours in _NUMBERS.items():
        said = said.replace(theirs, ours)
    said = " ".join(said.split())  # click lists choices one a line
    return said[:1].lower() + said[1:].rstrip(".")


def _say(line: str, hint: str | None = None) -> None:
    click.echo(printable(line), err=True)
    if hint:
        click.echo(f"hint: {printable(hint)}", err=True)


def _traceback(debug: bool) -> None:
    if debug:
        import traceback

        click.echo(printable(_redacted(traceback.format_exc()), keep="\n"), err=True, nl=False)


def _redacted(text: str) -> str:
    from proctor.trace.redact import default_redactor

    return default_redactor().text(text)
