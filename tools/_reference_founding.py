# ruff: noqa: E501 - rows of a table
"""The founding requirements and what does each: the page docs/reference/founding.md.

A row is (id, feature, how). In `how`, commands and dotted names are in backticks; the test
tests/docs/test_founding_table.py runs the help of each command and resolves each name.
"""

REQUIREMENTS = """
T1 | one span tree with normalised fields | `proctor.Span` `proctor trace show`
T2 | kinds, statuses and times of spans | `proctor.trace.SpanKind` `proctor.trace.SpanStatus`
T3 | a trace with derived totals | `proctor.Trace` `proctor trace list`
T4 | span query language with quantifiers | `proctor.SpanQuery` `proctor trace query`
T5 | tree API: find, first, any, count, all | `proctor.Trace.find` `proctor.Trace.first` `proctor.Trace.any` `proctor.Trace.count` `proctor.Trace.all`
T6 | capture in Python | `proctor.capture` `proctor.tool` `proctor.span` `proctor.store_traces`
T7 | import of trace files and streams | `proctor.load_traces` `proctor trace convert` `proctor store add`
T8 | export; scores to Langfuse | `proctor trace convert --to` `proctor serve --langfuse --langfuse-traces`
T9 | redaction of secrets | `proctor trace convert` `proctor config show`
C1 | cases with checks, weights, trials, threshold | `proctor.Case`
C2 | correctness checks | `proctor.checks.Contains` `proctor.checks.JSONSchema` `proctor.checks.LLMJudge`
C3 | path checks | `proctor.checks.ExpectTools` `proctor.checks.ForbidTools` `proctor.checks.HandoffsAvailable` `proctor.checks.ExpectRetrieval`
C4 | cost checks | `proctor.checks.MaxCost` `proctor.checks.MaxLatency`
C5 | blocking, weighted and required checks | `proctor.checks.Check` `proctor test`
C6 | score of a trial, hard failures | `proctor.check` `proctor test`
C7 | LLM judge, audited against people | `proctor.checks.LLMJudge` `proctor judge audit`
C8 | trace quality in nine dimensions | `proctor trace score` `proctor.checks.quality.score_trace`
C9 | own checks, found by path or entry point | `proctor.checks.FunctionCheck` `proctor.checks.HasMatchingSpan`
C10 | assertions as a flat list | `proctor validate` `proctor test`
S1 | YAML with defaults, includes, located errors, schema | `proctor validate` `proctor config schema`
S2 | suite files | `proctor.load_suite` `proctor init`
S3 | experiment files | `proctor.Experiment` `proctor run --name` `proctor list experiments`
S4 | scenario templates, build, store, fetch | `proctor.scenarios.build` `proctor scenario build` `proctor scenario store` `proctor scenario fetch`
S5 | worlds | `proctor list cases` `proctor scenario check`
S6 | settings from flags, environment and files | `proctor config show`
A1 | registry of agents, profiles | `proctor agent add` `proctor agent list` `proctor agent test` `proctor agent remove`
A2 | kinds of agents | `proctor run --agent` `proctor.agents`
A3 | a fresh agent and folder for each trial | `proctor run`
A4 | tokens and cost from published prices | `proctor results` `proctor.llm.prices.cost_usd`
A5 | record and replay of model calls | `proctor.llm.cassette` `proctor run`
A6 | scripted model server | `proctor mock-llm` `proctor.llm.MockLLM`
R1 | status of trials, verdict of cells | `proctor run` `proctor.Trial`
R2 | N trials, bounded concurrency | `proctor run --trials --concurrency`
R3 | retries of transient failures | `proctor run`; three retries with a random delay, Retry-After honoured
R4 | early stop | `proctor run --early-stop`
R5 | seeds | `proctor run --seed`
R6 | progress, graceful stop | `proctor run --quiet` `proctor runs status`
R7 | resume, retry, dry run, smoke run | `proctor run --resume --retry-failed --dry-run --smoke`
R8 | limits of money, tokens, trials, time; rates per minute | `proctor run --max-cost` `proctor.llm.rate_limits.RateLimit`
R9 | nothing lost after kill -9 | `proctor run --resume` `proctor runs verify`
R10 | ranking of failures | `proctor report` `proctor diagnose`
R11 | exit codes | `proctor test` `proctor gate`
R12 | many machines | `proctor run --executor --address --workers`
R13 | summary of each cell | `proctor.Run` `proctor results`
D1 | self-contained run folder | `proctor run` `proctor runs verify`
D2 | queries over all runs | `proctor results` `proctor sql` `proctor.results.query` `proctor.results.ResultSet.stats`
D3 | export and import | `proctor runs export` `proctor runs import` `proctor import-suite`
D4 | baselines | `proctor baseline save` `proctor baseline list` `proctor baseline diff`
D5 | notes, tags, audit, sharing | `proctor runs note` `proctor runs tag` `proctor runs audit` `proctor runs share`
D6 | object stores | `proctor runs sync` `proctor run --results`
D7 | store of live traces | `proctor serve` `proctor store stats --by` `proctor store prune` `proctor.store_traces`
Q1 | statistics with intervals | `proctor results` `proctor compare` `proctor power`
Q2 | regression gate | `proctor gate` `proctor.gate`
Q3 | tables, leaderboard, diff | `proctor report` `proctor leaderboard` `proctor compare`
Q4 | charts | `proctor report`
Q5 | output formats | `proctor test --format` `proctor run --format`
Q6 | pytest plugin | `proctor.pytest_plugin`
Q7 | notifications, schedules | `proctor run --notify` `proctor schedule add`
Q8 | research: sweeps, curricula, ablations | `proctor.Experiment` `proctor run`
G1 | TRAIL taxonomy | `proctor diagnose`
G2 | findings with verified evidence, scores | `proctor.Diagnosis` `proctor diagnose --evidence`
G3 | detection without a model | `proctor diagnose` `proctor.diagnose`
G4 | detection with a model | `proctor diagnose --method`
G5 | scoring against gold | `proctor trail score`
G6 | TRAIL experiments | `proctor trail run` `proctor trail compare` `proctor.trail.run_experiment` `proctor.trail.ExperimentConfig`
G7 | diagnosis of every failing trial, clustered | `proctor diagnose`
"""

