"""Trials of many runs, selected: right whatever state the folders are in."""

import os
import shutil
import signal
from datetime import date
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from result_parts import append, finish, trial, write_run
from run_parts import Children, journal, only_run, until, write_suite

from proctor.errors import ProctorError
from proctor.results import query
from proctor.results.database import COLUMNS
from proctor.results.discover import discover
from proctor.results.metadata import NAME
from proctor.runs.annotations import tag
from proctor.runs.folder import FORMAT

NATURE = ["passed", "failed", "hard_fail", "infra_error", "cancelled"]

trials_of_any_kind = st.lists(
    st.builds(
        trial,
        case=st.sampled_from(["greet", "refund", "stock"]),
        agent=st.sampled_from(["a", "b'; --", "ünï"]),
        index=st.integers(0, 4),
        status=st.sampled_from(NATURE),
        params=st.sampled_from([{}, {"t": 0.5}, {"t": 1, "deep": {"x": "y"}}]),
        axis_seed=st.sampled_from([None, 0, 7]),
        cost_usd=st.none() | st.floats(0, 2),
        llm_calls=st.integers(0, 3),
        answer=st.text(max_size=20),
    ),
    max_size=25,
)


def sets_equal(root: Path, other: Path) -> bool:
    """Whether two folders hold the same trials, but for where they are."""
    names = [name for name in COLUMNS if not name.startswith("run")]
    return query(results=root).rows(names) == query(results=other).rows(names)


@settings(max_examples=25)
@given(trials=trials_of_any_kind)
def test_columns_and_journal_say_the_same(tmp_path_factory, trials) -> None:
    """R-D2: a run reads the same from its journal as from its columns, one attempt each."""
    root = tmp_path_factory.mktemp("r")
    done = write_run(root / "done", trials)
    shutil.copytree(root / "done", root / "live")
    (root / "live" / done.path.relative_to(root / "done") / NAME).unlink()
    (found,) = discover(root / "done").runs
    (live,) = discover(root / "live").runs
    assert (found.live, live.live) == (False, True)
    assert sets_equal(root / "done", root / "live")
    assert len(query(results=root / "done")) == len({one.key for one in trials})


def test_a_run_in_progress_is_seen_and_not_disturbed(tmp_path: Path) -> None:
    """R-D2: trials show as they finish, while the writer holds its lock; a kill loses none."""
    suite = write_suite(tmp_path, agent="gate:agent", cases=40, trials=25)
    gate = tmp_path / "open"
    (tmp_path / "gate.py").write_text(  # so that it is not over before it is killed
        "import asyncio, pathlib\n"
        "async def agent(input):\n"
        f"    while input == 'word20' and not pathlib.Path({str(gate)!r}).exists():\n"
        "        await asyncio.sleep(0.01)\n"
        "    return input\n"
    )
    results = tmp_path / "results"
    child = Children(tmp_path / "z")
    pid = child.start("run", suite, "--results", results, "--quiet", "--concurrency", "1")
    until(lambda: any(results.glob("*/*/trials.jsonl")))
    run = only_run(results)
    until(lambda: len(journal(run)) >= 3)
    before = len(journal(run))
    seen = len(query(results=results))
    after = len(journal(run))
    assert before <= seen <= after
    os.kill(pid, signal.SIGKILL)
    child.wait()
    assert len(query(results=results)) == len(journal(run)) < 1000
    gate.touch()
    assert child.run("run", "--resume", run, "--quiet") == 0
    assert len(query(results=results)) == 1000
    assert [one.live for one in discover(results).runs] == [False]


def test_a_torn_line_is_dropped_and_said(tmp_path: Path) -> None:
    """R-D2: what a crash left of a line is neither a trial nor the end of the query."""
    folder = write_run(tmp_path, [trial(index=0), trial(index=1)], finished=False)
    with folder.journal_path.open("ab") as file:
        file.write(b'{"not": "a trial"}\n{"case":"greet","agent":"a","ind')
    found = query(results=tmp_path)
    assert len(found) == 2
    (problem,) = found.problems  # once per run, however many lines
    assert problem.split(": ")[0].rpartition(":")[2] == "3"
    assert "dropped a line" in problem
    assert "and 1 more line" in problem


