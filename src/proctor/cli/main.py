"""The command `proctor`: find a subcommand, run it, turn errors into exit codes.

Promises a start-up time close to that of bare Python, one line for every error a user can fix,
and exit code 2 (never 1, which means that a gate failed) for everything that could not be judged.
An unexpected error is written to a report file; with `--debug` its traceback is printed.
"""

import contextlib
import io
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

import click

from proctor import __version__
from proctor.cli._command import Entry, LazyGroup, colour_choice
from proctor.errors import EXIT_CANNOT_JUDGE, ProctorError
from proctor.sanitize import printable

if TYPE_CHECKING:
    import logging
    from pathlib import Path

EXIT_INTERRUPTED = 128 + 2
"""The exit code that shells report for a process ended by SIGINT."""

EXIT_PIPE_CLOSED = 128 + 13
"""The exit code that shells report for a process ended by SIGPIPE."""

RUNS_TRIALS = {
    *("test", "run", "ab", "profile", "fork", "why", "ci", "rerun", "gate"),
    *("baseline", "agent", "schedule"),
}
"""Commands that import and run the code of users, which they leave to workers: an agent that ends
or blocks its process must not decide the exit code of a gate."""

FINDS_CODE = RUNS_TRIALS | {"validate", "list", "scenario"}
"""Commands that find code of users in the working folder, too, as `python -m proctor` does. Others
only read data, and a folder of traces may come from anyone."""

COMPLETE_VARIABLE = "_PROCTOR_COMPLETE"
"""Set by the completion script when the shell asks for completions."""

MAX_REPORTS = 20
"""Error reports to keep; older ones are deleted, so that a loop of failing jobs fills no disk."""

SECTIONS = {
    "Start": {
        "demo": Entry(".demo", "Run a built-in example."),
        "init": Entry(".demo", "Write a suite, an example agent and a CI workflow to start from."),
        "import-suite": Entry(".exchange", "Convert a test file of another tool into a suite."),
        "doctor": Entry(".doctor", "Check the installation, settings and keys."),
        "config": Entry(".config", "Show settings, print schemas and shell completion."),
    },
    "CI": {
        "validate": Entry(".validate", "Check suites, experiments, templates and settings."),
        "test": Entry(".test", "Run each case once and check the result."),
        "ci": Entry(".ci", "Run, gate against the main branch, comment on the change."),
        "baseline": Entry(".baseline", "Save the agent's traces, and show what changed since."),
    },
    "Trials": {
        "run": Entry(".run", "Run suites, experiments or scenarios and store every trial."),
        "rerun": Entry(".run", "Repeat a run and compare the results."),
        "list": Entry(".list", "List cases and experiments.", "list_all"),
        "data": Entry(".list", "Show and compare the data that cases are made from."),
        "agent": Entry(".agent", "Register, list, test and remove agents."),
        "schedule": Entry(".schedule", "Run suites and experiments on a cron schedule."),
        "warm": Entry(".warm", "Keep a process warm for the commands of this shell."),
        "scenario": Entry(".scenario", "Build, check, store and fetch scenarios."),
    },
    "Results": {
        "results": Entry(".results", "Show run results."),
        "sql": Entry(".results", "Query results with SQL."),
        "report": Entry(".report", "Report on a run (HTML, Markdown, charts, terminal)."),
        "view": Entry(".serve", "Browse runs in the browser, or a folder of traces."),
        "compare": Entry(".compare", "Compare two or more runs or agents."),
        "leaderboard": Entry(".compare", "Rank agents, with rank ranges."),
        "gate": Entry(".compare", "Test whether a run is worse than another."),
        "ab": Entry(".causes", "Test whether a change of the agent helps."),
        "profile": Entry(".causes", "Measure how reliable an agent is."),
        "fork": Entry(".causes", "Continue a recorded trial from a step, with a change."),
        "why": Entry(".causes", "Test what a failing trial broke on."),
        "power": Entry(".compare", "Compute how many cases and trials are needed."),
        "runs": Entry(".runs", "Manage stored runs: progress, tags, notes, copies."),
    },
    "Traces": {
        "trace": Entry(".trace", "List, show, query, convert and score traces."),
        "serve": Entry(".serve", "Receive, store and show live traces (OTLP)."),
        "store": Entry(".store", "Manage the trace store."),
        "diagnose": Entry(".diagnose", "Find what broke in traces, or in the trials of a run."),
        "case": Entry(".case", "Make a regression case from a failing trial or trace."),
        "trail": Entry(".trail", "Measure diagnosis against TRAIL's annotations."),
    },
    "Models": {
        "gateway": Entry(".gateway", "Trace, limit, record and replay model calls of any program."),
        "judge": Entry(".judge", "Check how reliable an LLM judge is."),
        "mcp": Entry(".mcp", "Serve Proctor to coding agents (MCP), and lint MCP servers."),
        "mock-llm": Entry(
            ".gateway", "Serve a scripted model (OpenAI, Anthropic and Gemini protocols)."
        ),
    },
}
"""The commands, as `--help` groups them; modules are relative to `proctor.cli`."""

