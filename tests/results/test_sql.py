"""SQL over the results: every documented column, and no way to do anything but read."""

import hashlib
import re
from pathlib import Path

import pytest
from result_parts import CASES, trial, write_run

from proctor.errors import ProctorError
from proctor.results import query
from proctor.results.database import COLUMNS


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A finished and a live run."""
    trials = [
        trial(c, a, i, "passed" if i else "failed") for c in CASES for a in "ab" for i in (0, 1)
    ]
    write_run(tmp_path / "results", trials, name="done")
    write_run(tmp_path / "results", trials, name="live", finished=False)
    return tmp_path / "results"


def fingerprint(root: Path) -> dict[str, str]:
    """Every file below a folder, by content."""
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def test_any_select_over_all_runs(root: Path) -> None:
    """R-D2: plain SQL, finished and live runs together, columns of trials, cases and runs."""
    ask = query(results=root).sql
    assert ask(
        "select agent, count(*), avg(passed::int) from trials group by 1 order by 1"
    ).rows == [
        ("a", 12, 0.5),
        ("b", 12, 0.5),
    ]
    assert ask("select difficulty, count(*) from trials group by all order by all").rows == [
        ("easy", 8),
        ("hard", 8),
        ("medium", 8),
    ]
    assert ask("SELECT DISTINCT Model FROM Trials ORDER BY ALL").rows == [("m-a",), ("m-b",)]
    assert ask("select experiment, read_from from runs order by 1").rows == [
        ("done", "results.parquet"),
        ("live", "trials.jsonl"),
    ]
    assert ask("select count(*) from cases").rows == [(6,)]
    assert ask("select id, status, count(*) from checks group by all order by 2").rows == [
        ("exact", "fail", 12),
        ("exact", "pass", 12),
    ]
    assert ask("from trials").columns == list(COLUMNS)
    assert len(ask("select t from trials t limit 1").rows[0][0]) == len(COLUMNS)
    assert ask("select properties->>'lang' l from trials where tags = ['money'] limit 1").rows == [
        ("en",)
    ]
    assert ask('select c.difficulty from trials t join cases c using (run, "case") limit 1').rows
    assert ask("select now() as t, 1 as n").rows[0][1] == 1


def test_rows_keep_the_order_of_the_query(root: Path) -> None:
    """R-D2: ORDER BY holds."""
    rows = (
        query(results=root).sql('select "case", "index" from trials order by "index" desc, 1').rows
    )
    assert rows == sorted(rows, key=lambda row: (-row[1], row[0]))


def test_a_selection_is_what_its_sql_sees(root: Path) -> None:
    """R-D2: the views of a narrowed set hold only what was selected."""
    narrowed = query(results=root, agent="a", where={"difficulty": "hard"})
    assert narrowed.sql("select count(*) from trials").rows == [(4,)]
    assert narrowed.sql("select count(*) from checks").rows == [(4,)]


@pytest.mark.parametrize(
    "attempt",
    [
        "copy trials to '{out}'",
        "with x as (copy (select 1) to '{out}') select * from x",
        "with x as (copy (select 1) to '{parquet}' (use_tmp_file false)) select * from x",
        "select * from query('with x as (copy (select 1) to ''{out}'') select * from x')",
        "with x as (insert into live select * from live returning 1) select * from x",
        "with x as (delete from live returning 1) select * from x",
        "insert into live select * from live",
        "create table t as select 1",
        "drop view trials",
        "attach '{out}' as other",
        "install httpfs",
        "load httpfs",
        "pragma database_list",
        "set enable_external_access = true",
        "reset lock_configuration",
        "export database '{out}'",
        "select * from read_text('{secret}')",
        "select * from read_csv('{secret}')",
        "select * from '{secret}'",
        "select * from glob('{folder}/*')",
        "select * from read_json('{journal}')",
        "select * from read_parquet('http://127.0.0.1:9/x.parquet')",
        "select 1; select 2",
        "select 1; drop view trials",
        "explain analyze select 1",
        "",
        "selct 1",
    ],
)
def test_a_query_can_only_read(root: Path, tmp_path: Path, attempt: str) -> None:
    """R-D2: no file, no setting, no extension, no network, and nothing on disk changes."""
    secret = tmp_path / "secret.csv"
    secret.write_text("password\nhunter2\n")
    (parquet,) = root.glob("done/*/results.parquet")
    (journal,) = root.glob("live/*/trials.jsonl")
    places = {
        "out": tmp_path / "out",
        "secret": secret,
        "folder": tmp_path,
        "parquet": parquet,
        "journal": journal,
    }
    before = fingerprint(tmp_path)
    with pytest.raises(ProctorError) as refused:
        query(results=root).sql(attempt.format(**places))
    assert "hunter2" not in str(refused.value)
    assert fingerprint(tmp_path) == before


def test_errors_name_what_was_meant(root: Path) -> None:
    """R-D2: a wrong table or column gets its neighbour, among all columns there are."""
    ask = query(results=root).sql
    with pytest.raises(ProctorError, match="trialz"):
        ask("select * from trialz")
    with pytest.raises(ProctorError, match="dificulty") as wrong:
        ask("select dificulty from trials")
    assert "difficulty" in str(wrong.value)


def test_folders_with_pattern_characters_are_read_as_they_are(tmp_path: Path) -> None:
    """R-D2: a path may hold what looks like a pattern, or a quote."""
    root = tmp_path / "o'[a-z]*?"
    write_run(root, [trial()])
    (tmp_path / "o'a").mkdir()
    assert query(results=root).sql("select count(*), min(run_path) from trials").rows[0][0] == 1
    assert len(query(results=root).to_arrow(["agent"])) == 1


def test_the_reference_lists_every_column(root: Path) -> None:
    """R-D2: documented columns are the columns there are, with their types."""
    page = Path(__file__).parents[2] / "docs" / "reference" / "results-columns.md"
    listed = re.findall(
        r"^\| `(\w+)` \| `?([A-Z\[\]]+)`? \|", page.read_text("utf-8"), re.MULTILINE
    )
    described = {row[0]: row[1] for row in query(results=root).sql("describe trials").rows}
    documented = dict(listed[: len(COLUMNS)])
    assert documented == described
    assert list(documented) == list(COLUMNS)
