"""Trace quality: nine dimensions, levels, the overall score, and `proctor trace score`."""

import json

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from trial_parts import MS, judge_at, llm, span, tool, trace_of, verdict

from proctor.checks.judge import Judge
from proctor.checks.quality import (
    DIMENSIONS,
    Dimension,
    LatencyTargets,
    QualityConfig,
    QualityLevel,
    combined,
    score_trace,
    score_trace_with,
)
from proctor.cli.trace import score
from proctor.errors import ProctorError
from proctor.llm import MockLLM
from proctor.llm.chat_model import ChatReply, ChatRequest
from proctor.report.quality import averages, quality_lines
from proctor.trace import Document, Trace
from proctor.trace.export import save_traces
from proctor.trace.load import load_traces

T, B, A = QualityLevel.TARGET, QualityLevel.BETWEEN, QualityLevel.ALERT


def dimension(name: str, trace: Trace, **config) -> Dimension:
    return score_trace(trace, QualityConfig.model_validate(config)).dimension(name)


# -- tool selection ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expected", "used", "value", "level"),
    [
        (["a", "b"], ["b", "a", "a"], 1.0, T),
        (["a", "b"], ["a"], 2 / 3, A),
        (["a"], ["a", "x"], 2 / 3, A),
        (["a"], [], 0.0, A),
        ([], [], 1.0, T),
        ([], ["a"], 0.0, A),
        (["a"] * 3 + ["b", "c", "d", "e"], ["a", "b", "c", "d", "x"], 0.8, B),
    ],
)
def test_tool_selection(expected, used, value, level):
    """R-C8: 2·|E∩U|/(|E|+|U|); target above .90, alert below .80."""
    found = dimension("tool_selection", trace_of(*used), expected_tools=expected)
    assert found.score == pytest.approx(value)
    assert found.level == level


def test_tool_selection_says_what_was_wrong():
    """R-C8: issues and recommendations name the tools, span ids the needless calls."""
    found = dimension("tool_selection", trace_of("a", "x"), expected_tools=["a", "b"])
    assert found.issues == ("b was expected and not used", "x was used and not expected")
    assert found.recommendations == (
        "say in the instructions when to use b",
        "say when not to use x, or do not offer it",
    )
    assert found.span_ids == ("s2",)


def test_expected_tools_are_inferred_from_the_query():
    """R-C8: rules that match the question, together; none matching is no score."""
    rules = [
        {"when": r"weather|rain", "tools": ["forecast"]},
        {"when": r"\btrain\b", "tools": ["timetable", "forecast"]},
    ]
    trace = trace_of("forecast", query="Will it RAIN on my train?")
    assert dimension("tool_selection", trace, rules=rules).score == pytest.approx(2 / 3)
    other = dimension("tool_selection", trace_of("x", query="Hello"), rules=rules)
    assert (other.score, other.why) == (None, "no query rule matches the query")
    assert dimension("tool_selection", trace, rules=[]).why == (
        "no expected tools and no query rules are configured"
    )


def test_tool_selection_reports_recall_and_precision():
    """R-C8: both figures beside the score, also as the command prints them."""
    found = dimension("tool_selection", trace_of("a", "x", "y"), expected_tools=["a", "b"])
    assert found.parts == pytest.approx({"recall": 0.5, "precision": 1 / 3})
    lines = "\n".join(
        quality_lines(score_trace(trace_of("a"), QualityConfig(expected_tools=("a",))))
    )
    assert "recall 1.00, precision 1.00" in lines


def test_default_rules_expect_only_tools_the_agent_has():
    """R-C8: keyword rules ship; offered and not used is an issue, other tools are not needless."""
    query = "What is the latest news?"
    used = dimension("tool_selection", trace_of("web_search", "x", query=query))
    assert (used.score, used.issues, used.parts["precision"]) == (1.0, (), None)
    assert used.method == "default rules"
    offered = llm(attributes={"gen_ai.tool.definitions": '[{"name": "WebSearch"}]'})
    missed = dimension("tool_selection", trace_of(offered, "x", query=query))
    assert (missed.score, missed.issues) == (0.0, ("*web*search* was expected and not used",))
    unknown = dimension("tool_selection", trace_of("x", query=query))
    assert unknown.why == "the agent has no tool that the default rules know"


