"""Times of a cron expression in a time zone, right over changes of the clocks.

Promise: five fields or a name such as `@daily`, read as Debian's cron reads them. In spring a time
that does not exist falls on the first minute that does; in autumn a fixed time counts once, the
first of the two. Expressions that repeat by the hour or minute go by the real time that passes.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from proctor.errors import ProctorError, did_you_mean, hint_among
from proctor.imports import needs_extra

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
