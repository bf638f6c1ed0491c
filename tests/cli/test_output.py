"""What agents print while a command keeps its own output clean."""

import io
import sys
import threading

import pytest

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