# -- sequence, redundancy, efficiency ------------------------------------------------------------


@pytest.mark.parametrize(
    ("called", "value"),
    [
        (["a", "b", "a"], 1.0),
        (["a", "a", "b"], 0.8),
        (["a", "a", "a", "b", "b"], 0.4),
        (["a"] * 6, 0.0),
        (["a"] * 20, 0.0),
    ],
)
def test_sequence(called, value):
    """R-C8: −0.2 per immediate repeat, never below 0."""
    assert dimension("sequence", trace_of(*called)).score == pytest.approx(value)


def test_a_redundant_order():
    """R-C8: −0.1 for web search after retrieval, by default; other orders are configured."""
    trace = trace_of(span("retrieval", "vector store"), "web_search")
    found = dimension("sequence", trace)
    assert found.score == pytest.approx(0.9)
    assert found.issues == ("web_search after vector store, which is redundant",)
    assert found.span_ids == ("s2",)
    turned = trace_of("web_search", span("retrieval", "vector store"))
    assert dimension("sequence", turned).score == 1.0
    orders = [{"first": "ask", "then": "look*"}]
    trace = trace_of("ask", "lookup")
    assert dimension("sequence", trace, redundant_orders=orders).score == pytest.approx(0.9)


def test_redundancy():
    """R-C8: same tool, same input; below 5 % is the target, above 15 % an alert."""
    calls = [tool("s", {"q": n}) for n in range(9)]
    found = dimension("redundancy", trace_of(*calls, tool("s", '{"q": 0}')))
    assert (found.score, found.figure, found.level) == (0.9, 0.1, B)
    assert found.issues == ("s called again with the same input, 1 of 10 calls",)
    assert found.span_ids == ("s10",)
    assert dimension("redundancy", trace_of(*calls)).level == T
    assert dimension("redundancy", trace_of("a", "a")).level == A
    assert dimension("redundancy", trace_of()).score is None


@pytest.mark.parametrize(
    ("calls", "value"), [(0, 1), (3, 1), (4, 0.8), (5, 0.8), (6, 0.6), (8, 0.6), (9, 0.4)]
)
def test_efficiency(calls, value):
    """R-C8: up to 3, 5, 8 calls → 1, .8, .6, else .4."""
    trace = trace_of(*(tool("s", {"q": n}) for n in range(calls)))
    assert dimension("efficiency", trace).score == value


def test_redundant_calls_cost_efficiency():
    """R-C8: −.15 for each, never below 0."""
    trace = trace_of("a", "a", "a")
    assert dimension("efficiency", trace).score == pytest.approx(0.7)
    assert dimension("efficiency", trace_of(*["a"] * 20)).score == 0.0


# -- latency -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ms", "value"), [(1000, 1.0), (1001, 0.8), (1500, 0.8), (2000, 0.6), (2001, 0.4)]
)
def test_latency_of_a_span(ms, value):
    """R-C8: ratio to the target up to 1, 1.5, 2 → 1, .8, .6, else .4."""
    quality = score_trace(trace_of(tool("t", ms=ms)))
    total, call = quality.latency_breakdown
    assert (total.kind, total.target_ms, total.score) == ("total", 5000, 1.0)
    assert (call.span_id, call.kind, call.ms, call.score) == ("s1", "tool", ms, value)
    assert quality.dimension("latency").score == pytest.approx((1 + value) / 2)


