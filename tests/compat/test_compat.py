"""Data written by an older Proctor stays readable: see README.md in this folder.

Every test copies `project/`, as commit 19b7d99 left it, and reads it through the command line.
"""

import json
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from commands import proctor

from proctor.server.store import open_store

DATA = Path(__file__).with_name("project")

FIRST, SECOND = "shop/2026-11-17_001", "shop/2026-11-17_002"
KILLED, LIMITED = "quick/2026-11-17_001", "meadow/2026-11-17_001"

# The words of the command line may change; what they read may not.
COMMANDS = {
    "resume": ["run", "--quiet", "--resume"],
    "retry": ["run", "--quiet", "--retry-infra"],
    "rerun": ["rerun", "--quiet"],
    "gate": ["gate", SECOND, "--against", "main"],
    "tags": ["runs", "tag"],
    "notes": ["runs", "note"],
    "audit": ["runs", "audit"],
    "status": ["runs", "status"],
    "share": ["runs", "share"],
    "export": ["runs", "export"],
    "baselines": ["baseline", "list"],
    "diff": ["baseline", "diff", "quick.yaml", "--baseline", "v1"],
    "fetch": ["scenario", "fetch"],
    "stats": ["store", "stats", "--store", "sqlite:///traces.db"],
    "store_export": ["store", "export", "--store", "sqlite:///traces.db"],
    "serve": ["serve", "--port", "0", "--readers", "0", "--store", "sqlite:///traces.db"],
    "view": ["view", "--port", "0", "--no-open"],
}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the data, in the working folder, with nothing of this machine's user around it."""
    folder = tmp_path / "shop"
    shutil.copytree(DATA, folder, ignore=shutil.ignore_patterns("__pycache__"))
    for spec in folder.glob("results/*/*/_spec_.yaml"):
        # A run records the absolute folder of its suite: here the suite moved with the run.
        text = spec.read_text(encoding="utf-8")
        assert "base_dir: /srv/shop\n" in text
        spec.write_text(text.replace("base_dir: /srv/shop\n", f"base_dir: {folder}\n"))
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_DATA_HOME", str(folder / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")  # the discard port: no model
    for name in ("OPENAI_API_KEY", "PROCTOR_RESULTS", "SHOP_VERSION", "SHOP_DIES_AT"):
        monkeypatch.delenv(name, raising=False)
    return folder


def output(*args: str, code: int = 0) -> str:
    """The standard output of a command that ends with this exit code."""
    done = proctor(*args)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def document(*args: str, code: int = 0) -> Any:
    """The JSON document a command prints."""
    return json.loads(output(*args, "--json", code=code))


def rows(question: str) -> list[dict[str, Any]]:
    """The rows of a SELECT over all runs."""
    return document("sql", question)["rows"]


def outcomes(run: str) -> list[tuple[str, str, str, int]]:
    """How many trials of a run ended how, for each case and agent."""
    question = (
        'SELECT "case", agent, status, count(*) AS n FROM trials '
        f"WHERE run = '{run}' GROUP BY ALL ORDER BY ALL"
    )
    return [tuple(row.values()) for row in rows(question)]


