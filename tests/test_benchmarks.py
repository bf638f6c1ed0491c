"""`benchmarks/run` gathers what the benchmarks print, and says what it did without."""

import sys
from pathlib import Path

import pytest

SAID = """CPython 3.11.7, 2 CPUs

### 1,000 trials

| | cpu ms, median | × bare loop |
|---|---:|---:|
| bare loop | 1.20 | 1.00 |
| proctor | 3.60 | 3.00 |

left out: deepeval (deepeval is not installed; `benchmarks/run --fetch` brings it)
"""


@pytest.fixture
def gather(root: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(root / "benchmarks"))
    import run_all

    yield run_all
    for name in ("run_all", "_measure"):
        sys.modules.pop(name, None)


def test_figures_are_taken_as_they_stand(gather) -> None:
    """R-D1: every row of every table, under its heading, by the names of its columns."""
    bare, ours = gather.tables("trials", SAID)
    assert (ours.comparison, ours.who) == ("1,000 trials", "proctor")
    assert ours.figures == {"cpu ms, median": "3.60", "× bare loop": "3.00"}
    told = {"made": "2026-11-16T00:00:00", "machine": "m", "load": (1, 2, 3), "quick": True}
    text = gather.markdown({**told, "remarks": {"trials": ["left out: deepeval"]}}, [bare, ours])
    assert "| trials | 1,000 trials | proctor | cpu ms, median 3.60; × bare loop 3.00 |" in text
    assert "- trials: left out: deepeval" in text
    (goal,) = gather.tables("trials", "| | measured | |\n|---|---|---|\n| CPU | 3.6 | met |")
    text = gather.markdown({**told, "remarks": {}}, [bare, goal])
    assert text.index("| trials | CPU | measured 3.6; met |") < text.index("| trials | 1,000")


def test_every_benchmark_is_in_it(gather, root: Path) -> None:
    """R-D1: none is forgotten but those that need two source trees or measure no speed."""
    programs = {path.stem for path in (root / "benchmarks").glob("[a-z]*.py")} - {
        "run_all",
        "compare_trees",
        "faults",
        "causes",
    }
    assert programs == set(gather.ALL)


def test_a_peer_that_is_not_there_is_not_fetched(gather, monkeypatch, tmp_path: Path) -> None:
    """R-D1: no network unless it was asked for."""
    import _measure

    monkeypatch.setattr(_measure, "ENVIRONMENTS", tmp_path)
    monkeypatch.setenv("BENCH_PEERS", "installed")
    with pytest.raises(FileNotFoundError, match="deepeval is not installed"):
        _measure.peer("deepeval", ["deepeval==4.3.1"])


def test_a_missed_goal_is_told_with_its_figures(gather) -> None:
    """R-D1: rows of a table of goals that were missed stand below the figures as well."""
    said = "| | measured | goal | |\n|---|---|---|---|\n| size | 1 | 3 | met |\n"
    met, row = gather.tables("report", f"{said}| opens in | 2.5 | 2 | missed |\n")
    assert "missed" not in met.figures.values()
    assert gather.missed(row) == "missed: opens in: measured 2.5, goal 2"