CI_SUITES = """
A3 | rubric: rule, scale, threshold, examples | `proctor.checks.LLMJudge`; `anchors` for scale, `examples` for few_shot_examples (the words are answered with a hint)
A5 | PathSpec with eleven fields | `proctor.checks.ExpectTools` `proctor.checks.HandoffsAvailable`; a handoff that happened counts as available
A6 | CostSpec with five limits | `proctor.checks.MaxCost` `proctor.checks.MaxLatency`; latency is the agent's own time
A8 | root of a spec | `proctor.load_suite`; `baselines` and `judge` for baseline_dir and judge_config
A11 | QueryResult | `proctor.checks.CheckResults` of `proctor.check`
A12 | tool recall and precision | `proctor.checks.MinToolRecall` `proctor.checks.MinToolPrecision`; 0/0 is unknown, not 0
A18 | run_judge | `proctor.checks.judge.Judge` `proctor.check`
A22 | thresholds 0..1 on a scale 1..5 | `proctor.checks.LLMJudge`; a judge that passes at its own threshold passes the case
A23 | live judge test only on request | `PROCTOR_LIVE=1` with tests/llm/test_live.py
A28 | handoff checks | `proctor.checks.ExpectHandoffs` `proctor.checks.HandoffsAvailable` `proctor.checks.CountHandoffs`
A32 | filter by tags | `proctor test --tags`; a tag that selects nothing is an error
A33 | evaluate_query | `proctor.check`
A34 | evaluate_spec over traces | `proctor test --traces`, `proctor.check` for each trace
A44 | validate | `proctor validate`; exit code 2 for an invalid file, because 1 means that a gate failed
A45 | test with config, tags, format | `proctor test --tags --format`; the suite is an argument
A46 | save | `proctor baseline save --version --force`
A47 | diff of three tiers | `proctor baseline diff`
A48 | baselines | `proctor baseline list --suite`
A49 | run and record of version 1 | `proctor run` means N trials; `proctor baseline save` records
A50 | exceptions | `proctor.ProctorError` and its subclasses
A51 | package exports | `proctor.Suite` `proctor.Case` `proctor.load_suite` `proctor.check` `proctor.evaluate` `proctor.Run`
A52 | pytest fixture | `proctor.pytest_plugin`; the fixture is `proctor`
A53 | jsonschema as an optional dependency | `proctor.checks.JSONSchema`; always installed, so that a suite never depends on an extra
A54 | capture, mock clients, diff of version 1 | `proctor.capture` `proctor.llm.MockLLM` `proctor baseline diff`
"""

