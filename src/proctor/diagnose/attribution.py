"""Name the decisive step: which agent made the error from which the others follow.

Two kinds of traces. Where findings point at acts, the decisive one is the earliest of the
strongest: an act of the agent weighs more than a failure around it, a symptom (a failed check on
the answer) less than either. In a group chat there are only messages; each is scored by what the
log itself shows about it: who introduced the final answer, what was assumed, what later turns
correct, which instruction was not followed, which errors recur. Position is one signal among these.

Weights are odds set by hand and checked on made-up failures of several designs
(tests/planted.py) and adjusted by them: figures on these are not held out.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from proctor.diagnose._steps import plain
from proctor.diagnose.finding import SHOWN_FROM, Finding, Impact, RootCause
from proctor.sanitize import line
from proctor.trace.formats.transcript import MESSAGE_INDEX

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from proctor.diagnose._steps import Act, Steps
    from proctor.trace import Span

# How strongly a kind of finding points at the cause, by the beginning of its detector's name.
# Acts of an agent first, then failures around it, then symptoms.
WEIGHTS = {
    "check:forbidden_tools": 1.0,
    "check:tool_not_called": 1.0,
    "rule:forbidden_call": 1.0,
    "contrast": 1.0,
    "rule:argument_from_nowhere": 0.95,
    "rule:ungrounded_values": 0.9,
    "rule:claimed_call": 0.9,
    "rule:answer_from_nothing": 0.8,
    "rule:report_overruled": 0.8,
    "rule:answer_without_work": 0.8,
    "rule:ignored_error": 0.8,
    "rule:required_call_missing": 0.75,
    "rule:plan_not_executed": 0.7,
    "rule:malformed_call": 0.7,
    "rule:missing_resource": 0.7,
    "rule:system_fault": 0.7,
    "rule:failed_call": 0.7,
    "rule:logged_fault": 0.7,
    "rule:identical_calls": 0.5,
    "rule:repeated_call": 0.5,
    "recording": 0.9,
    "check:": 0.25,
    "quality:": 0.15,
    "learned": 0.5,
}
OTHER_WEIGHT = 0.6

# An earlier finding wins over a stronger later one if it is nearly as strong.
NEARLY = 0.75

# A cause this much more probable than the next one is singled out.
CLEAR = 1.3

MAX_CANDIDATES = 3

# A question of fewer characters may occur in a message by chance.
MIN_QUESTION = 30


def root_causes(steps: Steps, findings: Sequence[Finding]) -> tuple[RootCause, ...]:
    """Return up to three probable causes, the most probable first."""
    if is_group_chat(steps):
        return chat_causes(steps)
    return _caused_by_findings(steps, findings)


def is_group_chat(steps: Steps) -> bool:
    """Return whether the trace is a log of messages between several agents."""
    return any(MESSAGE_INDEX in act.span.attributes for act in steps.acts)


def placed(steps: Steps, findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings with agent and step, one per span: the others become its `also`."""
    best: dict[str, Finding] = {}
    for finding in sorted(findings, key=_strength, reverse=True):
        act = steps.act_of(finding.location)
        first = best.get(finding.location)
        if first is None:
            best[finding.location] = replace(
                finding,
                agent=act.agent if act is not None else "",
                step=act.number if act is not None else None,
            )
            continue
        if finding.category != first.category and finding.category not in first.also:
            first = replace(first, also=(*first.also, finding.category))
        if finding.detector.startswith("check:"):
            # A failed check is a fact with a reason of its own: it stays visible.
            first = replace(
                first,
                description=f"{first.description}; {finding.description}",
                detector=f"{first.detector}+{finding.detector}",
            )
        best[finding.location] = first
    order = steps.trace.index.position
    # The answer of plain code is on the span around everything: its step comes last.
    return sorted(best.values(), key=lambda f: (f.step or 0, order.get(f.location, 0)))


def linked(findings: Sequence[Finding], cause: RootCause | None) -> list[Finding]:
    """Return the findings, the later ones with the cause from which they follow."""
    if cause is None:
        return list(findings)
    later = set(cause.follows)
    return [
        replace(f, caused_by=(*f.caused_by, cause.location))
        if f.location in later and cause.location not in f.caused_by
        else f
        for f in findings
    ]


def _weight(finding: Finding) -> float:
    name = finding.detector
    known = (weight for key, weight in WEIGHTS.items() if name.startswith(key))
    return next(known, OTHER_WEIGHT)


