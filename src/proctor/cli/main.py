"""The command `proctor`: find a subcommand, run it, turn errors into exit codes.

Promises a start-up time close to that of bare Python, one line for every error a user can fix,
and exit code 2 (never 1, which means that a gate failed) for everything that could not be judged.
An unexpected error is written to a report file; with `--debug` its traceback is printed.
"""

import contextlib
import io
import os
import signal
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

import click

from proctor import __version__
from proctor.cli._command import Entry, LazyGroup
from proctor.errors import EXIT_CANNOT_JUDGE, ProctorError
from proctor.sanitize import printable

if TYPE_CHECKING:
    import logging
    from pathlib import Path
    from types import FrameType

EXIT_INTERRUPTED = 128 + 2
"""The exit code that shells report for a process ended by SIGINT."""

EXIT_PIPE_CLOSED = 128 + 13
"""The exit code that shells report for a process ended by SIGPIPE."""

COMPLETE_VARIABLE = "_PROCTOR_COMPLETE"
"""Set by the completion script when the shell asks for completions."""

MAX_REPORTS = 20
"""Error reports to keep; older ones are deleted, so that a loop of failing jobs fills no disk."""

COMMANDS = {
    "demo": Entry("proctor.cli.demo", "demo", "Run a built-in example."),
    "init": Entry(
        "proctor.cli.demo",
        "init",
        "Write a suite, an example agent and a CI workflow to start from.",
    ),
    "doctor": Entry("proctor.cli.doctor", "doctor", "Check the installation, settings and keys."),
    "config": Entry(
        "proctor.cli.config", "config", "Show settings, print schemas and shell completion."
    ),
    "validate": Entry(
        "proctor.cli.validate", "validate", "Check suites, experiments, templates and settings."
    ),
    "test": Entry("proctor.cli.test", "test", "Run each case once and check the result."),
    "baseline": Entry(
        "proctor.cli.baseline", "baseline", "Save the agent's traces, and show what changed since."
    ),
    "run": Entry(
        "proctor.cli.run", "run", "Run suites, experiments or scenarios and store every trial."
    ),
    "rerun": Entry("proctor.cli.rerun", "rerun", "Repeat a run and compare the results."),
    "list": Entry("proctor.cli.list", "list_all", "List cases and experiments."),
    "agent": Entry("proctor.cli.agent", "agent", "Register, list, test and remove agents."),
    "schedule": Entry(
        "proctor.cli.schedule", "schedule", "Run suites and experiments on a cron schedule."
    ),
    "scenario": Entry(
        "proctor.cli.scenario", "scenario", "Build, check, store and fetch scenarios."
    ),
    "results": Entry("proctor.cli.results", "results", "Show run results."),
    "sql": Entry("proctor.cli.results", "sql", "Query results with SQL."),
    "report": Entry(
        "proctor.cli.report", "report", "Report on a run (HTML, Markdown, charts, terminal)."
    ),
    "view": Entry("proctor.cli.serve", "view", "Browse runs in the browser."),
    "compare": Entry("proctor.cli.compare", "compare", "Compare two or more runs or agents."),
    "leaderboard": Entry("proctor.cli.compare", "leaderboard", "Rank agents, with rank ranges."),
    "gate": Entry("proctor.cli.gate", "gate", "Test whether a run is worse than another."),
    "power": Entry("proctor.cli.gate", "power", "Compute how many cases and trials are needed."),
    "runs": Entry("proctor.cli.runs", "runs", "Manage stored runs: progress, tags, notes, copies."),
    "trace": Entry("proctor.cli.trace", "trace", "List, show, query, convert and score traces."),
    "serve": Entry("proctor.cli.serve", "serve", "Receive, store and show live traces (OTLP)."),
    "store": Entry("proctor.cli.store", "store", "Manage the trace store."),
    "diagnose": Entry(
        "proctor.cli.diagnose", "diagnose", "Find what broke in traces, or in the trials of a run."
    ),
    "trail": Entry("proctor.cli.trail", "trail", "Measure diagnosis against TRAIL's annotations."),
    "judge": Entry("proctor.cli.judge", "judge", "Check how reliable an LLM judge is."),
    "mock-llm": Entry(
        "proctor.cli.mock_llm",
        "mock_llm",
        "Serve a scripted model (OpenAI and Anthropic protocols).",
    ),
}

SECTIONS = {
    "Start": ("demo", "init", "doctor", "config"),
    "CI": ("validate", "test", "baseline"),
    "Trials": ("run", "rerun", "list", "agent", "schedule"),
    "Scenarios": ("scenario",),
    "Results": (
        *("results", "sql", "report", "view", "compare", "leaderboard", "gate", "power"),
        "runs",
    ),
    "Traces": ("trace", "serve", "store", "diagnose", "trail"),
    "Models": ("judge", "mock-llm"),
}
"""How `--help` groups the commands."""

MOVED = {
    "batch": "is now `proctor run` with several targets or a glob: proctor run 'mutualism/*'",
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
    table=COMMANDS,
    sections=SECTIONS,
    moved=MOVED,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, prog_name="proctor", message="%(prog)s %(version)s")
