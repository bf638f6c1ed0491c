"""Schedules of a project: kept in a file, with what became of them.

Promise: many processes may add, remove and run; the files are replaced wholly or not at all. What
has been considered is written before anything is started, so a time comes at most once, whatever
crashes. Addresses of notifications hold secrets: the files are the owner's alone and out of git.
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
from proctor.files import lock_file, write_atomic
from proctor.imports import needs_extra

# Times of a cron expression in a time zone, right over changes of the clocks.
#
# Promise: five fields or a name such as `@daily`, read as Debian's cron reads them. In spring a
# time that does not exist falls on the first minute that does; in autumn a fixed time counts
# once, the first of the two. Expressions that repeat by the hour or minute go by the real time
# that passes.


NAMED = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
}

_CHANGE = timedelta(hours=4)
"""More than clocks are ever changed by: looking back so far finds a time whatever they did."""


class Cron:
    """An expression in a time zone."""

    def __init__(self, expression: str, zone: str) -> None:
        needs_extra("cronsim", "schedule")
        from cronsim import CronSim, CronSimError

        self.expression = NAMED.get(expression.strip().lower(), " ".join(expression.split()))
        self.zone = time_zone(zone)
        hint = "five fields: minute hour day month weekday, such as '0 2 * * *'"
        if expression.strip().startswith("@") and self.expression.startswith("@"):
            hint = hint_among(expression, NAMED)
        # A sixth field would be seconds, which no cron but this library's knows.
        if len(self.expression.split()) != 5:
            raise ProctorError(f"not a cron expression: {expression!r}", where="cron", hint=hint)
        try:
            next(CronSim(self.expression, datetime(2024, 1, 1, tzinfo=UTC)))
        except CronSimError as error:
            said = str(error)[:1].lower() + str(error)[1:]
            raise ProctorError(
                f"not a cron expression: {expression!r}: {said}", where="cron", hint=hint
            ) from None
        except StopIteration:
            raise ProctorError(
                f"{expression!r} never comes", where="cron", hint="no month has such a day"
            ) from None

    def after(self, moment: datetime) -> Iterator[datetime]:
        """The times after a moment, in UTC."""
        from cronsim import CronSim

        # In the doubled hour the library starts from the first of two: those are left out.
        for found in CronSim(self.expression, moment.astimezone(self.zone)):
            at = found.astimezone(UTC)
            if at > moment:
                yield at

    def latest(self, after: datetime, until: datetime) -> datetime | None:
        """The last time after one moment and up to another, or None."""
        from cronsim import CronSim

        if next(self.after(after)) > until:
            return None
        # From before any change of the clocks forward, so that long gaps cost nothing.
        before = (until - _CHANGE).astimezone(self.zone)
        found = next(CronSim(self.expression, before, reverse=True)).astimezone(UTC)
        found = max(found, after)
        last = found if found > after else None
        for at in self.after(found):
            if at > until:
                break
            last = at
        return last


def time_zone(name: str) -> ZoneInfo:
    """A time zone by its name."""
    from zoneinfo import available_timezones

    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        hint = did_you_mean(name, available_timezones()) or "such as Europe/Berlin, or UTC"
        raise ProctorError(f"no time zone is called {name!r}", where="--tz", hint=hint) from None


FOLDER = ".proctor"
VERSION = 1
MAX_BYTES = 4_000_000
"""Far more than any project's schedules; a file beyond it is not one."""
PRIVATE = 0o600
"""Addresses of notifications hold tokens: nobody but the owner reads the files."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class Schedule(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A run that begins by itself.

    `folder` is where it runs, from the project's. `missed` says what happens to times when nobody
    was there: `run` does one run for all of them, `skip` waits for the next.
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
        """When it is due."""
        return Cron(self.cron, self.tz)


class State(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What became of a schedule. Times up to `considered` have been seen to."""

    considered: datetime
    due: datetime | None = None
    started: datetime | None = None
    finished: datetime | None = None
    exit_code: int | None = None
    pid: int | None = None
    log: str | None = None
    left_out: str | None = None
    """Why the latest time was not run, if it was not."""