def _strength(finding: Finding) -> float:
    harm = {Impact.HIGH: 1.0, Impact.MEDIUM: 0.9, Impact.LOW: 0.6}[finding.impact]
    return _weight(finding) * finding.confidence * harm


def _caused_by_findings(steps: Steps, findings: Sequence[Finding]) -> tuple[RootCause, ...]:
    located = [f for f in findings if f.step is not None and f.confidence >= SHOWN_FROM]
    if not located:
        return ()
    strongest = max(map(_strength, located))
    near = [f for f in located if _strength(f) >= NEARLY * strongest]
    first = min(near, key=lambda f: (f.step or 0, -_strength(f)))
    ranked = sorted(located, key=lambda f: (f is not first, -_strength(f), f.step or 0))
    chosen: list[Finding] = []
    for finding in ranked:
        if all(finding.step != other.step for other in chosen):
            chosen.append(finding)
    rivals = [f for f in chosen[1:] if _strength(f) * CLEAR > _strength(first)]
    symptoms = [f for f in rivals if not _explained(f, first)]
    return tuple(_cause(steps, finding, located) for finding in [first, *symptoms][:MAX_CANDIDATES])


def _explained(finding: Finding, cause: Finding) -> bool:
    """Return whether a finding follows from the cause, or is a reason for it."""
    return finding.location in cause.caused_by or cause.location in finding.caused_by


def _cause(steps: Steps, finding: Finding, findings: Sequence[Finding]) -> RootCause:
    here = finding.step or 0
    follows = [f.location for f in findings if (f.step or 0) > here]
    reasons = _reasons(steps, finding)
    why = "the earliest act that explains the failure" if follows else "the strongest evidence"
    if any(f.detector.startswith("check:") and f.location != finding.location for f in findings):
        why = "the failed checks follow from it" if follows else why
    return RootCause(
        agent=finding.agent,
        step=finding.step or 0,
        location=finding.location,
        what=finding.description,
        why=why,
        confidence=min(0.95, finding.confidence * (0.5 + _weight(finding) / 2)),
        evidence=finding.evidence,
        because=tuple(reasons),
        follows=tuple(follows),
    )


def _reasons(steps: Steps, finding: Finding) -> list[str]:
    """Describe the earlier acts that led to a finding, equal calls together."""
    acts = [
        act
        for span_id in finding.caused_by
        if (act := steps.act_of(span_id)) is not None and act.span.span_id != finding.location
    ]
    groups: list[list[Act]] = []
    for act in acts:
        if groups and _call_key(groups[-1][-1]) == _call_key(act):
            groups[-1].append(act)
        else:
            groups.append([act])
    return [_describe(group) for group in groups[:MAX_CANDIDATES]]


def _call_key(act: Act) -> tuple[str, ...]:
    return tuple(f"{call.name}({call.arguments})" for call in act.calls)


def _describe(group: Sequence[Act]) -> str:
    first, last = group[0].number, group[-1].number
    place = f"step {first}" if len(group) == 1 else f"steps {first}–{last}"
    results = {_shown_result(tool) for act in group for tool in act.tools}
    name = group[0].calls[0].name if group[0].calls else group[0].span.name
    outcome = next(iter(results)) if len(results) == 1 else "different results"
    if len(group) == 1:
        return f"{place}: {line(name, 60)} → {line(outcome, 100)}"
    return f"{place}: the same call with the same arguments, always {line(outcome, 80)}"


def _shown_result(tool: Span) -> str:
    if tool.failed:
        return tool.error_message or tool.error_type or "an error"
    return plain(tool.tool_output) or "nothing"


# -- group chats ---------------------------------------------------------------------------------

_ORCHESTRATOR = re.compile(
    r"orchestrat|manager|planner|coordinat|supervis|router|leader|team_?lead|controller|director"
    r"|captain|moderator|dispatch|facilitat|chair",
    re.IGNORECASE,
)
_TERMINAL = re.compile(
    r"terminal|executor|interpreter|sandbox|code_?runner|tool_?(?:node|output|result)|^tool$"
    r"|environment|^function$",
    re.IGNORECASE,
)
_PERSON = re.compile(r"^(?:human|user|customer|task|system|user_?proxy|developer)$", re.IGNORECASE)
_CHECKER = re.compile(r"verif|validat|review|critic|check|judge|qa\b|quality|test", re.IGNORECASE)

