"""Schedules of a project: cron expressions, their files, and the scheduler that runs what is due.

Guarantees: several processes may add, remove and run schedules, because the files are locked and
replaced atomically. A time is marked as considered before its run is started, so it is run at most
once, whatever crashes; times missed while no scheduler was running are handled as the schedule
says. Each run has its own process: its crash affects nothing else, it continues if the scheduler is
killed, and it holds the lock, so that the next scheduler does not start it twice. Notification URLs
contain secrets: only the owner can read the files, and git ignores them.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple, Protocol, cast
from zoneinfo import ZoneInfo

import msgspec

from proctor.errors import ProctorError, did_you_mean, hint_among, refuse_unknown
from proctor.files import load_yaml, lock_file, read_bounded, write_atomic
from proctor.imports import needs_extra
from proctor.ops import logs
from proctor.runs.audit import command_line
from proctor.trace.redact import default_redactor

# -- cron expressions ----------------------------------------------------------------------------

NAMED = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
}

# Longer than any change between summer and winter time, so that a search that starts this much
# earlier starts before the change.
_CLOCK_CHANGE = timedelta(hours=4)


class Cron:
    """A cron expression in a time zone: five fields, or a name such as `@daily`.

    Changes of the clock are handled as in Debian's cron. In spring, a time that does not exist
    becomes the first minute that does. In autumn, a fixed time counts once, the first of the two.
    Expressions that repeat by the hour or minute follow the time that really passes.
    """

    def __init__(self, expression: str, zone: str) -> None:
        needs_extra("cronsim", "schedule")
        from cronsim import CronSim, CronSimError

        self.expression = NAMED.get(expression.strip().lower(), " ".join(expression.split()))
        self.zone = time_zone(zone)
        hint = "five fields: minute hour day month weekday, such as '0 2 * * *'"
        if expression.strip().startswith("@") and self.expression.startswith("@"):
            hint = hint_among(expression, NAMED)
        # The library takes a sixth field for seconds, which no other cron supports.
        if len(self.expression.split()) != 5:
            raise ProctorError(f"not a cron expression: {expression!r}", where="cron", hint=hint)
        try:
            next(CronSim(self.expression, datetime(2024, 1, 1, tzinfo=UTC)))
        except CronSimError as error:
            reason = str(error)[:1].lower() + str(error)[1:]
            raise ProctorError(
                f"not a cron expression: {expression!r}: {reason}", where="cron", hint=hint
            ) from None
        except StopIteration:
            raise ProctorError(
                f"{expression!r} never occurs", where="cron", hint="no month has such a day"
            ) from None

    def after(self, moment: datetime) -> Iterator[datetime]:
        """Yield the times after a moment, in UTC."""
        from cronsim import CronSim

        # In the hour that occurs twice, the library starts from the first one: skip those times.
        for found in CronSim(self.expression, moment.astimezone(self.zone)):
            at = found.astimezone(UTC)
            if at > moment:
                yield at

    def latest(self, after: datetime, until: datetime) -> datetime | None:
        """Return the last time after one moment and up to another, or None."""
        from cronsim import CronSim

        if next(self.after(after)) > until:
            return None
        # Search backward from just before `until`, then forward: a server that was off for months
        # must not step through all the times it missed.
        before = (until - _CLOCK_CHANGE).astimezone(self.zone)
        found = next(CronSim(self.expression, before, reverse=True)).astimezone(UTC)
        found = max(found, after)
        last = found if found > after else None
        for at in self.after(found):
            if at > until:
                break
            last = at
        return last


def time_zone(name: str) -> ZoneInfo:
    """Return a time zone by name."""
    from zoneinfo import available_timezones

    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        hint = did_you_mean(name, available_timezones()) or "such as Europe/Berlin, or UTC"
        raise ProctorError(f"no time zone is called {name!r}", where="--tz", hint=hint) from None


# -- stored schedules ----------------------------------------------------------------------------

FOLDER = ".proctor"
VERSION = 1

MAX_BYTES = 4_000_000
"""Bytes of the file: far more than the schedules of any project."""

PRIVATE = 0o600
"""The mode of the files: notification URLs contain tokens, so only the owner may read them."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class Schedule(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A scheduled run.

    `folder` is its working directory, relative to the project. `missed` says what to do about times
    at which no scheduler was running: `run` does one run for all of them, `skip` none.
    """

    target: str
    cron: str
    tz: str = "UTC"
    folder: str = "."
    options: tuple[str, ...] = ()
    notify: tuple[str, ...] = ()
    notify_on: tuple[str, ...] = ()
    missed: Literal["run", "skip"] = "run"
    overlap: bool = False
    added: datetime

    def times(self) -> Cron:
        """Return its times."""
        return Cron(self.cron, self.tz)


class State(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The state of a schedule. Times up to `considered` have been handled."""

    considered: datetime
    due: datetime | None = None
    started: datetime | None = None
    finished: datetime | None = None
    exit_code: int | None = None
    pid: int | None = None
    log: str | None = None
    skipped: str | None = msgspec.field(default=None, name="left_out")
    """Why the latest time was skipped, if it was. The file has the field's former name."""


