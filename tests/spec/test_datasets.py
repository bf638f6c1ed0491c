"""Cases from data: formats, columns, templates, splits, samples, matrices, versions."""

import contextlib
import csv
import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from commands import proctor as command

import proctor
from proctor.report.facts import ReportFacts
from proctor.runs.run import Run
from proctor.spec import SpecError, load_suite
from proctor.spec.datasets import DataSource, select_rows

ROWS = [
    {"key": f"q{n}", "question": f"What is {n} + {n}?", "answer": str(2 * n), "topic": topic,
     "split": "test" if n % 2 else "train"}
    for n, topic in zip(range(1, 7), "ababab", strict=True)
]  # fmt: skip
COLUMNS = {"id": "key", "input": "question", "properties": ["topic"]}
TEMPLATE = {"correctness": {"exact_match": "{answer}"}, "tags": ["sums"]}


def write(path: Path, rows: list[dict[str, Any]] = ROWS) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix in (".csv", ".tsv"):
        with path.open("w", newline="") as file:
            out = csv.DictWriter(
                file, list(rows[0]), delimiter="\t" if path.suffix == ".tsv" else ","
            )
            out.writeheader()
            out.writerows(rows)
    elif path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif path.suffix == ".jsonl":
        path.write_text("\n".join(map(json.dumps, rows)))
    else:
        path.write_text(json.dumps(rows))
    return path


def load(folder: Path, cases: Any, **more: Any) -> proctor.Suite:
    (folder / "suite.yaml").write_text(yaml.safe_dump({"cases": cases, **more}))
    return load_suite(folder / "suite.yaml", need_agent=False)


def adding(question: str) -> str:
    return str(2 * int(question.split()[2]))


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".json", ".parquet"])
def test_each_row_is_a_case(tmp_path: Path, suffix: str) -> None:
    """R-N9: columns, templates and tags, in every format; the version is that of the content."""
    path = write(tmp_path / f"data{suffix}")
    suite = load(tmp_path, {"data": path.name, "columns": COLUMNS, "case": TEMPLATE})
    assert [case.id for case in suite.cases] == [row["key"] for row in ROWS]
    first = suite.cases[0]
    assert (first.input, first.tags, first.properties) == (
        "What is 1 + 1?",
        ("sums",),
        {"topic": "a"},
    )
    assert str(first.place).startswith(f"{path}:")
    assert suite.data is not None
    assert suite.data.rows == 6
    source = {"data": write(tmp_path / "x.jsonl").name, "columns": COLUMNS}
    same = load(tmp_path, source).data
    assert same is not None
    assert suite.data.sha256 == same.sha256
    run = proctor.evaluate(suite, agent=adding)
    assert run.verdict == "PASS", run.failures


def test_a_value_keeps_its_type_and_is_never_a_variable(tmp_path: Path) -> None:
    """R-N9: `{column}` alone is the value itself; `${HOME}` in data is text."""
    rows = [{"input": {"a": [1]}, "schema": {"type": "integer"}, "note": "${HOME}"}]
    write(tmp_path / "data.jsonl", rows)
    template = {"correctness": {"json_schema": "{schema}"}, "description": "see {note}, {other}"}
    with pytest.raises(SpecError, match="the data has no column 'other'"):
        load(tmp_path, {"data": "data.jsonl", "case": template})
    template["description"] = "see {note}"
    (case,) = load(tmp_path, {"data": "data.jsonl", "case": template}).cases
    assert case.input == {"a": [1]}
    assert case.correctness.json_schema == {"type": "integer"}
    assert case.description == "see ${HOME}"


def test_splits_and_samples(tmp_path: Path) -> None:
    """R-N9: by column, by file of a folder; a sample is the same for a seed."""
    write(tmp_path / "data.csv")
    source = {"data": "data.csv", "columns": COLUMNS}
    assert [c.id for c in load(tmp_path, {**source, "split": "test"}).cases] == ["q1", "q3", "q5"]
    with pytest.raises(SpecError, match="no row of the split 'tset'"):
        load(tmp_path, {**source, "split": "tset"})
    one, two, other = (
        [c.id for c in load(tmp_path, {**source, "sample": 3, "seed": seed}).cases]
        for seed in (1, 1, 2)
    )
    assert one == two == sorted(one)
    assert len(one) == 3
    assert one != other
    folder = tmp_path / "hub" / "data"
    write(folder / "train-00000-of-00001.parquet", ROWS[:2])
    write(folder / "test-00000-of-00002.parquet", ROWS[2:3])
    write(folder / "test-00001-of-00002.parquet", ROWS[3:4])
    (tmp_path / "hub" / "dataset_info.json").write_text("{}")
    hub = {"data": "hub", "columns": COLUMNS}
    assert [c.id for c in load(tmp_path, {**hub, "split": "test"}).cases] == ["q3", "q4"]
    with pytest.raises(SpecError, match="the folder has the splits test, train"):
        load(tmp_path, hub)


