"""The decisive step: planted causes, evidence of trials, contrast with passing trials."""

import json
import math
from itertools import product
from pathlib import Path
from typing import Any

import planted
import planted_teams
import pytest
from click.testing import CliRunner
from scipy import stats as scipy_stats
from spans import span, trace

import proctor
from proctor.checks.base import CheckResult, CheckStatus, Layer
from proctor.checks.layers import Correctness
from proctor.cli.diagnose import diagnose as command
from proctor.diagnose._steps import read_steps
from proctor.diagnose.evidence import Trajectories
from proctor.diagnose.finding import SHOWN_FROM, Category, Impact
from proctor.diagnose.group_chat import read_turns
from proctor.diagnose.methods import TrialEvidence, diagnose_offline
from proctor.llm import MockLLM
from proctor.stats.ranking import fisher_exact
from proctor.trace import SpanKind, SpanStatus, Trace
from proctor.trace.assemble import Collector
from proctor.trace.export import save_traces
from proctor.trace.formats import transcript
from proctor.trace.model import Message


def test_planted_causes() -> None:
    """R-G8: of made-up failures of six designs the decisive step is named, half of them late, where
    the first worker is not to blame; in clean traces next to nothing is harmful."""
    found = list(planted.failures(4))
    assert len(found) >= 60
    assert 0.4 <= sum(one.late for one in found) / len(found) <= 0.6
    agent = step = near = by_position = 0
    missed: list[str] = []
    for one in found:
        cause = diagnose_offline(one.trace).decisive
        by_position += planted.first_worker(one) == (one.agent, one.step)
        if cause is None:
            missed.append(one.name)
            continue
        agent += cause.agent == one.agent
        step += cause.step == one.step
        near += abs(cause.step - one.step) <= 1
        assert one.trace.node(cause.location) is not None
        if cause.step != one.step:
            missed.append(f"{one.name}: {cause.agent} {cause.step}, not {one.agent} {one.step}")
    n = len(found)
    assert agent >= 0.8 * n, missed
    assert step >= 0.6 * n, missed
    assert near >= 0.75 * n, missed
    assert step > 1.5 * by_position, "no better than position"
    clean = list(planted.clean(20))
    harmful = [
        one.name
        for one in clean
        if any(f.impact is Impact.HIGH for f in diagnose_offline(one.trace).findings)
    ]
    assert len(harmful) <= 0.02 * len(clean), harmful


def test_long_logs_of_teams() -> None:
    """R-G8: in long logs of seven kinds of teams, with pages, ledgers, code and wrong approvals,
    the decisive message is named more often than by position, of no kind less often; a failed log
    always has one, and its step is the index of a message of that agent."""
    found: dict[str, list[tuple[bool, bool, bool, bool, bool]]] = {}
    for design, one in planted_teams.failed_teams(3, seed=2024):
        turns = read_turns(read_steps(one.trace))
        first = next(turn for turn in turns if turn.role == "worker")
        cause = diagnose_offline(one.trace).decisive
        assert cause is not None, one.name
        said = next(s for s in one.trace.spans if s.attributes.get("message.index") == cause.step)
        assert (said.span_id, said.agent_name) == (cause.location, cause.agent)
        found.setdefault(design, []).append(
            (
                cause.agent == one.agent,
                cause.step == one.step,
                first.agent == one.agent,
                first.act.number == one.step,
                one.late,
            )
        )
    rows = [row for each in found.values() for row in each]
    assert len(rows) >= 100
    assert 0.4 <= sum(late for *_, late in rows) / len(rows) <= 0.6
    for design, each in found.items():
        agent, step, by_first, by_place, _ = (sum(column) for column in zip(*each, strict=True))
        assert agent >= by_first, design
        assert step >= by_place, design
    agent, step, by_first, by_place, _ = (sum(c) / len(rows) for c in zip(*rows, strict=True))
    assert (agent, step) >= (0.65, 0.55), (agent, step, by_first, by_place)
    assert agent >= by_first + 0.2
    assert step >= by_place + 0.3


def team_log(**facts: Any) -> Trace:
    """Two values are reported, the second one becomes the answer."""
    history = [
        {"role": "user", "content": "How many berths does the harbour of Narva have?"},
        {"name": "searcher", "content": "The harbour office lists 412 berths."},
        {"name": "archivist", "content": "The old atlas has the harbour with 388 berths."},
        {"name": "clerk", "content": "We compare both sources now and then decide."},
        {"name": "clerk", "content": "The answer is 388."},
    ]
    out = Collector("log.json")
    transcript.read({"question": history[0]["content"], "history": history, **facts}, out)
    (found,) = out.traces.values()
    return found