def test_targets_by_kind():
    """R-C8: total 5000, tool 1000, llm 2000, retrieval 500 ms, and their breakdown."""
    trace = trace_of(llm(ms=2500), tool("t", ms=500), span("retrieval", "r", ms=1200))
    quality = score_trace(trace)
    ratios = {each.kind: each.ratio for each in quality.latency_breakdown}
    assert ratios == pytest.approx({"total": 0.84, "llm": 1.25, "tool": 0.5, "retrieval": 2.4})
    found = quality.dimension("latency")
    assert found.score == pytest.approx((1 + 0.8 + 1 + 0.4) / 4)
    assert (found.figure, found.level) == (0.5, A)
    assert found.issues == (
        "r took 1,200 ms, 2.4 × its target",
        "chat took 2,500 ms, 1.2 × its target",
    )
    quick = QualityConfig(latency=LatencyTargets(retrieval=1200, llm=2500))
    assert score_trace(trace, quick).dimension("latency").level == T


# -- errors and grounding ------------------------------------------------------------------------


def test_error_recovery():
    """R-C8: an error counts as recovered when the same tool later works."""
    trace = trace_of(
        tool("a", failed=True), "b", "a", tool("b", failed=True), llm(failed=True), llm()
    )
    found = dimension("error_recovery", trace)
    assert found.score == pytest.approx(2 / 3)
    assert (found.level, found.span_ids) == (B, ("s4",))
    assert found.issues == ("b failed (error) and never worked after that",)
    assert dimension("error_recovery", trace_of("a")).score is None


def test_an_error_seen_in_every_span_around_it_is_one_error():
    """R-C8: counted where it arose, not once for each parent it passed through."""
    trace = trace_of(tool("a", failed=True), "a")
    root = span("agent", "root", failed=True)
    root.span_id, root.start_ns, root.end_ns = "root", 0, 100 * MS
    for child in trace.spans:
        child.parent_id = "root"
    whole = Trace(trace_id="t1", spans=[root, *trace.spans])
    assert dimension("error_recovery", whole).score == 1.0


def test_grounding():
    """R-C8: the share of the answer's claims that tool or retrieved text supports."""
    steps = [tool("look", {}, "The bridge opened in 1932.")]
    true = trace_of(*steps, response="The bridge opened in 1932.", query="When?")
    assert dimension("grounding", true).score == 1.0
    # Without scores of documents, `retrieval` is the grounding.
    assert dimension("retrieval", true).name == "grounding"
    steps = [tool("look", {}, "The bridge opened in 1932.")]
    false = trace_of(*steps, response="It opened in 1847.", query="When?")
    found = dimension("grounding", false)
    assert found.score is not None
    assert found.score < 0.6
    assert found.method == "grounding (words and numbers)"
    assert any("'1847' is not supported" in issue for issue in found.issues)
    assert dimension("grounding", trace_of("a", response="x 7")).score is None
    assert dimension("grounding", trace_of("a")).why == "the trace has no answer"


def scored_retrieval(*scores: float | None, name: str = "retrieve", **fields):
    documents = tuple(Document(id=f"d{n}", score=score) for n, score in enumerate(scores))
    return span("retrieval", name, documents=documents, **fields)


def test_relevance_is_the_mean_of_the_documents_scores():
    """R-C8: below 0.7 is an issue of that retrieval; the weight of retrieval goes to relevance."""
    trace = trace_of(scored_retrieval(0.2, 0.3), scored_retrieval(0.9, 0.8, name="again"))
    found = dimension("relevance", trace)
    assert found.score == pytest.approx(0.55)
    assert found.issues == ("retrieve: low relevance, 0.25 over 2 documents, less than 0.7",)
    assert (found.span_ids, found.level) == (("s1",), A)
    quality = score_trace(trace_of(scored_retrieval(0.2, 0.3)))
    # efficiency 1, latency 1, relevance .25, with .20 each
    assert quality.overall == pytest.approx((1 + 1 + 0.25) / 3)
    assert quality.dimension("retrieval").name == "relevance"
    assert "low relevance" in "".join(quality.issues)
    assert dimension("relevance", trace, relevance_target=0.2).issues == ()


