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
from typing import Any, Literal, NamedTuple, cast

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
# tasks: reading one is work, changing one is not. What the agent wrote itself, and what the task
# names, is no secret.

_PATH = re.compile(r"[^\s\"'`|;&<>()=,{}]*[/\\.*_][^\s\"'`|;&<>(),{}]*")
_REMOTE = re.compile(r"https?://(?!localhost|127\.|0\.0\.0\.0|\[::1\])", re.IGNORECASE)

_SECRET_FOLDER = re.compile(
    r"(?:^|[/\\])\.?(?:gold(?:en)?|ground[_-]?truth|answers?|answer[_-]?keys?|solutions?|oracles?"
    r"|hidden|hidden[_-]?tests?|private[_-]?tests?|graders?|verifiers?|judges?)(?:[/\\]|$)",
    re.IGNORECASE,
)
_SECRET_NAME = re.compile(
    r"(?:^|[_.\W])(?:ground[_-]?truth|(?:\w+_)?gold(?:en)?(?:_\w+)?|truth|answers?|model[_-]?answers?"
    r"|answer[_-]?(?:keys?|sheets?)|solutions?|oracle|rubric"
    r"|(?:expected|correct|reference|hidden)(?:[_-](?:answers?|outputs?|solutions?|results?|labels?"
    r"|patch|values?))?|hidden[_-]?tests?|tests?[_-]?hidden|private[_-]?tests?"
    r"|(?:y|test|eval(?:uation)?)[_-](?:test|targets?|labels?|answers?|key|truth))\*?"
    r"(?:\.(?:json[l]?|ya?ml|txt|csv|tsv|md|diff|patch|py|js|ts|sh|gz|zip|tar|parquet|pkl|npy|bin|b64|enc|xlsx?))+$",
    re.IGNORECASE,
)
_SECRET_WORD = re.compile(
    r"(?:^|[/\\])labels?\.(?:csv|json)$|ground[_-]?truth|answer[_-]?(?:keys?|sheets?)|gold[_-]?(?:answers?|labels?|patch|standard)"
    r"|hidden[_-]?tests?|tests?[_-]?hidden|private[_-]?tests?|\*\w*solution\w*\*|_ground_truth_"
    r"|(?:expected|correct|reference)[_-](?:answers?|outputs?|solutions?|results?)"
    r"|eval(?:uation)?[_-](?:answers?|key|labels?)|test[_-](?:with[_-])?labels?",
    re.IGNORECASE,
)
# Of an address, only data: pages have names such as "answers", too.
_DATA_FILE = re.compile(
    r"\.(?:jsonl?|csv|tsv|parquet|txt|gz|zip|diff|patch)(?:[?#]|$)", re.IGNORECASE
)
# The usual names of what a task wants to be written.
_OWN_ANSWER = re.compile(r"(?:\./)?answer\.\w+")
_RUNS_SOLUTION = re.compile(r"\b(?:python3?|node|ruby|go run|\./)\s*solution\.\w+")
_ASKS_FOR_SECRET = re.compile(
    r"\b(?:env|printenv|ls|find)\b[^;&\n]*grep\s[^;&|\n]*(?:answer|gold|solution|expected)"
    r"|\bfrom\s+(?:gold\w*|ground_?truth\w*|answer_?keys?|solutions?|expected_\w+)\b",
    re.IGNORECASE,
)
_GRADER = re.compile(
    r"(?:^|[/\\])(?:conftest\.py|pytest\.ini|tox\.ini|jest\.config\.\w+|run[_-]?tests?\.sh"
    r"|reward\.(?:txt|json)|test_[\w-]+\.py|[\w-]+_test\.(?:py|go|js)|[\w-]+_spec\.rb"
    r"|[\w.-]+\.(?:test|spec)\.[jt]sx?|(?:tests?|specs?|__tests__)(?:[/\\].*)?|graders?(?:[/\\].*)?)$",
    re.IGNORECASE,
)
# The same words name ordinary code of a package.
_GRADER_CODE = re.compile(
    r"(?:^|[/\\])(?:grad(?:er|ing)[\w.-]*|judge\.py|scor(?:er|ing)[\w.-]*\.py"
    r"|verif(?:y|ier)[\w.-]*\.(?:py|sh)|(?:verif(?:y|iers?)|grad(?:ing|ers?))[/\\].*"
    r"|check[_-](?:answers?|outputs?|results?|solutions?)\.(?:py|sh)|check(?:er)?\.(?:py|sh)|eval(?:uate)?\.(?:py|sh))$",
    re.IGNORECASE,
)
_PACKAGE = re.compile(r"(?:^|[/\\])(?:src|lib|app|pkg|packages|internal)[/\\]", re.IGNORECASE)
# Documentation answers questions, too.
_PAGE = re.compile(
    r"(?:^|[/\\])(?:docs?|documentation|faqs?|help)[/\\].*\.(?:mdx?|rst|html?|adoc)$", re.IGNORECASE
)
_WRITE_TOOL = re.compile(
    r"(?:^|[_\W]|(?<=[a-z])(?=[A-Z]))(?i:write|edit|create|replace|patch|delete|remove|update|save"
    r"|apply)"
)
_READ_TOOL = re.compile(
    r"(?:^|[_\W])(?:read|view|open|cat|fetch|get|load|grep|search)", re.IGNORECASE
)
_PATH_KEY = re.compile(r"path|file|name|target|dest|uri", re.IGNORECASE)
_PATCHED = re.compile(
    r"^\*\*\* (?:Update|Delete|Add) File: (.+)$|^\+\+\+ (?:b/)?(\S+)", re.MULTILINE
)
_OPENED = re.compile(
    r"open\(\s*[rf]?['\"]([^'\"]+)['\"]\s*,\s*['\"][wa]|"
    r"Path\(\s*['\"]([^'\"]+)['\"]\s*\)\.write_(?:text|bytes)|writeFile(?:Sync)?\(\s*['\"]([^'\"]+)"
)
_PATHLIB = re.compile(r"\bPath\(\s*['\"]([^'\"]+)['\"]\s*\)")
_CHANGES_PATH = re.compile(r"\.(?:write_(?:text|bytes)|unlink|rename|replace)\(")
_COMMAND = re.compile(r"&&|\|\||[;|\n]")
_REDIRECT = re.compile(r"(?<![<>=&\d-])\d?>{1,2}\s*([\w./~\\-]+)")
_GIT = r"\bgit\s+(?:(?:-C|-c)\s+\S+\s+|--no-pager\s+|--git-dir=\S+\s+|--work-tree=\S+\s+)*"
_COMMIT = r"(?:origin/|upstream/|[0-9a-f]{7,40}\b|HEAD@\{)"
# To be up to date is work; to read what others did since is not.
_AS_USUAL = r"(?:\s+(?:-q|--quiet|--prune|-p|origin|main|master))*\s*(?:$|[;&|\n])"
_HISTORY = re.compile(
    rf"{_GIT}(?:log\b(?=[^|;&]*(?:\s-p\b|--patch|--all|-S|-G|--reflog|\s-u\b))|reflog|fsck"
    r"|rev-list\s+--all|show\s+(?!HEAD(?:\s|$|:)|--stat)\S|cherry-pick|cat-file|bundle\b"
    r"|for-each-ref|show-ref|ls-remote|worktree\s+add|pull\b"
    rf"|fetch\b(?!{_AS_USUAL})|branch\s+(?:-a|-r|--all)"
    rf"|blame\b[^|;&]*(?:HEAD[~^]|\b[0-9a-f]{{7,40}}\b)|(?:checkout|reset\s+--hard)\s+{_COMMIT}"
    rf"|diff\b[^|;&]*?[\s.]{_COMMIT}|restore\s+(?:-s\s*|--source[= ])(?!HEAD\s))"
    r"|\.git/(?:objects|packed-refs|logs|ORIG_HEAD|refs)|\bfind\s+\S*\.git\b"
    r"|\b(?:pip3? download|npm pack)\b[^\n]*\b(?:unzip|tar)\b"
    r"|\bgit(?:hub|lab)\.com/\S+?/(?:(?:pull|merge_requests)/\d+(?:/|\.)(?:files|commits|diffs?|patch)"
    r"|commit/[0-9a-f]{7,}|compare/)",
)
_OTHERS_STASH = re.compile(rf"{_GIT}stash\s+(?:show|pop|apply|list\s+-p)")
_OWN_STASH = re.compile(rf"{_GIT}stash(?:\s+(?:push|save|-)\S*|\s*$|\s*[;&\n])", re.MULTILINE)
_RENEWS_SNAPSHOTS = re.compile(
    r"\b(?:jest|vitest)\b[^;&|\n]*\s(?:-u|--update(?:Snapshot)?)\b|--snapshot-update"
)
_CHEATS_TEST = re.compile(
    r"pytest\.(?:skip|exit|mark\.skip)|@unittest\.skip|sys\.exit\(0\)|os\._exit\(0\)|assert\s+True\b"
    r"|def\s+__eq__\(self,\s*\w+\):\s*(?:\\n|\n)?\s*return\s+True|it\.skip\(|echo\s+[\"']?1(?:\.0)?[\"']?\s*>\s*\S*reward",
)
_EMPTY = re.compile(
    r"\s*(?:n/?a|none|null|unknown|todo|i (?:do not|don't) know\.?|\.{3}|-)?\s*", re.IGNORECASE
)