def test_the_right_answer_of_a_log_is_evidence() -> None:
    """R-G8: who replaces an answer that the log itself calls right is the cause; a log that calls
    its answer correct has none; a plain chat that calls its answer wrong has one."""
    cause = diagnose_offline(team_log(ground_truth="412", is_correct=False)).decisive
    assert cause is not None
    assert (cause.agent, cause.step) == ("archivist", 2)
    assert "replaces the right answer" in cause.why
    without = diagnose_offline(team_log()).decisive
    assert without is not None
    assert "right answer" not in without.why
    assert diagnose_offline(team_log(ground_truth="388", is_correct=True)).decisive is None
    plain = Collector("plain.json")
    messages = [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "5"}]
    transcript.read({"messages": messages, "is_correct": False}, plain)
    (only,) = plain.traces.values()
    cause = diagnose_offline(only).decisive
    assert cause is not None
    assert (cause.what, cause.confidence) == ("5", 0.1)


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("Seats: 21 × 3 = 53.", True),
        ("Seats: 21 × 3 = 63.", False),
        ("1,200 + 34.5 = 1,234.5 in all", False),
        ("10 / 3 = 3.33", False),
        ("10 / 3 = 3.5", True),
        ("2 + 3 * 4 = 14", False),
        ("in 2019-2020 = two seasons", False),
        ("Sold: (12 + 9) × 3 = 61 in all", True),
        ("Sold: (12 + 9) × 3 = 63 in all", False),
        ("Both halls (21 + 3 = 25).", True),
        ("Both halls (21 + 3 = 24).", False),
        ("Nothing is left: 5 / 0 = 5.", False),
        (f"A list: {'1 + ' * 2000}1 = 7", False),
        (f"A long number: {'9' * 190} * 9 = 5", True),
    ],
)
def test_equations_of_agents_are_checked(text: str, wrong: bool) -> None:
    """R-G8: an equation that does not hold points at its author, one that holds does not."""
    history = [
        {"role": "user", "content": "How many seats are there, and how many are sold?"},
        {"name": "first", "content": "I read the question and start with the seats."},
        {"name": "second", "content": text},
        {"name": "third", "content": "Thank you, we are done with this."},
    ]
    out = Collector("log.json")
    transcript.read(history, out)
    (found,) = out.traces.values()
    cause = diagnose_offline(found).decisive
    assert cause is not None
    assert ("miscalculates" in cause.why) is wrong


def test_work_given_to_an_agent_that_cannot_do_it() -> None:
    """R-G8: who gave it the work is named, not the agent that says that it cannot do it; a number
    in words is the number of the answer.
    """
    given = diagnose_offline(
        chat(
            ("Orchestrator", "ImageAnalyst, translate the notice of the harbour into English."),
            ("ImageAnalyst", "I can only describe images. There is no image in this request."),
            ("Orchestrator", "The request could not be satisfied."),
        )
    ).decisive
    assert given is not None
    assert (given.agent, given.step) == ("Orchestrator", 1)
    counted = diagnose_offline(
        chat(
            ("Coordinator", "Reader, list the piers of 1931. Counter, count their berths."),
            ("Reader", "North pier: Aino, Brita and Celia. South pier: Dora, closed in 1929."),
            ("Counter", "I went through the list: that makes four berths on both piers."),
            ("Coordinator", "Thank you. Writer, please give the answer."),
            ("Writer", "FINAL ANSWER: 4"),
        )
    ).decisive
    assert counted is not None
    assert (counted.agent, counted.step) == ("Counter", 3)


def chat(*messages: tuple[str, str]) -> Trace:
    """Return a group chat about one question."""
    asked = "How many berths did the harbour of Narva have in 1931, all piers together?"
    history = [{"name": "user", "role": "user", "content": asked}]
    history += [{"name": name, "content": content} for name, content in messages]
    out = Collector("log.json")
    transcript.read({"question": asked, "history": history}, out)
    (found,) = out.traces.values()
    return found


COUNT = "Counting the rows:\n```python\nrows = table.rows()\nn = len(rows)\nprint(n * 2)\n```"
RAN = "exitcode: 0 (execution succeeded)\nCode output: 418"


