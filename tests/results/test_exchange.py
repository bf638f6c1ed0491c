"""Results out to other programs, and in from them."""

import csv
import json
import re
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pandas as pd
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from result_parts import CASES, finish, trial, write_run
from run_parts import until

from proctor.cli.main import run as main
from proctor.errors import ProctorError
from proctor.results import query
from proctor.results.exchange.importing import import_results, read_results
from proctor.results.outcomes import outcomes_of, pick
from proctor.runs.run import Run
from proctor.runs.trial import TrialStatus
from proctor.sanitize import FORMULA, escape_formula

DATA = Path(__file__).parent / "data"

NASTY = [
    "=1+1",
    "+A1",
    "-2",
    "@SUM(A1)",
    "\t=1",
    " =cmd|' /C calc'!A0",
    "\r\n=x",
    "|x",
    "＝1",
    'a,b"c\n',
]


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A run with everything that makes exports hard."""
    trials = [
        trial("greet", "a", i, answer=text, params={"t": i % 2}) for i, text in enumerate(NASTY)
    ]
    trials += [trial("refund", "b", i, s) for i, s in enumerate(TrialStatus)]
    write_run(tmp_path / "results", trials)
    return tmp_path / "results"


# -- out -----------------------------------------------------------------------------------------


def test_exports_hold_every_trial(runs: Path, tmp_path: Path) -> None:
    """R-D3: CSV, JSON, JSONL and Parquet read back by the programs they are for."""
    found = query(results=runs)
    rows = found.rows()
    for form in ("csv", "json", "jsonl", "parquet"):
        found.export(tmp_path / f"t.{form}")
    frame = pd.read_csv(tmp_path / "t.csv")
    assert len(frame) == len(rows)
    assert frame["score"].dropna().tolist() == [r["score"] for r in rows if r["score"] is not None]
    with (tmp_path / "t.json").open(encoding="utf-8") as file:
        document = json.load(file)
    assert [t["answer"] for t in document["trials"]] == [r["answer"] for r in rows]
    assert document["counts"] == {"selected": 16, "judged": 13, "passed": 11}
    assert sum(part["count"] for part in document["left_out"]) == 3
    lines = [json.loads(x) for x in (tmp_path / "t.jsonl").read_text("utf-8").splitlines()]
    assert [line["status"] for line in lines] == [r["status"] for r in rows]
    parquet = pl.read_parquet(tmp_path / "t.parquet")
    assert parquet["answer"].to_list() == [r["answer"] for r in rows]
    assert pd.read_parquet(tmp_path / "t.parquet")["run"].tolist() == [r["run"] for r in rows]


def test_no_cell_of_csv_is_a_formula(runs: Path, tmp_path: Path) -> None:
    """R-D3: what an agent wrote is never computed by a spreadsheet, and comes back unchanged."""
    query(results=runs).export(tmp_path / "t.csv")
    with (tmp_path / "t.csv").open(encoding="utf-8", newline="") as file:
        cells = [cell for row in csv.reader(file) for cell in row]
    risky = [
        c
        for c in cells
        if c.lstrip(" ")[:1] in FORMULA and not c.lstrip("-").replace(".", "").isdigit()
    ]
    assert [c for c in risky if c] == []
    kept = import_results(tmp_path / "t.csv", root=tmp_path / "again", name="again")
    answers = {t.index: t.answer for t in kept.trials() if t.case == "greet" and not t.params["t"]}
    for index, answer in answers.items():
        assert answer is not None
        assert answer.replace("\r\n", "\n") == NASTY[index].replace("\r\n", "\n")


@given(text=st.text())
def test_a_guarded_text_begins_harmlessly(text: str) -> None:
    """R-D3: whatever the text, its first character is not one a spreadsheet obeys."""
    assert escape_formula(text).lstrip(" ")[:1] not in FORMULA or not text
    assert escape_formula(text).removeprefix("'") in (
        text.replace("\0", "\ufffd"),
        escape_formula(text),
    )


def test_a_mark_for_excel(runs: Path, tmp_path: Path) -> None:
    """R-D3: with `bom` the file says that it is UTF-8, and still reads as before."""
    query(results=runs).export(tmp_path / "t.csv", bom=True)
    assert (tmp_path / "t.csv").read_bytes().startswith(b"\xef\xbb\xbfrun,")
    assert len(pd.read_csv(tmp_path / "t.csv", encoding="utf-8-sig")) == 16


def test_an_export_is_whole_or_absent(runs: Path, tmp_path: Path) -> None:
    """R-D3: an unknown form or a place that cannot be written leaves nothing behind."""
    found = query(results=runs)
    with pytest.raises(ProctorError, match="'xslx'") as wrong:
        found.export(tmp_path / "t.xslx")
    assert "csv" in str(wrong.value.hint)
    (tmp_path / "file").write_text("")
    with pytest.raises(ProctorError, match="cannot write"):
        found.export(tmp_path / "file" / "t.csv")
    assert not list(tmp_path.glob("*.part"))


# -- round trips ---------------------------------------------------------------------------------


@settings(max_examples=15)
@given(
    facts=st.lists(
        st.tuples(
            st.sampled_from(sorted(CASES)),
            st.sampled_from("ab"),
            st.sampled_from(list(TrialStatus)),
            st.text(max_size=8),
        ),
        min_size=1,
        max_size=12,
    ),
    form=st.sampled_from(["csv", "jsonl", "json", "parquet"]),
)
def test_an_export_can_be_imported_again(tmp_path_factory, facts, form) -> None:
    """R-D3: an exported run, imported, says the same: counts, scores, checks, properties."""
    place = tmp_path_factory.mktemp("r")
    seen: dict[tuple[str, str], int] = {}
    trials = []
    for case, agent, status, answer in facts:
        index = seen[case, agent] = seen.get((case, agent), -1) + 1
        trials.append(trial(case, agent, index, status, answer=answer or None))
    folder = write_run(place / "one", trials)
    query(results=place / "one").export(place / f"t[1].{form}")
    again = import_results(place / f"t[1].{form}", root=place / "two")
    for before, after in zip(outcomes_of(Run(folder.path)), outcomes_of(again), strict=True):
        assert [(c.case, c.counts, c.scores, c.cancelled) for c in before.cases] == [
            (c.case, c.counts, c.scores, c.cancelled) for c in after.cases
        ]
    names = ["case", "agent", "index", "status", "checks", "difficulty", "tags", "started_ns"]
    assert query(results=place / "one").rows(names) == query(results=place / "two").rows(names)


# -- tables --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.parquet", b"PAR1 no", "not Parquet: "),
        ("t.json", b'{"trials": 7}', "neither a list of trials nor an object with one"),
        ("t.json", b'{"trials": [', "not JSON: "),
        ("t.json", b"[1]", "not an object: it should be one trial"),
        ("t.json", b'[{"agent": "x"}]', "no column contains the case"),
    ],
)
def test_an_unreadable_table_is_an_error(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    """R-D3: an unreadable file is an error with its place, and nothing is stored."""
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ProctorError, match=re.escape(message)) as raised:
        import_results(tmp_path / name, root=tmp_path / "r")
    assert str(tmp_path / name) in str(raised.value)
    assert not (tmp_path / "r").exists()


def test_a_table_with_other_names(tmp_path: Path) -> None:
    """R-D3: a column map, common names, a scale, errors apart; first-class afterwards."""
    (tmp_path / "grades.csv").write_text(
        "\ufeffquestion;system;points;lang;latency;exception;who\n"
        "q1;gpt;90;de;12.5;;x\nq1;gpt;10;de;;;y\nq2;gpt;;en;;timed out;z\n",
        encoding="utf-8",
    )
    columns = {"question": "case", "points": "score", "lang": "properties.lang"}
    found = read_results(tmp_path / "grades.csv", None, columns, 100)
    assert found.ignored == ("who",)
    run = import_results(tmp_path / "grades.csv", root=tmp_path / "r", columns=columns, scale=100)
    kept = [(t.case, t.agent, t.index, t.status.value, t.score) for t in run.trials()]
    assert kept == [
        ("q1", "gpt", 0, "passed", 0.9),
        ("q1", "gpt", 1, "failed", 0.1),
        ("q2", "gpt", 0, "infra_error", None),
    ]
    rows = query(results=tmp_path / "r").group_by("properties.lang").rows
    assert [(r.key["properties.lang"], r.passed, r.judged, r.infra_error) for r in rows] == [
        ("de", 1, 2, 0),
        ("en", 0, 0, 1),
    ]
    assert run.spec["imported"]["from"] == "csv"
    assert run.exit_code == 1
    assert pick(outcomes_of(run)).counts == ((1, 2, 0), (0, 0, 1))


@pytest.mark.parametrize(
    ("name", "text", "options", "message"),
    [
        ("t.csv", "", {}, "no column contains the case"),
        ("t.csv", "case,agent\na,b\n", {}, "t.csv:2: the record has no status"),
        ("t.csv", "case,score\na,7\n", {}, "t.csv:2: the score 7 is not within"),
        ("t.csv", "case,score\na,NaN\n", {}, "t.csv:2: 'NaN' is not a score"),
        ("t.csv", "case,status\na,meh\n", {}, "t.csv:2: 'meh' is not a status"),
        ("t.csv", "case,score\na,1\n", {"columns": {"cas": "case"}}, "no column 'cas'"),
        ("t.csv", "case,score\na,1\n", {"columns": {"case": "scor"}}, "no field 'scor'"),
        ("t.csv", "case,score,index\na,1,0\na,1,0\n", {}, "is a duplicate"),
        ("t.csv", 'case,score\n"a,1\n', {}, "not CSV"),
        ("t.csv", "case,score\n", {}, "no results"),
        ("t.jsonl", '{"case": "a", "passed": true}\n{oops\n', {}, "t.jsonl:2: not JSON"),
        ("t.jsonl", "[1]\n", {}, "t.jsonl:1: not an object"),
        ("t.jsonl", '{"case": "a", "started": "soon", "passed": 1}\n', {}, "not a time"),
        ("t.json", "{}", {}, "is not recognised"),
        ("t.yaml", "evalId: eval-x\nresults: {}\n", {}, "read as JSON or JSONL"),
        ("t.csv", "q,[echo] {{q}},Status,Score,Grader Reason,Comment\n", {}, "as JSON or JSONL"),
        ("t.eval", "not a zip", {}, "not JSON"),
        ("t.json", '{"results": {"x": 1}}', {}, "not a promptfoo file"),
    ],
)
def test_a_bad_file_is_refused_whole(tmp_path: Path, name, text, options, message) -> None:
    """R-D3: an error names file and line, and no half-made run is left."""
    (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(ProctorError) as wrong:
        import_results(tmp_path / name, root=tmp_path / "r", **options)
    assert message in str(wrong.value)
    assert not list((tmp_path / "r").rglob("_spec_.yaml"))


def test_secrets_do_not_come_in(tmp_path: Path) -> None:
    """R-T9: a key in another program's log is not stored."""
    key = "sk-" + "a1B2c3D4e5F6g7H8" * 3
    (tmp_path / "t.jsonl").write_text(json.dumps({"case": "a", "passed": 1, "answer": key}) + "\n")
    run = import_results(tmp_path / "t.jsonl", root=tmp_path / "r")
    assert all(
        key.encode() not in path.read_bytes() for path in run.path.rglob("*") if path.is_file()
    )