_OTHER_OPTIONS = {
    "--debug": "put `--debug` before the command: proctor --debug run suite.yaml",
    "--config": "the file is an argument: proctor test suite.yaml",
    "--scenario": "it is `--case` here: proctor results --case 'mutualism*'",
    "--scenarios": "scenarios are arguments: proctor run 'mutualism/*' --agents random",
}
"""Option that a command does not have → what to write."""

MOVED = {
    "batch": "is now `proctor run`: proctor run experiment.yaml, or several targets or a glob,"
    " proctor run 'mutualism/*' --agents random,scripted --seeds 0..9",
    "save": "is now `proctor baseline save`",
    "baselines": "is now `proctor baseline list`",
    "diff": "is now `proctor baseline diff`",
    "build": "is now `proctor scenario build`",
    "check": "is now `proctor scenario check`",
    "fetch": "is now `proctor scenario fetch`",
    "status": "is now `proctor runs status`",
    "annotate": "is now `proctor runs note`",
    "tag": "is now `proctor runs tag`",
    "audit": "is now `proctor runs audit`",
    "share": "is now `proctor runs share`",
    "sync": "is now `proctor runs sync`",
    "export": "is now `proctor runs export`",
    "import": "is now `proctor runs import`",
    "plan": "is now `proctor power`",
    "schema": "is now `proctor config schema`",
    "completion": "is now `proctor config completion`",
}
"""Former command → what replaces it."""


@click.group(
    name="proctor",
    cls=LazyGroup,
    sections=SECTIONS,
    moved=MOVED,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, prog_name="proctor", message="%(prog)s %(version)s")
@click.option("--debug", is_flag=True, help="Log debug messages and show tracebacks.")
def cli(debug: bool) -> None:
    """Test LLM agents with repeated, traced trials.
    `validate` reads files, `test` and `scenario check` run each case once.

    Examples:
      # a built-in example
      proctor demo
      # how often is the agent right?
      proctor run suite.yaml --trials 10
    """


def main(args: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit with its exit code."""
    given = sys.argv[1:] if args is None else args
    code: int | None = None
    if (address := os.environ.get("PROCTOR_WARM")) and RUNS_TRIALS & set(given[:1]):
        from proctor.cli.warm import forward

        code = forward(address, given)
    code = run(given) if code is None else code
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
    # Before anything else: the shell waits for completions at every tab.
    if COMPLETE_VARIABLE in os.environ:
        cli.main(list(args), prog_name="proctor")  # answers the shell and exits
    name = next((each for each in args if not each.startswith("-")), "")
    if name in FINDS_CODE:
        # At the end of the path: a file here must not replace an installed package.
        with contextlib.suppress(OSError):  # the folder is gone
            if (here := os.getcwd()) not in sys.path:  # noqa: PTH109 (pathlib is slow to import)
                sys.path.append(here)
    try:
        # Windows has no fork: there, the code of an agent can end the command with its exit code.
        if name in RUNS_TRIALS and hasattr(os, "fork"):
            from proctor.imports import user_code_left_to_workers

            with user_code_left_to_workers():
                code = _exit_code(list(args))
        else:
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
        colour = colour_choice(os.environ)
        with cli.make_context("proctor", list(args), color=colour) as context:
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
        if isinstance(error, click.NoSuchOption):
            hint = _OTHER_OPTIONS.get(error.option_name, hint)
        # On one line (click lists choices one per line), and "range" is no type to a user.
        message = " ".join(error.format_message().split())
        message = message.replace("valid float range", "valid float")
        _print_error(f"error: {message.replace('valid integer range', 'valid integer')}", hint)
        # Not click's own code: it returns 1 for a file that it cannot open.
        return EXIT_CANNOT_JUDGE
    except BrokenPipeError:  # an OSError, but handled by `run`: it is no bug
        raise
    except ProctorError as error:
        _print_traceback(debug)
        _print_error(f"error: {error}", error.hint)
        return error.exit_code
    except Exception as error:  # noqa: BLE001  the last guard: a bug must not look like a failed gate
        _print_traceback(debug)
        # With --debug the traceback is on the screen: no file is needed.
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


# Messages and command lines may contain keys, and users paste them into public bug reports.
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
    # `force` replaces handlers that an imported package may have installed.
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
    # Not in the results folder: the error may be about that folder.
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