TRIALS = """
B6 | aggregate metrics | `proctor.results.ResultSet.stats` `proctor results`; no scored trial is unknown, not 0
B16 | progress callback, once per trial | `proctor.run` with `observer=`
"""

TRACES = """
C1 | nine types of spans | `proctor.trace.SpanKind`; start and end of an agent are one span with a duration
C5 | capture by context variable | `proctor.capture` with `request_id=`, `proctor.store_traces` to store it
C6 | record tool, model and retrieval | `proctor.capture.tool_call` `proctor.capture.llm_call` `proctor.capture.retrieval`; outputs are kept whole
C8 | persistent store | `proctor.store_traces` `proctor serve --evaluate`; recommendations are stored
C9 | eight dimensions | `proctor trace score`; nine, with relevance and grounding apart
C10 | tool selection by keywords | `proctor.checks.quality.DEFAULT_RULES`; recall and precision are reported, nothing expected is unknown
C11 | sequence and anti-pattern | `proctor trace score`; also for tools named retrieve…
C13 | error recovery | `proctor trace score`; for tools the same tool must work later
C14 | latency targets | `proctor trace score`; mean over the total and each kind, `tool_latency_ms`
C15 | retrieval relevance | `proctor trace score` `proctor.checks.ExpectRetrieval`
C16 | overall score | `proctor trace score`; missing dimensions are left out instead of counted as 1
C17 | one result object | `proctor.checks.quality.Quality`
C20 | Langfuse with comments, metadata, traces | `proctor serve --langfuse --langfuse-traces`
C21 | HasMatchingSpan with a name | `proctor.checks.HasMatchingSpan` with `evaluation_name`
C23 | find, any, count on a tree | `proctor.Trace.find` `proctor.Trace.any` `proctor.Trace.count`
C24 | custom evaluators returning a dict | `proctor.checks.FunctionCheck` `proctor.checks.Metric`; numbers from 0 to 1 and bools are judged, a count is `Metric(count)`: the page for pydantic-evals says why
C25 | timeline, frequencies, error rate, p50 p95 p99 | `proctor store stats --by` `proctor serve`
"""