# -- promptfoo -----------------------------------------------------------------------------------


def test_a_file_of_promptfoo(tmp_path: Path) -> None:
    """R-D3: tests, providers, prompts, repeats, assertions and errors of a real file."""
    run = import_results(DATA / "promptfoo.json", root=tmp_path)
    assert run.spec["name"] == "capitals"
    echo = [o for o in outcomes_of(run) if o.agent == "echo"]
    assert [[(c.case, *c.counts) for c in one.cases] for one in echo] == [
        [("france", 0, 2, 0), ("peru", 2, 2, 0)]
    ] * 2
    broken = [o for o in outcomes_of(run) if o.agent == "broken"]
    assert [(o.trials, o.infra) for o in broken] == [(0, 4), (0, 4)]
    failed = next(t for t in run.trials() if t.case == "france" and t.agent == "echo")
    assert failed.score == pytest.approx(1 / 3)
    assert [(c.id, c.status.value, c.weight) for c in failed.checks] == [
        ("contains", "pass", 1.0),
        ("correct", "fail", 2.0),
    ]
    assert run.failures[0].check_id == "correct"
    groups = query(results=tmp_path, agent="echo").group_by("params.prompt", "difficulty").rows
    assert len(groups) == 4
    assert {row.key["difficulty"] for row in groups} == {"easy", None}


