"""`proctor schedule`: runs that begin by themselves."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from proctor.cli._command import Command, Entry, Example, LazyGroup
from proctor.cli._options import log_options
from proctor.sanitize import printable
from proctor.tables import table
from proctor.words import plural

if TYPE_CHECKING:
    from proctor.ops.schedule import Book, Schedule, State

HERE = "proctor.cli.schedule"

COMMANDS = {
    "add": Entry(HERE, "add", "Run something at the times of a cron expression."),
    "list": Entry(HERE, "list_all", "List schedules: when they are due, and what became of them."),
    "remove": Entry(HERE, "remove", "Forget a schedule; what it ran is kept."),
    "run": Entry(HERE, "run_now", "Run a schedule now."),
    "serve": Entry(HERE, "serve", "Run schedules when they are due, until told to stop."),
}

EXAMPLES = [
    Example("proctor schedule add exp.yaml --cron '0 2 * * *'", "every night at two, UTC"),
    Example("proctor schedule serve", "run what is due, until Ctrl-C"),
]


@click.group(cls=LazyGroup, table=COMMANDS, examples=EXAMPLES)
def schedule() -> None:
    """Run suites and experiments by themselves, at the times of cron expressions.

    Schedules belong to the project: they are kept in .proctor beside its proctor.yaml.
    """


@click.command(
    cls=Command,
    examples=[
        Example("proctor schedule add exp.yaml --cron '0 2 * * *'", "every night at two, UTC"),
        Example(
            "proctor schedule add exp.yaml --cron '30 8 * * 1-5' --tz Europe/Berlin",
            "workdays, at half past eight there, in summer and winter",
        ),
        Example(
            "proctor schedule add exp.yaml --cron @daily --notify '${SLACK}' --notify-on failure",
            "the address comes from a variable when it runs",
        ),
        Example(
            "proctor schedule add exp.yaml --cron @hourly -- --trials 5 --max-cost 1",
            "with options of `proctor run`",
        ),
    ],
)
@click.argument("target")
@click.argument("options", nargs=-1, type=click.UNPROCESSED, metavar="[-- RUN OPTIONS]")
@click.option("--cron", required=True, metavar="EXPR", help="Five fields, or @daily and the like.")
@click.option("--tz", default="UTC", show_default=True, metavar="ZONE", help="Whose clock counts.")
@click.option("--name", metavar="NAME", help="What it is called; as its target when absent.")
@click.option(
    "--missed",
    type=click.Choice(("run", "skip")),
    default="run",
    show_default=True,
    help="Times when nobody served: one run for all of them, or none.",
)
@click.option("--overlap", is_flag=True, help="Start although the one before is still running.")
@click.option(
    "--notify", multiple=True, metavar="URL", help="As for `proctor run`; ${VARIABLES} stay."
)
@click.option(
    "--notify-on",
    multiple=True,
    type=click.Choice(("end", "failure", "regression", "budget")),
    help="As for `proctor run`.",
)
def add(target: str, options: tuple[str, ...], name: str | None, **given: Any) -> None:
    """Run something at the times of a cron expression."""
    import os

    from proctor.errors import ProctorError
    from proctor.ops.schedule import Schedule, name_for, utc_now

    refuse_wrong_options(options)
    if any(len(address.split()) != 1 for address in given["notify"]):
        raise click.UsageError("an address of --notify holds no blanks")
    book = book_here()
    where = Path(os.path.relpath(Path.cwd().resolve(), book.project)).as_posix()
    made = Schedule(target=target, options=options, folder=where, added=utc_now(), **given)
    times = made.times()
    if not Path(target).exists() and target.endswith((".yaml", ".yml", ".py")):
        raise ProctorError("no such file", where=target)
    called = name or name_for(target)
    book.add(called, made)
    click.echo(f"added {called}; next:")
    coming = times.after(made.added)
    for _ in range(3):
        at = next(coming)
        click.echo(f"  {at.astimezone(times.zone):%a %Y-%m-%d %H:%M %Z} ({at:%Y-%m-%d %H:%M} UTC)")
    click.echo("hint: `proctor schedule serve` runs what is due", err=True)


def refuse_wrong_options(options: tuple[str, ...]) -> None:
    """Read the options as `proctor run` will, so that a slip is told now and not at night."""
    from proctor.cli.run import run

    if any(word == "--notify" or word.startswith("--notify=") for word in options):
        raise click.UsageError("give --notify before the `--`: its address is then kept apart")
    with run.make_context("proctor run", ["TARGET", *options], resilient_parsing=False) as found:
        wrong = [key for key in ("resume", "retry_failed", "retry_infra") if found.params.get(key)]
    if wrong:
        raise click.UsageError(f"--{wrong[0].replace('_', '-')} is not for a schedule")


@click.command(
    name="list",
    cls=Command,
    examples=[Example("proctor schedule list --json", "for a program to read")],
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def list_all(as_json: bool) -> None:
    """List schedules: when they are due, and what became of them."""
    import json

    from proctor.ops.schedule import State, utc_now

    book = book_here()
    states, now = book.states(), utc_now()
    rows = [
        _row(book, name, each, states.get(name) or State(considered=each.added), now)
        for name, each in book.schedules().items()
    ]
    if as_json:
        click.echo(json.dumps({"schedules": rows}, indent=2))
        return
    if not rows:
        click.echo("no schedules here")
        click.echo("hint: `proctor schedule add exp.yaml --cron '0 2 * * *'`", err=True)
        return
    head = ("NAME", "TARGET", "CRON", "ZONE", "NEXT (UTC)", "LAST")
    keys = ("name", "target", "cron", "tz", "next", "last")
    cells = [[printable(str(row[key])) for key in keys] for row in rows]
    click.echo("\n".join(table(head, cells, indent="")))


def _row(book: Book, name: str, each: Schedule, state: State, now: Any) -> dict[str, Any]:
    from proctor.ops.notify import shown

    running = state.pid is not None and book.running(name)
    last = "never"
    if running:
        last = f"running since {state.started:%Y-%m-%d %H:%M}"
    elif state.started is not None:
        how = "end not seen" if state.exit_code is None else f"exit code {state.exit_code}"
        last = f"{state.started:%Y-%m-%d %H:%M}, {how}"
    if state.left_out:
        last += f"; then left out: {state.left_out}"
    return {
        "name": name,
        "target": each.target,
        "cron": each.cron,
        "tz": each.tz,
        "missed": each.missed,
        "overlap": each.overlap,
        "notify": [shown(address) for address in each.notify],
        "next": f"{next(each.times().after(now)):%Y-%m-%d %H:%M}",
        "last": last,
        "running": running,
        "exit_code": state.exit_code,
        "log": state.log,
    }


@click.command(cls=Command, examples=[Example("proctor schedule remove exp", "no more of it")])
@click.argument("name")
def remove(name: str) -> None:
    """Forget a schedule; what it ran is kept."""
    book_here().remove(name)
    click.echo(f"removed {printable(name)}")


@click.command(
    name="run", cls=Command, examples=[Example("proctor schedule run exp", "as it would at night")]
)
@click.argument("name")
@click.option("--log", "to_log", is_flag=True, help="Output to its log file, not here.")
@click.pass_context
def run_now(ctx: click.Context, name: str, to_log: bool) -> None:
    """Run a schedule now.

    Exits as `proctor run` does, and with 2 when it is running and may not overlap.
    """
    from proctor.cli._signals import handle_signals
    from proctor.ops.schedule import utc_now
    from proctor.ops.scheduler import RealClock, Scheduler, begun, launch

    book = book_here()
    found = book.named(name)
    if to_log:
        server = Scheduler(book, RealClock(), lambda line: None)
        process = server.start(name, found).process
    else:
        server = None
        process = launch(book, name, found)
        book.note(name, found, **begun(utc_now(), process.pid, None))
    # The run has its own way of ending: it is only told to.
    with handle_signals(lambda number, _frame: process.send_signal(number)):
        code = process.wait() if server is None else server.wait_for(process)
    book.note(name, found, finished=utc_now(), exit_code=code, pid=None)
    ctx.exit(code if code >= 0 else 128 - code)


@click.command(
    cls=Command,
    examples=[
        Example("proctor schedule serve", "until Ctrl-C or SIGTERM"),
        Example("proctor schedule serve --log-file serve.log", "and keep what it says"),
    ],
)
@log_options
def serve() -> None:
    """Run schedules when they are due, until told to stop.

    When told to, it asks runs under way to end and waits for them; they can be resumed.
    """
    from proctor.cli._signals import handle_signals
    from proctor.ops.scheduler import RealClock, Scheduler

    book, clock = book_here(), RealClock()
    with book.serving(), handle_signals(lambda _number, _frame: clock.stop()):
        _say(
            f"serving {plural(len(book.schedules()), 'schedule')} of {book.project}; Ctrl-C ends it"
        )
        Scheduler(book, clock, _say).serve()
    _say("stopped")


def _say(line: str) -> None:
    import logging

    from proctor.ops.schedule import utc_now

    logging.getLogger("proctor.schedule").info("%s", line)
    click.echo(f"{utc_now():%Y-%m-%d %H:%M:%S}Z {printable(line)}", err=True)


def book_here() -> Book:
    """The schedules of the project the user stands in."""
    from proctor.ops.schedule import Book
    from proctor.spec.config import find_project_file

    found = find_project_file(Path.cwd())
    return Book(Path.cwd() if found is None else found.parent)
