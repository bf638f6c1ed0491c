"""The command `proctor`: find a subcommand, run it, turn errors into exit codes.

Promises a start-up time close to that of bare Python, one line for every error a user can fix,
and exit code 2 (never 1, which means that a gate failed) for everything that could not be judged.
An unexpected error is written to a report file; with `--debug` its traceback is printed.
"""

import io
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

import click

from proctor import __version__
from proctor.cli._command import Entry, Example, LazyGroup
from proctor.errors import EXIT_CANNOT_JUDGE, ProctorError
from proctor.sanitize import printable

if TYPE_CHECKING:
    import logging
    from pathlib import Path

EXIT_INTERRUPTED = 128 + 2
"""The exit code that shells report for a process ended by SIGINT."""

EXIT_PIPE_CLOSED = 128 + 13
"""The exit code that shells report for a process ended by SIGPIPE."""

COMPLETE_VARIABLE = "_PROCTOR_COMPLETE"
"""Set by the completion script when the shell asks for completions."""

MAX_REPORTS = 20
"""Error reports to keep; older ones are deleted, so that a loop of failing jobs fills no disk."""

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
    """Run the command line and exit with its exit code."""
    code = run(sys.argv[1:] if args is None else args)
    if "obstore" in sys.modules:
        # Its threads may still call into an interpreter that is shutting down, which aborts.
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
        cli.main(list(args), prog_name="proctor")  # answers the shell and exits
    try:
        code = _exit_code(list(args))
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader of our output has gone: discard what is still buffered.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_PIPE_CLOSED
    return code


def _exit_code(args: list[str]) -> int:
    debug = False
    try:
        with cli.make_context("proctor", list(args)) as context:
            debug = bool(context.params["debug"])
            if debug:
                start_debug_log(args)
            cli.invoke(context)
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except (KeyboardInterrupt, click.Abort):
        _print_traceback(debug)
        _print_error("interrupted")
        return EXIT_INTERRUPTED
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return error.exit_code
    except click.ClickException as error:
        context = error.ctx if isinstance(error, click.UsageError) else None
        hint = f"see `{context.command_path} --help`" if context else None
        if isinstance(error, click.NoSuchOption) and error.option_name == "--debug":
            hint = "put `--debug` before the command: proctor --debug run suite.yaml"
        # On one line (click lists choices one per line), and "range" is no type to a user.
        message = " ".join(error.format_message().split())
        message = message.replace("valid float range", "valid float")
        _print_error(f"error: {message.replace('valid integer range', 'valid integer')}", hint)
        # Not click's own code: it returns 1 for a file that it cannot open.
        return EXIT_CANNOT_JUDGE
    except BrokenPipeError:
        raise
    except ProctorError as error:
        _print_traceback(debug)
        _print_error(f"error: {error}", error.hint)
        return error.exit_code
    except Exception as error:  # noqa: BLE001  the last guard: a bug must not look like a failed gate
        _print_traceback(debug)
        path = None if debug else write_error_report(error, args)
        hint = None
        if path is not None:
            hint = f"this is a bug; details are in {path} (nothing was sent anywhere)"
        elif not debug:
            hint = "this is a bug; `proctor --debug ...` shows where it happened"
        _print_error(_redacted(f"error: unexpected {type(error).__name__}: {error}"), hint)
        return EXIT_CANNOT_JUDGE
    return 0


def _print_error(line: str, hint: str | None = None) -> None:
    click.echo(printable(line), err=True)
    if hint:
        click.echo(f"hint: {printable(hint)}", err=True)


def _print_traceback(debug: bool) -> None:
    if debug:
        import traceback

        click.echo(printable(_redacted(traceback.format_exc()), keep="\n"), err=True, nl=False)


def _redacted(text: str) -> str:
    from proctor.trace.redact import default_redactor

    return default_redactor().text(text)


def start_debug_log(args: Sequence[str]) -> "logging.Logger":
    """Log to standard error: Proctor at DEBUG, other packages at INFO.

    HTTP clients log every header at their lowest level, keys included.
    """
    import logging
    import shlex
    from pathlib import Path

    class RedactingFormatter(logging.Formatter):
        def format(self, record: logging.LogRecord) -> str:
            return _redacted(super().format(record))

    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        RedactingFormatter("debug: %(relativeCreated)6.0f ms %(name)s: %(message)s")
    )
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    logger = logging.getLogger("proctor")
    logger.setLevel(logging.DEBUG)
    logger.debug("%s", _versions())
    logger.debug("in %s: proctor %s", Path.cwd(), shlex.join(args))
    return logger


def write_error_report(error: BaseException, args: Sequence[str]) -> "Path | None":
    """Write traceback, versions and command line, redacted, to the user's state folder.

    The report stays on this machine. None where it cannot be written.
    """
    import shlex
    import traceback
    from datetime import UTC, datetime

    from proctor.user_dirs import user_folder

    now = datetime.now(UTC)
    text = "\n".join(
        (
            f"{now.isoformat(timespec='seconds')}  {_versions()}",
            f"proctor {shlex.join(args)}",
            "",
            "".join(traceback.format_exception(error)),
        )
    )
    folder = user_folder("state", "errors")
    path = folder / f"{now:%Y-%m-%d_%H%M%S}_{os.getpid()}.txt"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(_redacted(text), encoding="utf-8", errors="backslashreplace")
        for old in sorted(folder.glob("*.txt"))[:-MAX_REPORTS]:
            old.unlink(missing_ok=True)
    except OSError:
        return None
    return path


def _versions() -> str:
    import platform

    python = f"{platform.python_implementation()} {platform.python_version()}"
    return f"Proctor {__version__}, {python}, {platform.platform(terse=True)}"