def test_promptfoo_as_jsonl(tmp_path: Path, capsys) -> None:
    """R-D3: rows of one test are one case; errors, names, weights and thresholds are kept."""
    assert main(["runs", "import", str(DATA / "promptfoo.jsonl"), "--results", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "12 trials, 4 of 6 judged passed, 6 could not be judged" in out
    (path,) = (tmp_path / "promptfoo").iterdir()
    run = Run(path)
    counts = {o.agent: [(c.case, *c.counts) for c in o.cases] for o in outcomes_of(run)}
    assert counts == {
        "good": [("chad", 2, 2, 0), ("france", 2, 2, 0), ("peru", 0, 2, 0)],
        "custom-bad": [("chad", 0, 0, 2), ("france", 0, 0, 2), ("peru", 0, 0, 2)],
    }
    by_case = {t.case: t for t in run.trials() if t.agent == "good"}
    assert [(c.id, c.weight) for c in by_case["france"].checks] == [
        ("contains", 1.0),
        ("contains-2", 3.0),
        ("note", 0.0),
    ]
    assert [(c.check, c.weight) for c in by_case["chad"].checks] == [
        ("assert-set", 2.0),
        ("contains", 0.0),
        ("contains", 0.0),
    ]
    thresholds = {cell["case"]: cell["threshold"] for cell in run.spec["cells"]}
    assert thresholds == {"france": 0.25, "peru": 0.5, "chad": 0.5}


def test_share_payloads_of_promptfoo(tmp_path: Path) -> None:
    """R-D3: version 3 (wrapped) and version 4 (a plain list of results) read like the output."""
    whole = json.loads((DATA / "promptfoo.json").read_text())
    created = "2026-11-16T04:18:34.662Z"
    third = {"version": 3, "createdAt": created, "author": None, "config": whole["config"]}
    rows = [{k: v for k, v in r.items() if k != "vars"} for r in whole["results"]["results"]]
    fourth = {"createdAt": 1794802714662, "id": whole["evalId"], "config": whole["config"]}
    payloads = {
        "v3": {"data": {**third, "results": whole["results"]}},
        "v4": {**fourth, "results": rows, "persisted": True},
    }
    expected = import_results(DATA / "promptfoo.json", root=tmp_path)
    for name, payload in payloads.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(payload))
        run = import_results(tmp_path / f"{name}.json", root=tmp_path / name)
        assert run.spec["created"][:19] == expected.spec["created"][:19]
        assert [o.counts for o in outcomes_of(run)] == [o.counts for o in outcomes_of(expected)]
        assert {t.case for t in run.trials()} == {"france", "peru"}


def _rows_changed(change) -> dict:
    """The file of promptfoo with each of its results changed."""
    whole = json.loads((DATA / "promptfoo.json").read_text())
    for row in whole["results"]["results"]:
        change(row)
    return whole


def _with_gap(row: dict) -> None:
    if row["gradingResult"]:
        row["gradingResult"]["componentResults"].insert(0, None)


ODD_PROMPTFOO = {
    "truth as text": _rows_changed(lambda row: row.update(success=str(row["success"]).lower())),
    "no success": _rows_changed(lambda row: row.pop("success")),
    "score as text": _rows_changed(lambda row: row.update(score=str(row["score"]))),
    "no grading": _rows_changed(lambda row: row.update(gradingResult=None)),
    "gaps among assertions": _rows_changed(_with_gap),
    "rows alone": _rows_changed(lambda row: None)["results"]["results"],
}


@pytest.mark.parametrize("document", ODD_PROMPTFOO.values(), ids=ODD_PROMPTFOO)
def test_promptfoo_with_odd_values(tmp_path: Path, document) -> None:
    """R-D3: verdicts are promptfoo's, whatever the types and the envelope of the file."""
    (tmp_path / "results.json").write_text(json.dumps(document))
    run = import_results(tmp_path / "results.json", root=tmp_path)
    expected = import_results(DATA / "promptfoo.json", root=tmp_path)
    seen = [(t.case, t.agent, t.status, t.score) for t in run.trials()]
    assert seen == [(t.case, t.agent, t.status, t.score) for t in expected.trials()]
    # A gap is no assertion that failed.
    assert "assertion" not in {check.id for t in run.trials() for check in t.checks}


@pytest.mark.parametrize(
    ("source", "suffix"), [("promptfoo.json", "jsonl"), ("promptfoo.jsonl", "json")]
)
def test_promptfoo_under_another_suffix(tmp_path: Path, source, suffix) -> None:
    """R-D3: the content tells whether a file has one result per line."""
    shutil.copy(DATA / source, tmp_path / f"renamed.{suffix}")
    run = import_results(tmp_path / f"renamed.{suffix}", root=tmp_path)
    expected = import_results(DATA / source, root=tmp_path)
    assert [t.status for t in run.trials()] == [t.status for t in expected.trials()]


def test_promptfoo_says_what_it_leaves_out(tmp_path: Path, capsys) -> None:
    """R-D3: scores outside the scale, missing results and rows that are none are reported."""
    whole = _rows_changed(lambda row: row.update(score=5))
    whole["results"]["results"].append(None)
    whole["results"]["stats"]["failures"] += 3
    (tmp_path / "odd.json").write_text(json.dumps(whole))
    assert main(["runs", "import", str(tmp_path / "odd.json"), "--results", str(tmp_path)]) == 0
    said = " ".join("".join(capsys.readouterr()).split())
    assert "8 scores not within 0 to 1 (e.g. 5)" in said
    assert "1 result skipped: not an object" in said
    assert "the file holds 16 of 19 results" in said


# -- Inspect -------------------------------------------------------------------------------------

MAKE_LOGS = """
import sys
from inspect_ai import Task, eval as evaluate
from inspect_ai.dataset import Sample
from inspect_ai.model import ChatMessageAssistant, ChatMessageTool, ModelOutput
from inspect_ai.tool import ToolCall
from inspect_ai.scorer import Score, accuracy, includes, mean, scorer
from inspect_ai.solver import solver

ANSWERS = {"capital": "Paris", "sum": "five", "long": "x" * 5000}

@solver
def answering():
    async def solve(state, generate):
        if state.sample_id == "broken":
            raise ValueError("no such tool")
        state.output = ModelOutput.from_content("mockllm/model", ANSWERS[state.sample_id])
        call = ToolCall(id="c1", function="look_up", arguments={"word": "Paris"})
        state.messages += [
            ChatMessageAssistant(content="", tool_calls=[call]),
            ChatMessageTool(content="a city", tool_call_id="c1", function="look_up"),
            ChatMessageAssistant(content=ANSWERS[state.sample_id]),
        ]
        return state
    return solve

@scorer(metrics=[mean()])
def partial():
    async def score(state, target):
        return Score(value=0.5, explanation="half of it")
    return score

@scorer(metrics={"*": [mean()]})
def parts():
    async def score(state, target):
        return Score(value={"tone": 1, "facts": 0.0})
    return score

task = Task(
    name="geo",
    dataset=[
        Sample(id="capital", input="Capital of France?", target="Paris",
               metadata={"difficulty": "easy", "lang": "en"}),
        Sample(id="sum", input="2 + 2?", target=["4", "four"]),
        Sample(id="long", input="y" * 5000, target="x"),
        Sample(id="broken", input="?", target="x"),
    ],
    solver=answering(), scorer=[includes(), partial(), parts()], epochs=2, tags=["nightly"],
)
for form in ("eval", "json"):
    (log,) = evaluate(task, model="mockllm/model", log_dir=sys.argv[1], log_format=form,
                      display="none", fail_on_error=False)
    print(log.location)

# A second task: a scorer with a model, tokens of every kind, samples without a score.
from inspect_ai.model import ModelUsage, get_model
from inspect_ai.scorer import model_graded_qa
from inspect_ai.solver import generate

def output(text, **usage):
    found = ModelOutput.from_content("mockllm/model", text)
    found.usage = ModelUsage(**usage)
    return found

@scorer(metrics=[mean()])
def points():
    async def score(state, target):
        return Score(value=7 if state.sample_id == "b" else 1)
    return score

@scorer(metrics=[mean()])
def unsure():
    async def score(state, target):
        return Score.unscored(explanation="the grader gave no grade")
    return score

grader = get_model("mockllm/grader", custom_outputs=[
    output("GRADE: C", input_tokens=3900, output_tokens=100, total_tokens=4000)
    for _ in range(4)
])
agent = get_model("mockllm/model", custom_outputs=[
    output("Paris", input_tokens=30, output_tokens=10, total_tokens=40),
    output("Rome", input_tokens=30, output_tokens=10, input_tokens_cache_read=500,
           input_tokens_cache_write=60, reasoning_tokens=7, total_tokens=607),
])
cities = [Sample(id="a", input="France?", target="Paris"),
          Sample(id="b", input="Italy?", target="Rome")]
def write(name, scorers, **given):
    task = Task(name=name, dataset=cities, solver=generate(), scorer=scorers)
    evaluate(task, log_dir=sys.argv[1] + "/" + name, log_format="json", display="none", **given)

write("graded", [model_graded_qa(model=grader), unsure()], model=agent, max_samples=1)
def unknowing():
    # With its usage: the mock model counts tokens with a downloaded table otherwise.
    return get_model("mockllm/model", custom_outputs=[output("?", input_tokens=1)] * 2)

write("unscored", [unsure()], model=unknowing())
write("points", [points(), includes()], model=unknowing())
write("header", [includes()], model=unknowing(), log_samples=False)
"""


@pytest.fixture(scope="module")
def inspect_logs(tmp_path_factory) -> list[Path]:
    """A log of each kind, written by the real package."""
    pytest.importorskip("inspect_ai", reason="inspect_ai is not installed")
    folder = tmp_path_factory.mktemp("logs")
    done = subprocess.run(
        [sys.executable, "-c", MAKE_LOGS, str(folder)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return sorted(folder.glob("*.eval")) + sorted(folder.glob("*.json"))


@pytest.mark.slow
def test_logs_of_inspect(inspect_logs: list[Path], tmp_path: Path) -> None:
    """R-D3: both kinds of log, every sample and epoch, every scorer, errors apart."""
    assert [log.suffix for log in inspect_logs] == [".eval", ".json"]
    for log in inspect_logs:
        run = import_results(log, root=tmp_path / log.suffix[1:])
        (outcomes,) = outcomes_of(run)
        assert outcomes.agent == "mockllm/model"
        assert [(c.case, *c.counts) for c in outcomes.cases] == [
            ("broken", 0, 0, 2),
            ("capital", 0, 2, 0),
            ("long", 0, 2, 0),
            ("sum", 0, 2, 0),
        ]
        by_key = {(t.case, t.index): t for t in run.trials()}
        capital = by_key["capital", 1]
        assert {c.id: c.score for c in capital.checks} == {
            "includes": 1.0,
            "partial": 0.5,
            "parts.tone": 1.0,
            "parts.facts": 0.0,
        }
        assert capital.score == pytest.approx(2.5 / 4)
        assert capital.answer == "Paris"
        trace = run.trace(capital)
        assert trace is not None
        assert trace.query == "Capital of France?"
        tools = [s for s in trace.spans if s.kind == "tool"]
        assert [(s.tool_name, s.tool_input, s.tool_output) for s in tools] == [
            ("look_up", {"word": "Paris"}, "a city")
        ]
        assert capital.tool_calls == 1
        assert capital.started_ns > 0
        error = by_key["broken", 0].error
        assert error is not None
        assert "no such tool" in error.message
        assert by_key["long", 0].answer == "x" * 5000
        written = {case["id"]: case for case in run.spec["suite"]["cases"]}
        assert written["long"]["input"] == "y" * 5000
        assert written["capital"]["properties"]["target"] == "Paris"
        found = query(results=tmp_path / log.suffix[1:])
        assert len(found.where(where={"difficulty": "easy", "properties.lang": "en"})) == 2
        assert len(found.where(tag="nightly")) == 8
    first, second = (query(results=tmp_path / form) for form in ("eval", "json"))
    names = ["case", "index", "status", "score", "answer"]
    assert first.rows(names) == second.rows(names)


@pytest.mark.slow
def test_a_damaged_log_is_refused(inspect_logs: list[Path], tmp_path: Path) -> None:
    """R-D3: a log cut short, or with one byte wrong, is an error at its place."""
    content = bytearray(inspect_logs[0].read_bytes())
    (tmp_path / "short.eval").write_bytes(content[: len(content) // 2])
    with pytest.raises(ProctorError, match=r"damaged .eval file: it is cut off"):
        import_results(tmp_path / "short.eval", root=tmp_path / "r")
    middle = content.find(b"samples/") + 200
    content[middle : middle + 64] = bytes(64)
    (tmp_path / "wrong.eval").write_bytes(content)
    with pytest.raises(ProctorError, match=r"damaged|not JSON"):
        import_results(tmp_path / "wrong.eval", root=tmp_path / "r")
    assert not list((tmp_path / "r").rglob("_spec_.yaml"))


@pytest.mark.slow
def test_unscored_samples_and_the_tokens_of_graders(inspect_logs, tmp_path: Path, capsys) -> None:
    """R-D3: NaN is not judged, and tokens are all of the agent's and only the agent's."""
    logs = inspect_logs[0].parent
    (graded,) = (logs / "graded").glob("*.json")
    run = import_results(graded, root=tmp_path)
    trials = {trial.case: trial for trial in run.trials()}
    assert {case: (t.status.value, t.score) for case, t in trials.items()} == {
        "a": ("passed", 1.0),
        "b": ("passed", 1.0),
    }
    assert [(c.id, c.status.value) for c in trials["a"].checks] == [
        ("model_graded_qa", "pass"),
        ("unsure", "unscored"),
    ]
    assert (trials["a"].input_tokens, trials["a"].output_tokens) == (30, 10)
    assert (trials["b"].input_tokens, trials["b"].output_tokens) == (590, 17)
    (unscored,) = (logs / "unscored").glob("*.json")
    assert main(["runs", "import", str(unscored), "--results", str(tmp_path / "r")]) == 0
    assert "0 of 0 judged passed, 2 could not be judged" in capsys.readouterr().out
    (path,) = (tmp_path / "r" / "unscored").iterdir()
    assert {(t.status.value, t.score) for t in Run(path).trials()} == {("not_judged", None)}
    assert main(["report", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "the grader gave no grade" in shown
    assert "retry" not in shown


@pytest.mark.slow
def test_scores_of_inspect_outside_the_scale(inspect_logs, tmp_path: Path, capsys) -> None:
    """R-D3: `--scale` applies to numbers; a scorer outside it does not refuse the log."""
    (log,) = (inspect_logs[0].parent / "points").glob("*.json")
    root = ["--results", str(tmp_path)]
    assert main(["runs", "import", str(log), "--name", "plain", *root]) == 0
    assert "1 score of points not within 0 to 1 (e.g. 7)" in capsys.readouterr().err
    assert main(["runs", "import", str(log), "--name", "scaled", "--scale", "7", *root]) == 0
    assert "points" not in capsys.readouterr().err
    scores = {
        name: {
            (t.case, c.id): c.score
            for t in Run(next((tmp_path / name).iterdir())).trials()
            for c in t.checks
        }
        for name in ("plain", "scaled")
    }
    includes = {("a", "includes"): 0.0, ("b", "includes"): 0.0}
    assert scores["plain"] == {("a", "points"): 1.0, ("b", "points"): None, **includes}
    assert scores["scaled"] == {
        ("a", "points"): pytest.approx(1 / 7),
        ("b", "points"): 1.0,
        **includes,
    }


@pytest.mark.slow
def _log(tmp_path: Path, **changes) -> Path:
    """A log of one sample of Inspect, changed."""
    sample = {"id": 1, "epoch": 1, "input": "q", "scores": {"match": {"value": "C"}}, **changes}
    log = {"eval": {"task": "t", "model": "m"}, "status": "success", "samples": [sample]}
    path = tmp_path / "log.json"
    path.write_text(json.dumps(log))
    return path


@pytest.mark.parametrize(
    "changes",
    [
        {"scores": None, "score": {"value": "C"}},
        {"scores": {"match": 1}},
        {"scores": {"match": {"value": "1.0"}}, "epoch": "1", "total_time": "1.5"},
        {"model_usage": {"m": {"input_tokens": "many", "output_tokens": None}}},
    ],
    ids=["one scorer of the first versions", "bare score", "text", "odd usage"],
)
def test_samples_of_inspect_with_odd_values(tmp_path: Path, changes) -> None:
    """R-D3: old and odd forms of a sample have the same verdict."""
    (trial,) = import_results(_log(tmp_path, **changes), root=tmp_path).trials()
    assert (trial.case, trial.status, trial.score) == ("1", "passed", 1.0)


def test_errors_of_inspect_are_shown(tmp_path: Path) -> None:
    """R-D3: an error that is plain text, and the error of a tool without content."""
    messages = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "", "tool_calls": [{"id": "c", "function": "f"}]},
        {
            "role": "tool",
            "tool_call_id": "c",
            "content": "",
            "error": {"type": "timeout", "message": "too slow"},
        },
    ]
    run = import_results(
        _log(tmp_path, scores=None, error="sandbox gone", messages=messages), root=tmp_path
    )
    (trial,) = run.trials()
    assert trial.status == "infra_error"
    assert trial.error is not None
    assert trial.error.message == "sandbox gone"
    trace = run.trace(trial)
    assert trace is not None
    assert [call.result for call in trace.tool_calls] == ["timeout: too slow"]


def test_a_log_without_all_samples_is_incomplete(inspect_logs, tmp_path: Path, capsys) -> None:
    """R-D3: a partial log warns and stays incomplete in report and gate; a header is named."""
    root = ["--results", str(tmp_path / "r")]
    whole = json.loads(inspect_logs[1].read_text())
    partial = tmp_path / "partial.json"
    partial.write_text(json.dumps({**whole, "samples": whole["samples"][:3]}))
    for file, name in ((inspect_logs[1], "whole"), (partial, "partial")):
        assert main(["runs", "import", str(file), "--name", name, *root]) == 0
    assert "incomplete: the log holds 3 of 8 samples" in capsys.readouterr().err
    before, after = (str(next((tmp_path / "r" / n).iterdir())) for n in ("whole", "partial"))
    main(["report", after, *root])
    shown = capsys.readouterr().out
    assert "the log holds 3 of 8 samples" in shown
    assert "--resume" not in shown
    main(["gate", after, "--against", before, *root])
    assert "imported incomplete (the log holds 3 of 8 samples)" in capsys.readouterr().out
    (header,) = (inspect_logs[0].parent / "header").glob("*.json")
    assert main(["runs", "import", str(header), *root]) == 2
    assert "header-only" in capsys.readouterr().err


# -- MLflow --------------------------------------------------------------------------------------


class Tracking(ThreadingHTTPServer):
    """A server that stores what it receives, in the shape of MLflow's REST API."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.experiments: dict[str, str] = {}
        self.runs: dict[str, dict[str, Any]] = {}


class _Handler(BaseHTTPRequestHandler):
    server: Tracking

    def do_GET(self) -> None:
        from urllib.parse import parse_qs, urlparse

        name = parse_qs(urlparse(self.path).query)["experiment_name"][0]
        if name not in self.server.experiments:
            self._answer(404, {"error_code": "RESOURCE_DOES_NOT_EXIST"})
            return
        self._answer(200, {"experiment": {"experiment_id": self.server.experiments[name]}})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        runs = self.server.runs
        match self.path.removeprefix("/api/2.0/mlflow/"):
            case "experiments/create":
                self.server.experiments[body["name"]] = str(len(self.server.experiments) + 1)
                self._answer(200, {"experiment_id": self.server.experiments[body["name"]]})
            case "runs/search":
                wanted = body["filter"].partition(" = ")[2].strip("'")
                found = [r for r in runs.values() if r["tags"]["proctor.cell"] == wanted]
                self._answer(200, {"runs": [{"info": {"run_id": r["id"]}} for r in found]})
            case "runs/create":
                tags = {tag["key"]: tag["value"] for tag in body["tags"]}
                made = {"id": str(len(runs)), "tags": tags, "metrics": {}, "params": {}}
                runs[made["id"]] = made | {"name": body["run_name"], "status": "RUNNING"}
                self._answer(200, {"run": {"info": {"run_id": made["id"]}}})
            case "runs/log-batch":
                for kind in ("metrics", "params"):
                    sent = {item["key"]: item["value"] for item in body.get(kind, [])}
                    runs[body["run_id"]][kind].update(sent)
                self._answer(200, {})
            case "runs/update":
                runs[body["run_id"]].update(status=body["status"], end_time=body["end_time"])
                self._answer(200, {})
            case other:
                self._answer(404, {"message": other})

    def _answer(self, code: int, body: dict[str, Any]) -> None:
        content = json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture
def tracking() -> Iterator[Tracking]:
    """A server on loopback."""
    server = Tracking()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_mlflow_gets_each_run_once(tracking: Tracking, tmp_path: Path) -> None:
    """R-D3: one MLflow run per run and agent, defined figures only; sent twice, stored once."""
    write_run(
        tmp_path, [trial(c, a, i) for c in CASES for a in "ab" for i in range(2)], name="shop"
    )
    write_run(tmp_path, [trial(status="infra_error")], name="bad")
    address = f"http://127.0.0.1:{tracking.server_port}"
    for _ in range(2):
        assert query(results=tmp_path).export(address, format="mlflow") == address
    assert set(tracking.experiments) == {"shop", "bad"}
    assert len(tracking.runs) == 3
    by_name = {
        run["name"].partition("/")[0] + run["name"][-2:]: run for run in tracking.runs.values()
    }
    sent = by_name["shop a"]
    assert sent["status"] == "FINISHED"
    assert sent["metrics"]["pass_rate"] == 1.0
    assert sent["metrics"]["trials_judged"] == 6
    assert sent["metrics"]["case/greet/pass_rate"] == 1.0
    assert (sent["params"]["agent"], sent["params"]["model"]) == ("a", "m-a")
    bad = by_name["bad a"]
    assert "pass_rate" not in bad["metrics"]
    assert bad["metrics"]["trials_infra_error"] == 1


def test_mlflow_gets_the_end_of_the_run_and_each_parameter(tracking, tmp_path: Path) -> None:
    """R-D3: the end time is that of the last trial, and parameters are separate params."""
    second = 1_700_000_000_000_000_000
    trials = [
        trial(index=i, started_ns=second + i * 10**9, duration_ms=500.0, params={"t": 0, "top": 2})
        for i in range(3)
    ]
    write_run(tmp_path, trials, name="shop")
    address = f"http://127.0.0.1:{tracking.server_port}"
    query(results=tmp_path).export(address, format="mlflow")
    (sent,) = tracking.runs.values()
    assert sent["end_time"] == 1_700_000_002_500
    assert sent["params"]["params.t"] == "0"
    assert sent["params"]["params.top"] == "2"
    assert "params" not in sent["params"]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("mlflow") is None, reason="there is no `mlflow` command")
def test_a_real_server_of_mlflow(tmp_path: Path) -> None:
    """R-D3: the real server takes what we tell it, and finds it again."""
    write_run(tmp_path / "r", [trial(c, a, i) for c in CASES for a in "ab" for i in range(2)])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    store = f"sqlite:///{tmp_path / 'mlflow.db'}"
    command = ["mlflow", "server", "--workers", "1", "--port", str(port)]
    command += ["--backend-store-uri", store]
    address = f"http://127.0.0.1:{port}"
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            until(lambda: _answers(f"{address}/health"), 180)
            for _ in range(2):
                query(results=tmp_path / "r").export(address, format="mlflow")
            found = httpx.post(
                f"{address}/api/2.0/mlflow/runs/search", json={"experiment_ids": ["1"]}, timeout=60
            ).json()["runs"]
        finally:
            server.terminate()
    assert len(found) == 2
    for run in found:
        metrics = {m["key"]: m["value"] for m in run["data"]["metrics"]}
        assert (metrics["pass_rate"], metrics["case/greet/score_mean"]) == (1.0, 1.0)
        assert run["info"]["status"] == "FINISHED"


def _answers(address: str) -> bool:
    try:
        return httpx.get(address, timeout=5).is_success
    except httpx.HTTPError:
        return False


def test_mlflow_that_does_not_answer_is_an_error(tmp_path: Path, monkeypatch) -> None:
    """R-D3: an unreachable or missing server is an error with a hint."""
    write_run(tmp_path, [trial()])
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with pytest.raises(ProctorError, match="no MLflow server"):
        query(results=tmp_path).export("x", format="mlflow")
    with pytest.raises(ProctorError, match="is not reachable"):
        query(results=tmp_path).export("http://127.0.0.1:9", format="mlflow")


def test_an_imported_run_can_be_finished_again(tmp_path: Path) -> None:
    """R-D3: its derived files can be rebuilt from the journal, like those of any run."""
    (tmp_path / "t.jsonl").write_text('{"case": "a", "passed": true}\n{"case": "a", "passed": 0}\n')
    run = import_results(tmp_path / "t.jsonl", root=tmp_path / "r")
    before = query(results=tmp_path / "r").rows()
    finish(run.folder)
    assert query(results=tmp_path / "r").rows() == before