class _Written(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: Literal[1]
    schedules: dict[str, Any]


class Busy(ProctorError):
    """It is running already, and may not overlap."""


class Book:
    """The schedules below a project's folder.

    .proctor/
      .gitignore               everything here
      schedules.yaml           what is to run when; may be edited by hand
      schedules.state.json     when each was last considered, started, finished, and how
      schedules.lock           held while one of the two is changed
      schedules.serve.lock     held by `proctor schedule serve`
      schedules/NAME.lock      held by a run of NAME, by the child itself
      logs/NAME/*.log          what runs printed, one file each
    """

    def __init__(self, project: Path) -> None:
        self.project = project.resolve()
        self.folder = self.project / FOLDER
        self._file = self.folder / "schedules.yaml"
        self._state = self.folder / "schedules.state.json"

    # -- reading ---------------------------------------------------------------------------------

    def schedules(self) -> dict[str, Schedule]:
        """All of them by name, checked."""
        import yaml

        try:
            content = self._file.read_bytes()
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise ProctorError(f"cannot read: {error.strerror}", where=str(self._file)) from None
        if len(content) > MAX_BYTES:
            raise ProctorError("too large for a file of schedules", where=str(self._file))
        try:
            written = msgspec.convert(yaml.safe_load(content), _Written)
            return {name: self._schedule(name, each) for name, each in written.schedules.items()}
        except (yaml.YAMLError, msgspec.ValidationError, UnicodeError, RecursionError) as error:
            said = " ".join(str(error).split())
            raise ProctorError(f"not a file of schedules: {said}", where=str(self._file)) from None

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
        """One of them, or which there are."""
        found = self.schedules()
        if name not in found:
            hint = did_you_mean(name, found) or (
                f"there are {', '.join(found)}" if found else "`proctor schedule add` makes one"
            )
            raise ProctorError(f"no schedule is called {name!r}", hint=hint)
        return found[name]

    def states(self) -> dict[str, State]:
        """What became of them."""
        try:
            return msgspec.json.decode(self._state.read_bytes(), type=dict[str, State])
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.MsgspecError) as error:
            raise ProctorError(
                f"cannot read: {error}",
                where=str(self._state),
                hint="without this file, schedules go on from when they were added",
            ) from None

    def running(self, name: str) -> bool:
        """Whether a run of it holds its lock."""
        path = self._run_lock(name)
        if not path.exists():
            return False
        with path.open("a+b") as file:
            return not lock_file(file, wait=False)

    # -- changing --------------------------------------------------------------------------------

    def add(self, name: str, schedule: Schedule) -> None:
        """Keep one more."""
        checked_name(name)
        with self._changing():
            found = self.schedules()
            if name in found:
                raise ProctorError(
                    f"there is a schedule {name!r} already",
                    hint="--name gives another; `proctor schedule remove` makes room",
                )
            self._write({**found, name: schedule})
            self._write_states({k: v for k, v in self.states().items() if k != name})

    def remove(self, name: str) -> None:
        """Forget one; what it ran is kept."""
        with self._changing():
            self.named(name)
            self._write({k: v for k, v in self.schedules().items() if k != name})
            self._write_states({k: v for k, v in self.states().items() if k != name})

    def note(self, name: str, schedule: Schedule, **changes: Any) -> State:
        """Change what is known of one, at once and for good."""
        with self._changing():
            states = self.states()
            state = states.get(name) or State(considered=schedule.added)
            states[name] = msgspec.structs.replace(state, **changes)
            self._write_states(states)
            return states[name]

    def claim(self, name: str) -> IO[bytes]:
        """The lock of a run, to be handed to its process; `Busy` while another holds it."""
        path = self._run_lock(name)
        self._make(path.parent)
        file = path.open("a+b")
        for _ in range(3):
            if lock_file(file, wait=False):
                return file
            time.sleep(0.02)  # whoever asks `running` holds it for a moment
        file.close()
        raise Busy(f"{name} is still running", hint="--overlap allows several at a time")

    @contextlib.contextmanager
    def serving(self) -> Generator[None]:
        """Be the one that serves, or say that another does."""
        self._make(self.folder)
        with (self.folder / "schedules.serve.lock").open("a+b") as file:
            if not lock_file(file, wait=False):
                raise ProctorError(
                    "another `proctor schedule serve` is at work",
                    where=str(self.project),
                    hint="one serves all schedules of a project: stop it to begin another",
                )
            yield

    def logs(self, name: str) -> Path:
        """The folder of what its runs printed."""
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
        text = msgspec.json.format(msgspec.json.encode(dict(states))).decode()
        write_atomic(self._state, text.encode(), mode=PRIVATE)


def checked_name(name: str) -> str:
    """A name that can be that of a file everywhere."""
    if not _NAME.fullmatch(name):
        raise ProctorError(
            f"{name!r} cannot be the name of a schedule",
            where="--name",
            hint="letters, digits, dots, dashes and underscores, 64 at most",
        )
    return name


def name_for(target: str) -> str:
    """The name of a schedule that was given none: that of its file or experiment."""
    stem = Path(target).stem if target.endswith((".yaml", ".yml", ".py")) else target
    return re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("-._")[:64] or "schedule"


def utc_now() -> datetime:
    """This moment."""
    return datetime.now(UTC)