@pytest.mark.parametrize(
    ("messages", "decisive"),
    [
        # A farewell is no answer; several words in bold are headings.
        (
            [("reader", "I open the register of the harbour."), ("clerk", "Delivered as agreed.")],
            ("reader", 1),
        ),
        (
            [
                ("reader", "I open the register of the harbour."),
                ("writer", "I collect what is known about the piers."),
                ("clerk", "**Summary**: see above. **Status**: closed."),
            ],
            ("reader", 1),
        ),
        # The last words are the answer, with or without the word that ends the chat.
        (
            [
                ("reader", "I open the register of the harbour."),
                ("writer", "The register of the piers names Harald Sild for that year."),
                ("clerk", "**Harald Sild**\n\nTERMINATE"),
            ],
            ("writer", 2),
        ),
        # Who ran the code of another one again did not write it.
        (
            [
                ("reader", "I open the register of the harbour."),
                ("coder", COUNT),
                ("Computer_terminal", "exitcode: 1 (execution failed)\nNameError: table"),
                ("helper", f"With the import:\n{COUNT.replace('rows =', 'import t', 1)}"),
                ("Computer_terminal", RAN),
                ("clerk", "The answer is 418."),
            ],
            ("coder", 2),
        ),
        # The number of a list's item is no figure.
        (
            [
                ("reader", "I open the register of the harbour."),
                ("writer", "The register has 12 piers of the harbour."),
                ("clerk", "This is done:\n12. we looked at all of them"),
            ],
            ("reader", 1),
        ),
        # The answer is below a heading; it is one digit, as in the year of the question.
        (
            [
                ("reader", "I open the register of the harbour."),
                ("writer", "My notes on the piers say that the harbour must have had 9 berths."),
                ("clerk", "### Final result\n\n9\n\nTERMINATE"),
            ],
            ("writer", 2),
        ),
        # An order to guess is the mistake, not the guess.
        (
            [
                ("reader", "I open the register of the harbour."),
                ("manager", "The page is slow. Do not open it again; estimate the number."),
                ("reader", "A reasonable estimate for the berths of the harbour is 418."),
                ("manager", "FINAL ANSWER: 418"),
            ],
            ("manager", 2),
        ),
        # The last line of an output is its result, not its exit code.
        (
            [
                ("reader", "I open the register of the harbour."),
                ("coder", COUNT),
                ("Computer_terminal", "stdout: 418\nexit code 0"),
                ("clerk", "The answer is 418."),
            ],
            ("coder", 2),
        ),
    ],
)
def test_the_answer_of_a_log(messages: list[tuple[str, str]], decisive: tuple[str, int]) -> None:
    """R-G8: the answer of a log is found as it is worded, and traced to its author; words that are
    none lead nowhere, and the first turn of a worker is where to look."""
    cause = diagnose_offline(chat(*messages)).decisive
    assert cause is not None
    assert (cause.agent, cause.step) == decisive


def test_the_wrong_number_of_an_output_is_its_reader_s() -> None:
    """R-G8: an output that shows the right and the wrong number is no mistake of its author."""
    turns = [
        ("reader", "I open the register of the harbour."),
        ("coder", COUNT),
        ("Computer_terminal", "stdout: selected 209 of 418\nexit code 0"),
        ("writer", "The program selected 418 berths."),
        ("clerk", "The answer is 418."),
    ]
    log = chat(*turns)
    assert (cause := diagnose_offline(log).decisive) is not None
    assert (cause.agent, cause.step) == ("coder", 2)
    log.metadata["ground_truth"] = "209"
    found = diagnose_offline(log)
    assert (cause := found.decisive) is not None
    assert (cause.agent, cause.step) == ("writer", 4)
    assert "a group chat: step N is message N of the log, counted from 0" in found.notes


def test_a_long_log_without_evidence_follows_position() -> None:
    """R-G8: pages and clicks elsewhere are no strong evidence: the first turn of a worker is
    named."""
    page = "Viewport position: page 2 of 9.\n" + "\n".join(
        f"Item {n}: opening hours, parking, season {1900 + n}" for n in range(40)
    )
    turns = [("Orchestrator (thought)", "Plan:\n- Navigator opens the register of the harbour.")]
    places = ("northern basin", "fishing quay", "ferry terminal", "timber dock")
    for n in range(30):
        turns += [
            ("Orchestrator (-> Navigator)", f"Find the berths, now those of the {places[n % 4]}."),
            ("Navigator", f"I clicked '{'Cafe and parking' if n else 'Harbour'}'. {page}"),
        ]
    turns += [("Orchestrator (thought)", "FINAL ANSWER: 418")]
    cause = diagnose_offline(chat(*turns)).decisive
    assert cause is not None
    assert (cause.agent, cause.step) == ("Navigator", 3)


