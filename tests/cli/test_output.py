"""What agents print while a command keeps its own output clean."""

import io
import sys
import threading
from pathlib import Path

import click
import pytest
from commands import proctor
from report_runs import make_run

from proctor.cli._command import colour_choice
from proctor.cli._output import stdout_reserved


class Bits(io.StringIO):
    """A stream that gives other threads their turn after every write."""

    def write(self, text: str) -> int:
        written = super().write(text)
        threading.Event().wait(0.0001)
        return written


def test_lines_stay_whole_whoever_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    """R-R6: an event has a line of its own, however many agents print at the same time."""
    monkeypatch.setattr(sys, "stderr", Bits())
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    together = threading.Barrier(4)

    def agent(number: int) -> None:
        together.wait(60)
        for count in range(20):
            print("agent", number, "says", count, file=sys.stderr if count % 2 else None)

    with stdout_reserved():
        agents = [threading.Thread(target=agent, args=(number,)) for number in range(4)]
        for each in agents:
            each.start()
        for each in agents:
            each.join()
    said = sys.stderr.getvalue().splitlines()
    assert sorted(said) == sorted(f"agent {n} says {c}" for n in range(4) for c in range(20))
    assert sys.stdout.getvalue() == ""


def test_what_has_no_line_break_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """R-R6: a prompt is shown when it is flushed, and the rest when the block ends."""
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    err = sys.stderr
    with stdout_reserved():
        print("your move? ", end="", flush=True)
        assert err.getvalue() == "your move? "
        other = threading.Thread(target=lambda: print("and so on", end=""))
        other.start()
        other.join()
        sys.stdout.writelines(["one\n", "two"])
        assert err.getvalue() == "your move? one\n"
    assert err.getvalue() == "your move? one\nand so ontwo"
    assert sys.stderr is err


@pytest.mark.parametrize(
    ("environ", "chosen"),
    [
        ({}, None),
        ({"FORCE_COLOR": "1"}, True),
        ({"FORCE_COLOR": ""}, None),
        ({"FORCE_COLOR": "0"}, None),
        ({"NO_COLOR": "1"}, False),
        ({"NO_COLOR": ""}, None),
        ({"NO_COLOR": "1", "FORCE_COLOR": "1"}, False),
    ],
)
def test_colour_follows_the_two_variables(environ: dict[str, str], chosen: bool | None) -> None:
    """R-S6: NO_COLOR wins; an empty value means nothing."""
    assert colour_choice(environ) is chosen


def test_forced_colour_reaches_a_pipe(tmp_path: Path) -> None:
    """R-S6: with FORCE_COLOR a CI log has colour; the words stay the same."""
    run = make_run(tmp_path / "results" / "made" / "2026-05-28_001")
    plain = proctor("report", run, env={"FORCE_COLOR": ""}).stdout
    forced = proctor("report", run, env={"FORCE_COLOR": "1"}).stdout
    assert "\x1b[" not in plain
    assert "\x1b[" in forced
    assert click.unstyle(forced) == plain
