"""`proctor baseline` from outside, on agents whose behaviour changes."""

import io
import json
import os
import subprocess
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

import commands
import pytest

from proctor.cli.main import run

AGENT = """
from proctor.agents.base import AgentReply
from proctor.trace import Span, SpanKind, Trace
from proctor.trace.capture import capture, span

OLD = True


def answer(question):
    return CASES[question]()


def call(name, **arguments):
    with capture.tool_call(name, arguments) as step:
        step.tool_output = "ok"


def model(name="m1", finish=None, tools=(), **fields):
    attributes = {"gen_ai.response.finish_reasons": [finish]} if finish else {}
    if tools:
        attributes["gen_ai.tool.definitions"] = [{"name": tool} for tool in tools]
    with capture.llm_call(name, attributes=attributes, **fields):
        pass


def timed(milliseconds, **fields):
    # A trace of its own, so that no clock has a say.
    whole = Span(span_id="1", trace_id="t", name="agent", kind=SpanKind.AGENT, start_ns=0)
    whole.end_ns = milliseconds * 1_000_000
    step = Span(span_id="2", trace_id="t", parent_id="1", name="chat", kind=SpanKind.LLM, **fields)
    trace = Trace(trace_id="t", spans=[whole, step], response="Paris")
    return AgentReply(answer="Paris", trace=trace)


def same():
    return timed(200, model="m1", cost_usd=0.01)


def words():
    return f"The capital is {'Lyon' if OLD else 'Paris'}, I think."


def verdict():
    return "Paris" if OLD else "Lyon"


def empty():
    return "Paris" if OLD else None


def added():
    call("search")
    call("fetch")
    if not OLD:
        call("browse")
        call("browse")
    return "Paris"


def removed():
    for tool in ["search", "fetch", "book"] if OLD else ["search", "book"]:
        call(tool)
    return "Paris"


def reordered():
    for tool in ["search", "fetch", "book"] if OLD else ["fetch", "search", "book"]:
        call(tool)
    return "Paris"


def another_way():
    for tool in ["search", "fetch"] if OLD else ["browse", "guess"]:
        call(tool)
    return "Paris"


def arguments():
    if OLD:
        call("search", query="flights", filter={"max": 3}, lang="en")
    else:
        call("search", query="trains", filter={"max": 5}, page=2)
    return "Paris"


def steps():
    for _ in range(2 if OLD else 6):
        model()
    return "Paris"


def handoffs():
    capture.handoff("billing" if OLD else "sales")
    return "Paris"


def offered():
    model(tools=["transfer_to_billing", "transfer_to_sales"] if OLD else ["transfer_to_billing"])
    return "Paris"


def guarded():
    for name in ["pii", "tone"] if OLD else ["tone"]:
        with span(name, kind="guardrail"):
            pass
    return "Paris"


def tripped():
    with span("pii", kind="guardrail") as step:
        step.output = {"triggered": not OLD}
    return "Paris"


def stopped():
    model(finish="stop" if OLD else "max_tokens")
    return "Paris"


def routed():
    for name in ["triage", "billing"] if OLD else ["triage", "sales", "billing"]:
        model(agent_name=name)
    return "Paris"


def models():
    model("m1" if OLD else "m2")
    return "Paris"


def errors():
    try:
        with capture.tool_call("search", {}):
            if not OLD:
                raise ConnectionError("refused")
    except ConnectionError:
        pass
    return "Paris"


def fixed():
    try:
        with capture.tool_call("search", {}):
            if OLD:
                raise ConnectionError("refused")
    except ConnectionError:
        pass
    return "Paris"


def tokens():
    model(input_tokens=1000 if OLD else 1700, output_tokens=0)
    return "Paris"


def dear():
    return timed(200, model="m1", cost_usd=0.01 if OLD else 0.03)


def slow():
    return timed(200 if OLD else 340)


def hostile():
    call("search" if OLD else "\\x1b[31mred\\x07", q="x")
    return "Paris" if OLD else "Paris \\x1b]0;title\\x07<script>alert(1)</script>\\x00"


CASES = {name.replace("_", "-"): thing for name, thing in list(globals().items())
         if callable(thing) and name not in ("answer", "call", "model", "timed")}
"""

KINDS = (
    *("same", "words", "verdict", "empty", "added", "removed", "reordered", "another-way"),
    *("arguments", "steps", "handoffs", "offered", "guarded", "tripped", "stopped", "routed"),
    *("models", "errors", "fixed", "tokens", "dear", "slow", "hostile"),
)
CHECKED = {"verdict", "hostile"}