def test_a_matrix_makes_a_case_for_each_combination(tmp_path: Path) -> None:
    """R-N9: of a written case and of data."""
    case = {
        "id": "capital",
        "input": "The capital of {country} in {language}?",
        "matrix": {"country": ["France", "Italy"], "language": ["en", "de"]},
    }
    cases = load(tmp_path, [case]).cases
    assert [(case.id, case.input) for case in cases][::3] == [
        ("capital[country=France+language=en]", "The capital of France in en?"),
        ("capital[country=Italy+language=de]", "The capital of Italy in de?"),
    ]
    write(tmp_path / "data.csv", ROWS[:2])
    source = {"data": "data.csv", "columns": COLUMNS, "matrix": {"style": ["short", "long"]}}
    source["case"] = {"input": "{question} Be {style}."}
    found = load(tmp_path, source).cases
    assert [case.id for case in found] == [
        "q1[style=short]", "q1[style=long]", "q2[style=short]", "q2[style=long]",
    ]  # fmt: skip
    assert found[1].input == "What is 1 + 1? Be long."


def test_bad_data_is_an_error_with_its_place(tmp_path: Path) -> None:
    """R-N9 R-S1: a short row, broken JSON, a missing file, an unknown key."""
    for name, text, message in (
        ("a.csv", "input,b\n1,2\n3\n", "a.csv:3:1: the row has 1 cell, the header 2"),
        ("a.csv", "input,b,b\n1,2,3\n", "a.csv:1:1: the header names 'b' twice"),
        ("a.jsonl", '{"input": "x"}\n{broken\n', "a.jsonl:2:1: not JSON"),
        ("a.jsonl", "[1]\n", "a.jsonl:1:1: a row is an object"),
        ("a.csv", "input\n", "the data has no rows"),
    ):
        (tmp_path / name).write_text(text)
        with pytest.raises(SpecError, match=message):
            load(tmp_path, {"data": name})
    with pytest.raises(SpecError, match="there is no file"):
        load(tmp_path, "missing.csv")
    write(tmp_path / "data.csv")
    with pytest.raises(SpecError, match="a sample of 7 needs as many rows, and there are 6"):
        load(tmp_path, {"data": "data.csv", "columns": COLUMNS, "sample": 7})
    with pytest.raises(SpecError, match="colums"):
        load(tmp_path, {"data": "a.csv", "colums": {}})