_EXECUTED = re.compile(r"exit ?code|execution (?:succeeded|failed)|^Code output", re.IGNORECASE)
_FAILED_RUN = re.compile(
    r"exit ?code:? ?[1-9]|execution failed|Traceback \(most recent|\b\w+Error\b|command not found"
    r"|\bHTTP (?:4|5)\d\d|status(?: code)?:? ?(?:4|5)\d\d|timed out",
    re.IGNORECASE,
)
_CODE_BLOCK = re.compile(r"```")
_FINAL = re.compile(
    r"(?:final answer|the answer|answer|result|conclusion)\b(?: to [^:\n]{0,80})?"
    r"(?: is|:|=| would be)\W{0,4}(.{1,160})",
    re.IGNORECASE,
)
_ASSUMES = re.compile(
    r"\b(?:assum(?:e|ed|es|ing|ption)|suppos(?:e|ing)|hypothetical(?:ly)?|simulat(?:e|ed|ing)|"
    r"from memory|I recall|I (?:already )?know|common(?:ly)? known|well[- ]known|placeholder|"
    r"for (?:the sake of|demonstration|illustration)|example (?:data|values?)|mock(?:ed)? data|"
    r"let'?s say|probably|presumably|likely|I (?:think|believe|guess)|estimat(?:e|ed|ing)|"
    r"based on (?:my|general) (?:knowledge|understanding)|as of my|without (?:checking|verifying|"
    r"access)|skip(?:ping)? (?:the|this)|no need to)\b",
    re.IGNORECASE,
)
_CORRECTS = re.compile(
    r"\b(?:mistake[sn]?|incorrect(?:ly)?|wrong(?:ly)?|not (?:correct|accurate|right|what|valid)|"
    r"should have|overlook(?:ed)?|misread|misinterpret(?:ed)?|misunderst(?:ood|anding)|"
    r"inaccurate|contradict(?:s|ed|ory)?|inconsisten(?:t|cy)|does(?:n't| not) match|mismatch|"
    r"discrepanc(?:y|ies)|error in|fix(?:ed)? the|instead of|forgot|failed to|did not (?:include|"
    r"account|consider|follow|use|filter|check)|didn't)\b",
    re.IGNORECASE,
)
_STUCK = re.compile(
    r"\b(?:unable to|could ?n[o'’]t|cannot|can't|not (?:found|available|able|accessible|possible)"
    r"|no (?:\w+ ){0,3}(?:results?|information|data|match(?:es)?)|failed|blocked|does not exist|"
    r"error|404|captcha|still (?:loading|on))\b",
    re.IGNORECASE,
)
_APPROVES = re.compile(
    r"\b(?:confirmed|verified|correct|looks? good|approve[ds]?|agree[ds]?|accurate|TERMINATE|"
    r"no (?:issues|errors|changes)|everything is)\b",
    re.IGNORECASE,
)
_TASK = re.compile(
    r"^\W*(?:you are given|# ?(?:general )?task|task:|the task is|we are working on|question:|"
    r"please (?:solve|answer)|here is the (?:task|question))",
    re.IGNORECASE,
)
_WORD = re.compile(r"[^\W\d_]{4,}")
_FIGURE = re.compile(r"(?<![\w.])\$?\d[\d,]*(?:\.\d+)?%?(?![\w])")
_STOP = frozenset(
    """about after also answer based been before between both could each find first following from
    given have here information into just like make more most must need needs next only other please
    provide question result results should some step steps such sure task than that their them then
    there these they this those through using verify very want were what when where which while will
    with would your""".split()
)

# Log odds of a message to be the cause, by what it shows.
ODDS = {
    "first worker": 1.1,
    "worker": 0.9,
    "orchestrator": 0.0,
    "checker": -0.5,
    "late": -1.2,  # at the end of the log, in proportion before it
    "introduces the answer": 1.5,
    "wrote the code that gave the answer": 1.7,
    "answer without a source": 1.3,
    "answer differs from what was reported": 1.6,
    "assumes": 1.0,
    "corrected later": 1.4,
    "code fails and the failure recurs": 0.9,
    "code fails and is repaired": 0.15,
    "figure without a source, reused": 0.8,
    "figure contradicts an earlier one": 1.1,
    "does not follow its instruction": 1.0,
    "reports no success": 0.3,
    "instruction repeated in vain": 0.7,
    "instruction leaves the task": 2.2,
    "does what a wrong instruction says": -1.2,
    "approves": -0.4,
    "says little": -1.0,
    "restates the task": -3.0,
}