@click.option("--debug", is_flag=True, help="Log debug messages and show tracebacks.")
def cli(debug: bool) -> None:
    """Test LLM agents with repeated, traced trials.

    Proctor runs your agent many times, records every step, and reports what broke, where, and
    whether a change is real.

    `validate` only reads files, `test` runs each case once and stores nothing, `run` stores every
    trial, and `scenario check` builds scenarios and solves them.

    Examples:
      # see everything work, offline, in a few seconds
      proctor demo
      # is the agent right?
      proctor test suite.yaml
      # how often is it right?
      proctor run suite.yaml --trials 10
      # what did the agent do?
      proctor trace show run.json
    """


def main(args: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit with its exit code."""
    given = list(sys.argv[1:] if args is None else args)
    name = next((each for each in given if not each.startswith("-")), "")
    # Windows has no fork: there, the code of an agent can end the command with its own exit code.
    forks = name in EXECUTES_CODE and hasattr(os, "fork") and COMPLETE_VARIABLE not in os.environ
    code = supervised(given) if forks else run(given)
    if "obstore" in sys.modules:
        # Its threads may still call into an interpreter that is shutting down, which aborts.
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


# -- supervision -----------------------------------------------------------------------------------
# Agents and checks in Python run in the process of the command. `os._exit(0)` in one of them, or a
# crash of the interpreter, would decide the exit code of the gate. So these commands run in a
# child, and the parent, which executes no code of users, reports how the child ended.

EXECUTES_CODE = frozenset(("test", "run", "rerun", "gate", "baseline", "agent", "schedule"))
"""Commands that execute the code of users in their process."""

_FORWARDED = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")

_PR_SET_PDEATHSIG = 1
"""Linux: the signal a process gets when its parent dies."""


def supervised(args: Sequence[str]) -> int:
    """Run the command line in a child process and return the exit code that it reports.

    A child that ends without a report did not finish its work: exit code 2, and a message that says
    how it ended. Signals to this process are passed on; those of the terminal reach both anyway.
    Terminal, standard input and process group are shared. The child counts a signal to the whole
    group, which it gets from its sender and from here, as one (`SignalCount`).
    """
    import mmap

    from proctor.cli._signals import signal_count

    forwarded = {getattr(signal, name) for name in _FORWARDED}
    reading, writing = os.pipe()
    passed_on = memoryview(mmap.mmap(-1, signal.NSIG))
    # With a handler, so that the signal is kept for `sigwait` instead of being discarded.
    earlier = signal.signal(signal.SIGCHLD, _noted)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {*forwarded, signal.SIGCHLD})
    parent, child = os.getpid(), os.fork()
    if child == 0:
        os.close(reading)
        signal.signal(signal.SIGCHLD, earlier or signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        _die_with(parent)
        signal_count.passed_on = passed_on
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, signal_count.once(signal.default_int_handler))
        code = run(args)
        os.write(writing, bytes([code]))
        return code
    os.close(writing)
    while True:
        number, sent = _next_signal({*forwarded, signal.SIGCHLD})
        if number == signal.SIGCHLD:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                break
        elif sent:
            # Before it is sent: the child must know of it when it arrives.
            passed_on[number] = min(passed_on[number] + 1, 255)
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, number)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    # The child may have left processes behind that hold the other end open.
    os.set_blocking(reading, False)
    with contextlib.suppress(BlockingIOError):
        if report := os.read(reading, 1):
            return report[0]
    code = os.waitstatus_to_exitcode(status)
    code = 128 - code if code < 0 else code
    # Ended at once by a second signal, or by one before it was handled.
    if code in (128 + number for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)):
        return code
    how = f"with exit code {code}" if code < 128 else f"by {signal.Signals(code - 128).name}"
    _print_error(
        f"error: the process ended {how} before the command was done: code of an agent or a check"
        " called os._exit or crashed the interpreter",
        "finished trials are saved, see `proctor runs status`; `isolation: process` of an agent"
        " keeps it from ending the command",
    )
    return EXIT_CANNOT_JUDGE


def _next_signal(expected: "set[signal.Signals]") -> tuple[int, bool]:
    """Wait for a signal; return it, and whether a process sent it to this one."""
    if sys.platform == "linux":
        found = signal.sigwaitinfo(expected)
        return found.si_signo, found.si_code <= 0  # the kernel's own, as of Ctrl-C, are above 0
    number = signal.sigwait(expected)
    # Elsewhere a signal has no sender: Ctrl-C goes to both, anything else is passed on.
    return number, not (number == signal.SIGINT and os.isatty(0))


def _noted(_number: int, _frame: "FrameType | None") -> None:
    """Do nothing at a signal that `sigwait` reports."""


def _die_with(parent: int) -> None:
    """Let `kill -9` of the parent end this process as well, where the system can do that."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it has died already
            os._exit(EXIT_CANNOT_JUDGE)


def run(args: Sequence[str]) -> int:
    """Run the command line and return its exit code."""
    for stream in (sys.stdout, sys.stderr):
        # A character that the terminal cannot show must not end the program.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    # Before anything else: the shell waits for completions at every tab.
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
