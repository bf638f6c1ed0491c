"""`proctor schedule`: run suites and experiments on a cron schedule."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from proctor.cli._command import CommandGroup
from proctor.cli._options import (
    complete_files,
    json_option,
    log_options,
    notify_on_option,
    option,
)
from proctor.cli._output import echo_json
from proctor.errors import ProctorError
from proctor.formatting import plural
from proctor.sanitize import printable
from proctor.tables import table

if TYPE_CHECKING:
    from proctor.ops.schedule import Book, Schedule, State


@click.group(
    cls=CommandGroup,
    moved={"export": "was removed: call `proctor schedule run NAME --log` from cron or systemd"},
)
def schedule() -> None:
    """Run suites and experiments on a cron schedule.

    Schedules belong to the project: they are stored in .proctor next to its proctor.yaml.

    Examples:
      # every night at 2:00 UTC
      proctor schedule add exp.yaml --cron '0 2 * * *'
      # run what is due, until Ctrl-C
      proctor schedule serve
    """


@schedule.command()
@click.argument("target", shell_complete=complete_files)
@click.argument("options", nargs=-1, type=click.UNPROCESSED, metavar="[-- RUN OPTIONS]")
@option("--cron EXPR", "Five fields, or @hourly, @daily, …", required=True)
@option("--tz ZONE", "The time zone.", default="UTC")
@option("--name NAME", "The name of the schedule.  [default: from TARGET]")
@option(
    "--missed",
    "After missed times: one run for all of them, or none.",
    choices=("run", "skip"),
    default="run",
)
@option("--overlap", "Start even if the previous run has not ended.", is_flag=True)
@option("--notify URL", "As in `proctor run`; ${VARIABLES} are resolved by the run.", multiple=True)
@notify_on_option
def add(target: str, options: tuple[str, ...], name: str | None, **given: Any) -> None:
    """Add a schedule.

    Examples:
      # every night at 2:00 UTC
      proctor schedule add exp.yaml --cron '0 2 * * *'
      # weekdays at 8:30 local time
      proctor schedule add exp.yaml --cron '30 8 * * 1-5' --tz Europe/Berlin
      # the URL comes from a variable when it runs
      proctor schedule add exp.yaml --cron @daily --notify '${SLACK}' --notify-on failure
      # with options of `proctor run`
      proctor schedule add exp.yaml --cron @hourly -- --trials 5 --max-cost 1
    """

    from proctor.ops.schedule import Schedule, default_name, utc_now

    _check_run_options(options)
    # The variable that passes the URLs to the run separates them by spaces.
    if any(len(address.split()) != 1 for address in given["notify"]):
        raise click.UsageError("a --notify URL must not contain spaces")
    book = _open_book()
    # Relative to the project, so that the project can be moved.
    where = Path(os.path.relpath(Path.cwd().resolve(), book.project)).as_posix()
    new = Schedule(target=target, options=options, folder=where, added=utc_now(), **given)
    times = new.times()  # checks the cron expression and the zone
    # Other targets (experiments, scopes) are resolved when they run: they may not exist yet.
    if not Path(target).exists() and target.endswith((".yaml", ".yml", ".py")):
        raise ProctorError("no such file", where=target)
    name = name or default_name(target)
    book.add(name, new)
    click.echo(f"added {name}; next:")
    upcoming = times.after(new.added)
    # Three, so that the user can see whether the expression means what was intended.
    for _ in range(3):
        at = next(upcoming)
        click.echo(f"  {at.astimezone(times.zone):%a %Y-%m-%d %H:%M %Z} ({at:%Y-%m-%d %H:%M} UTC)")
    click.echo("hint: `proctor schedule serve` runs what is due", err=True)


def _check_run_options(options: tuple[str, ...]) -> None:
    """Parse the options as `proctor run` will, so that a mistake is reported now, not at night."""
    from proctor.cli.run import run

    if any(word == "--notify" or word.startswith("--notify=") for word in options):
        raise click.UsageError("put --notify before the `--`, so that its URL is stored separately")
    # A strict context: with resilient parsing, click would ignore mistakes.
    with run.make_context("proctor run", ["TARGET", *options], resilient_parsing=False) as found:
        wrong = [key for key in ("resume", "retry_failed", "retry_infra") if found.params.get(key)]
    if wrong:
        raise click.UsageError(f"--{wrong[0].replace('_', '-')} cannot be scheduled")


@schedule.command("list")
@json_option
def list_all(as_json: bool) -> None:
    """List schedules, with their next and last run.

    Examples:
      # as JSON
      proctor schedule list --json
    """
    from proctor.ops.schedule import State, utc_now

    book = _open_book()
    states, now = book.states(), utc_now()
    rows = [
        _row(book, name, each, states.get(name) or State(considered=each.added), now)
        for name, each in book.schedules().items()
    ]
    if as_json:
        echo_json({"schedules": rows})
        return
    if not rows:
        click.echo("no schedules")
        click.echo("hint: `proctor schedule add exp.yaml --cron '0 2 * * *'`", err=True)
        return
    head = ("NAME", "TARGET", "CRON", "ZONE", "NEXT (UTC)", "LAST")
    keys = ("name", "target", "cron", "tz", "next", "last")
    cells = [[printable(str(row[key])) for key in keys] for row in rows]
    click.echo("\n".join(table(head, cells, indent="")))


def _row(book: Book, name: str, each: Schedule, state: State, now: Any) -> dict[str, Any]:
    from proctor.ops.notify import masked

    # The lock decides: after a crash of the scheduler, the file may still have a process id.
    running = state.pid is not None and book.running(name)
    last = "never"
    if running:
        last = f"running since {state.started:%Y-%m-%d %H:%M}"
    elif state.started is not None:
        how = "outcome unknown" if state.exit_code is None else f"exit code {state.exit_code}"
        last = f"{state.started:%Y-%m-%d %H:%M}, {how}"
    if state.skipped:
        last += f"; then skipped: {state.skipped}"
    return {
        "name": name,
        **{key: getattr(each, key) for key in ("target", "cron", "tz", "missed", "overlap")},
        "notify": [masked(address) for address in each.notify],
        "next": f"{next(each.times().after(now)):%Y-%m-%d %H:%M}",
        "last": last,
        "running": running,
        "exit_code": state.exit_code,
        "log": state.log,
    }


@schedule.command()
@click.argument("name")
def remove(name: str) -> None:
    """Remove a schedule; its runs stay.

    Examples:
      # remove one
      proctor schedule remove exp
    """
    _open_book().remove(name)
    click.echo(f"removed {printable(name)}")


@schedule.command("run")
@click.argument("name")
@option("--log", "to_log", "Write output to its log file.", is_flag=True)
@click.pass_context
def run_now(ctx: click.Context, name: str, to_log: bool) -> None:
    """Run a schedule now.

    Exits as `proctor run` does, and with 2 if it is already running and may not overlap.

    Examples:
      # as the scheduler would
      proctor schedule run exp
    """
    from proctor.cli._signals import handle_signals
    from proctor.ops.schedule import RealClock, Scheduler, launch, started_state, utc_now

    book = _open_book()
    found = book.named(name)
    # With a log, the scheduler's own code runs it, so that the file is limited in size.
    if to_log:
        server = Scheduler(book, RealClock(), lambda line: None)
        process = server.start(name, found).process
    else:
        server = None
        process = launch(book, name, found)
        book.note(name, found, **started_state(utc_now(), process.pid, None))
    # Signals are passed on: the run stops in its own way.
    with handle_signals(lambda number, _frame: process.send_signal(number)):
        code = process.wait() if server is None else server.wait_for(process)
    book.note(name, found, finished=utc_now(), exit_code=code, pid=None)
    # A negative code is a signal; shells report it as 128 + its number.
    ctx.exit(code if code >= 0 else 128 - code)


@schedule.command()
@log_options
def serve() -> None:
    """Run schedules when they are due.

    Stops at Ctrl-C or SIGTERM: it then stops the runs in progress and waits for them. They can be
    resumed.

    Examples:
      # until Ctrl-C or SIGTERM
      proctor schedule serve
      # and write a log
      proctor schedule serve --log-file serve.log
    """
    from proctor.cli._signals import handle_signals
    from proctor.ops.schedule import RealClock, Scheduler

    book, clock = _open_book(), RealClock()
    with book.serving(), handle_signals(lambda _number, _frame: clock.stop()):
        _log(
            f"serving {plural(len(book.schedules()), 'schedule')} of {book.project}; Ctrl-C to stop"
        )
        Scheduler(book, clock, _log).serve()
    _log("stopped")


def _log(line: str) -> None:
    import logging

    from proctor.ops.schedule import utc_now

    logging.getLogger("proctor.schedule").info("%s", line)
    click.echo(f"{utc_now():%Y-%m-%d %H:%M:%S}Z {printable(line)}", err=True)


def _open_book() -> Book:
    """Return the schedules of the current project."""
    from proctor.ops.schedule import Book
    from proctor.spec.config import find_project_file

    found = find_project_file(Path.cwd())
    return Book(Path.cwd() if found is None else found.parent)