def test_unknown_instead_of_perfect() -> None:
    """R-G8: where no competent detector looked there are no scores, and the notes say so; one act
    is one finding, and every finding has its agent and step."""
    for one in planted.failures(1, seed=3):
        found = diagnose_offline(one.trace)
        assert found.scores == {}
        assert found.overall is None
        assert found.method == "rules"
        assert any(note.startswith("scores: unknown") for note in found.notes)
        places = [finding.location for finding in found.findings]
        assert len(places) == len(set(places))
        assert all(f.step is not None for f in found.shown)
        assert all(f.evidence not in ("None", "null") for f in found.findings)


def invoices(*, searches: int = 8) -> Trace:
    """The example of the documentation: empty searches, then an invented invoice."""
    asked = "Which invoice did Meyer Ltd. receive in March?"
    spans = [span("root", end=999, kind=SpanKind.AGENT, name="assistant", agent_name="assistant")]
    messages = [Message("system", "You answer questions about invoices."), Message("user", asked)]
    for n in range(searches):
        spans += [
            span(f"m{n}", "root", start=4 * n + 1, end=1, kind=SpanKind.LLM,
                 input_messages=tuple(messages), output_messages=(Message("assistant", ""),)),
            span(f"t{n}", "root", start=4 * n + 3, end=1, kind=SpanKind.TOOL,
                 tool_name="search_invoices", tool_input={"name": "Meyer"}, tool_output=[]),
        ]  # fmt: skip
        messages.append(Message("tool", "[]"))
    answer = "The invoice is INV-20316 over 4,870.00 EUR."
    spans.append(
        span("last", "root", start=99, end=1, kind=SpanKind.LLM, input_messages=tuple(messages),
             output_messages=(Message("assistant", answer),))
    )  # fmt: skip
    return trace(*spans, query=asked, response=answer)


def test_the_example_reads_as_promised(tmp_path: Path) -> None:
    """R-G8: the first line says where to start, then why, what led to it, and what looked."""
    path = tmp_path / "t.jsonl"
    save_traces([invoices()], path, "jsonl")
    shown = CliRunner().invoke(command, [str(path)]).output.splitlines()
    (start,) = (n for n, text in enumerate(shown) if text.startswith("START HERE"))
    assert "step 9, agent assistant, span last: states INV-20316, 4,870.00 EUR" in shown[start]
    assert "neither value occurs in any tool result (8 × search_invoices → [])" in shown[start + 1]
    rest = "\n".join(shown[start:])
    assert "caused by  steps 1–8: the same call with the same arguments, always []" in rest
    assert (
        "looked at by: rules; learned detector: not applicable to this kind of trace; "
        "scores: unknown" in rest
    )
    assert "5.0 of 5" not in rest


def test_what_is_uncertain_is_hidden(tmp_path: Path) -> None:
    """R-G8: findings below 25 % are counted, and shown with --all."""
    retried = trace(
        span("root", end=99, kind=SpanKind.AGENT),
        span("a", "root", start=1, kind=SpanKind.TOOL, tool_name="get", status=SpanStatus.ERROR,
             error_message="HTTP 503 Service Unavailable"),
        span("b", "root", start=20, kind=SpanKind.TOOL, tool_name="get", tool_output="fine"),
    )  # fmt: skip
    (found,) = diagnose_offline(retried).findings
    assert (found.location, found.category) == ("a", Category.SERVICE)
    assert found.confidence < SHOWN_FROM
    path = tmp_path / "t.jsonl"
    save_traces([retried], path, "jsonl")
    assert "1 below 25 % hidden (--all)" in CliRunner().invoke(command, [str(path)]).output
    assert "Service Errors at a" in CliRunner().invoke(command, [str(path), "--all"]).output
    least = json.loads(CliRunner().invoke(command, [str(path), "--format", "json"]).output)
    assert (least["errors"], least["hidden"]) == ([], 1)