class ChatTurn(NamedTuple):
    """One message of a group chat, with the part its speaker plays."""

    act: Act
    role: str
    text: str

    @property
    def agent(self) -> str:
        """The speaker."""
        return self.act.agent


def chat_causes(steps: Steps) -> tuple[RootCause, ...]:
    """Return the probable causes in a group chat: the messages with the highest odds."""
    turns = read_turns(steps)
    eligible = [n for n, turn in enumerate(turns) if turn.role in ("worker", "orchestrator")]
    if not eligible:
        return ()
    shown = _Signals(turns, plain(steps.trace.query)).read()
    odds = {n: sum(weight for _, weight in shown[n]) for n in eligible}
    scale = sum(math.exp(value) for value in odds.values())
    # An agent is suspected by all of its messages; a step by its own.
    by_agent: dict[str, float] = {}
    for n, value in odds.items():
        agent = turns[n].agent
        by_agent[agent] = by_agent.get(agent, 0.0) + math.exp(value) / scale
    ranked = sorted(
        eligible, key=lambda n: (-odds[n] - 0.5 * math.log(by_agent[turns[n].agent]), n)
    )
    best = ranked[0]
    chances = {n: math.exp(odds[n]) / scale for n in eligible}
    rivals = [n for n in ranked[1:] if chances[n] * CLEAR > chances[best]]
    return tuple(
        _chat_cause(turns, n, shown[n], chances[n]) for n in [best, *rivals][:MAX_CANDIDATES]
    )


def _chat_cause(
    turns: Sequence[ChatTurn], n: int, shown: Sequence[tuple[str, float]], chance: float
) -> RootCause:
    turn = turns[n]
    reasons = [name for name, weight in sorted(shown, key=lambda s: -s[1]) if weight > 0]
    specific = [name for name in reasons if name not in ("worker", "orchestrator", "first worker")]
    why = "; ".join(specific[:3]) or "the first turn of a worker, and nothing points elsewhere"
    said = next((text.strip() for text in turn.text.splitlines() if len(text.strip()) > 20), "")
    return RootCause(
        agent=turn.agent,
        step=turn.act.number,
        location=turn.act.span.span_id,
        what=line(said or turn.text, 160),
        why=why,
        confidence=min(0.9, chance),
        evidence=(said or turn.text)[:240].strip(),
        follows=(),
    )


def read_turns(steps: Steps) -> list[ChatTurn]:
    """Return the messages of a group chat with their roles, found by name and by behaviour."""
    acts = steps.acts
    spoken = Counter(act.agent for act in acts)
    executed = Counter(act.agent for act in acts if _EXECUTED.search(_text(act)[:80]))
    addressed = Counter(act.agent for act in acts if act.span.handoff_to)
    others = {name: re.compile(rf"\b{re.escape(name)}\b") for name in spoken if len(name) > 2}
    naming = Counter(
        act.agent
        for act in acts
        if any(name != act.agent and found.search(_text(act)) for name, found in others.items())
    )
    roles: dict[str, str] = {}
    for name, count in spoken.items():
        if _PERSON.search(name):
            roles[name] = "person"
        elif _TERMINAL.search(name) or executed[name] > count / 2:
            roles[name] = "terminal"
        elif _ORCHESTRATOR.search(name) or addressed[name] > count / 3:
            roles[name] = "orchestrator"
        else:
            roles[name] = "worker"
    # Nobody is called so: the one who keeps calling on the others leads them.
    if "orchestrator" not in roles.values() and len(others) > 3:
        leader, calls = naming.most_common(1)[0] if naming else ("", 0)
        if roles.get(leader) == "worker" and calls >= 3 and calls > 0.8 * spoken[leader]:
            rest = [naming[name] / spoken[name] for name in spoken if name != leader]
            if max(rest, default=0.0) < 0.5:
                roles[leader] = "orchestrator"
    return [ChatTurn(act, roles[act.agent], _text(act)) for act in acts]


def _text(act: Act) -> str:
    return act.text or "\n".join(act.results)


def _words(text: str) -> set[str]:
    return {word.lower() for word in _WORD.findall(text)} - _STOP


def _figures(text: str) -> set[str]:
    found = {figure.strip("$%").replace(",", "") for figure in _FIGURE.findall(text)}
    return {figure for figure in found if len(figure.replace(".", "")) > 1}


