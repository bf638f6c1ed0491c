"""Times of cron expressions, over changes of the clocks."""

from datetime import UTC, datetime, timedelta
from itertools import islice, takewhile
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proctor.errors import ProctorError
from proctor.ops.schedule import Cron

BERLIN = ZoneInfo("Europe/Berlin")


def local(times: list[datetime]) -> list[str]:
    return [f"{at.astimezone(BERLIN):%m-%d %H:%M %z}" for at in times]


@pytest.mark.parametrize(
    ("cron", "since", "expected"),
    [
        pytest.param(
            "30 2 * * *",
            datetime(2026, 3, 28, 12, tzinfo=BERLIN),
            ["03-29 03:00 +0200", "03-30 02:30 +0200", "03-31 02:30 +0200"],
            id="02:30 does not exist in spring: the first minute that does",
        ),
        pytest.param(
            "30 2 * * *",
            datetime(2026, 10, 24, 12, tzinfo=BERLIN),
            ["10-25 02:30 +0200", "10-26 02:30 +0100", "10-27 02:30 +0100"],
            id="02:30 comes twice in autumn: once is enough",
        ),
        pytest.param(
            "30 2 * * *",
            datetime(2026, 10, 25, 2, 15, fold=1, tzinfo=BERLIN),
            ["10-26 02:30 +0100", "10-27 02:30 +0100", "10-28 02:30 +0100"],
            id="asked within the second of the two hours: it has been",
        ),
        pytest.param(
            "*/30 * * * *",
            datetime(2026, 10, 25, 1, 45, tzinfo=BERLIN),
            ["10-25 02:00 +0200", "10-25 02:30 +0200", "10-25 02:00 +0100"],
            id="every half hour of real time",
        ),
    ],
)
def test_changes_of_the_clocks(cron: str, since: datetime, expected: list[str]) -> None:
    """R-Q7: no night is left out and none run twice when the clocks change."""
    assert local(list(islice(Cron(cron, "Europe/Berlin").after(since), 3))) == expected


MOMENTS = st.integers(0, 365 * 24 * 60).map(
    lambda minutes: datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=minutes)
)
EXPRESSIONS = ("30 2 * * *", "*/20 * * * *", "0 0 1 * *", "15 3 * * 1-5", "0 2,3 * * *")


@given(st.sampled_from(EXPRESSIONS), MOMENTS, st.integers(0, 400_000))
def test_the_latest_is_the_last_of_all(cron: str, after: datetime, seconds: int) -> None:
    """R-Q7: what is due after a gap is what going through every time would say."""
    times, until = Cron(cron, "Europe/Berlin"), after + timedelta(seconds=seconds)
    every = list(takewhile(lambda at: at <= until, times.after(after)))
    assert every == sorted(set(every))
    assert times.latest(after, until) == (every[-1] if every else None)


@pytest.mark.parametrize(
    "day", [datetime(2026, 3, 29, tzinfo=BERLIN), datetime(2026, 10, 25, tzinfo=BERLIN)]
)
def test_every_moment_around_a_change_of_the_clocks(day: datetime) -> None:
    """R-Q7: a server that looks every ten minutes runs a nightly job exactly once that day."""
    times, moment = Cron("30 2 * * *", "Europe/Berlin"), day.astimezone(UTC)
    began, due = moment, []
    while moment < began + timedelta(hours=20):
        following = moment + timedelta(minutes=10)
        due += [found] if (found := times.latest(moment, following)) else []
        moment = following
    assert len(due) == 1


@pytest.mark.parametrize(
    ("cron", "zone", "expected"),
    [
        ("0 2 * *", "UTC", "not a cron expression"),
        ("0 0 2 * * *", "UTC", "not a cron expression"),
        ("61 2 * * *", "UTC", "bad minute"),
        ("@dayly", "UTC", "not a cron expression"),
        ("0 0 31 2 *", "UTC", "bad day-of-month"),
        ("0 2 * * *", "Europe/Berln", "no time zone"),
        ("0 2 * * *", "../etc/passwd", "no time zone"),
    ],
)
def test_what_is_no_time_is_refused(cron: str, zone: str, expected: str) -> None:
    """R-Q7: expressions and zones are checked where they are given."""
    with pytest.raises(ProctorError, match=expected):
        Cron(cron, zone)


def test_slips_are_recognised() -> None:
    """R-Q7: the nearest name is offered."""
    with pytest.raises(ProctorError) as slip:
        Cron("@dayly", "UTC")
    assert "'@daily'" in str(slip.value.hint)
    with pytest.raises(ProctorError) as zone:
        Cron("@daily", "Europe/Berln")
    assert "Europe/Berlin" in str(zone.value.hint)