@pytest.mark.parametrize("kind", [SpanKind.OTHER, SpanKind.CHAIN, SpanKind.GUARDRAIL])
def test_failed_spans_of_every_kind(kind: SpanKind) -> None:
    """R-G8: a failure is reported whatever its span is called, also as a status alone; an exception
    of the program itself is no service error."""
    inside = span("m", "x", start=2, end=1, kind=SpanKind.LLM,
                  output_messages=(Message("assistant", "fine"),))  # fmt: skip
    for error, category in (
        ("HTTP 503 Service Unavailable", Category.SERVICE),
        ("KeyError: 'total'", Category.TOOL_DEFINITION),
        ("ZeroDivisionError: division by zero", Category.TOOL_DEFINITION),
        ("AssertionError", Category.TOOL_DEFINITION),
    ):
        failed = span("x", end=50, kind=kind, status=SpanStatus.ERROR, error_message=error)
        found = diagnose_offline(trace(failed, inside)).findings
        # Of a chain around a model call it is the failure of that call.
        place = "m" if kind is SpanKind.CHAIN and category is Category.SERVICE else "x"
        assert [(f.location, f.category) for f in found if f.impact is not Impact.LOW] == [
            (place, category)
        ], error
    status = span("x", end=50, kind=kind, attributes={"http.response.status_code": 503})
    assert [f.category for f in diagnose_offline(trace(status)).findings] == [Category.SERVICE]


def test_a_repeated_call_is_judged_by_itself() -> None:
    """R-G8: a search that works is not reported as failing because another call of its turn
    fails."""
    spans = [span("root", end=999, kind=SpanKind.AGENT)]
    for n in range(3):
        at = 10 * n
        calls = (Message("assistant", "look", ()),)
        spans += [
            span(f"m{n}", "root", start=at + 1, end=1, kind=SpanKind.LLM, output_messages=calls),
            span(f"s{n}", "root", start=at + 3, end=1, kind=SpanKind.TOOL, tool_name="search",
                 tool_input={"q": "boat"}, tool_output="the Vasa"),
            span(f"w{n}", "root", start=at + 5, end=1, kind=SpanKind.TOOL, tool_name="write",
                 tool_input={"f": "a"}, status=SpanStatus.ERROR, error_message="disk locked"),
        ]  # fmt: skip
    found = diagnose_offline(trace(*spans)).findings
    repeated = [f for f in found if Category.RESOURCE_ABUSE in (f.category, *f.also)]
    assert {f.location for f in repeated} == {"w2"}


def test_evidence_of_the_trial() -> None:
    """R-G8: failed checks, with the reason of a judge, and what a cassette did not know are
    findings at their spans; passed checks are none."""
    done = trace(
        span("root", end=99, kind=SpanKind.AGENT, name="clerk"),
        span("a", "root", start=1, kind=SpanKind.TOOL, tool_name="cancel_order"),
        query="Where is it?",
        response="It is cancelled.",
    )
    checks = [
        CheckResult(id="forbidden_tools", check="forbidden_tools", layer=Layer.PATH, passed=False,
                    reason="forbidden: cancel_order", span_ids=("a",), blocking=True),
        CheckResult(id="tone", check="llm_judge", passed=False, reason="rude to the customer",
                    method="judge:m"),
        CheckResult(id="fine", check="contains", passed=True),
        CheckResult(id="max_tool_calls", check="max_tool_calls", layer=Layer.PATH,
                    status=CheckStatus.WARN, score=0.0, reason="too many", span_ids=("a",)),
    ]  # fmt: skip
    found = diagnose_offline(done, evidence=TrialEvidence(checks=checks))
    assert found.looked == ("rules", "checks")
    assert found.decisive is not None
    assert (found.decisive.location, found.decisive.agent) == ("a", "clerk")
    assert "calls cancel_order" in found.decisive.what
    judged = next(f for f in found.findings if "check:tone" in f.detector)
    assert judged.location == "root"
    assert "rude to the customer" in judged.description
    assert judged.caused_by == ("a",)
    missed = "CassetteMiss: no recorded answer for POST /v1/chat"
    lost = diagnose_offline(done, evidence=TrialEvidence(error=missed))
    assert [f.detector for f in lost.findings] == ["rule:unrequested_harm", "recording"]