def test_what_was_added_after_the_columns_is_seen(tmp_path: Path) -> None:
    """R-D2: never stale, never double: a resumed run is read from its journal until it ends."""
    folder = write_run(tmp_path, [trial(index=0, status="infra_error"), trial(index=1)])
    assert query(results=tmp_path).tally().infra_error == 1
    append(folder, [trial(index=0, attempt=2), trial(index=2)])
    again = query(results=tmp_path)
    assert (len(again), again.tally().passed, again.tally().infra_error) == (3, 3, 0)
    finish(folder)
    assert not discover(tmp_path).runs[0].live
    assert len(query(results=tmp_path)) == 3


def test_facts_are_believed_only_while_they_are_true(tmp_path: Path) -> None:
    """R-D2: a copied folder keeps its fast path; an edited spec is read anew."""
    folder = write_run(tmp_path / "a", [trial("greet"), trial("refund")])
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    for path in (tmp_path / "b").rglob("*"):
        os.utime(path, ns=(1, 1))
    (copied,) = discover(tmp_path / "b").runs
    assert not copied.live
    spec = folder.read_spec()
    spec["suite"]["cases"][0]["difficulty"] = "brutal"
    folder.write_spec(spec)
    (edited,) = discover(tmp_path / "a").runs
    assert edited.live
    rows = query(results=tmp_path / "a").group_by("difficulty").rows
    assert [row.key["difficulty"] for row in rows] == ["brutal", "hard"]


@pytest.mark.parametrize("keep", [0, 200])
def test_damaged_columns_are_named_and_the_journal_read(tmp_path: Path, keep: int) -> None:
    """R-D2: a Parquet file cut short or overwritten costs time, not trials."""
    good = write_run(tmp_path, [trial(index=i) for i in range(3)], name="good")
    bad = write_run(tmp_path, [trial(index=i) for i in range(4)], name="bad")
    size, times = bad.parquet_path.stat().st_size, bad.parquet_path.stat()
    content = bad.parquet_path.read_bytes()[:keep]
    bad.parquet_path.write_bytes(content + b"x" * (size - keep))
    os.utime(bad.parquet_path, ns=(times.st_atime_ns, times.st_mtime_ns))
    found = query(results=tmp_path)
    assert len(found) == 7
    assert any(str(bad.parquet_path) in p and "damaged" in p for p in found.problems)
    assert not any(str(good.parquet_path) in p for p in found.problems)
    assert query(results=tmp_path).sql("select count(*) from trials").rows == [(7,)]


def test_columns_that_nobody_wrote_are_named(tmp_path: Path) -> None:
    """R-D2: garbage in place of the columns, with a time and a size of its own, is not silent."""
    bad = write_run(tmp_path, [trial(index=i) for i in range(4)])
    bad.parquet_path.write_bytes(b"no columns at all")
    found = query(results=tmp_path)
    assert len(found) == 4
    (problem,) = found.problems
    assert problem.startswith(f"{bad.parquet_path}: damaged")
    # A run that is resumed has old columns for a while; that is no damage.
    append(bad, [trial(index=4)])
    assert query(results=tmp_path).problems == []


def make_foreign(root: Path) -> dict[str, Path]:
    """Folders that are not runs, in ways that happen."""
    places = {name: root / "other" / name for name in ("yaml", "list", "newer", "none", "odd")}
    for place in places.values():
        place.mkdir(parents=True)
    (places["yaml"] / "_spec_.yaml").write_text("a: [unclosed")
    (places["list"] / "_spec_.yaml").write_text("- 1\n- 2\n")
    (places["newer"] / "_spec_.yaml").write_text("format: 99\nrun_id: x\nname: y\ncells: []\n")
    (places["none"] / "trials.jsonl").write_text("{}\n")
    (places["odd"] / "_spec_.yaml").write_text("format: 1\nsuite: 3\ncells: {a: 1}\nagents: 7\n")
    line = b'{"case":"c","agent":"a","index":0,"seed":0,"status":"passed"}\n'
    (places["odd"] / "trials.jsonl").write_bytes(line)
    places["huge"] = write_run(root, [trial(started_ns=1 << 80)], name="huge", finished=False).path
    return places


