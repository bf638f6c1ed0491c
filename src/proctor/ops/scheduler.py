"""Run schedules when they are due, each run a process of its own.

Promise: a run that crashes ends nothing but itself; a time comes at most once; times that nobody
was there for are seen to as the schedule says. A run outlives a server that is killed, and holds
its lock itself, so that the next server does not start it twice.
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
"""A time noticed later than this was missed: the server looks every `LOOK` seconds."""

LOOK = 30.0
"""Seconds between looks at the file and the clock, which both may be changed by others."""

LOOK_AT_RUNS = 1.0
"""Seconds between looks at runs under way."""

CLOCK_SET_BACK = timedelta(hours=1)
"""A moment considered that lies further ahead than this was taken from a clock that was wrong."""

GRACE = 10.0
"""Seconds that runs get to end when the server is told to; a run promises 5."""

KEPT_LOGS = 20
"""Files of output kept for each schedule."""

_VARIABLE = re.compile(r"\$\{(\w+)\}")


class Clock(Protocol):
    """What the server takes time from."""

    def now(self) -> datetime:
        """This moment, in UTC."""
        ...

    def wait(self, seconds: float) -> bool:
        """Let time pass; True when it is time to stop."""
        ...


class RealClock:
    """The machine's clock; `stop` ends every wait."""

    def __init__(self) -> None:
        self._stopped = threading.Event()

    def now(self) -> datetime:
        """This moment."""
        return utc_now()

    def wait(self, seconds: float) -> bool:
        """Wait, unless told to stop."""
        return self._stopped.wait(seconds)

    def stop(self) -> None:
        """It is time to stop."""
        self._stopped.set()


class Started(NamedTuple):
    """A run under way."""

    name: str
    schedule: Schedule
    process: subprocess.Popen[bytes]
    log: Path


class Scheduler:
    """Starts what is due and notes what became of it. One at a time: hold `book.serving()`."""

    def __init__(self, book: Book, clock: Clock, tell: Callable[[str], None]) -> None:
        self._book = book
        self._clock = clock
        self._tell = tell
        self.running: list[Started] = []

    def serve(self) -> None:
        """Go on until the clock says to stop; then ask runs to end, and wait for them."""
        self._forget_lost()
        try:
            while True:
                seconds = LOOK
                try:
                    seconds = self.tick()
                except ProctorError as error:  # a file being edited: the next look may be better
                    self._tell(str(error))
                if self._clock.wait(seconds):
                    return
        finally:
            self.stop()

    def tick(self) -> float:
        """See to what is due now; the seconds until the next look."""
        self.reap()
        now = self._clock.now()
        schedules, states = self._book.schedules(), self._book.states()
        seconds = LOOK_AT_RUNS if self.running else LOOK
        for name, schedule in schedules.items():
            state = states.get(name) or State(considered=schedule.added)
            if state.pid is not None and state.log is not None:
                logs.cut(self._book.project / state.log)  # of a server that was killed, perhaps
            self._consider(name, schedule, state, now)
            following = next(schedule.times().after(now))
            seconds = min(seconds, (following - now).total_seconds())
        return max(0.0, min(seconds, LOOK_AT_RUNS) if self.running else seconds)

    def _consider(self, name: str, schedule: Schedule, state: State, now: datetime) -> None:
        since = state.considered
        if since - now > CLOCK_SET_BACK:
            self._tell(f"{name}: the clock was set back; going on from now")
            self._book.note(name, schedule, considered=now)
            return
        due = schedule.times().latest(since, now) if since < now else None
        if due is None:
            return
        if now - due > LATE and schedule.missed == "skip":
            why = f"missed at {due:%Y-%m-%d %H:%M} UTC"
            self._book.note(name, schedule, considered=now, due=due, left_out=why)
            self._tell(f"{name}: {why}; waiting for the next time")
            return
        self._book.note(name, schedule, considered=now, due=due, left_out=None)
        try:
            self.start(name, schedule)
        except (ProctorError, OSError) as error:
            self._book.note(name, schedule, left_out=str(error))
            self._tell(f"{name}: left out: {error}")

    def start(self, name: str, schedule: Schedule) -> Started:
        """Start a run now, with its output in a log file."""
        now = self._clock.now()
        path = self._book.logs(name) / f"{now:%Y%m%dT%H%M%S.%fZ}.log"
        with path.open("ab", buffering=0) as log:
            process = launch(self._book, name, schedule, output=log)
        keep_newest(path.parent, KEPT_LOGS)
        kept = str(path.relative_to(self._book.project))
        self._book.note(name, schedule, **begun(now, process.pid, kept))
        self._tell(f"{name}: started, output in {kept}")
        self.running.append(Started(name, schedule, process, path))
        return self.running[-1]

    def reap(self) -> None:
        """Note the runs that have ended, and keep the output of the others within bounds."""
        for each in list(self.running):
            logs.cut(each.log)
            code = each.process.poll()
            if code is not None:
                self.running.remove(each)
                self._ended(each, code)

    def wait_for(self, process: subprocess.Popen[bytes]) -> int:
        """The exit code of a run, whose output is kept within bounds until then."""
        while True:
            try:
                return process.wait(LOOK_AT_RUNS)
            except subprocess.TimeoutExpired:
                self.reap()

    def stop(self) -> None:
        """Ask runs to end as Ctrl-C does; what they finished is safe and can be resumed."""
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
        self._tell(f"{each.name}: ended with {_told(code)}")
        if code < 0:  # it had no chance to tell anybody itself
            with contextlib.suppress(ProctorError):
                tell_of_death(self._book, each.name, each.schedule, _told(code), self._tell)

    def _note_end(self, name: str, schedule: Schedule, code: int) -> None:
        if name in self._book.schedules():
            finished = self._clock.now()
            self._book.note(name, schedule, finished=finished, exit_code=code, pid=None)

    def _forget_lost(self) -> None:
        """Runs of an earlier server that have ended since: how is not known."""
        states = self._book.states()
        for name, schedule in self._book.schedules().items():
            state = states.get(name)
            if state is not None and state.pid is not None and not self._book.running(name):
                self._book.note(name, schedule, pid=None, finished=None, exit_code=None)