def test_fisher_exact() -> None:
    """R-G9: the test agrees with another implementation on every small table."""
    for a, b, c, d in product(range(5), repeat=4):
        if (a + b) * (c + d) * (a + c) * (b + d):
            wanted = scipy_stats.fisher_exact([[a, b], [c, d]]).pvalue  # pyright: ignore[reportAttributeAccessIssue]
            assert math.isclose(fisher_exact(a, b, c, d), wanted, rel_tol=1e-9), (a, b, c, d)
    assert fisher_exact(6, 1, 0, 9) == pytest.approx(0.000874, abs=1e-5)


def reading(policy: str, *, retries: int = 1) -> Trace:
    tools = [
        span(f"q{n}", "root", start=n, end=0, kind=SpanKind.TOOL, tool_name="query",
             tool_input={"order": 7}, tool_output=[{"total": 3}])
        for n in range(retries)
    ]  # fmt: skip
    read = span("p", "root", start=50, end=1, kind=SpanKind.TOOL, tool_name="read_policy",
                tool_input={"name": policy}, tool_output=f"about {policy}")  # fmt: skip
    return trace(span("root", end=99, kind=SpanKind.AGENT, name="clerk"), *tools, read,
                 query="May I?", response="Yes.")  # fmt: skip


def test_contrast_with_passing_trials() -> None:
    """R-G9: the first divergence has its span, its counts, a corrected test, and what the passing
    trials do instead; what both do is no divergence."""
    trajectories = Trajectories()
    for n in range(16):
        wrong = n < 7
        policy = "shipping" if wrong and n else "returns"
        trajectories.add("refund", "clerk", reading(policy, retries=1 + n % 3), passed=not wrong)
    contrast = trajectories.contrast("refund", "clerk")
    evidence = TrialEvidence(contrast=contrast.finding, instead=contrast.instead)
    found = diagnose_offline(reading("shipping"), evidence=evidence)
    assert found.decisive is not None
    assert found.decisive.location == "p"
    said = "6 of 7 failing trials call read_policy with name=shipping, 0 of 9 passing ones"
    assert said in found.decisive.what
    assert "corrected" in found.decisive.what
    assert "not significant" not in found.decisive.what
    assert found.decisive.instead == "9 of 9 call read_policy with name=returns; 1 of 7 failing do"
    assert diagnose_offline(reading("returns"), evidence=evidence).decisive is None
    raw = {d.feature.detail: d for d in contrast.divergences() if d.feature.kind == "argument"}
    assert "order=7" not in raw, "all trials do that"
    assert raw["name=shipping"].adjusted >= raw["name=shipping"].p


def test_the_demo_names_every_cause(tmp_path: Path) -> None:
    """R-G8, R-G9: the command that the demo suggests names the true cause of each hard failure."""
    suite = Path(proctor.__file__).parent / "demo" / "suite.yaml"
    run = proctor.run(suite, results=tmp_path)
    done = CliRunner().invoke(command, [str(run.path), "--failed", "--format", "json"])
    assert done.exit_code == 0, done.output
    causes = {
        t["trial"]: t.get("decisive", {}).get("what", "") for t in json.loads(done.output)["trials"]
    }
    failed = [trial for trial in run.trials() if not trial.passed]
    assert failed
    for trial in failed:
        held = run.trace(trial)
        assert held is not None
        policies = [s.tool_input["name"] for s in held.spans if s.tool_name == "read_policy"]
        if "cancel_order" in held.tools_used:
            wanted = "cancel_order"
        elif "shipping" in policies:
            wanted = "read_policy with name=shipping"
        elif "calculate" in held.tools_used:
            wanted = "calculate returned"
        else:
            wanted = "no such order"
            assert "query_database" in causes[trial.name], causes[trial.name]
            continue
        assert wanted in causes[trial.name], trial.name
    shown = CliRunner().invoke(command, [str(run.path), "--failed"]).output
    assert shown.count("START HERE") < len(failed), "trials with one cause are one row"


def test_notes_of_a_run_are_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """R-G8: with a server that refuses, a run says that the model gave no answer, and why."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    suite = proctor.Suite(
        cases=[proctor.Case(input="x", correctness=Correctness(expected_in_answer=("y",)))]
    )
    run = proctor.run(suite, agent=lambda _: "z", trials=2, results=tmp_path)
    with MockLLM([{"error": 401, "times": "forever"}]) as server:
        args = [str(run.path), "--method", "single_pass", "--model", "openai:m"]
        done = CliRunner().invoke(command, [*args, "--base-url", server.base_url])
    assert done.exit_code == 0
    assert "single_pass gave no answer" in done.output
    assert "2 of 2 traces" in done.output