class _Signals:
    """Read what a group chat shows about each of its messages."""

    def __init__(self, turns: Sequence[ChatTurn], query: str) -> None:
        self.turns, self.query = turns, query
        self.shown: list[list[tuple[str, float]]] = [[] for _ in turns]
        first = turns[0].text if turns else ""
        self.task = f"{query}\n{first if self._is_task(0) else ''}"
        self.workers = [
            n for n, t in enumerate(turns) if t.role == "worker" and not self._is_task(n)
        ]

    def _is_task(self, n: int) -> bool:
        """Return whether a message only states the task."""
        turn = self.turns[n]
        if n:
            return False
        asked = self.query if len(self.query) >= MIN_QUESTION else ""
        return (
            turn.role == "person"
            or bool(_TASK.search(turn.text[:300]))
            or bool(asked and " ".join(asked.split()) in " ".join(turn.text.split()))
        )

    def read(self) -> list[list[tuple[str, float]]]:
        """Return the signals of each message with their odds."""
        self._positions()
        self._answer()
        self._assumptions()
        self._corrections()
        self._code()
        self._sources()
        self._instructions()
        return self.shown

    def _add(self, n: int, name: str, times: float = 1.0) -> None:
        if all(name != known for known, _ in self.shown[n]):
            self.shown[n].append((name, ODDS[name] * times))

    def _positions(self) -> None:
        last = max(1, len(self.turns) - 1)
        for n, turn in enumerate(self.turns):
            if turn.role in ("worker", "orchestrator"):
                self._add(n, turn.role)
                self._add(n, "late", n / last)
                if _CHECKER.search(turn.agent):
                    self._add(n, "checker")
                if len(turn.text.split()) < 6 and not _CODE_BLOCK.search(turn.text):
                    self._add(n, "says little")
                if self._is_task(n):
                    self._add(n, "restates the task")
        if self.workers:
            self._add(self.workers[0], "first worker")

    def _answer(self) -> None:
        """Who first gave the answer that turned out wrong, and from what."""
        final = self._final_answer()
        if not final:
            return
        if final.casefold() in self.task.casefold():
            return
        wanted = re.compile(rf"(?<![\w.]){re.escape(final)}(?!\w|\.\d)", re.IGNORECASE)
        for n, turn in enumerate(self.turns):
            if turn.role == "person" or not wanted.search(turn.text):
                continue
            if turn.role == "terminal":
                author = self._author(n)
                if author is not None:
                    self._add(author, "wrote the code that gave the answer")
            else:
                self._add(n, "introduces the answer")
                if not _CODE_BLOCK.search(turn.text):
                    self._add(n, "answer without a source", 0.6)
                    if self._replaces(n, final):
                        self._add(n, "answer differs from what was reported")
            return

    def _replaces(self, n: int, final: str) -> bool:
        """Return whether a figure that nobody had reported takes the place of one that was."""
        if len(re.sub(r"\D", "", final)) < 3:
            return False  # a short figure may count anything
        reported = set[str]()
        for turn in self.turns[:n]:
            if turn.role in ("worker", "terminal"):
                reported |= _figures(turn.text)
        task = _figures(self.task)
        digits = len(final.partition(".")[0])
        return any(len(figure.partition(".")[0]) == digits for figure in reported - task)

    def _final_answer(self) -> str:
        """Return the answer of the log: a figure or a few words that its last messages state."""
        for turn in reversed(self.turns[-4:]):
            if turn.role == "person":
                continue
            for found in reversed(list(_FINAL.finditer(turn.text))):
                stated = found.group(1).strip().strip("*`\"' ").split("\n")[0]
                figures = [f.strip("$%") for f in _FIGURE.findall(stated)]
                if figures:
                    return figures[0]
                name = re.match(r"[^.;,(]{2,60}", stated)
                if name and 1 <= len(name.group().split()) <= 7:
                    return name.group().strip().strip("*`\"'")
        return ""

    def _author(self, n: int) -> int | None:
        """Return the message whose code a terminal ran."""
        for before in range(n - 1, -1, -1):
            if (
                _CODE_BLOCK.search(self.turns[before].text)
                and self.turns[before].role != "terminal"
            ):
                return before
        return n - 1 if n and self.turns[n - 1].role == "worker" else None

    def _assumptions(self) -> None:
        seen: set[str] = set()
        for n in self.workers:
            turn = self.turns[n]
            found = _ASSUMES.findall(turn.text[:6000])
            if found and turn.agent not in seen:
                strong = len(found) > 1 or not re.fullmatch(
                    r"probably|presumably|likely|estimat\w+|I think|I believe", found[0], re.I
                )
                seen.add(turn.agent)
                self._add(n, "assumes", 1.0 if strong else 0.5)

    def _corrections(self) -> None:
        """Later turns that say what was wrong, and with whom or with which figure."""
        for n, turn in enumerate(self.turns):
            if turn.role in ("terminal", "person") or n == 0:
                continue
            found = _CORRECTS.search(turn.text[:4000])
            if found is None:
                continue
            sentence = turn.text[max(0, found.start() - 200) : found.end() + 200]
            earlier = [m for m in self.workers if m < n and self.turns[m].agent != turn.agent]
            named = [m for m in earlier if self.turns[m].agent in sentence]
            figures = _figures(sentence)
            stating = [m for m in earlier if figures & _figures(self.turns[m].text)]
            if stating:
                self._add(stating[0], "corrected later")
            elif named:
                self._add(named[-1], "corrected later")
            elif earlier:
                self._add(earlier[-1], "corrected later", 0.4)

    def _code(self) -> None:
        """Failing code: what recurs is not what was repaired."""
        failed: list[int] = []
        for n, turn in enumerate(self.turns):
            if turn.role != "terminal":
                continue
            author = self._author(n)
            if author is None or self.turns[author].role not in ("worker", "orchestrator"):
                continue
            if _FAILED_RUN.search(turn.text[:2000]):
                failed.append(author)
            else:
                for m in failed:
                    self._add(m, "code fails and is repaired")
                failed = []
        if failed:
            self._add(
                failed[0], "code fails and the failure recurs", min(1.0, 0.5 + len(failed) / 4)
            )

    def _sources(self) -> None:
        """Figures that a worker states first: without a source, or against an earlier one."""
        known = _figures(self.task)
        for n, turn in enumerate(self.turns):
            figures = _figures(turn.text)
            if turn.role == "worker" and n in self.workers and not _CODE_BLOCK.search(turn.text):
                fresh = figures - known
                later = set[str]()
                for after in self.turns[n + 1 :]:
                    if after.role != "terminal":
                        later |= _figures(after.text)
                if fresh & later and n + 1 < len(self.turns):
                    self._add(n, "figure without a source, reused", 0.6)
                before = self.turns[n - 1] if n else None
                if before is not None and before.role == "terminal" and fresh:
                    near = [(a, b) for a in fresh for b in _figures(before.text) if _almost(a, b)]
                    if near:
                        self._add(n, "figure contradicts an earlier one")
            known |= figures

    def _instructions(self) -> None:
        """Instructions that were not followed, that repeat in vain, or that leave the task."""
        task = _words(self.task)
        given: dict[str, list[int]] = {}
        for before, after in pairwise(range(len(self.turns))):
            lead, worker = self.turns[before], self.turns[after]
            if lead.role != "orchestrator" or worker.role != "worker":
                continue
            wanted = _words(lead.text)
            shared = len(wanted & _words(worker.text)) / max(4, len(wanted))
            if len(wanted) >= 4 and shared < 0.12 and len(worker.text) > 40:
                self._add(after, "does not follow its instruction")
            if _STUCK.search(worker.text[:1500]):
                self._add(after, "reports no success")
            same = [m for m in given.get(worker.agent, []) if _alike(self.turns[m].text, lead.text)]
            if same:
                self._add(same[0], "instruction repeated in vain", 0.4)
                reply = same[0] + 1
                if self.turns[reply].role == "worker":
                    self._add(reply, "instruction repeated in vain")
            given.setdefault(worker.agent, []).append(before)
            if len(task) >= 4 and len(wanted) >= 6 and not wanted & task:
                self._add(before, "instruction leaves the task")
                self._add(after, "does what a wrong instruction says")
        for n, turn in enumerate(self.turns):
            if (
                turn.role == "worker"
                and _CHECKER.search(turn.agent)
                and _APPROVES.search(turn.text)
            ):
                self._add(n, "approves")


def _almost(one: str, other: str) -> bool:
    """Return whether two figures differ, but could be the same one altered."""
    try:
        a, b = float(one), float(other)
    except ValueError:
        return False
    return b not in (a, 0) and abs(a - b) <= 0.15 * abs(b) and round(a) != round(b)


def _alike(one: str, other: str) -> bool:
    a, b = _words(one), _words(other)
    return bool(a) and len(a & b) >= 0.6 * len(a | b)