def proctor(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    given = {**os.environ, "XDG_CONFIG_HOME": str(folder / "xdg")}
    return commands.proctor(*args, cwd=folder, env=given)


def write_suite(folder: Path, *cases: dict[str, Any], agent: str = "agent:answer") -> None:
    # JSON is YAML; written so that no quoting is needed.
    (folder / "suite.yaml").write_text(json.dumps({"agent": agent, "cases": list(cases)}))


def case_of(name: str) -> dict[str, Any]:
    checks = {"correctness": {"expected_in_answer": ["Paris"]}} if name in CHECKED else {}
    return {"id": name, "input": name, **checks}


def lines_of(console: str, case: str) -> list[str]:
    """What the console form says about one case: its severities, then a line for each change."""
    block = next(b for b in console.split("\n\n") if b.startswith(f"{case} ("))
    return [" ".join(line.split()) for line in block.splitlines()]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project whose agent was saved as v1, then changed and saved as v2."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "agent.py").write_text(AGENT)
    write_suite(folder, *map(case_of, KINDS))
    saved = proctor(folder, "baseline", "save", "suite.yaml", "--version", "v1")
    assert (saved.returncode, saved.stderr) == (0, "")
    (folder / "agent.py").write_text(AGENT.replace("OLD = True", "OLD = False"))
    return folder


@pytest.fixture(scope="module")
def console(project: Path) -> str:
    done = proctor(project, "baseline", "diff", "suite.yaml", "--baseline", "v1")
    assert (done.returncode, done.stderr) == (1, "")
    return done.stdout


CHANGES = [
    ("words", "warning correctness: the answer changed: 1 word added, 1 removed"),
    ("words", "The capital is [-Lyon-]{+Paris+}, I think."),
    (
        "verdict",
        (
            "error correctness: the checks passed and now fail: "
            "expected_in_answer: the answer lacks 'Paris' (0 of 1 found)"
        ),
    ),
    ("empty", "error correctness: the answer is empty now"),
    ("added", "warning path: tools added: browse ×2"),
    ("removed", "warning path: tools removed: fetch"),
    ("removed", "info path: sequence similarity 0.80: search, fetch, book → search, book"),
    (
        "reordered",
        "warning path: tools reordered: search; search, fetch, book → fetch, search, book",
    ),
    (
        "another-way",
        (
            "error path: sequence similarity 0.00: search, fetch → browse, guess; "
            "below 0.5: another way altogether"
        ),
    ),
    ("arguments", 'warning path: argument search (call 1).query: "flights" → "trains"'),
    ("arguments", "warning path: argument search (call 1).filter.max: 3 → 5"),
    ("arguments", 'warning path: argument search (call 1).lang: "en" → absent'),
    ("arguments", "warning path: argument search (call 1).page: absent → 2"),
    ("steps", "warning path: steps: spans 3 → 7, model calls 2 → 6"),
    ("handoffs", "warning path: handoffs: billing → sales"),
    ("offered", "warning path: available handoffs: no longer sales"),
    ("guarded", "error path: guardrails: pii, tone → tone; pii did not run"),
    ("tripped", "warning path: guardrails: pii → pii (tripped)"),
    ("stopped", "error path: stop reason: stop → length"),
    ("routed", "warning path: agents: triage, billing → triage, sales, billing"),
    ("models", "warning path: model: m1 → m2"),
    ("errors", "warning path: errors that were not there: search: ConnectionError"),
    ("fixed", "info path: errors gone: search: ConnectionError"),
    ("tokens", "warning cost: tokens: 1,000 tokens → 1,700 tokens (1.70×), over 1.5×"),
    ("dear", "error cost: cost: $0.01 → $0.03 (3.00×), over 2×"),
    ("slow", "warning cost: latency: 200 ms → 340 ms (1.70×), over 1.5×"),
]


@pytest.mark.parametrize(("case", "line"), CHANGES)
def test_every_change_is_named(console: str, case: str, line: str) -> None:
    """R-D4: what changed, from what to what, in its tier, with its severity."""
    assert line in lines_of(console, case)


def test_what_did_not_change_has_no_line(console: str) -> None:
    """R-D4: a case that behaves as before is reported as unchanged."""
    (only,) = lines_of(console, "same")
    assert only == "same (agent:answer): correctness none · path none · cost none"


def test_every_case_is_counted_once(console: str) -> None:
    """R-D4: the last line's counts add up to the cases."""
    total, _, counts = console.splitlines()[-1].partition(" cases: ")
    assert int(total) == len(KINDS)
    assert sum(int(part.split()[0]) for part in counts.split(", ")) == len(KINDS)


def test_tiers_have_a_severity_each(console: str) -> None:
    """R-D4: three tiers, the gravest change of each."""
    assert lines_of(console, "dear")[0].endswith("correctness none · path none · cost error")
    assert "correctness none · path warning · cost " in lines_of(console, "arguments")[0]


def test_hostile_output_is_shown_and_not_obeyed(project: Path, console: str) -> None:
    """R-D4: no control character reaches a terminal, no markup a page."""
    assert not set(console) & set("\x1b\x07\x00")
    assert any("tools added: red" in line for line in lines_of(console, "hostile"))
    page = proctor(
        project, "baseline", "diff", "suite.yaml", "--baseline", "v1", "--format", "markdown"
    )
    assert page.returncode == 1
    assert not set(page.stdout) & set("\x1b\x07\x00")
    prose = [line for line in page.stdout.splitlines() if "`" not in line]
    assert not any("<script" in line for line in prose)
    assert "| dear | agent\\:answer | none | none | error | 1.00 |" in page.stdout


def _steady(changes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Changes that do not depend on how busy the machine is."""
    return [change for change in changes if change["kind"] != "latency"]


def test_the_machine_form(project: Path) -> None:
    """R-D4: one JSON document with the same changes, values whole."""
    done = proctor(project, "baseline", "diff", "suite.yaml", "--baseline", "v1", "--json")
    assert (done.returncode, done.stderr) == (1, "")
    document = json.loads(done.stdout)
    assert (document["baseline"], document["compared"]) == ("v1", None)
    assert (document["severity"], document["exit_code"]) == ("error", 1)
    cases = {each["case"]: each for each in document["cases"]}
    assert list(cases) == list(KINDS)
    (change,) = _steady(cases["dear"]["changes"])
    assert change == {
        "tier": "cost",
        "kind": "cost",
        "severity": "error",
        "message": "cost: $0.01 → $0.03 (3.00×), over 2×",
        "before": 0.01,
        "after": 0.03,
    }
    (change,) = _steady(cases["words"]["changes"])
    assert change["words"][1:3] == [
        {"op": "removed", "text": "Lyon"},
        {"op": "added", "text": "Paris"},
    ]
    assert cases["removed"]["tool_similarity"] == pytest.approx(0.8)


def test_two_saved_versions(project: Path) -> None:
    """R-D4: --compare runs nothing and says the same; a forced version says so."""
    saved = proctor(project, "baseline", "save", "suite.yaml", "--version", "v2", "--force")
    assert saved.returncode == 0
    assert "forced: expected_in_answer: the answer lacks 'Paris'" in saved.stdout
    (project / "agent.py").rename(project / "gone.py")
    try:
        args = (
            "baseline",
            "diff",
            "suite.yaml",
            "--baseline",
            "v1",
            "--compare",
            "v2",
            "-o",
            "new/out.json",
        )
        done = proctor(project, *args, "--format", "json")
    finally:
        (project / "gone.py").rename(project / "agent.py")
    assert (done.returncode, done.stderr) == (1, "")
    document = json.loads((project / "new" / "out.json").read_text(encoding="utf-8"))
    assert document["compared"] == "v2"
    by_case = {each["case"]: each["severity"] for each in document["cases"]}
    assert (by_case["verdict"], by_case["slow"], by_case["same"]) == ("error", "warning", "none")
    listed = proctor(project, "baseline", "list", "--suite", "suite.yaml")
    (row,) = [r for r in listed.stdout.splitlines() if " v2 " in r and " verdict " in r]
    assert row.endswith("hard_fail, forced")


# -- saving ----------------------------------------------------------------------------------------

SIMPLE = """
from pathlib import Path
from proctor.agents.base import AgentError, AgentReply
from proctor.trace import Span, SpanKind, Trace


def answer(question):
    if question == "down":
        raise AgentError("the server is down", category="")  # not the agent's fault
    says, usd = (Path(__file__).parent / "says.txt").read_text().split(";")
    if question == "crash" or says == "crash":
        raise RuntimeError("no model")
    step = Span(span_id="1", trace_id="t", name="chat", kind=SpanKind.LLM, end_ns=1, model="m")
    step.cost_usd = float(usd)
    return AgentReply(answer=says, trace=Trace(trace_id="t", spans=[step], response=says))
"""
SECRET = "sk-proj-abcdefghijklmnopqrstuvwxyz0123456789ABCD"
GOOD = {"id": "good", "input": "q", "correctness": {"expected_in_answer": ["Paris"]}}
BAD = {"id": "bad", "input": "q2", "correctness": {"expected_in_answer": ["Rome"]}}
CRASH = {"id": "crash", "input": "crash"}
DOWN = {"id": "down", "input": "down"}


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


def here(folder: Path, *args: str) -> Done:
    """The command line in this process, which is quicker where no module has to change."""
    out, err = io.StringIO(), io.StringIO()
    with chdir(folder), redirect_stdout(out), redirect_stderr(err):
        code = run(args)
    return Done(code, out.getvalue(), err.getvalue())


def says(folder: Path, text: str, usd: float = 0.01) -> None:
    (folder / "says.txt").write_text(f"{text};{usd}")


@pytest.fixture
def simple(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    (tmp_path / "agent.py").write_text(SIMPLE)
    says(tmp_path, "Paris")
    write_suite(tmp_path, GOOD, BAD, CRASH)
    return tmp_path


def saved_files(folder: Path) -> list[str]:
    return sorted(path.stem for path in (folder / "baselines").rglob("*.json"))


def test_only_what_passes_is_saved(simple: Path) -> None:
    """R-D4 R-R11: failing and crashing cases are refused with their reason; exit 1."""
    done = here(simple, "baseline", "save", "suite.yaml", "--version", "v1")
    assert done.returncode == 1
    assert saved_files(simple) == ["good"]
    assert "saved good (agent:answer): " in done.stdout
    assert "not saved bad (agent:answer): failed its checks: expected_in_answer" in done.stderr
    assert "not saved crash (agent:answer): failed: RuntimeError: no model" in done.stderr


def test_a_crash_alone_is_a_failure(simple: Path) -> None:
    """R-D4 R-R11: an error of the agent is a failure (exit 1), unless the suite says otherwise."""
    write_suite(simple, GOOD, CRASH)
    assert here(simple, "baseline", "save", "suite.yaml", "--version", "v1").returncode == 1
    suite = json.loads((simple / "suite.yaml").read_text())
    (simple / "suite.yaml").write_text(json.dumps({**suite, "on_agent_error": "infra"}))
    done = here(simple, "baseline", "save", "suite.yaml", "--version", "v2")
    assert done.returncode == 2
    assert "not saved crash (agent:answer): could not be judged: RuntimeError" in done.stderr


def test_a_case_that_cannot_be_run_is_not_a_failure(simple: Path) -> None:
    """R-D4 R-R11: exit 2, not 1, when nothing failed and something could not be judged."""
    write_suite(simple, GOOD, DOWN)
    done = here(simple, "baseline", "save", "suite.yaml", "--version", "v1")
    assert done.returncode == 2
    assert saved_files(simple) == ["good"]
    assert "not saved down (agent:answer): could not be judged: AgentError: the server is down" in (
        done.stderr
    )


def test_forced_cases_are_marked(simple: Path) -> None:
    """R-D4: --force keeps what fails, and every list says that it was forced."""
    write_suite(simple, GOOD, BAD, CRASH, DOWN)
    done = here(simple, "baseline", "save", "suite.yaml", "--version", "v1", "--force")
    assert done.returncode == 0
    assert saved_files(simple) == ["bad", "crash", "down", "good"]
    listed = json.loads(here(simple, "baseline", "list", "--json").stdout)["baselines"]
    prechecks = {each["case"]: each["precheck"] for each in listed}
    assert prechecks["good"]["forced"] is False
    assert (prechecks["bad"]["status"], prechecks["bad"]["forced"]) == ("hard_fail", True)
    assert (prechecks["crash"]["status"], prechecks["crash"]["forced"]) == ("failed", True)
    assert (prechecks["down"]["status"], prechecks["down"]["forced"]) == ("infra_error", True)


def test_a_version_is_not_overwritten(simple: Path) -> None:
    """R-D4: the second save changes nothing and runs nothing, unless forced."""
    write_suite(simple, GOOD)
    assert here(simple, "baseline", "save", "suite.yaml", "--version", "v1").returncode == 0
    (file,) = (simple / "baselines").rglob("*.json")
    before = file.read_bytes()
    says(simple, "crash")
    again = here(simple, "baseline", "save", "suite.yaml", "--version", "v1")
    assert again.returncode == 2
    assert "already saved as v1" in again.stderr
    assert "--force" in again.stderr
    assert "RuntimeError" not in again.stderr
    assert file.read_bytes() == before
    says(simple, "Paris!")
    assert (
        here(simple, "baseline", "save", "suite.yaml", "--version", "v1", "--force").returncode == 0
    )
    assert b"Paris!" in file.read_bytes()


def test_secrets_are_not_saved(simple: Path) -> None:
    """R-D4: a baseline is made to be committed, so what is in it is redacted."""
    write_suite(simple, GOOD)
    says(simple, f"Paris {SECRET}")
    here(simple, "baseline", "save", "suite.yaml", "--version", "v1")
    (file,) = (simple / "baselines").rglob("*.json")
    assert "sk-proj" not in file.read_text(encoding="utf-8")
    assert "[redacted:" in file.read_text(encoding="utf-8")


def test_recorded_traces_can_be_saved_and_compared(simple: Path) -> None:
    """R-D4: nothing is run; traces belong to cases by id or input."""
    (simple / "suite.yaml").write_text(json.dumps({"cases": [GOOD]}))
    trace = {"proctor_trace": 1, "trace_id": "t", "query": "q", "response": "Paris", "spans": []}
    (simple / "t.jsonl").write_text(json.dumps(trace))
    saved = here(simple, "baseline", "save", "suite.yaml", "--version", "v1", "--traces", "t.jsonl")
    assert (saved.returncode, saved.stderr) == (0, "")
    (simple / "t.jsonl").write_text(json.dumps({**trace, "response": "Paris it is"}))
    done = here(simple, "baseline", "diff", "suite.yaml", "--baseline", "v1", "--traces", "t.jsonl")
    assert done.returncode == 0
    assert "Paris{+it is+}" in done.stdout.replace("Paris {+", "Paris{+")
    assert "it still passes its checks" in done.stdout


# -- what can go wrong -----------------------------------------------------------------------------


def test_a_changed_case_is_said(simple: Path) -> None:
    """R-D4: another spec hash: the comparison is not of like with like."""
    write_suite(simple, GOOD)
    here(simple, "baseline", "save", "suite.yaml", "--version", "v1")
    write_suite(simple, {**GOOD, "tags": ["geo"]})
    assert (
        "the case changed"
        not in here(simple, "baseline", "diff", "suite.yaml", "--baseline", "v1").stdout
    )
    write_suite(simple, {**GOOD, "cost": {"max_llm_calls": 3}})
    done = here(simple, "baseline", "diff", "suite.yaml", "--baseline", "v1")
    assert done.returncode == 0
    assert "note the case changed since v1" in " ".join(done.stdout.split())


def test_what_cannot_be_compared_is_exit_2(simple: Path) -> None:
    """R-D4 R-R11: no baseline, no such version, an agent that crashes: said, and never a pass."""
    write_suite(simple, GOOD)
    here(simple, "baseline", "save", "suite.yaml", "--version", "v1")
    other = here(simple, "baseline", "diff", "suite.yaml", "--baseline", "v2")
    assert other.returncode == 2
    assert "has no version 'v2'" in other.stdout
    write_suite(simple, GOOD, CRASH)
    missing = here(simple, "baseline", "diff", "suite.yaml", "--baseline", "v1")
    assert missing.returncode == 2
    assert (
        "v1 has no case 'crash': save it with `proctor baseline save --version v1`"
        in missing.stdout
    )
    says(simple, "crash")
    write_suite(simple, GOOD)
    down = here(simple, "baseline", "diff", "suite.yaml", "--baseline", "v1")
    assert down.returncode == 2
    assert "the agent could not be run: RuntimeError: no model" in down.stdout


def test_a_damaged_baseline_is_named(simple: Path) -> None:
    """R-D4: listed as damaged, not compared, exit 2; the file is named."""
    write_suite(simple, GOOD)
    here(simple, "baseline", "save", "suite.yaml", "--version", "v1")
    (file,) = (simple / "baselines").rglob("*.json")
    file.write_bytes(file.read_bytes()[:100])
    listed = here(simple, "baseline", "list")
    assert listed.returncode == 0
    assert "no baselines in baselines" in listed.stdout
    assert f"{file.relative_to(simple)}: damaged baseline" in listed.stderr
    done = here(simple, "baseline", "diff", "suite.yaml", "--baseline", "v1")
    assert done.returncode == 2
    assert "damaged baseline" in done.stdout


def test_cases_the_suite_no_longer_has_are_mentioned(simple: Path) -> None:
    """R-D4: a case that was removed does not drop out unseen."""
    write_suite(simple, GOOD, {**GOOD, "id": "other"})
    here(simple, "baseline", "save", "suite.yaml", "--version", "v1")
    write_suite(simple, GOOD)
    done = here(simple, "baseline", "diff", "suite.yaml", "--baseline", "v1")
    assert "note: v1 also has cases that are not in the suite: other" in done.stdout


def test_a_case_is_held_against_its_newest_baseline(simple: Path) -> None:
    """R-D4: checks that speak of a baseline find the one that was saved."""
    write_suite(simple, {**GOOD, "cost": {"max_cost_multiplier": 1.5, "blocking": True}})
    assert here(simple, "baseline", "save", "suite.yaml", "--version", "v1").returncode == 0
    says(simple, "Paris", 0.02)
    dearer = here(simple, "baseline", "save", "suite.yaml", "--version", "v2")
    assert dearer.returncode == 1
    assert "max_cost_multiplier" in dearer.stderr


def test_an_answer_that_only_its_cost_was_checked_of_is_not_checked(simple: Path) -> None:
    """R-D4: another answer is small only where a check of correctness passes it."""
    write_suite(simple, {"id": "open", "input": "q", "cost": {"max_llm_calls": 3}})
    here(simple, "baseline", "save", "suite.yaml", "--version", "v1")
    says(simple, "Rome")
    done = here(simple, "baseline", "diff", "suite.yaml", "--baseline", "v1")
    assert done.returncode == 0
    assert "warning  correctness: the answer changed: 1 word added, 1 removed\n" in done.stdout


def test_usage(simple: Path) -> None:
    """R-D4 R-R11: a wrong agent, or two sources for one thing, is a named error, exit 2."""
    wrong = here(
        simple, "baseline", "save", "suite.yaml", "--version", "v1", "--agent", "agnt:answer!"
    )
    assert wrong.returncode == 2
    assert "did you mean 'agent:answer'?" in wrong.stderr
    both = here(simple, "baseline", "list", "--suite", "suite.yaml", "--dir", "baselines")
    assert both.returncode == 2
    assert "--suite or --dir, not both" in both.stderr


def test_checks_compare_with_the_version_that_is_named(tmp_path: Path) -> None:
    """R-C3: checks use the newest version that passed, or the one the suite names, and say which;
    a version saved by force although it failed is used only when it is named."""
    agent = (
        "import proctor\n\n@proctor.tool\ndef search(q): return q\n\n"
        "@proctor.tool\ndef guess(q): return q\n\n"
        "def answer(q):\n    {tool}(q)\n    return '{said}'\n"
    )
    case = {
        "id": "one",
        "input": "x",
        "correctness": {"expected_in_answer": ["yes"]},
        "path": {"min_sequence_similarity": 0.9},
    }
    write_suite(tmp_path, case)
    for version, tool, said in (("v1", "search", "yes"), ("v2", "guess", "no")):
        (tmp_path / "agent.py").write_text(agent.format(tool=tool, said=said))
        saved = proctor(tmp_path, "baseline", "save", "suite.yaml", "--version", version, "--force")
        assert saved.returncode == 0, saved.stdout + saved.stderr
    (tmp_path / "agent.py").write_text(agent.format(tool="search", said="yes"))
    done = proctor(tmp_path, "test", "suite.yaml", "--format", "json")
    assert "sequence similarity with baseline v1 is 1.00" in done.stdout
    suite = {"agent": "agent:answer", "cases": [case]}
    (tmp_path / "suite.yaml").write_text(json.dumps({**suite, "baseline": "v2"}))
    done = proctor(tmp_path, "test", "suite.yaml", "--format", "json")
    assert "sequence similarity with baseline v2 is 0.00" in done.stdout
    (tmp_path / "suite.yaml").write_text(json.dumps({**suite, "baseline": "v3"}))
    done = proctor(tmp_path, "test", "suite.yaml")
    assert done.returncode == 2
    assert "no version 'v3'" in done.stderr