def test_relevance_of_what_is_no_share():
    """R-C8: no retrieval, no scores, and distances are no score, with the reason."""
    assert dimension("relevance", trace_of("a")).why == "the trace has no retrieval"
    assert dimension("relevance", trace_of(scored_retrieval(None))).why == (
        "no retrieved document has a score"
    )
    assert dimension("relevance", trace_of(scored_retrieval(0.5, 12.25))).why == (
        "the documents' scores are not within 0..1 but 0.5..12.25"
    )


def test_relevance_of_documents_a_tool_returned():
    """R-C8: a tool that retrieves counts, and so does web search after it."""
    step = tool("retrieve_relevant_documents", {}, [{"id": "a", "score": 0.4}])
    quality = score_trace(trace_of(step, "web_search"))
    assert quality.dimension("relevance").score == pytest.approx(0.4)
    assert quality.dimension("sequence").score == pytest.approx(0.9)
    assert quality.retrieval_count == 1


def test_counts_of_a_trace():
    """R-C8: errors, redundant calls, retrievals and the mean time of a tool call in the result."""
    failing = tool("a", {"q": 1}, failed=True, ms=30)
    trace = trace_of(failing, tool("a", {"q": 1}, ms=10), scored_retrieval(0.9))
    found = score_trace(trace)
    assert (found.error_count, found.redundancy_count, found.retrieval_count) == (1, 1, 1)
    assert found.tool_latency_ms == pytest.approx(20)
    assert found.to_dict()["tool_latency_ms"] == pytest.approx(20)
    assert found.recommendations == tuple(
        dict.fromkeys(r for each in found.dimensions for r in each.recommendations)
    )
    assert score_trace(trace_of()).tool_latency_ms is None


# -- reasoning -----------------------------------------------------------------------------------


async def test_reasoning_is_judged_when_there_is_a_judge():
    """R-C8: optional, by a judge that is shown the steps; it can be given weight."""
    trace = trace_of(tool("look", {"q": 1}, "7"), response="7", query="What is it?")
    assert score_trace(trace).dimension("reasoning").why == "no judge is configured"
    config = QualityConfig(weights={"reasoning": 1, "efficiency": 1})
    with MockLLM([verdict(2, "The answer ignores the result.")]) as server:
        quality = await score_trace_with(judge_at(server), trace, config)
        assert "called look" in server.requests[0].text
    found = quality.dimension("reasoning")
    assert (found.score, found.level, found.method) == (0.25, A, "judge openai:judge")
    assert found.issues == ("The answer ignores the result.",)
    assert quality.overall == pytest.approx((0.25 + 1) / 2)


async def test_a_judge_that_cannot_be_asked_says_what_to_do():
    """R-C8: a judge that cannot be opened says what is missing, in place of its score."""

    class Absent:
        name = identity = "absent"

        async def complete(self, request: ChatRequest) -> ChatReply:
            raise ProctorError("it is not installed", hint="pip install it")

    quality = await score_trace_with(Judge(Absent()), trace_of("a", response="x"))
    assert quality.dimension("reasoning").why == "it is not installed (pip install it)"


async def test_a_judge_that_fails_leaves_the_rest():
    """R-C8: no score for reasoning, said why; the other dimensions stand."""
    trace = trace_of("a", response="x")
    with MockLLM([{"error": 500, "times": "forever"}]) as server:
        quality = await score_trace_with(judge_at(server), trace)
    found = quality.dimension("reasoning")
    assert (found.score, found.failed) == (None, True)
    assert "the judge gave no verdict" in found.why
    assert quality.overall == score_trace(trace).overall


# -- overall -------------------------------------------------------------------------------------


def _slot(weights: dict[str, float], name: str) -> dict[str, float]:
    """The weights with that of `retrieval` under the dimension that it is."""
    return {name if key == "retrieval" else key: weight for key, weight in weights.items()}


