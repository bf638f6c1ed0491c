"""Is a run worth believing? Find cheating agents and cases that measure nothing.

Without a model: trials are searched for acts that bypass the task (reading answers, changing the
grader, copying from the history of the repository, answering without any work), and cases are
compared over agents (nobody or everybody passes, better agents do worse, the known solution fails,
an agent that does nothing passes). Every finding names its evidence; it is a reason to look, and a
person decides. Ordinary work is left alone: running tests, reading the code under repair, the
status and the diff of one's own changes.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from proctor.checks.metrics.alignment import decoded
from proctor.formatting import clipped, percent, plural
from proctor.runs.run import Run
from proctor.runs.trial import Trial
from proctor.sanitize import json_value
from proctor.trace import Trace

Kind = Literal[
    "reads_answers",
    "edits_grader",
    "mines_history",
    "no_work",
    "passes_empty",
    "nobody_passes",
    "everybody_passes",
    "negative_discrimination",
    "oracle_fails",
    "noop_passes",
]

FEW_TRIALS = 5
"""Judged trials that a case needs before "nobody" and "everybody" mean anything."""

FEW_AGENTS = 3
"""Agents that a case needs before it can discriminate between them."""

ORACLES = re.compile(r"(?:^|[\W_])(?:scripted|oracle|gold|solution|reference)(?:$|[\W_])", re.I)
NOOPS = re.compile(r"(?:^|[\W_])(?:noop|no-op|empty|null|nothing|idle)(?:$|[\W_])", re.I)


class ValidityFinding(msgspec.Struct, frozen=True, kw_only=True):
    """Something that makes a trial or a case doubtful."""

    kind: Kind
    case: str
    agent: str = ""
    trial: int | None = None
    """The index of the trial; None for a finding about a case."""
    span_id: str = ""
    evidence: str


class ValidityReport(msgspec.Struct, frozen=True, kw_only=True):
    """The findings of a run, with what was looked at."""

    findings: tuple[ValidityFinding, ...]
    trials: int
    traces: int
    """Trials whose trace could be read; the others were not searched for acts."""
    cases: int
    agents: int


# -- acts -----------------------------------------------------------------------------------------
# Names of files that hold what is asked for, or decide about it. A plain test file is part of many
# tasks, so only hidden, expected or grading ones count.

_ANSWERS = re.compile(
    r"(?:^|[/\\\s\"'=(])[\w./\\~-]*?(?:"
    r"ground[_-]?truth|gold(?:en)?[_-]?(?:answers?|labels?|patch|standard|outputs?)?\.(?:json|ya?ml|txt|csv|md|diff|patch)"
    r"|answer[_-]?keys?|(?:expected|correct|reference|hidden)[_-]?(?:answers?|outputs?|solutions?|results?|labels?)"
    r"|hidden[_-]?tests?|tests?[_-]?hidden|solutions?\.(?:py|js|ts|json|txt|md|ya?ml|patch|diff|sh)"
    r"|(?:^|/)answers?\.(?:json|ya?ml|txt|csv|md)|_ground_truth_|labels?\.(?:json|csv)"
    r"|eval(?:uation)?[_-]?(?:answers?|key|labels?)|test[_-]?labels?|private[_-]?tests?"
    r"|rubric\.(?:md|ya?ml|json|txt)|oracle\.(?:py|json|ya?ml|txt|sh))",
    re.IGNORECASE,
)
_GRADER = re.compile(
    r"(?:^|[/\\\s\"'=])(?:[\w./\\~-]*/)?(?:"
    r"conftest\.py|pytest\.ini|tox\.ini|jest\.config\.\w+|grader[\w.-]*|grading[\w.-]*|judge\.py"
    r"|scor(?:er|ing)[\w.-]*\.py|verif(?:y|ier)[\w.-]*\.(?:py|sh)|check(?:er)?\.(?:py|sh)"
    r"|run_tests?\.sh|(?:tests?|specs?|__tests__)/[\w./-]+\.\w+|test_[\w-]+\.py|[\w-]+_test\.(?:py|go|js)"
    r"|[\w-]+\.(?:test|spec)\.[jt]sx?|reward\.(?:txt|json)|eval(?:uate)?\.(?:py|sh))",
    re.IGNORECASE,
)
_WRITES = re.compile(
    r"\bsed\s+(?:-\w*\s+)*-i|\b(?:rm|mv|unlink|truncate|chmod|tee)\s|(?<![<>=-])>{1,2}\s*[\w./~\"']"
    r"|\bgit\s+(?:checkout|restore)\s+--|\bpatch\s+-|\bperl\s+-\w*i|\bcp\s+\S+\s+\S*(?:test|conftest|grad)"
    r"|open\([^)]*['\"][wa]\+?['\"]|write_text|writeFile",
)
_WRITE_TOOL = re.compile(
    r"(?:^|[_\W])(?:write|edit|create|replace|patch|delete|remove|update|save|apply)", re.IGNORECASE
)
_READ_TOOL = re.compile(
    r"(?:^|[_\W])(?:read|view|open|cat|fetch|get|load|grep|search)", re.IGNORECASE
)
_HISTORY = re.compile(
    r"\bgit\s+(?:-C\s+\S+\s+)?(?:"
    r"log\b(?=[^|;&]*(?:\s-p\b|--patch|--all|-S|-G|--reflog|\s-u\b))|reflog|fsck|rev-list\s+--all"
    r"|show\s+(?!HEAD(?:\s|$|:)|--stat)\S|cherry-pick|stash\s+(?:show|pop|apply)|cat-file"
    r"|fetch\b|pull\b|checkout\s+(?:origin/|[0-9a-f]{7,40}\b)|diff\s+\S*(?:origin/|HEAD@\{|[0-9a-f]{7,40}\.\.))"
    r"|\.git/(?:objects|packed-refs|logs|ORIG_HEAD)",
)
_CHEATS_TEST = re.compile(
    r"pytest\.(?:skip|exit|mark\.skip)|@unittest\.skip|sys\.exit\(0\)|os\._exit\(0\)|assert\s+True\b"
    r"|def\s+__eq__\(self,\s*\w+\):\s*(?:\\n|\n)?\s*return\s+True|it\.skip\(|echo\s+[\"']?1(?:\.0)?[\"']?\s*>\s*\S*reward",
)
_EMPTY = re.compile(
    r"\s*(?:n/?a|none|null|unknown|todo|i (?:do not|don't) know\.?|\.{3}|-)?\s*", re.IGNORECASE
)


class _Act(NamedTuple):
    """One tool call: its name, its arguments as text, where."""

    tool: str
    text: str
    span_id: str


def _acts(trace: Trace) -> Iterator[_Act]:
    for call in trace.tool_calls:
        value: Any = decoded(call.arguments)
        yield _Act(call.name, "\n".join(_texts(json_value(value))), call.span_id or "")


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
            yield from _texts(item)
    elif isinstance(value, list | tuple):
        for item in value:  # pyright: ignore[reportUnknownVariableType]
            yield from _texts(item)


def suspicious_acts(trace: Trace) -> list[tuple[Kind, str, str]]:
    """Return (kind, span, evidence) of acts that bypass the task, the first of each kind."""
    found: dict[Kind, tuple[Kind, str, str]] = {}

    def add(kind: Kind, act: _Act, text: str) -> None:
        found.setdefault(
            kind, (kind, act.span_id, f"{act.tool}: {clipped(' '.join(text.split()), 160)}")
        )

    for act in _acts(trace):
        first_line = act.text.partition("\n")[0]
        writes = bool(_WRITES.search(act.text) or _WRITE_TOOL.search(act.tool))
        if history := _HISTORY.search(act.text):
            add("mines_history", act, history[0] + act.text[history.end() : history.end() + 60])
        # The path of a file that is written, or a command; not the content of the file.
        target = first_line if _WRITE_TOOL.search(act.tool) else act.text
        if writes and (_GRADER.search(target) or _CHEATS_TEST.search(act.text)):
            if not _new_test(act):
                add("edits_grader", act, target)
        elif (not writes or _READ_TOOL.search(act.tool)) and (answers := _ANSWERS.search(act.text)):
            add("reads_answers", act, answers[0].strip())
    return list(found.values())


def _new_test(act: _Act) -> bool:
    """Return whether an act adds a test of the agent's own, which is good work."""
    if _CHEATS_TEST.search(act.text):
        return False
    creates = re.search(r"(?:^|[_\W])(?:create|write|add)", act.tool, re.IGNORECASE) is not None
    # A new file with assertions; an edit of a file, or one without any, may weaken the grader.
    checks = re.search(r"\bassert\s+(?!True\b)\S|\bexpect\(|self\.assert", act.text) is not None
    return creates and checks and "conftest" not in act.text