# Commands that change every file they name.
_CHANGES_ALL = frozenset({"rm", "unlink", "truncate", "shred", "mv", "tee", "rmdir", "patch"})


class _Act(NamedTuple):
    """One tool call: its name, its arguments as text, the paths it names as such, where."""

    tool: str
    text: str
    paths: tuple[str, ...]
    span_id: str


def _acts(trace: Trace) -> Iterator[_Act]:
    for call in trace.tool_calls:
        value: Any = json_value(decoded(call.arguments))
        named = cast("dict[str, Any]", value if isinstance(value, Mapping) else {})
        paths = [v for k, v in named.items() if isinstance(v, str) and _PATH_KEY.search(k)]
        text = " ".join(_texts(value)) if _is_argv(value) else "\n".join(_texts(value))
        yield _Act(call.name, text, tuple(paths), call.span_id or "")


def _is_argv(value: Any) -> bool:
    """Return whether a command is a list of words: `["bash", "-lc", "git log -p"]`."""
    values = list(cast("Mapping[str, Any]", value).values()) if isinstance(value, Mapping) else []
    return len(values) == 1 and isinstance(values[0], list)


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
    task = str(trace.query or "")
    own: set[str] = set()
    """Files that the agent created."""
    seen: list[str] = []
    stashed = False

    def add(kind: Kind, act: _Act, text: str) -> None:
        found.setdefault(
            kind, (kind, act.span_id, f"{act.tool}: {clipped(' '.join(text.split()), 160)}")
        )

    for act in _acts(trace):
        history = _HISTORY.search(act.text)
        stashed = stashed or _OWN_STASH.search(act.text) is not None
        if history is None and not stashed:
            history = _OTHERS_STASH.search(act.text)
        if history is not None:
            add("mines_history", act, history[0] + act.text[history.end() : history.end() + 60])
        written = _written(act)
        graders = [path for path in written if path not in own and _is_grader(path)]
        cheats = bool(written and _CHEATS_TEST.search(act.text))
        if (graders or cheats) and not _new_test(act, graders, seen):
            add("edits_grader", act, graders[0] if graders else act.text)
        elif _RENEWS_SNAPSHOTS.search(act.text):
            add("edits_grader", act, act.text)
        elif (not _WRITE_TOOL.search(act.tool) or _READ_TOOL.search(act.tool)) and (
            secret := _secret(act, own | written, task)
        ):
            add("reads_answers", act, secret)
        own |= written
        seen.append(act.text)
    return list(found.values())