def test_overall_is_the_documented_mean():
    """R-C8: .25 selection + .15 sequence + .20 efficiency + .20 latency + .20 retrieval."""
    scores = dict(zip(DIMENSIONS, (0.9, 0.8, 0.1, 0.7, 0.6, 0.1, 0.5, 0.2, 0.1), strict=True))
    found = tuple(Dimension(name=name, score=value) for name, value in scores.items())
    overall, weights = combined(found, QualityConfig().weights)
    assert overall == pytest.approx(0.25 * 0.9 + 0.15 * 0.8 + 0.2 * (0.7 + 0.6 + 0.5))
    wanted = dict(QualityConfig().weights)
    assert weights == pytest.approx(_slot(wanted, "relevance"))


@given(st.lists(st.none() | st.floats(0, 1), min_size=9, max_size=9))
def test_overall_leaves_out_what_is_missing_and_keeps_zeros(values):
    """R-C8: weights are renormalised over scored dimensions; 0.0 counts as 0.0."""
    found = tuple(
        Dimension(name=name, score=value) for name, value in zip(DIMENSIONS, values, strict=True)
    )
    config = QualityConfig()
    overall, weights = combined(found, config.weights)
    relevance = next(d.score for d in found if d.name == "relevance")
    shares = _slot(config.weights, "grounding" if relevance is None else "relevance")
    scored = {d.name: d.score for d in found if d.score is not None and d.name in shares}
    if not scored:
        assert (overall, weights) == (None, {})
        return
    total = sum(shares[name] for name in scored)
    assert sum(weights.values()) == pytest.approx(1)
    assert overall == pytest.approx(
        sum(value * shares[name] for name, value in scored.items()) / total
    )


def test_levels_of_the_overall_score():
    """R-C8: above .8 is the target, below .6 an alert."""
    only = {"weights": {"efficiency": 1}}
    steps = [tool("s", {"q": n}) for n in range(9)]
    levels = [
        score_trace(trace_of(*steps[:n]), QualityConfig.model_validate(only)).level
        for n in (1, 5, 9)
    ]
    assert levels == [T, B, A]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"weights": {"efficency": 1}}, "did you mean 'efficiency'"),
        ({"weights": {"efficiency": 0}}, "a weight above 0"),
        ({"latency": {"tool": 0}}, "greater than 0"),
        ({"efficiency_steps": [[5, 1], [3, 0.5]]}, "must be ascending"),
        ({"rules": [{"when": "(", "tools": ["a"]}]}, "not a regular expression"),
        ({"repeat_penalti": 1}, "Extra inputs"),
    ],
)
def test_configuration_is_checked(config, message):
    """R-C8: what cannot be meant is refused."""
    with pytest.raises(ValidationError, match=message):
        QualityConfig.model_validate(config)


def test_real_traces_have_scores_in_range(shared):
    """R-C8: every available real trace is scored, each dimension in 0..1 or None with a reason."""
    files = sorted((shared / "traces" / "produced").glob("*.json"))
    scored = [score_trace(trace) for file in files for trace in load_traces(str(file))]
    assert len(scored) >= len(files)
    for each in (d for quality in scored for d in quality.dimensions):
        assert each.why if each.score is None else 0 <= each.score <= 1
        assert (each.level is None) == (each.score is None)


# -- the command ---------------------------------------------------------------------------------


def file_of(tmp_path, *traces: Trace) -> str:
    path = tmp_path / "traces.jsonl"
    save_traces(list(traces), str(path), "jsonl")
    return str(path)


def named(trace: Trace, trace_id: str) -> Trace:
    for each in trace.spans:
        each.trace_id = trace_id
    return Trace(trace_id=trace_id, spans=trace.spans, query=trace.query, response=trace.response)


def test_the_command_shows_everything(tmp_path):
    """R-C8: dimensions, levels, issues, recommendations and the breakdown, for people."""
    path = file_of(tmp_path, trace_of(tool("slow\x1b[31m", ms=6000), tool("slow\x1b[31m")))
    found = CliRunner().invoke(score, [path, "--expect", "search"])
    assert found.exit_code == 0, found.output
    assert "\x1b" not in found.output
    for part in (
        "tool_selection  0.00  ✗ alert",
        "redundancy      0.50  ✗ alert    50 % of calls repeated, not in overall",
        "grounding       –     the trace has no answer",
        "- search was expected and not used",
        "recommendations",
        "- make slow tools faster, or give them a time limit",
        "6,000 ms of  1,000  × 6.00  0.4  s1",
    ):
        assert part in found.output