def begun(now: datetime, pid: int, log: str | None) -> dict[str, object]:
    """What is noted of a schedule whose run has started."""
    return {"started": now, "pid": pid, "log": log, "finished": None, "exit_code": None}


def launch(
    book: Book, name: str, schedule: Schedule, *, output: IO[bytes] | None = None
) -> subprocess.Popen[bytes]:
    """Start a run as a process that holds its own lock; `Busy` when it may not overlap."""
    argv = [sys.executable, "-m", "proctor", "run", *run_arguments(schedule)]
    environ = child_environment(schedule, os.environ)
    lock = None if schedule.overlap else book.claim(name)
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
            # Ctrl-C is for the server, which asks its runs to end.
            start_new_session=True,
            pass_fds=() if lock is None or os.name == "nt" else (lock.fileno(),),
        )
    finally:
        if lock is not None:
            lock.close()


def run_arguments(schedule: Schedule) -> list[str]:
    """What follows `proctor run`; no address of a notification is among it."""
    events = [word for event in schedule.notify_on for word in ("--notify-on", event)]
    return [schedule.target, *schedule.options, *events]


def child_environment(schedule: Schedule, environ: Mapping[str, str]) -> dict[str, str]:
    """The variables of a run: addresses go this way, since all users may see command lines."""
    if not schedule.notify:
        return dict(environ)
    return {**environ, "PROCTOR_NOTIFY_TO": " ".join(addresses(schedule, environ))}


def addresses(schedule: Schedule, environ: Mapping[str, str]) -> list[str]:
    """The addresses of a schedule, with `${VARIABLES}` put in."""

    def value(match: re.Match[str]) -> str:
        if match[1] not in environ:
            raise ProctorError(
                f"the variable {match[1]} of --notify is not set",
                hint=f"set {match[1]} where `proctor schedule serve` is started",
            )
        return environ[match[1]]

    return [_VARIABLE.sub(value, each) for each in schedule.notify]


def tell_of_death(
    book: Book, name: str, schedule: Schedule, how: str, tell: Callable[[str], None]
) -> None:
    """Notify of a run whose process was killed."""
    from proctor import api
    from proctor.ops.notify import Notifier, NotifyEvent, notice, wish_for

    to = addresses(schedule, os.environ)
    wish = wish_for(api.settings(book.project / schedule.folder), to, schedule.notify_on)
    if not wish.to:
        return
    notifier = Notifier(wish, tell)
    what = {"name": name, "outcome": "died", "stopped": f"its process ended with {how}"}
    notifier.send(notice((NotifyEvent.END, NotifyEvent.FAILURE), **what))
    notifier.close()


def keep_newest(folder: Path, most: int) -> None:
    """Remove the oldest logs; their names are in the order of time."""
    for old in sorted(folder.glob("*.log"))[:-most]:
        for path in (old, old.with_name(f"{old.name}.1")):
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)


def _told(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    with contextlib.suppress(ValueError):
        return signal.Signals(-code).name
    return f"signal {-code}"