def test_foreign_folders_are_named_and_skipped(tmp_path: Path) -> None:
    """R-D2: one bad folder among the runs is a line about it, never the end of the query."""
    write_run(tmp_path, [trial()])
    places = make_foreign(tmp_path)
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "notes.txt").write_text("hello")
    found = query(results=tmp_path)
    assert len(found) == 1
    for name in ("yaml", "list", "newer", "none", "odd", "huge"):
        assert sum(str(places[name]) in problem for problem in found.problems) == 1, name
    newer = next(p for p in found.problems if str(places["newer"]) in p)
    assert "format 99" in newer
    assert "upgrade proctor" in newer


def test_a_newer_format_that_was_asked_for_is_refused(tmp_path: Path) -> None:
    """R-D2: naming the very folder is an error with advice, not an empty answer."""
    place = make_foreign(tmp_path)["newer"]
    with pytest.raises(ProctorError, match="format 99") as refused:
        query(place)
    assert refused.value.hint == "upgrade proctor"


def test_a_scenario_folder_is_not_a_run(tmp_path: Path) -> None:
    """R-D2: built scenarios have a spec too; they are passed by in silence."""
    (tmp_path / "built").mkdir()
    (tmp_path / "built" / "_spec_.yaml").write_text("x: 1\n")
    (tmp_path / "built" / "_manifest_.yaml").write_text("seed: 1\n")
    found = query(results=tmp_path)
    assert (len(found), found.problems) == (0, [])


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Two runs of three cases and two agents."""
    first = [
        trial(case, agent, i, "failed" if case == "refund" and i else "passed", params={"t": t})
        for case in ("greet", "refund", "stock")
        for agent, t in (("careful", 0), ("hasty", 1))
        for i in range(3)
    ]
    write_run(tmp_path, first, name="shop")
    day = 24 * 3600 * 10**9
    later = [
        trial("greet", "careful", i, started_ns=trial().started_ns + 3 * day) for i in range(2)
    ]
    second = write_run(tmp_path, later, name="nightly")
    from proctor.runs.annotations import tag

    tag(second.path, "baseline")
    return tmp_path


@pytest.mark.parametrize(
    ("asked", "count"),
    [
        ({}, 20),
        ({"agent": "careful"}, 11),
        ({"agent": "care*"}, 11),
        ({"agent": ["careful", "hasty"]}, 20),
        ({"agent": "careful,hasty"}, 20),
        ({"case": "re*"}, 6),
        ({"case": "g?eet"}, 8),
        ({"status": "failed"}, 4),
        ({"status": ("failed", "passed")}, 20),
        ({"tag": "money"}, 6),
        ({"tag": "baseline"}, 2),
        ({"tag": "sm*"}, 8),
        ({"min_score": 0.5}, 16),
        ({"max_score": 0.5}, 4),
        ({"since": "2026-11-17"}, 2),
        ({"until": "2026-11-16"}, 18),
        ({"since": date(2026, 11, 16), "until": "2026-11-16"}, 18),
        ({"since": "2026-11-16T02:12:39Z", "until": "2026-11-16T02:12:40+00:00"}, 6),
        ({"experiment": "shop"}, 18),
        ({"model": "m-hasty"}, 9),
        ({"run": "nightly*"}, 2),
        ({"run": "baseline"}, 2),
        ({"where": {"difficulty": "hard"}}, 6),
        ({"where": {"difficulty": ["hard", "easy"]}}, 14),
        ({"where": {"properties.lang": "de"}}, 14),
        ({"where": {"params.t": 1}}, 9),
        ({"where": {"params.t": None}}, 2),
        ({"where": ["properties.length>=4", "properties.length<9"]}, 6),
        ({"where": ["difficulty!=hard"]}, 14),
        ({"where": ["latency_ms>20"]}, 6),
        ({"where": {"passed": False}}, 4),
        ({"where": {"tags": "money"}}, 6),
        ({"agent": "'; drop table live; --"}, 0),
    ],
)
def test_every_filter_narrows(runs: Path, asked: dict, count: int) -> None:
    """R-D2: agent, case, tag, dates, score, status, run and any property of a case."""
    assert len(query(results=runs, **asked)) == count


def test_a_pattern_is_a_run_a_folder_or_a_name(runs: Path, tmp_path_factory, monkeypatch) -> None:
    """R-D2: paths win where there are runs; a folder that merely has the name does not."""
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    Path("shop").mkdir()
    (folder,) = (runs / "shop").iterdir()
    for pattern in ("shop", "shop/*", "shop/", str(folder), str(runs / "shop"), folder):
        assert len(query(pattern, results=runs)) == 18, pattern
    assert len(query("shop", "nightly", results=runs)) == 20
    assert len(query(str(runs / "shop"), "baseline", results=runs)) == 20
    assert len(query(folder, folder, results=runs)) == 18


def test_filters_add_up(runs: Path) -> None:
    """R-D2: what is given must all hold, at once or step by step."""
    at_once = query(results=runs, agent="hasty", case="refund", status="failed")
    steps = query(results=runs).where(agent="hasty").where(case="refund").where(status="failed")
    assert at_once.rows() == steps.rows()
    assert len(at_once) == 2


@pytest.mark.parametrize(
    ("asked", "message", "hint"),
    [
        ({"agnet": "a"}, "no filter 'agnet'", "'agent'"),
        ({"status": "failde"}, "not a status", "'failed'"),
        ({"since": "soon"}, "not a date", "7d"),
        ({"where": {"dificulty": "x"}}, "no column 'dificulty'", "'difficulty'"),
        ({"where": ["difficulty ~ x"]}, "cannot read", "difficulty=hard"),
        ({"min_score": "high"}, "not a number", None),
        ({"run": "nightyl*"}, "no run matches", "nightly"),
        ({"results": "/nowhere/at/all"}, "folder does not exist", "--results"),
    ],
)
def test_what_cannot_be_meant_is_an_error(runs: Path, asked, message, hint) -> None:
    """R-D2: a filter is never ignored; the error names the nearest thing that exists."""
    with pytest.raises(ProctorError, match=message) as wrong:
        query(**{"results": runs, **asked})
    assert hint is None or hint in str(wrong.value.hint)


def test_latest_is_the_run_that_began_last(runs: Path, tmp_path: Path) -> None:
    """R-D2: the same word that reports and gates take; a tag or a run of that name wins."""
    (last,) = {row["run"] for row in query("latest", results=runs).rows(["run"])}
    began = {row["run_id"]: row["run"] for row in query(results=runs).rows(["run", "run_id"])}
    assert last == began[max(began)]
    older = write_run(tmp_path, [trial("greet", "careful", 0)], name="one")
    write_run(tmp_path, [trial("greet", "hasty", 0)], name="two")
    assert [row["agent"] for row in query("latest", results=tmp_path).rows(["agent"])] == ["hasty"]
    tag(older.path, "latest")
    assert [row["agent"] for row in query("latest", results=tmp_path).rows(["agent"])] == [
        "careful"
    ]


def test_a_name_may_hold_a_comma(tmp_path: Path) -> None:
    """R-D2: `a, b` means the agents a and b, and the agent of that very name."""
    trials = [trial("greet", agent, 0) for agent in ("good, one", "good", "bad")]
    write_run(tmp_path, trials, name="one")
    assert {r["agent"] for r in query(agent="good, one", results=tmp_path).rows()} == {
        "good, one",
        "good",
    }


def test_a_named_run_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    """R-D2: by its name as by its path; that another run has a similar name is no help."""
    write_run(tmp_path, [trial("greet", "careful", 0)], name="good")
    newer = write_run(tmp_path, [trial("greet", "careful", 0)], name="newer")
    written = newer.spec_path.read_text()
    newer.spec_path.write_text(written.replace(f"format: {FORMAT}", f"format: {FORMAT + 1}"))
    with pytest.raises(ProctorError, match="upgrade proctor"):
        query(newer.path.relative_to(tmp_path).as_posix(), results=tmp_path)
    (tmp_path / "broken" / "one").mkdir(parents=True)
    (tmp_path / "broken" / "one" / "_spec_.yaml").write_text("{: [")
    with pytest.raises(ProctorError, match="cannot read the spec: while parsing a flow node did"):
        query("broken/one", results=tmp_path)
