"""Run schedules when they are due, each run in its own process.

Guarantees: a crash of a run affects nothing else; each time is run at most once; times missed while
no scheduler was running are handled as the schedule says. A run continues if the scheduler is
killed, and its process holds the lock, so that the next scheduler does not start it twice.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import IO, NamedTuple, Protocol

from proctor.errors import ProctorError
from proctor.ops import logs
from proctor.ops.schedule import Book, Schedule, State, utc_now
from proctor.runs.audit import command_line
from proctor.trace.redact import default_redactor

LATE = timedelta(seconds=90)
"""A time noticed later than this counts as missed; the scheduler checks every `CHECK_SECONDS`."""

CHECK_SECONDS = 30.0
"""Time between checks: the file may be edited and the clock may be set at any moment."""

CHECK_RUNS_SECONDS = 1.0
"""Time between checks while runs are in progress."""

CLOCK_SET_BACK = timedelta(hours=1)
"""If the time considered last is further ahead than this, the clock was wrong at that time."""

GRACE = 10.0
"""Seconds that runs get to end when the scheduler stops; a run promises 5."""

MAX_LOGS = 20
"""Log files kept for each schedule."""

_VARIABLE = re.compile(r"\$\{(\w+)\}")


class Clock(Protocol):
    """The clock of the scheduler; tests use their own."""

    def now(self) -> datetime:
        """Return the current time, in UTC."""
        ...

    def wait(self, seconds: float) -> bool:
        """Wait, or return True at once when the scheduler must stop."""
        ...


class RealClock:
    """The machine's clock; `stop` ends every wait."""

    def __init__(self) -> None:
        self._stopped = threading.Event()

    def now(self) -> datetime:
        """Return the current time."""
        return utc_now()

    def wait(self, seconds: float) -> bool:
        """Wait, or return True as soon as `stop` is called."""
        return self._stopped.wait(seconds)

    def stop(self) -> None:
        """End every wait."""
        self._stopped.set()


class Started(NamedTuple):
    """A run in progress."""

    name: str
    schedule: Schedule
    process: subprocess.Popen[bytes]
    log: Path


class Scheduler:
    """Starts schedules when they are due and records how their runs end.

    Only one may run per project: hold `book.serving()`.
    """

    def __init__(self, book: Book, clock: Clock, log: Callable[[str], None]) -> None:
        self._book = book
        self._clock = clock
        self._log = log
        self.running: list[Started] = []

    def serve(self) -> None:
        """Run until the clock is stopped; then stop the runs and wait for them."""
        # Runs of an earlier scheduler that was killed may have ended since: their exit code is
        # unknown, since only their parent process could read it.
        states = self._book.states()
        for name, schedule in self._book.schedules().items():
            state = states.get(name)
            if state is not None and state.pid is not None and not self._book.running(name):
                self._book.note(name, schedule, pid=None, finished=None, exit_code=None)
        try:
            while True:
                seconds = CHECK_SECONDS
                try:
                    seconds = self.tick()
                except ProctorError as error:  # the file is being edited: try again later
                    self._log(str(error))
                if self._clock.wait(seconds):
                    return
        finally:
            self.stop()

    def tick(self) -> float:
        """Start what is due now; return the seconds until the next check."""
        self.reap()
        now = self._clock.now()
        schedules, states = self._book.schedules(), self._book.states()
        seconds = CHECK_RUNS_SECONDS if self.running else CHECK_SECONDS
        for name, schedule in schedules.items():
            state = states.get(name) or State(considered=schedule.added)
            if state.pid is not None and state.log is not None:
                # Also for a run of an earlier scheduler, which `reap` does not know.
                logs.truncate_log(self._book.project / state.log)
            self._consider(name, schedule, state, now)
            following = next(schedule.times().after(now))
            seconds = min(seconds, (following - now).total_seconds())
        return max(0.0, min(seconds, CHECK_RUNS_SECONDS) if self.running else seconds)

    def _consider(self, name: str, schedule: Schedule, state: State, now: datetime) -> None:
        since = state.considered
        if since - now > CLOCK_SET_BACK:
            # Otherwise the schedule would not run until the clock reaches that time again.
            self._log(f"{name}: the clock was set back; continuing from now")
            self._book.note(name, schedule, considered=now)
            return
        due = schedule.times().latest(since, now) if since < now else None
        if due is None:
            return
        if now - due > LATE and schedule.missed == "skip":
            why = f"missed at {due:%Y-%m-%d %H:%M} UTC"
            self._book.note(name, schedule, considered=now, due=due, skipped=why)
            self._log(f"{name}: {why}; waiting for the next time")
            return
        # Before the start: after a crash in between, the time is lost rather than run twice.
        self._book.note(name, schedule, considered=now, due=due, skipped=None)
        try:
            self.start(name, schedule)
        except (ProctorError, OSError) as error:
            self._book.note(name, schedule, skipped=str(error))
            self._log(f"{name}: skipped: {error}")

    def start(self, name: str, schedule: Schedule) -> Started:
        """Start a run now, with its output in a log file."""
        now = self._clock.now()
        path = self._book.logs(name) / f"{now:%Y%m%dT%H%M%S.%fZ}.log"
        with path.open("ab", buffering=0) as log:
            process = launch(self._book, name, schedule, output=log)
        delete_old_logs(path.parent, MAX_LOGS)
        shown = str(path.relative_to(self._book.project))
        self._book.note(name, schedule, **started_state(now, process.pid, shown))
        self._log(f"{name}: started, output in {shown}")
        self.running.append(Started(name, schedule, process, path))
        return self.running[-1]

    def reap(self) -> None:
        """Record the runs that have ended, and limit the log files of the others."""
        for each in list(self.running):
            logs.truncate_log(each.log)
            code = each.process.poll()
            if code is not None:
                self.running.remove(each)
                self._ended(each, code)

    def wait_for(self, process: subprocess.Popen[bytes]) -> int:
        """Wait for a run while limiting its log file; return the exit code."""
        while True:
            try:
                return process.wait(CHECK_RUNS_SECONDS)
            except subprocess.TimeoutExpired:
                self.reap()

    def stop(self) -> None:
        """Stop the runs as Ctrl-C does; their finished trials are saved and can be resumed."""
        # All are signalled before the first wait, so that they stop in parallel.
        for each in self.running:
            each.process.terminate()
        for each in self.running:
            try:
                each.process.wait(GRACE)
            except subprocess.TimeoutExpired:
                each.process.kill()
                each.process.wait()
            self._note_end(each.name, each.schedule, each.process.returncode)
        self.running = []

    def _ended(self, each: Started, code: int) -> None:
        self._note_end(each.name, each.schedule, code)
        self._log(f"{each.name}: ended with {_exit_text(code)}")
        if code < 0:  # killed: it could not send its own notification
            with contextlib.suppress(ProctorError):
                notify_killed(self._book, each.name, each.schedule, code, self._log)

    def _note_end(self, name: str, schedule: Schedule, code: int) -> None:
        # A schedule may have been removed while it ran.
        if name in self._book.schedules():
            finished = self._clock.now()
            self._book.note(name, schedule, finished=finished, exit_code=code, pid=None)