EXPERIMENTS = """
D14 | predefined profiles | `proctor agent list`
D18 | rate limits | `proctor.llm.rate_limits.RateLimit` in `limits.rates` of the settings, with a queue
D32 | compare runs | `proctor compare`; runs with different seeds are compared on those they share
D33 | mean ± SD | `proctor results` `proctor.results.ResultSet.std`
D38 | percentiles | `proctor results` `proctor.results.ResultSet.percentiles`
D40 | leaderboard | `proctor leaderboard --estimand`
D45 | heat map agent × scenario | `proctor report`; of pass rates and of scores
D46 | bar charts | `proctor report`; over all cases, and for each case with intervals
D52 | batch | `proctor run --agents` with several targets, a glob or a filter
D54 | compare results | `proctor compare`; three or more, corrected by Holm
D55 | leaderboard command | `proctor leaderboard`
D56 | query by agent, scenario, date | `proctor results --agent --case --since`
D60 | results.query | `proctor.results.query` with `case=`
D61 | results.stats | `proctor.results.ResultSet.stats`
D62 | results.export | `proctor.results.ResultSet.export`
D63 | configuration file | `proctor config show`; no keys in files
D70 | smoke test before a battery | `proctor run --smoke`; stored apart
D71 | warm start | `proctor warm --import`: commands start in a fork of a process with Proctor, its catalog and the named packages; `proctor.run` with `executor="ray"` keeps its workers
D74 | many machines | `proctor run --executor --address`
D89 | battery file | `proctor run --name` `proctor.Experiment`
D94 | result set | `proctor.results.ResultSet.mean` `proctor.results.ResultSet.pass_rate` `proctor.results.ResultSet.to_pandas` `proctor.compare`
D99 | registry file | `proctor agent add` `proctor agent test`; keys only from the environment
D102 | build, run, store, fetch | `proctor.scenarios.build` `proctor.scenarios.store` `proctor.scenarios.fetch`; a name has no slashes
D104 | built folder with outputs | `proctor scenario build`; `operations` of the manifest are the steps of the build, and a run adds timeline.yaml (simulate), analysis.yaml (analyze) and score.yaml (score)
"""

TRAIL = """
E1 | dev18 | `proctor trail run --subset`
E3 | prompt v2 | `proctor trail run --prompt-version`
E6 | scores 0–5 | `proctor.Diagnosis`
E7 | truncation that keeps errors and an index | `proctor diagnose --method`
E8 | error signals in status and logs | `proctor diagnose`
E9 | message builder | `proctor diagnose --method`; the prompt is built inside
E10 | analyze_trace, with sizes | `proctor diagnose --agents --chunk --prompt-size` `proctor trail run --agents --chunk --prompt-size`
E11 | single pass with a model | `proctor diagnose --method --model --reasoning-effort` `proctor trail run --approach --reasoning-effort`
E13 | fallback without a model | `proctor.diagnose`
E14 | ExperimentConfig | `proctor.trail.ExperimentConfig`
E16 | run_experiment with a log | `proctor.trail.run_experiment`
E17 | scoring against gold | `proctor trail score`
E19 | flags of an experiment | `proctor trail run --experiment-id --trail-data-dir --gold-dir --output-dir`
E20 | console summary | `proctor trail run`
E21 | semantic checks | `proctor trail run --semantic-checks`
E22 | fixtures without times | `proctor diagnose`
E23 | sequence of experiments | `proctor trail run --leads` `proctor trail compare`
"""

PARTS = {
    "Requirements": REQUIREMENTS,
    "CI suites": CI_SUITES,
    "N trials": TRIALS,
    "Trace evaluation": TRACES,
    "Experiments and reports": EXPERIMENTS,
    "TRAIL experiments": TRAIL,
}

HEAD = """\
# Founding features

<!-- Generated by tools/reference.py from tools/_reference_founding.py. -->

What each requirement and each item of the founding documents is done with. Where Proctor does it in another way, the line says how and why. A test runs the help of each command with its options and resolves each name.
"""


def rows(text: str) -> list[tuple[str, str, str]]:
    """Return (id, feature, how) of each line."""
    lines = [line.split(" | ") for line in text.strip().splitlines()]
    return [(each[0], each[1], each[2]) for each in lines]


def founding_page(_source: object = None) -> str:
    """Return the page."""
    parts = [HEAD]
    for title, text in PARTS.items():
        table = "".join(f"| {id_} | {what} | {how} |\n" for id_, what, how in rows(text))
        parts.append(f"## {title}\n\n| id | feature | done with |\n|---|---|---|\n{table}")
    return "\n".join(parts)