class _Written(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: Literal[1]
    schedules: dict[str, Any]


class Busy(ProctorError):
    """The schedule is already running and may not overlap."""


class Book:
    """The schedules of a project, stored in its folder.

    .proctor/
      .gitignore               ignores everything here
      schedules.yaml           the schedules; may be edited by hand
      schedules.state.json     when each was last considered, started and finished; exit codes
      schedules.lock           held while one of these two files is changed
      schedules.serve.lock     held by `proctor schedule serve`
      schedules/NAME.lock      held by the process of a run of NAME
      logs/NAME/*.log          the output of runs, one file each
    """

    def __init__(self, project: Path) -> None:
        self.project = project.resolve()
        self.folder = self.project / FOLDER
        self._file = self.folder / "schedules.yaml"
        self._state = self.folder / "schedules.state.json"

    # -- reading ---------------------------------------------------------------------------------

    def schedules(self) -> dict[str, Schedule]:
        """Return all schedules by name, validated."""
        import yaml

        try:
            content = read_bounded(self._file, MAX_BYTES)
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise ProctorError(f"cannot read: {error.strerror}", where=str(self._file)) from None
        try:
            written = msgspec.convert(load_yaml(content), _Written)
            return {name: self._schedule(name, each) for name, each in written.schedules.items()}
        except (yaml.YAMLError, msgspec.ValidationError, UnicodeError, RecursionError) as error:
            reason = " ".join(str(error).split())
            raise ProctorError(
                f"not a file of schedules: {reason}", where=str(self._file)
            ) from None

    def _schedule(self, name: str, written: Any) -> Schedule:
        checked_name(name)
        where = f"{self._file}: {name}"
        if isinstance(written, dict):
            refuse_unknown(cast(dict[object, Any], written), Schedule.__struct_fields__, where)
        found = msgspec.convert(written, Schedule)
        if found.added.tzinfo is None:
            raise ProctorError("`added` has no time zone", where=where)
        try:
            found.times()
        except ProctorError as error:
            raise ProctorError(error.message, where=where, hint=error.hint) from None
        return found

    def named(self, name: str) -> Schedule:
        """Return a schedule; raise an error that lists the names for an unknown one."""
        found = self.schedules()
        if name not in found:
            hint = did_you_mean(name, found) or (
                f"known: {', '.join(found)}" if found else "`proctor schedule add` adds one"
            )
            raise ProctorError(f"no schedule is called {name!r}", hint=hint)
        return found[name]

    def states(self) -> dict[str, State]:
        """Return the state of each schedule that has been considered."""
        try:
            return msgspec.json.decode(self._state.read_bytes(), type=dict[str, State])
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.MsgspecError) as error:
            raise ProctorError(
                f"cannot read: {error}",
                where=str(self._state),
                hint="if you delete this file, schedules start again from when they were added",
            ) from None

    def running(self, name: str) -> bool:
        """Return whether a run of the schedule holds its lock."""
        path = self._run_lock(name)
        if not path.exists():
            return False
        with path.open("a+b") as file:
            return not lock_file(file, wait=False)

    # -- changing --------------------------------------------------------------------------------

    def add(self, name: str, schedule: Schedule) -> None:
        """Add a schedule."""
        checked_name(name)
        with self._changing():
            found = self.schedules()
            if name in found:
                raise ProctorError(
                    f"the schedule {name!r} already exists",
                    hint="choose another --name, or remove it with `proctor schedule remove`",
                )
            self._write({**found, name: schedule})
            self._write_states({k: v for k, v in self.states().items() if k != name})

    def remove(self, name: str) -> None:
        """Remove a schedule; its runs stay."""
        with self._changing():
            self.named(name)
            self._write({k: v for k, v in self.schedules().items() if k != name})
            self._write_states({k: v for k, v in self.states().items() if k != name})

    def note(self, name: str, schedule: Schedule, **changes: Any) -> State:
        """Update the state of a schedule, on disk."""
        with self._changing():
            states = self.states()
            state = states.get(name) or State(considered=schedule.added)
            states[name] = msgspec.structs.replace(state, **changes)
            self._write_states(states)
            return states[name]

    def lock_run(self, name: str) -> IO[bytes]:
        """Return the locked file to pass to the process of a run; raise `Busy` if it is locked."""
        path = self._run_lock(name)
        self._make(path.parent)
        file = path.open("a+b")
        for _ in range(3):
            if lock_file(file, wait=False):
                return file
            time.sleep(0.02)  # `running` in another process holds the lock for a moment
        file.close()
        raise Busy(f"{name} is still running", hint="--overlap allows several at a time")

    @contextlib.contextmanager
    def serving(self) -> Generator[None]:
        """Hold the lock of the scheduler inside the block; only one may run per project."""
        self._make(self.folder)
        with (self.folder / "schedules.serve.lock").open("a+b") as file:
            if not lock_file(file, wait=False):
                raise ProctorError(
                    "another `proctor schedule serve` is already running",
                    where=str(self.project),
                    hint="one scheduler runs all schedules of a project",
                )
            yield

    def logs(self, name: str) -> Path:
        """Return the folder of a schedule's log files."""
        path = self.folder / "logs" / name
        self._make(path)
        return path

    def _run_lock(self, name: str) -> Path:
        return self.folder / "schedules" / f"{name}.lock"

    @contextlib.contextmanager
    def _changing(self) -> Generator[None]:
        self._make(self.folder)
        with (self.folder / "schedules.lock").open("a+b") as file:
            lock_file(file)
            yield

    def _make(self, path: Path) -> None:
        try:
            path.mkdir(parents=True, exist_ok=True)
            ignore = self.folder / ".gitignore"
            if not ignore.exists():
                ignore.write_text("*\n", encoding="utf-8")
        except OSError as error:
            raise ProctorError(f"cannot write here: {error.strerror}", where=str(path)) from None

    def _write(self, schedules: Mapping[str, Schedule]) -> None:
        import yaml

        document = {"version": VERSION, "schedules": msgspec.to_builtins(dict(schedules))}
        text = yaml.safe_dump(document, sort_keys=False, allow_unicode=True)
        write_atomic(self._file, text.encode(), mode=PRIVATE)

    def _write_states(self, states: Mapping[str, State]) -> None:
        content = msgspec.json.format(msgspec.json.encode(dict(states)))
        write_atomic(self._state, content, mode=PRIVATE)


def checked_name(name: str) -> str:
    """Return a name that is a valid file name on every system; raise an error for any other."""
    if not _NAME.fullmatch(name):
        raise ProctorError(
            f"{name!r} cannot be the name of a schedule",
            where="--name",
            hint="letters, digits, dots, dashes and underscores, 64 at most",
        )
    return name


def default_name(target: str) -> str:
    """Return the name of a schedule without --name: that of its file or experiment."""
    stem = Path(target).stem if target.endswith((".yaml", ".yml", ".py")) else target
    return re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("-._")[:64] or "schedule"


def utc_now() -> datetime:
    """Return the current time."""
    return datetime.now(UTC)


# -- the scheduler -------------------------------------------------------------------------------

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
    from proctor.ops.notify import Notifier, notice, notify_request

    to = addresses(schedule, os.environ)
    request = notify_request(api.settings(book.project / schedule.folder), to, schedule.notify_on)
    if not request.to:
        return
    notifier = Notifier(request, warn)
    reason = f"its process ended with {_exit_text(code)}"
    notifier.send(notice(("end", "failure"), name=name, outcome="died", stopped=reason))
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