def started_state(now: datetime, pid: int, log: str | None) -> dict[str, object]:
    """Return the changed fields of the state of a schedule whose run has started."""
    return {"started": now, "pid": pid, "log": log, "finished": None, "exit_code": None}


def launch(
    book: Book, name: str, schedule: Schedule, *, output: IO[bytes] | None = None
) -> subprocess.Popen[bytes]:
    """Start a run as a process that holds its lock; raise `Busy` if it may not overlap."""
    argv = [sys.executable, "-m", "proctor", "run", *run_arguments(schedule)]
    environ = child_environment(schedule, os.environ)
    lock = None if schedule.overlap else book.lock_run(name)
    try:
        if output is not None:
            shown = command_line(["proctor", *argv[3:]], default_redactor())
            output.write(f"$ {shown}\n".encode())
        return subprocess.Popen(  # noqa: S603  the user's own command
            argv,
            cwd=book.project / schedule.folder,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            # Ctrl-C in a terminal must reach only the scheduler, which then stops its runs.
            start_new_session=True,
            pass_fds=() if lock is None or os.name == "nt" else (lock.fileno(),),
        )
    finally:
        if lock is not None:
            lock.close()  # the child has inherited the lock and holds it until it ends


def run_arguments(schedule: Schedule) -> list[str]:
    """Return the arguments of `proctor run`, without notification URLs."""
    events = [word for event in schedule.notify_on for word in ("--notify-on", event)]
    return [schedule.target, *schedule.options, *events]


def child_environment(schedule: Schedule, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a run.

    It carries the notification URLs, because all users of a machine can see command lines.
    """
    if not schedule.notify:
        return dict(environ)
    return {**environ, "PROCTOR_NOTIFY_TO": " ".join(addresses(schedule, environ))}


def addresses(schedule: Schedule, environ: Mapping[str, str]) -> list[str]:
    """Return the notification URLs of a schedule, with `${VARIABLES}` replaced."""

    def value(match: re.Match[str]) -> str:
        if match[1] not in environ:
            raise ProctorError(
                f"the variable {match[1]} of --notify is not set",
                hint=f"set {match[1]} where `proctor schedule serve` is started",
            )
        return environ[match[1]]

    return [_VARIABLE.sub(value, each) for each in schedule.notify]


def notify_killed(
    book: Book, name: str, schedule: Schedule, code: int, warn: Callable[[str], None]
) -> None:
    """Notify about a run whose process was killed."""
    from proctor import api
    from proctor.ops.notify import Notifier, NotifyEvent, notice, notify_request

    to = addresses(schedule, os.environ)
    request = notify_request(api.settings(book.project / schedule.folder), to, schedule.notify_on)
    if not request.to:
        return
    notifier = Notifier(request, warn)
    reason = f"its process ended with {_exit_text(code)}"
    events = (NotifyEvent.END, NotifyEvent.FAILURE)
    notifier.send(notice(events, name=name, outcome="died", stopped=reason))
    notifier.close()


def delete_old_logs(folder: Path, most: int) -> None:
    """Delete the oldest log files; their names are in the order of time."""
    for old in sorted(folder.glob("*.log"))[:-most]:
        for path in (old, old.with_name(f"{old.name}.1")):
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)


def _exit_text(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    with contextlib.suppress(ValueError):  # a real-time signal has no name
        return signal.Signals(-code).name
    return f"signal {-code}"