def test_the_data_is_small_and_holds_no_secret_and_no_machine() -> None:
    """R-T9: what is committed names one made-up machine and no key."""
    files = [path for path in DATA.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    assert sum(path.stat().st_size for path in files) < 300_000
    text = b"".join(path.read_bytes() for path in files)
    assert not re.search(rb"/(?:tmp|work|home|root|Users)/|sk-\w{8}|api_key", text)
    hosts = set(re.findall(rb'"?host"?: ?"?([\w.-]+)', text))
    assert hosts == {b"builder"}


def test_a_finished_run_is_reported(project: Path) -> None:
    """R-D1, R-R13: a run of commit 19b7d99 has the figures it had then, in every form."""
    console = output("report", "main")
    assert re.search(r"refund +hasty +HARD FAIL +2/3 +0\.89", console)
    assert re.search(r"opening +hasty +INFRA_ERROR +1/1 +1\.00", console)
    assert re.search(r"parcel +careful +PASS +3/3 +1\.00 .*\$0\.000714", console)
    assert "3 of 6 cells passed" in console
    assert "12 of 16 judged trials" in console
    assert "$0.00114" in console
    assert "789 tokens" in console
    assert "the calendar was down" in console
    assert "forbidden_tools: 1 of 6 trials" in console

    assert "refund" in output("report", FIRST, "--markdown")
    output("report", FIRST, "--html", "page.html")
    page = (project / "page.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    assert "3 of 6 cells" in page
    assert "delete_order (once)" in page


def test_all_runs_are_queried(project: Path) -> None:
    """R-D2: results and SQL read finished, stopped and killed runs of commit 19b7d99."""
    groups = document("results")["groups"]
    figures = {
        (group["key"]["run"], group["key"]["agent"]): (
            group["passed"],
            group["judged"],
            group["trials"],
            group["infra_error"],
        )
        for group in groups
    }
    assert figures == {
        (LIMITED, "random"): (0, 1, 1, 0),
        (KILLED, "hasty"): (3, 3, 3, 0),
        (FIRST, "careful"): (6, 9, 9, 0),
        (FIRST, "hasty"): (6, 7, 9, 2),
        (SECOND, "careful"): (6, 9, 9, 0),
        (SECOND, "hasty"): (4, 7, 9, 2),
    }
    assert sum(group["cost_usd"] or 0 for group in groups) == pytest.approx(0.00228)
    assert rows(
        "SELECT agent, status, count(*) AS n, sum(input_tokens)::INT AS tokens FROM trials "
        "GROUP BY ALL ORDER BY ALL"
    ) == [
        {"agent": "careful", "status": "hard_fail", "n": 6, "tokens": 144},
        {"agent": "careful", "status": "passed", "n": 12, "tokens": 1200},
        {"agent": "hasty", "status": "hard_fail", "n": 4, "tokens": None},
        {"agent": "hasty", "status": "infra_error", "n": 4, "tokens": None},
        {"agent": "hasty", "status": "passed", "n": 13, "tokens": None},
        {"agent": "random", "status": "failed", "n": 1, "tokens": None},
    ]
    failed = (
        f"SELECT id, status, count(*) AS n FROM checks WHERE run = '{SECOND}' "
        "AND status NOT IN ('pass', 'skip') "
        "GROUP BY ALL ORDER BY ALL"
    )
    assert rows(failed) == [
        {"id": "expected_in_answer", "status": "fail", "n": 3},
        {"id": "forbidden_tools", "status": "fail", "n": 1},
        {"id": "output_contains:days", "status": "warn", "n": 3},
        {"id": "regex_match", "status": "fail", "n": 3},
    ]


def test_two_runs_are_compared(project: Path) -> None:
    """R-Q3: the difference between two runs of commit 19b7d99, with its p-value."""
    first, second = document("compare", "main", SECOND)["pairs"]
    assert (first["n"], first["passes"]) == ([9, 9], [6, 6])
    assert (second["n"], second["passes"]) == ([7, 7], [6, 4])
    rate = next(metric for metric in second["metrics"] if metric["metric"] == "pass_rate")
    assert (rate["first"], rate["second"]) == (pytest.approx(8 / 9), pytest.approx(6 / 9))
    assert rate["suite"]["p_value"] == pytest.approx(0.2)
    assert "−22.2 points" in output("compare", "main", SECOND)


def test_a_run_is_gated_against_a_tagged_one(project: Path) -> None:
    """R-Q2: the gate reads both runs, the tag, and what could not be judged."""
    gate = [*COMMANDS["gate"], "--max-not-judged", "0.5"]
    assert document(*gate)["verdict"] == "INCONCLUSIVE"
    careful, hasty = document(*gate)["arms"]
    assert careful["gate"]["drop"] == 0
    assert hasty["gate"]["drop"] == pytest.approx(2 / 9)
    assert hasty["gate"]["p_value"] == pytest.approx(0.1)
    assert hasty["gate"]["errors"] == [2, 2]
    # By default 2 of 9 trials without a verdict are too many to judge by.
    output(*COMMANDS["gate"], code=2)


def test_a_killed_run_is_resumed(project: Path) -> None:
    """R-R7, R-R9: what a process killed at commit 19b7d99 left behind is finished, not repeated."""
    journal = project / "results" / KILLED / "trials.jsonl"
    before = journal.read_bytes()
    assert outcomes(KILLED) == [("parcel", "hasty", "passed", 3)]
    assert "2 of 2 cells passed" in output(*COMMANDS["resume"], f"results/{KILLED}")
    assert outcomes(KILLED) == [("parcel", "hasty", "passed", 3), ("refund", "hasty", "passed", 4)]
    assert journal.read_bytes().startswith(before)


def test_a_run_stopped_by_a_limit_is_resumed_and_repeated(project: Path) -> None:
    """R-R7, R-S5: an experiment over a scenario goes on from its folder, and can be repeated."""
    case = "mutualism.hidden_dependency"
    assert outcomes(LIMITED) == [(case, "random", "failed", 1)]
    output(*COMMANDS["resume"], f"results/{LIMITED}", "--max-trials", "9", code=1)
    assert outcomes(LIMITED) == [(case, "random", "failed", 3)]
    score = rows(f"SELECT score FROM trials WHERE run = '{LIMITED}' ORDER BY axis_seed LIMIT 1")
    assert score == [{"score": 0.0276}]
    # A repeated trial gets the same scenario, the same actions and the same score.
    assert "3 of 3 trials" in output(*COMMANDS["rerun"], LIMITED)


def test_trials_that_could_not_be_judged_are_run_again(project: Path) -> None:
    """R-R7: a second attempt is appended to the journal of a finished run."""
    agent = project / "shop_agent.py"
    agent.write_text(agent.read_text().replace("raise ConnectionError", "print"))
    output(*COMMANDS["retry"], f"results/{FIRST}", code=1)
    assert outcomes(FIRST) == [
        ("opening", "careful", "hard_fail", 3),
        ("opening", "hasty", "passed", 3),
        ("parcel", "careful", "passed", 3),
        ("parcel", "hasty", "passed", 3),
        ("refund", "careful", "passed", 3),
        ("refund", "hasty", "hard_fail", 1),
        ("refund", "hasty", "passed", 2),
    ]
    attempts = rows(f"SELECT DISTINCT attempt FROM trials WHERE run = '{FIRST}' ORDER BY 1")
    assert attempts == [{"attempt": 1}, {"attempt": 2}]


def test_tags_notes_audit_and_heartbeat_are_read(project: Path) -> None:
    """R-D5: what people said about runs, who did what, and how a run is."""
    assert "main" in output(*COMMANDS["tags"])
    notes = output(*COMMANDS["notes"], FIRST)
    assert "the calendar was down" in notes
    assert "opening/hasty/0/1: not the agent's fault" in notes
    audit = output(*COMMANDS["audit"])
    assert len(audit.splitlines()) == 7
    assert "tester@builder" in audit
    status = output(*COMMANDS["status"], code=2)
    assert KILLED in status
    assert "process" in status


def test_traces_of_a_run_are_read(project: Path) -> None:
    """R-T7: the traces in a run folder, their figures and their spans."""
    traces = document("trace", "list", f"results/{FIRST}")["traces"]
    assert len(traces) == 18
    totals = [trace["totals"] for trace in traces]
    assert sum(total["spans"] for total in totals) == 39
    assert sum(total["errors"] for total in totals) == 4
    assert sum(total["llm_calls"] for total in totals) == 12
    assert sum(total["total_tokens"] or 0 for total in totals) == 789
    assert sum(total["cost_usd"] or 0 for total in totals) == pytest.approx(0.00114)
    shown = output("trace", "show", f"results/{FIRST}")
    assert shown.count("tool find_order") == 6
    assert "llm chat (shop-model)" in shown
    assert "60→12 tokens" in shown
    found = output("trace", "query", f"results/{FIRST}", "{tool_name: delete_order}")
    assert len(found.splitlines()) == 1


def test_a_run_is_shared_and_exported(project: Path) -> None:
    """R-D3, R-D5: one file to give away; the trials for other programs."""
    output(*COMMANDS["share"], FIRST, "-o", "shop.html")
    assert "delete_order" in (project / "shop.html").read_text(encoding="utf-8")
    output(*COMMANDS["export"], FIRST, "-o", "trials.csv")
    assert len((project / "trials.csv").read_text(encoding="utf-8").splitlines()) == 19


def test_a_baseline_is_listed_and_compared_with(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R-D4: baselines saved by commit 19b7d99; an unchanged agent is no error, a worse one is."""
    listed = document(*COMMANDS["baselines"])["baselines"]
    assert [(item["agent"], item["version"], item["case"]) for item in listed] == [
        ("hasty", "v1", "parcel"),
        ("hasty", "v1", "refund"),
    ]
    unchanged = output(*COMMANDS["diff"])
    assert "parcel (hasty): correctness none · path none" in unchanged
    assert "refund (hasty): correctness none · path none" in unchanged
    assert "since" not in unchanged, "the hash of a case must stay what it was"
    monkeypatch.setenv("SHOP_VERSION", "2")
    assert "Send it back[-within 30 days-]." in output(*COMMANDS["diff"], code=1)


def test_a_cassette_answers_an_agents_own_requests(project: Path) -> None:
    """R-A5: a cassette recorded by commit 19b7d99 is replayed without a key or a model."""
    assert "2 of 2 judged trials" in output(
        "run", "ask.yaml", "--quiet", "--replay", "ask.cassette.jsonl"
    )


def test_a_cassette_answers_the_requests_of_a_chat_agent(project: Path) -> None:
    """R-A5: the requests Proctor makes through its client library are the recorded ones.

    When the pinned client library changes what it sends, this may fail without a fault here:
    say so in README.md and keep the test above.
    """
    done = output(
        "run", "shop.yaml", "--agent", "careful", "--seed", "1", "--replay",
        "shop.cassette.jsonl", code=1,
    )  # fmt: skip
    assert re.search(r"parcel +careful +PASS +3/3 .*\$0\.000714", done)
    assert "6 of 9 judged trials" in done
    assert "789 tokens" in done


def test_a_store_of_live_traces_is_read(project: Path) -> None:
    """R-D7: what a server of commit 19b7d99 stored is counted and exported."""
    stats = document(*COMMANDS["stats"])
    assert (stats["traces"], stats["spans"], stats["errors"]) == (6, 14, 2)
    assert stats["cost_usd"] == pytest.approx(0.000474)
    assert stats["p95_ms"] == pytest.approx(6195.156289)
    output(*COMMANDS["store_export"], "-o", "all.jsonl")
    traces = document("trace", "list", "all.jsonl")["traces"]
    assert sorted(trace["totals"]["spans"] for trace in traces) == [2, 2, 2, 2, 2, 4]
    assert sum(trace["totals"]["total_tokens"] or 0 for trace in traces) == 324
    output(*COMMANDS["store_export"], "-o", "failed.jsonl", "--status", "error")
    (failed,) = document("trace", "list", "failed.jsonl")["traces"]
    assert failed["query"] == "When do you open on Sunday?"
    output(*COMMANDS["store_export"], "-o", "tool.jsonl", "--tool", "find_order")
    assert len(document("trace", "list", "tool.jsonl")["traces"]) == 2


def test_an_older_store_gets_the_tables_of_a_new_one(project: Path) -> None:
    """R-D7: opening a store of commit 19b7d99 brings its tables and indexes to this version."""

    def schema(file: str) -> list[Any]:
        with sqlite3.connect(file) as database:
            tables = "SELECT m.name, c.* FROM sqlite_master m, pragma_table_info(m.name) c"
            indexes = "SELECT m.name, c.* FROM sqlite_master m, pragma_index_info(m.name) c"
            version = "SELECT key, value FROM notes"
            return [
                sorted(database.execute(s).fetchall(), key=str) for s in (tables, indexes, version)
            ]

    document(*COMMANDS["stats"])
    open_store("sqlite:///new.db").close()
    assert schema("traces.db") == schema("new.db")


def test_a_store_of_live_traces_is_viewed(project: Path) -> None:
    """R-D7: its traces, their evaluations and their pages."""
    with serving("serve") as url:
        listed = json.loads(fetched(f"{url}/api/traces"))
        assert listed["count"] == 6
        assert sum(trace["spans"] for trace in listed["traces"]) == 14
        failed = next(trace for trace in listed["traces"] if trace["errors"])
        assert failed["score"] is not None
        evaluations = fetched(f"{url}/api/traces/{failed['trace_id']}/evaluations")
        assert "error_recovery" in evaluations
        trace = fetched(f"{url}/api/traces/{failed['trace_id']}")
        assert "the calendar of the shop is offline" in trace
        assert failed["trace_id"] in fetched(f"{url}/traces/{failed['trace_id']}")
        assert "When do you open on Sunday?" in fetched(f"{url}/")


def test_runs_are_viewed(project: Path) -> None:
    """R-D1: the pages of a run of commit 19b7d99."""
    with serving("view") as url:
        assert FIRST in fetched(f"{url}/runs")
        page = fetched(f"{url}/runs/{FIRST}")
        assert "delete_order" in page
        assert "refund" in page


def test_a_stored_scenario_is_fetched(project: Path) -> None:
    """R-S4: a built scenario is verified against its digests and comes back byte for byte."""
    output(*COMMANDS["fetch"], "meadow-7", "-o", "again")
    stored = DATA / "data" / "proctor" / "scenarios" / "meadow-7"
    names = {path.name for path in stored.iterdir()}
    assert names == {path.name for path in (project / "again").iterdir()}
    for name in names:
        assert (project / "again" / name).read_bytes() == (stored / name).read_bytes(), name


@contextmanager
def serving(command: str) -> Iterator[str]:
    """A server in its own process, and its address."""
    process = subprocess.Popen(
        [sys.executable, "-m", "proctor", *COMMANDS[command]], stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    try:
        lines: list[str] = []
        for line in process.stderr:
            lines.append(line)
            if found := re.search(r"http://[\w.]+:\d+", line):
                yield found.group()
                break
        else:
            raise AssertionError(f"the server did not start: {''.join(lines)}")
    finally:
        process.terminate()
        process.wait(60)
        process.stderr.close()


def fetched(url: str) -> str:
    """The text at an address of this machine."""
    with urlopen(url, timeout=60) as answer:
        return answer.read().decode()
