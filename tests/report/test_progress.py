"""Progress displays: the live line keeps to its line, and every display counts alike."""

import asyncio
import io
import json

import pytest
from rich.cells import cell_len

from proctor.report.progress import JsonEvents, LogLines, ProgressGroup, StatusLine, progress_for
from proctor.runs.trial import PlannedTrial, TrialStatus

CLEAR = "\r\x1b[2K"


class Terminal(io.StringIO):
    """Something that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    "text", ["short", "long " * 40, "日本語" * 30, "bad \x1b[31m\n\r\x07 name"]
)
def test_a_status_line_stays_one_line(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """R-R6 R-R10: it fits the terminal, and no control of a name reaches the terminal."""
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("TERM", "xterm")
    out = Terminal()
    status = StatusLine(out)
    status.show(text)
    written = out.getvalue()
    assert written.startswith(CLEAR)
    shown = written.removeprefix(CLEAR)
    assert shown.isprintable()
    assert cell_len(shown) < 40
    assert shown[:3] == text[:3]
    status.clear()
    assert out.getvalue() == written + CLEAR


def test_the_reader_decides_the_display() -> None:
    """R-R6: nothing when quiet, events on request, else a live line or lines."""
    assert progress_for(io.StringIO(), quiet=True, events=True) is None
    kinds = {
        type(progress_for(out, quiet=False, events=events)).__name__
        for out in (io.StringIO(), Terminal())
        for events in (True, False)
    }
    assert kinds == {"JsonEvents", "LogLines", "LiveLine"}


def test_displays_of_a_group_see_the_same_run() -> None:
    """R-R6: a trial kept from before counts as done, one that was skipped as not needed."""
    lines, events = io.StringIO(), io.StringIO()
    clock = iter(range(100)).__next__
    displays = LogLines(lines, clock), JsonEvents(events, clock)
    trials = [PlannedTrial("case", "agent", index, index) for index in range(4)]

    async def follow() -> None:
        group = ProgressGroup(displays[0], None, displays[1])
        group.planned(4, [trials[0].trial(TrialStatus.PASSED)])
        for planned, status in zip(
            trials[1:3], (TrialStatus.PASSED, TrialStatus.FAILED), strict=True
        ):
            group.started(planned)
            group.finished(planned.trial(status))
        group.skipped(trials[3])
        displays[0].show()
        for each in displays:
            each.close()

    asyncio.run(follow())
    assert lines.getvalue().splitlines()[-1].startswith("3/3 done · 2/3 passed (66.7 %)")
    seen = [json.loads(text) for text in events.getvalue().splitlines()]
    assert [each["event"] for each in seen] == [
        *("planned", "started", "finished", "started", "finished", "skipped")
    ]
    assert seen[-2]["status"] == "failed"
    assert seen[-2]["done"] == displays[0].done == displays[1].done == 3