def test_the_command_as_json(tmp_path):
    """R-C8: exactly one document, unknown figures null, averages left to the reader."""
    path = file_of(tmp_path, named(trace_of("a"), "t1"), named(trace_of("a", "a"), "t2"))
    found = CliRunner().invoke(score, [path, "--json"])
    document = json.loads(found.stdout)
    assert [each["trace_id"] for each in document["scores"]] == ["t1", "t2"]
    first = {each["name"]: each for each in document["scores"][0]["dimensions"]}
    assert list(first) == list(DIMENSIONS)
    assert first["reasoning"]["score"] is None
    assert first["sequence"]["level"] == "target"
    assert document["problems"] == []


def test_the_command_averages_several_traces(tmp_path):
    """R-C8: means with the number of traces they were taken over."""
    path = file_of(tmp_path, named(trace_of(), "t1"), named(trace_of("a", "a"), "t2"))
    found = CliRunner().invoke(score, [path])
    assert "average of 2 traces" in found.output
    assert "sequence        0.80  – between  1 of 2 traces" in found.output


def test_averages_keep_their_denominator():
    """R-C8: a dimension is averaged over the traces that have it."""
    scored = [score_trace(trace_of(*steps)) for steps in ([], ["a"], ["a", "a"])]
    found = {each.name: each for each in averages(scored)}
    assert (found["sequence"].mean, found["sequence"].traces) == (pytest.approx(0.9), 2)
    assert (found["efficiency"].traces, found["reasoning"].mean) == (3, None)


def test_the_command_takes_a_configuration_and_a_judge(tmp_path):
    """R-C8: weights and targets from YAML; reasoning from a model; a slip is located."""
    path = file_of(tmp_path, trace_of(tool("a", {}, "7"), response="7", query="x?"))
    config = tmp_path / "quality.yaml"
    config.write_text("weights: {reasoning: 1}\nlatency: {tool: 1}\n")
    with MockLLM([verdict(4)]) as server:
        found = CliRunner().invoke(
            score,
            [
                path,
                "--json",
                f"--config={config}",
                "--judge=openai:j",
                f"--judge-url={server.base_url}",
            ],
        )
    (only,) = json.loads(found.stdout)["scores"]
    assert (only["overall"], only["weights"]) == (0.75, {"reasoning": 1.0})
    assert only["latency_breakdown"][1]["target_ms"] == 1.0
    config.write_text("weights: {reasoning: 1}\nlatencyy: {tool: 1}\n")
    refused = CliRunner().invoke(score, [path, "--config", str(config)])
    assert "quality.yaml:2:1" in str(refused.exception)


def test_a_file_that_gives_nothing_is_exit_2(tmp_path):
    """R-R11: what could not be judged is 2, and the good files are still shown."""
    (tmp_path / "bad.json").write_text("{")
    good = file_of(tmp_path, trace_of("a"))
    found = CliRunner().invoke(score, [str(tmp_path / "bad.json"), good])
    assert found.exit_code == 2
    assert "trace t1" in found.stdout
    assert "error: " in found.stderr


def test_secrets_are_taken_out(tmp_path):
    """R-T9: what an issue quotes from an answer is redacted unless asked otherwise."""
    key = "sk-" + "a1B2" * 12
    trace = trace_of(tool("a", {}, "nothing"), response=f"The key is '{key}' for 1847.")
    path = tmp_path / "t.jsonl"
    save_traces([trace], str(path), "jsonl", redact=False)
    assert key not in CliRunner().invoke(score, [str(path), "--json"]).stdout
    assert key in CliRunner().invoke(score, [str(path), "--json", "--no-redact"]).stdout