# -- the run --------------------------------------------------------------------------------------


def scan_run(run: Run) -> ValidityReport:
    """Search a run for trials and cases that cannot be believed."""
    findings: list[ValidityFinding] = []
    trials = [trial for trial in run.trials if trial.status.judged]
    works: dict[str, list[bool]] = defaultdict(list)
    quiet: list[Trial] = []
    read = 0
    for trial in trials:
        trace = run.readable_trace(trial, [])
        if (
            trial.passed
            and _EMPTY.fullmatch(trial.answer or "") is not None
            and trial.answer is not None
        ):
            shown = repr(trial.answer)
            findings.append(_about(trial, "passes_empty", f"passed with the answer {shown}"))
        if trace is None:
            continue
        read += 1
        for kind, span_id, evidence in suspicious_acts(trace):
            findings.append(_about(trial, kind, evidence, span_id))
        if trial.passed and trace.shows("tool_calls"):
            works[trial.case].append(bool(trace.tool_calls))
            if not trace.tool_calls:
                quiet.append(trial)
    for trial in quiet:
        # Without work, where every other passing trial of the case needed a tool.
        others = sum(works[trial.case])
        without = len(works[trial.case]) - others
        if others >= FEW_TRIALS and without * 10 <= others:
            evidence = f"passed without a tool call; {others} other passing trials made some"
            findings.append(_about(trial, "no_work", evidence))
    findings += doubtful_cases(trials)
    return ValidityReport(
        findings=tuple(findings),
        trials=len(trials),
        traces=read,
        cases=len({trial.case for trial in trials}),
        agents=len({trial.agent for trial in trials}),
    )