def test_a_run_records_the_version_and_data_diff_shows_changes(tmp_path: Path) -> None:
    """R-N9: the version of a run, and what was added, removed and changed since."""
    (tmp_path / "bot.py").write_text("def answer(q):\n    return str(2 * int(q.split()[2]))\n")
    write(tmp_path / "data.csv")
    source = {"data": "data.csv", "columns": COLUMNS, "case": TEMPLATE}
    suite = load(tmp_path, source, agent="bot:answer")
    done = command("run", "suite.yaml", "--trials", "1", "--quiet", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    done = command("data", "show", "latest", "--json", cwd=tmp_path)
    assert suite.data is not None
    assert json.loads(done.stdout)["data"]["sha256"] == suite.data.sha256
    shown = command("data", "show", "latest", cwd=tmp_path).stdout.splitlines()
    assert shown[:2] == ["file     data.csv", "rows     6"]
    assert shown[-1] == "cases    6"
    changed = [*ROWS[1:5], {**ROWS[5], "answer": "13"}, {**ROWS[0], "key": "q9"}]
    write(tmp_path / "data.csv", changed)
    done = command("data", "diff", "latest", "suite.yaml", cwd=tmp_path)
    assert done.stdout.splitlines() == [
        "removed  q1",
        "changed  q6: correctness",
        "added    q9",
        "1 added, 1 removed, 1 changed",
    ], done.stderr


def large(folder: Path, rows: int = 1_500) -> dict[str, Any]:
    """Write a data set that is read lazily, and return its source."""
    made = [
        {"key": f"q{n}", "question": f"What is {n} + {n}?", "answer": str(2 * n),
         "topic": "ab"[n % 2], "note": "${HOME}", "pattern": "."}
        for n in range(rows)
    ]  # fmt: skip
    write(folder / "large.csv", made)
    template = {"trials": 1, "correctness": {"exact_match": "{answer}", "regex_match": "{pattern}"}}
    template["description"] = "see {note}"
    return {"data": "large.csv", "columns": COLUMNS, "case": template}


def test_a_large_data_set_is_read_when_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R-N9: its cases are those of a small one; selection, resume and data diff work on them."""
    source = large(tmp_path)
    suite = load(tmp_path, source, agent="sums:answer", defaults={"tags": ["sums"]})
    assert not isinstance(suite.cases, tuple)
    few = load(tmp_path, {**source, "sample": 900, "seed": 3}, defaults={"tags": ["sums"]})
    assert isinstance(few.cases, tuple)
    by_id = {case.id: case for case in suite.cases}
    assert len(by_id) == len(suite.cases) == 1_500
    for case in few.cases:
        same = by_id[case.id]
        assert same == case
        assert (same.place, same.folder) == (case.place, case.folder)
    written = {case["id"]: case for case in suite.resolved()["cases"]}
    for case in few.resolved()["cases"]:
        assert written[case["id"]] == case
    (tmp_path / "sums.py").write_text(
        "def answer(text):\n"
        "    if text == 'What is 1100 + 1100?':\n"
        "        return 'wrong'\n"
        "    return str(2 * int(text.split()[2]))\n"
    )
    load(tmp_path, source, agent="sums:answer")
    done = command("run", "suite.yaml", "--max-trials", "20", "--quiet", cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    (folder,) = (tmp_path / "results" / "suite").iterdir()
    spec = yaml.safe_load((folder / "_spec_.yaml").read_text())
    assert spec["cells"] == {
        "cases": 1_500, "agents": ["sums:answer"], "trials": 1, "threshold": 0.8,
    }  # fmt: skip
    run = Run(folder)
    assert (len(run.cells), run.unstarted, run.verdict) == (20, 1_480, "NOT RUN")
    # Trials of a very large run are not reported one by one.
    monkeypatch.setattr("proctor.report.facts.MOST_DETAILED", 10)
    facts = ReportFacts(run)
    assert not facts.detailed
    assert facts.headline.endswith("20 of 20 judged trials; 1480 trials not run")
    # The folder is enough to go on: the data may have changed since.
    (tmp_path / "large.csv").write_text("key,question,answer,topic,note,pattern\n")
    done = command("run", "--resume", str(folder), "--max-trials", "1200", "--quiet", cwd=tmp_path)
    done = command("run", "--resume", str(folder), "--quiet", cwd=tmp_path)
    run = Run(folder)
    assert (len(run.cells), run.unstarted, run.totals.passed) == (1_500, 0, 1_499)
    assert [cell.case for cell in run.cells if cell.verdict != "PASS"] == ["q1100"]
    assert run.exit_code == done.returncode == 1
    large(tmp_path)
    assert "no change" in (
        out := command("data", "diff", str(folder), "suite.yaml", cwd=tmp_path).stdout
    ) or out.strip().endswith("0 added, 0 removed, 0 changed"), out
    done = command("run", "suite.yaml", "--filter", "topic:a", "--max-trials", "1", cwd=tmp_path)
    assert "749 not run" in done.stdout, done.stdout + done.stderr
    # A copy of the rows is the version of the data.
    shown = json.loads(command("data", "show", str(folder), "--json", cwd=tmp_path).stdout)
    assert hashlib.sha256((folder / "cases.jsonl").read_bytes()).hexdigest() in str(shown)


def test_a_bad_row_of_a_large_data_set_is_named(tmp_path: Path) -> None:
    """R-N9 R-S1: ids and inputs at once, the rest at its trial, each with the line."""
    source = large(tmp_path)
    path = tmp_path / "large.csv"
    lines = path.read_text().splitlines()
    for number, cell, message in (
        (1_400, "q9,What?,1,a,b,.", "the id 'q9' is that of"),
        (1_400, "a/b,What?,1,a,b,.", "must begin with a letter"),
        (1_400, ",,1,a,b,.", "the input is empty"),
        (1_400, "q1399,What?", r"large\.csv:1401:1: the row has 2 cells"),
    ):
        path.write_text("\n".join([*lines[:number], cell, *lines[number + 1 :]]) + "\n")
        with pytest.raises(SpecError, match=message) as caught:
            load(tmp_path, source)
        assert "large.csv" in str(caught.value.where)
    lines[1_400] = "q1399,What?,1,a,b,("
    path.write_text("\n".join(lines) + "\n")
    suite = load(tmp_path, source)
    with pytest.raises(SpecError, match=r"large.csv:1401:1: '\(' is not a regular expression"):
        suite.cases[1_399]
    (tmp_path / "always.py").write_text("def answer(text):\n    return 'x'\n")
    command("run", "suite.yaml", "--agent", "always:answer", "--quiet", cwd=tmp_path)
    (error,) = Run(next((tmp_path / "results" / "suite").iterdir())).errors
    assert (error.count, "large.csv:1401" in error.error.message) == (1, True), error


@pytest.mark.skipif(sys.platform != "linux", reason="reopens a file without a name")
def test_what_an_agent_writes_to_its_descriptors_changes_no_row(tmp_path: Path) -> None:
    """R-R1: processes of agents inherit the file of the rows, and can only read it."""
    rows = select_rows(DataSource(data=write(tmp_path / "data.jsonl").name), tmp_path)
    before, seen = list(rows.lines()), 0
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            about = os.fstat(int(entry.name))
            seen += (mine := about.st_size == sum(map(len, before)) and not about.st_nlink)
            if mine:
                os.pwrite(int(entry.name), b"x" * 10, 0)
    assert seen, "the file is among the descriptors"
    assert list(rows.lines()) == before
