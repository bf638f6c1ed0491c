"""Schedules of a project: cron expressions, and the files that store schedules and their state.

Guarantees: several processes may add, remove and run schedules, because the files are locked and
replaced atomically. A time is marked as considered before its run is started, so it is run at most
once, whatever crashes. Notification URLs contain secrets: only the owner can read the files, and
git ignores them.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Generator, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import IO, Any, Literal, cast
from zoneinfo import ZoneInfo

import msgspec

from proctor.errors import ProctorError, did_you_mean, hint_among, refuse_unknown
from proctor.files import load_yaml, lock_file, read_bounded, write_atomic
from proctor.imports import needs_extra

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
                f"there are {', '.join(found)}" if found else "`proctor schedule add` adds one"
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