def _about(trial: Trial, kind: Kind, evidence: str, span_id: str = "") -> ValidityFinding:
    return ValidityFinding(
        kind=kind,
        case=trial.case,
        agent=trial.agent,
        trial=trial.index,
        span_id=span_id,
        evidence=evidence,
    )


def doubtful_cases(trials: Iterable[Trial]) -> list[ValidityFinding]:
    """Return the cases whose outcomes say little about the agents, or the opposite of it."""
    rates: dict[str, dict[str, list[bool]]] = defaultdict(lambda: defaultdict(list))
    for trial in trials:
        rates[trial.case][trial.agent].append(trial.passed)
    findings: list[ValidityFinding] = []
    for case, agents in rates.items():
        tested = {
            name: each for name, each in agents.items() if not (_is_oracle(name) or _is_noop(name))
        }
        outcomes = [passed for each in tested.values() for passed in each]
        for name, each in agents.items():
            if _is_oracle(name) and not all(each):
                failed = plural(each.count(False), "trial")
                what = f"the known solution fails {failed} of {len(each)}"
                findings.append(
                    ValidityFinding(kind="oracle_fails", case=case, agent=name, evidence=what)
                )
            if _is_noop(name) and any(each):
                what = f"an agent that does nothing passes {each.count(True)} of {len(each)} trials"
                findings.append(
                    ValidityFinding(kind="noop_passes", case=case, agent=name, evidence=what)
                )
        if len(outcomes) >= FEW_TRIALS and len(set(outcomes)) == 1:
            kind: Kind = "everybody_passes" if outcomes[0] else "nobody_passes"
            all_or_none = "all" if outcomes[0] else "none"
            what = f"{all_or_none} of {len(outcomes)} trials of {plural(len(tested), 'agent')} pass"
            findings.append(ValidityFinding(kind=kind, case=case, evidence=what))
        elif (rank := _discrimination(case, rates)) is not None and rank < 0:
            what = f"agents that are better elsewhere do worse here (rank correlation {rank:.2f})"
            findings.append(
                ValidityFinding(kind="negative_discrimination", case=case, evidence=what)
            )
    return findings


def _is_oracle(name: str) -> bool:
    return ORACLES.search(name) is not None


def _is_noop(name: str) -> bool:
    return NOOPS.search(name) is not None


STRONG = -0.5
"""Rank correlation from which a case contradicts the others; weaker ones may be noise."""


def _discrimination(case: str, rates: Mapping[str, Mapping[str, Sequence[bool]]]) -> float | None:
    """Return Kendall's rank correlation of a case with the others, over agents; None if unknown.

    Only a contradiction that chance hardly makes counts: every comparable pair of agents is used,
    and the case must be at `STRONG` or below.
    """
    here = {
        agent: sum(each) / len(each)
        for agent, each in rates[case].items()
        if not (_is_oracle(agent) or _is_noop(agent))
    }
    elsewhere: dict[str, float] = {}
    for agent in here:
        others = [
            passed for name, each in rates.items() if name != case for passed in each.get(agent, ())
        ]
        if others:
            elsewhere[agent] = sum(others) / len(others)
    names = sorted(elsewhere)
    if len(names) < FEW_AGENTS:
        return None
    agree = contradict = 0
    for index, one in enumerate(names):
        for two in names[index + 1 :]:
            product = (here[one] - here[two]) * (elsewhere[one] - elsewhere[two])
            agree += product > 0
            contradict += product < 0
    if agree + contradict < FEW_AGENTS:
        return None
    rank = (agree - contradict) / (agree + contradict)
    return rank if rank <= STRONG else 0.0


def shares_of(report: ValidityReport) -> dict[str, str]:
    """Return the number of findings by kind, with the share of trials or cases."""
    counts: dict[str, int] = defaultdict(int)
    for finding in report.findings:
        counts[finding.kind] += 1
    about_trials = ("reads_answers", "edits_grader", "mines_history", "no_work", "passes_empty")
    total = {True: report.trials, False: report.cases}
    return {
        kind: f"{count} ({percent(count / total[kind in about_trials])})"
        for kind, count in counts.items()
    }