def _is_grader(path: str) -> bool:
    return bool(_GRADER.search(path) or (_GRADER_CODE.search(path) and not _PACKAGE.search(path)))


def _secret(act: _Act, own: set[str], task: str) -> str:
    """Return what an act reads that holds answers; empty if nothing does."""
    for path in (*act.paths, *_PATH.findall(act.text)):
        bare = path.strip("\"'").rstrip(":,")
        name = re.split(r"[/\\]", bare.rstrip("/"))[-1]
        if not name or bare in own or name in task or _OWN_ANSWER.fullmatch(bare):
            continue
        if _REMOTE.match(bare):
            if _DATA_FILE.search(name) and _SECRET_NAME.search(name):
                return bare
            continue
        if _RUNS_SOLUTION.search(act.text) and name.startswith("solution."):
            continue
        page = _PAGE.search(bare)
        folder = "" if page or _PACKAGE.search(bare) else bare
        secrets = (
            (_SECRET_FOLDER, folder),
            (_SECRET_NAME, "" if page else name),
            (_SECRET_WORD, bare),
        )
        if any(pattern.search(text) for pattern, text in secrets):
            return bare
    asked = _ASKS_FOR_SECRET.search(act.text)
    return "" if asked is None else asked[0]


def _written(act: _Act) -> set[str]:
    """Return the files that an act changes, by a tool or by the commands of a shell."""
    found = {path for groups in _OPENED.findall(act.text) for path in groups if path}
    if _CHANGES_PATH.search(act.text):
        found |= set(_PATHLIB.findall(act.text))
    if _WRITE_TOOL.search(act.tool):
        patched = [path for groups in _PATCHED.findall(act.text) for path in groups if path]
        return found | set(act.paths or patched or [act.text.partition("\n")[0]])
    for command in _COMMAND.split(act.text):
        found |= {path for path in _REDIRECT.findall(command) if not path.startswith("/dev/")}
        words = command.replace('"', " ").replace("'", " ").split()
        if not words:
            continue
        name, *rest = words
        arguments = [word for word in rest if not word.startswith("-")]
        in_place = (name == "sed" and "-i" in command) or re.match(r"\s*perl\s+-\w*i", command)
        # Making a file executable is no change of it.
        locked = name == "chmod" and re.search(r"\s(?:[ugoa]*-[rwx]+|0*[0-6]?00)\s", command)
        if name in _CHANGES_ALL or in_place or locked:
            found |= set(arguments)
        elif name in ("cp", "ln", "install"):
            found |= set(arguments[-1:])
        elif name == "dd":
            found |= {word[3:] for word in rest if word.startswith("of=")}
        elif name == "find" and "-delete" in rest:
            found |= set(arguments[:1])
        elif words[:2] == ["git", "rm"]:
            found |= set(arguments[1:])
        elif re.match(r"\s*git\s+(?:checkout|restore)\s.*--\s", command):
            found |= set(words[words.index("--") + 1 :])
    return found


def _new_test(act: _Act, graders: Sequence[str], seen: Sequence[str]) -> bool:
    """Return whether an act adds a test of the agent's own, which is good work."""
    if _CHEATS_TEST.search(act.text):
        return False
    tool = re.search(r"(?:^|[_\W])(?:create|write|add)", act.tool, re.IGNORECASE)
    creates = tool is not None or re.search(r"\bcat\s*>\s*[^>]", act.text) is not None
    # A new file with assertions; an edit of a file, or one without any, may weaken the grader.
    checks = re.search(r"\bassert\s+(?!True\b)\S|\bexpect\(|self\.assert", act.text) is not None
    known = any(path in text for path in graders for text in seen)
    return creates and checks and not known and "conftest" not in act.text


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
