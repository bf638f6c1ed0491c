"""Name the decisive message of a group chat: who of several agents made the mistake, and when.

A group chat has only messages. Each is scored by what the log itself shows about it: who first
stated the final answer and from what, what was assumed, which equation does not hold, which code
gave the answer or keeps failing, which instruction changed the task, was not followed or was
repeated in vain, what was approved although it failed. Position is one signal among these: without
any other, the first turn of a worker is named. If the log says what the right answer is, who
replaced it counts as well.

Steps are the indexes of messages in the log, from 0; agents are the speakers' names.

Weights are odds set by hand on made-up failures of eleven designs (tests/planted.py,
tests/planted_teams.py). Weights fitted to all designs but one do about as well on that one as
these do; figures on made-up logs are no figures on real ones.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from proctor.checks.grounding import NUMBER_WORDS
from proctor.diagnose._steps import plain
from proctor.diagnose._values import equations, holds, stem
from proctor.diagnose.finding import RootCause
from proctor.sanitize import line
from proctor.trace.formats.transcript import MESSAGE_INDEX

if TYPE_CHECKING:
    from collections.abc import Sequence

    from proctor.diagnose._steps import Act, Steps

# A cause this much more probable than the next one is singled out.
CLEAR = 1.3

MAX_CANDIDATES = 3

# A question of fewer characters may occur in a message by chance.
MIN_QUESTION = 30

# A last message with at most this many words is the answer itself.
SHORT_ANSWER = 6

# Characters of an instruction; a longer text is a plan with its facts and guesses.
LONGEST_INSTRUCTION = 1200

# Characters of a message in which its speaker names others, or says that a page follows.
PAGE_HEAD = 4000

_ORCHESTRATOR = re.compile(
    r"orchestrat|manager|planner|planning|coordinat|supervis|router|triage|leader|team_?lead"
    r"|controller|director|captain|moderator|dispatch|facilitat|chair|chief",
    re.IGNORECASE,
)
_TERMINAL = re.compile(
    r"terminal|interpreter|sandbox|code_?runner|tool_?(?:node|output|result|executor)|^tools?$"
    r"|environment|^env$|^function$|^shell$|^console$",
    re.IGNORECASE,
)
# Names of programs and of agents alike: what they write decides.
_EXECUTOR = re.compile(r"execut", re.IGNORECASE)
_PERSON = re.compile(r"^(?:human|user|customer|task|system|user_?proxy|developer)$", re.IGNORECASE)
_CHECKER = re.compile(
    r"verif|validat|review|critic|check|judge|qa\b|quality|test|inspect|audit|proof|skeptic",
    re.IGNORECASE,
)

_EXECUTED = re.compile(
    r"exit(?:ed with)?(?: unix)? ?(?:exit )?code|execution (?:succeeded|failed)|^Code output"
    r"|its output was|no code blocks? found",
    re.IGNORECASE,
)
_FAILED_RUN = re.compile(
    r"exit ?code:? ?[1-9]|execution failed|Traceback \(most recent|\b\w+Error\b|command not found"
    r"|\bHTTP (?:4|5)\d\d|status(?: code)?:? ?(?:4|5)\d\d|timed out",
    re.IGNORECASE,
)
_EXIT_LINE = re.compile(r"\W*(?:exit|return) ?(?:code|status)\W*\d+\W*$", re.IGNORECASE)
_CODE_BLOCK = re.compile(r"```")
_FENCED = re.compile(r"```.*?(?:```|\Z)", re.DOTALL)
_PREAMBLE = re.compile(r"^(?:```|import |from |#)|\bopen\(|\bread_\w+\(|\bload\(")
# A page or a screen that a tool wrote into the message of its agent.
_SCREEN = re.compile(
    r"viewport|screenshot|page content|current page|detected (?:the following )?text|\bOCR\b"
    r"|^(?:address|viewing|showing) ",
    re.IGNORECASE | re.MULTILINE,
)
# All of the text below it is the page.
_PAGE_BELOW = re.compile(r"detected (?:the following )?text:|^Viewport position:", re.MULTILINE)
# The number of a list's item is no figure.
_BULLET = re.compile(r"^\s*(?:[-*#>•]+|\d{1,2}[.)](?=\s))\s*")
_SENTENCE = re.compile(r"(?<=[.!?;])\s+")
_FINAL = re.compile(
    r"(?:final answer|the answer|answer|result|conclusion|decision|verdict|\bfinal(?=:))\b"
    # After it, or a short line below it, as under a heading.
    r"(?: to [^:\n]{0,80})?(?: is|:|=| would be|(?<=final answer)(?=\s+\d)"
    r"|[*_]*\n+(?=[^\n]{1,60}(?:\n|\Z)))\W{0,4}(.{1,160})",
    re.IGNORECASE,
)
_BOLD = re.compile(r"\*\*([^*\n]{1,60})\*\*")
_ENDING = re.compile(r"(?:\bTERMINATE|<END>|\bDONE)\W*\Z")
_TERMS = re.compile(r"\d[\d,.]*(?:\s*[-+*/×·÷−]\s*\d[\d,.]*)+")
_ACTED_ON = re.compile(
    r"\b(?:click|typ|enter|open|select|search|navigat|visit|query|quer|look)\w*\s+"
    r"(?:(?:on|for|to|the|up|at|link|button|entry|advertisement)\s+)*['\"“]([^'\"”\n]{4,160})"
)
_ASSUMES = re.compile(
    r"\b(?:assum(?:e|ed|es|ing|ption)|suppos(?:e|ing)|hypothetical(?:ly)?|simulat(?:e|ed|ing)|"
    r"from memory|I recall|I (?:already )?know|common(?:ly)? known|well[- ]known|placeholder|"
    r"for (?:the sake of|demonstration|illustration)|example (?:data|values?)|mock(?:ed)? data|"
    r"let'?s say|probably|presumably|likely|I (?:think|believe|guess)|estimat(?:e|ed|ing)|"
    r"approximat(?:e|ely|ion)|based on (?:my|general) (?:knowledge|understanding)|as of my|"
    r"general knowledge|without (?:checking|verifying|access)|skip(?:ping)? (?:the|this)|"
    r"no need to|(?:must|should) be\b.{0,40}\balready)\b",
    re.IGNORECASE,
)
# An instruction to answer without looking.
_ASKS_TO_GUESS = re.compile(
    r"\b(?:from memory|(?:please|just|simply|then|and|^|[,.;:]) ?(?:estimate|guess)\b"
    r"|(?:known|usual|typical) (?:figure|value|number) of"
    r"|skip (?:the |this |that )?(?:file|source|page|document|attachment|step)s?\b"
    r"|an? (?:rough )?(?:estimate|guess) (?:will do|is (?:enough|fine|sufficient))"
    r"|(?:do not|don't|no need to|without|instead of|skip) (?:\w+ing |the )?"
    r"(?:brows\w+|search\w*|open\w*|read\w*|look\w* (?:it )?up|check\w*|verif\w+|run\w*)\b)",
    re.IGNORECASE | re.MULTILINE,
)
_LEDGER_INSTRUCTION = re.compile(
    r'"instruction_or_question"\s*:\s*\{.*?"answer"\s*:\s*"((?:[^"\\]|\\.)*)"', re.DOTALL
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
    r"|no (?:\w+ ){0,3}(?:results?|information|data|match(?:es)?)|failed|blocked|denied|does not "
    r"exist|error|404|captcha|still (?:loading|on|shown)|unchanged|spinner)\b",
    re.IGNORECASE,
)
# It is not this agent's work: who gave it to it?
_NOT_MINE = re.compile(
    r"\bI (?:can|am able to) only\b|\b(?:not|outside) (?:part of )?my (?:task|role|job|scope)\b"
    r"|\bI (?:do not|don't) have (?:a|any|the) (?:tool|capabilit|abilit|function)",
    re.IGNORECASE,
)
_NO_ANSWER = re.compile(
    r"^(?:unknown|none|n/?a|nothing|no answer|undetermined|not .*)$", re.IGNORECASE
)
_APPROVES = re.compile(
    r"\b(?:confirmed|verified|correct|looks? (?:good|right|complete)|approve[ds]?|agree[ds]?|"
    r"accurate|TERMINATE|no (?:issues|errors|changes|objections?|remarks)|everything is|accepted|"
    r"is reached|can be (?:released|delivered)|in order)\b",
    re.IGNORECASE,
)
_OBJECTS = re.compile(
    r"\b(?:no|not|must|should|rather|instead|wrong|however|but|change)\b", re.IGNORECASE
)
_YIELDS = re.compile(
    r"\b(?:good point|you(?: are|'re| may be| might be) right|I give in|if you insist|as you say"
    r"|changed?|corrected|correction|let us use that|all right|understood|agreed)\b",
    re.IGNORECASE,
)
_TASK = re.compile(
    r"^\W*(?:you are given|# ?(?:general )?task|task:|the task is|we are working on|question:|"
    r"please (?:solve|answer)|here is the (?:task|question))",
    re.IGNORECASE,
)
_PLAN = re.compile(r"\W*(?:here is |this is )?(?:the |our |my )?(?:\w+ )?plan\s*:", re.IGNORECASE)
_WORD = re.compile(r"[^\W\d_]{4,}")
_NAME = re.compile(r"(?<=[\w,:] )[A-Z][\w'’-]{2,}")
_FIGURE = re.compile(r"(?<![\w.])\$?\d[\d,]*(?:\.\d+)?%?(?![\w])")
_YEAR = re.compile(r"(?<![\w.,])(?:1[89]|20)\d\d(?![\w,]|\.\d)")
_REFERENCE = re.compile(r"\b(?=\w*\d\w*\d)(?=\w*[A-Za-z])\w[\w-]{3,15}\b")
_STOP = frozenset(
    """about after also answer based been before between both could each find first following from
    given have here information into just like make more most must need needs next only other please
    provide question result results should some step steps such sure task than that their them then
    there these they this those through using verify very want were what when where which while will
    with would your""".split()
)

# Words of links that every site has.
_PAGE_WORDS = frozenset(
    """archive back button click close continue contact cookies details figures forward home help
    last link login menu next page place previous read result results search show site submit tab
    view website show""".split()
)

# Keys under which a log says what the right answer is, and whether the team found it.
_TRUTH_KEYS = ("ground_truth", "correct_answer", "expected_answer", "reference_answer", "expected")
FAILED_KEYS = ("is_correct", "correct", "success")

# Log odds of a message to be the cause, by what it shows.
ODDS = {
    "first worker": 1.1,
    "worker": 0.8,
    "orchestrator": 0.0,
    "checker": -0.5,
    "late": -1.0,  # at the end of the log, in proportion before it
    "first states the answer": 2.0,
    "first shows the value that became the answer": 0.5,
    "nothing before shows the answer": 0.6,
    "wrote the code that gave the answer": 2.0,
    "writes the data into the code": 1.4,
    "reported the figures the answer is calculated from": 1.0,
    "answer differs from what was reported": 2.0,
    "answer differs from the output before it": 1.8,
    "replaces the right answer": 2.5,
    "overlooks the right answer, which was shown": 0.6,
    "miscalculates": 2.4,
    "assumes": 1.2,
    "corrected later": 0.6,
    "overturns what others said, and is followed": 1.0,
    "code fails and the failure recurs": 1.3,
    "code fails and is repaired": 0.1,
    "writes code": 1.2,
    "figure without a source, reused": 0.2,
    "figure contradicts an earlier one": 1.1,
    "changes a condition of the task": 2.2,
    "reference differs from the task's": 2.4,
    "acts on something else": 1.0,
    "has nothing to do with the task": 1.0,
    "does not follow its instruction": 0.5,
    "reports no success": 0.3,
    "instruction repeated in vain": 0.6,
    "repeats what was refused": 1.8,
    "instruction leaves the task": 1.2,
    "asks for a guess": 2.6,
    "gives work to an agent that cannot do it": 2.4,
    "was given work it cannot do": -1.5,
    "guesses as it was told": -2.5,
    "does what a wrong instruction says": -1.2,
    "approves": -0.6,
    "approves what failed": 2.6,
    "says little": -1.0,
    "restates the task": -3.0,
}


class ChatTurn(NamedTuple):
    """One message of a group chat, with the part its speaker plays."""

    act: Act
    role: str
    text: str
    page: bool
    """Whether it holds a page or a screen."""
    statements: tuple[str, ...]
    """Sentences that say something themselves: no code, no tables, no pages."""

    @property
    def agent(self) -> str:
        """The speaker."""
        return self.act.agent


def chat_causes(steps: Steps) -> tuple[RootCause, ...]:
    """Return the probable causes in a group chat: the messages with the highest odds."""
    facts = steps.trace.metadata
    if any(facts.get(key) is True for key in FAILED_KEYS):
        return ()
    turns = read_turns(steps)
    eligible = [n for n, turn in enumerate(turns) if turn.role in ("worker", "orchestrator")]
    # Only programs and people speak: one of them is where to look first.
    eligible = eligible or list(range(len(turns)))
    truth = next((plain(facts[key]) for key in _TRUTH_KEYS if facts.get(key) is not None), "")
    shown = read_signals(turns, plain(steps.trace.query), truth.strip())
    odds = [sum(weight for _, weight in shown[n]) for n in eligible]
    best = eligible[most_suspect(odds, [turns[n].agent for n in eligible])]
    scale = sum(math.exp(value) for value in odds)
    chances = {n: math.exp(value) / scale for n, value in zip(eligible, odds, strict=True)}
    ranked = sorted(eligible, key=lambda n: (-chances[n], n))
    rivals = [n for n in ranked if n != best and chances[n] * CLEAR > chances[best]]
    return tuple(
        _chat_cause(turns, n, shown[n], chances[n]) for n in [best, *rivals][:MAX_CANDIDATES]
    )


def most_suspect(odds: Sequence[float], agents: Sequence[str]) -> int:
    """Return the index of the most suspect message: by its own odds, and by those of its agent.

    An agent is suspected by all of its messages.
    """
    shares = [math.exp(value) for value in odds]
    of_agent: dict[str, float] = {}
    for agent, share in zip(agents, shares, strict=True):
        of_agent[agent] = of_agent.get(agent, 0.0) + share
    places = range(len(odds))
    return max(places, key=lambda n: (odds[n] + 0.5 * math.log(of_agent[agents[n]]), -n))


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
    executed = Counter(act.agent for act in acts if _EXECUTED.search(_text(act)[:120]))
    addressed = Counter(act.agent for act in acts if act.span.handoff_to)
    others = {name: re.compile(rf"\b{re.escape(name)}\b") for name in spoken if len(name) > 2}
    naming = Counter(
        act.agent
        for act in acts
        if any(
            name != act.agent and found.search(_text(act)[:PAGE_HEAD])
            for name, found in others.items()
        )
    )
    plans = {act.agent for act in acts[:1] if act.number and _PLAN.match(_text(act))}
    roles: dict[str, str] = {}
    for name, count in spoken.items():
        ran = executed[name] / count
        if _PERSON.search(name):
            roles[name] = "person"
        elif _TERMINAL.search(name) or ran > 0.5 or (ran > 0.2 and _EXECUTOR.search(name)):
            roles[name] = "terminal"
        elif _ORCHESTRATOR.search(name) or addressed[name] > count / 3 or name in plans:
            roles[name] = "orchestrator"
        else:
            roles[name] = "worker"
    # No speaker has such a name: the one who keeps calling on the others leads them.
    if "orchestrator" not in roles.values() and len(others) > 3:
        leader, calls = naming.most_common(1)[0] if naming else ("", 0)
        if roles.get(leader) == "worker" and calls >= 3 and calls >= 0.75 * spoken[leader]:
            rest = [naming[name] / spoken[name] for name in spoken if name != leader]
            if max(rest, default=0.0) < 0.5:
                roles[leader] = "orchestrator"
    return [
        # The result of a tool has no speaker.
        ChatTurn(
            act,
            roles[act.agent] if MESSAGE_INDEX in act.span.attributes else "terminal",
            text := _text(act),
            page := _is_page(text),
            _statements(text, page=page),
        )
        for act in acts
    ]


def _text(act: Act) -> str:
    return act.text or "\n".join(act.results)


def _statements(text: str, *, page: bool) -> tuple[str, ...]:
    """Return the sentences of a message that state something: of a page, only those around it."""
    own, *shown = _PAGE_BELOW.split(_FENCED.sub("\n", text), maxsplit=1)
    lines = [_BULLET.sub("", one).strip() for one in own.splitlines() if one.strip()]
    if page:
        # Below the page may be a remark about it, unless all of the rest is the page.
        lines = [*lines[:1], *(one for one in lines[1:][-1:] if not shown and len(one.split()) > 3)]
    return tuple(
        sentence
        for one in lines
        for sentence in _SENTENCE.split(one)
        if "|" not in sentence and len(sentence) <= 400 and len(_FIGURE.findall(sentence)) <= 5
    )


def _is_page(text: str) -> bool:
    """Return whether a message holds a page or a screen: by what is said of it, or short lines."""
    if _SCREEN.search(text[:PAGE_HEAD]):
        return True
    lines = [one for one in _FENCED.sub("\n", text).splitlines() if one.strip()]
    return len(lines) > 8 and sum(len(one.split()) < 7 for one in lines) > 0.5 * len(lines)


def _words(text: str) -> set[str]:
    return {word.lower() for word in _WORD.findall(text)} - _STOP


def _figures(text: str) -> set[str]:
    found = {figure.strip("$%").replace(",", "") for figure in _FIGURE.findall(text)}
    return {figure for figure in found if len(figure.replace(".", "")) > 1}


def _answer_forms(phrase: str) -> list[str]:
    """Return an answer as a whole, its figure, and its first part: another message may say less."""
    stated = phrase.strip().strip("*`\"' ").split("\n")[0]
    whole = re.split(r"[;(]|(?<!\b[A-Z])\.(?:\s|$)|\*\*", stated)[0].strip("*`\"'., ")
    whole = re.sub(r"^(?:the|a|an) ", "", whole, flags=re.IGNORECASE)
    figures = [figure.strip("$%") for figure in _FIGURE.findall(stated)]
    part = whole.split(",")[0].strip()
    few = [one for one in (whole, *figures[:1], part) if 1 <= len(one.split()) <= SHORT_ANSWER]
    return list(dict.fromkeys(few))


def _mention(value: str) -> re.Pattern[str]:
    """Return the pattern of a whole value: 12 is not in 120 or 12.5; it is twelve as well, and
    12000 is 12,000.
    """
    figure = value.replace(",", "")
    spelled = {word: f"{number:g}" for word, number in NUMBER_WORDS.items()}
    words = [
        word for word, digits in spelled.items() if digits == spelled.get(figure.lower(), figure)
    ]
    if words:
        return re.compile(
            rf"(?<![\w.,])(?:{spelled[words[0]]}|{words[0]})(?!\w|[.,]\d)", re.IGNORECASE
        )
    if re.fullmatch(r"\d+(?:\.\d+)?", figure):
        whole, dot, rest = figure.partition(".")
        # Thousands may be separated.
        digits = "".join(
            f"{digit},?" if left and not left % 3 else digit
            for digit, left in zip(whole, range(len(whole) - 1, -1, -1), strict=True)
        )
        return re.compile(rf"(?<![\w.,]){digits}{re.escape(dot + rest)}(?!\w|[.,]\d)")
    return re.compile(rf"(?<!\w){re.escape(value)}(?!\w)", re.IGNORECASE)


def read_signals(
    turns: Sequence[ChatTurn], query: str, truth: str = ""
) -> list[list[tuple[str, float]]]:
    """Return what a log shows about each of its messages, with the odds of each signal."""
    return _Signals(turns, query, truth).read()


class _Signals:
    """Read what a group chat shows about each of its messages."""

    def __init__(self, turns: Sequence[ChatTurn], query: str, truth: str = "") -> None:
        self.turns, self.query, self.truth = turns, query, truth
        self.gave_up = False
        self.shown: list[list[tuple[str, float]]] = [[] for _ in turns]
        first = turns[0].text if turns else ""
        self.task = f"{query}\n{first if self._is_task(0) else ''}"
        self.workers = [
            n for n, t in enumerate(turns) if t.role == "worker" and not self._is_task(n)
        ]
        self.acting = [
            n
            for n, t in enumerate(turns)
            if t.role in ("worker", "orchestrator") and not self._is_task(n)
        ]

    def _is_task(self, n: int) -> bool:
        """Return whether a message only states the task."""
        turn = self.turns[n]
        # After the message of a user it is an answer, even if it repeats the question.
        if n or turn.act.number > 0:
            return False
        if turn.role == "person" or _TASK.search(turn.text[:300]):
            return True
        asked, said = " ".join(self.query.split()), " ".join(turn.text.split())
        # A log without a question has its first message as the query.
        return len(asked) >= MIN_QUESTION and asked in said and (asked != said or "?" in said)

    def read(self) -> list[list[tuple[str, float]]]:
        self._positions()
        final = self._final_answer()
        self.gave_up = bool(_STUCK.search(final) or _NO_ANSWER.search(final))
        if self.gave_up:
            final = ""
        elif final and not _mention(final).search(self.task):
            self._answer(final)
        elif not final:
            # What the team delivers is its code.
            coded = [n for n in self.workers if _CODE_BLOCK.search(self.turns[n].text)]
            for n in coded:
                self._add(n, "writes code", 1.0 if n == coded[0] else 0.5)
        self._calculations()
        self._assumptions()
        self._corrections()
        self._code()
        self._sources()
        self._conditions()
        self._instructions()
        self._repetitions()
        self._approvals()
        return self.shown

    def _add(self, n: int, name: str, times: float = 1.0) -> None:
        if all(name != known for known, _ in self.shown[n]):
            self.shown[n].append((name, ODDS[name] * times))

    def _set(self, n: int, name: str, times: float) -> None:
        self.shown[n] = [(known, odds) for known, odds in self.shown[n] if known != name]
        self._add(n, name, times)

    def _positions(self) -> None:
        last = max(1, len(self.turns) - 1)
        lengths: dict[str, list[int]] = {}
        for turn in self.turns:
            lengths.setdefault(turn.agent, []).append(len(turn.text.split()))
        # Who acts by short commands says enough with them.
        brief = {name for name, each in lengths.items() if sorted(each)[len(each) // 2] < 6}
        for n, turn in enumerate(self.turns):
            if turn.role in ("worker", "orchestrator"):
                self._add(n, turn.role)
                self._add(n, "late", n / last)
                if _CHECKER.search(turn.agent):
                    self._add(n, "checker")
                short = len(turn.text.split()) < 6 and turn.agent not in brief
                if short and not re.search(r"```|\d", turn.text):
                    self._add(n, "says little")
                if self._is_task(n):
                    self._add(n, "restates the task")
        if self.workers:
            self._add(self.workers[0], "first worker")

    # -- the answer -------------------------------------------------------------------------------

    def _answer(self, final: str) -> None:
        """Who first stated the answer that turned out wrong, from what, and against what."""
        wanted = _mention(final)
        wrong = self.truth and not _mention(self.truth).search(final)
        right = _mention(self.truth) if wrong else None
        stated = next((n for n in self.acting if self._states(n, wanted)), None)
        showing = next((n for n in self.acting if wanted.search(self.turns[n].text)), None)
        if showing is not None and showing != stated:
            self._add(showing, "first shows the value that became the answer")
        for n, turn in enumerate(self.turns):
            if stated is not None and n >= stated:
                break
            author = self._author(n) if turn.role == "terminal" else None
            if author is None or not wanted.search(_last_line(turn.text)):
                continue
            if right is not None and right.search(turn.text):
                continue  # the output shows both: who took the wrong one is to blame
            if code := "\n".join(_FENCED.findall(self.turns[author].text)):
                self._add(self._first_version(author), "wrote the code that gave the answer")
                if wanted.search(code):
                    self._add(author, "writes the data into the code")
                stated = n
        if stated is None:
            return
        if self.turns[stated].role == "terminal":
            return
        # It is the job of the orchestrator to state an answer in the end, from what others did.
        boss = self.turns[stated].role == "orchestrator" and stated > len(self.turns) / 2
        derived = self._derives(stated, wanted)
        for source in self._operands(stated, wanted):
            self._add(source, "reported the figures the answer is calculated from")
        self._add(stated, "first states the answer", 0.5 if boss or derived else 1.0)
        if not (derived or any(wanted.search(turn.text) for turn in self.turns[:stated])):
            self._add(stated, "nothing before shows the answer", 0.5 if boss else 1.0)
        before = self.turns[stated - 1] if stated else None
        if before is not None and before.role == "terminal" and not wanted.search(before.text):
            if _figures(_last_line(before.text)) and not _FAILED_RUN.search(before.text):
                self._add(stated, "answer differs from the output before it")
        elif not derived and self._replaces(stated, final):
            self._add(stated, "answer differs from what was reported")
        if right is not None:
            given = [m for m in range(stated) if self._reports(m, right)]
            if given:
                self._add(stated, "replaces the right answer")
            elif any(right.search(turn.text) for turn in self.turns[:stated]):
                self._add(stated, "overlooks the right answer, which was shown")

    def _states(self, n: int, wanted: re.Pattern[str]) -> bool:
        # A number that is calculated with is not stated.
        return any(wanted.search(_TERMS.sub(" ", one)) for one in self.turns[n].statements)

    def _derives(self, n: int, wanted: re.Pattern[str]) -> bool:
        """Return whether a message calculates a value, correctly, from what was reported."""
        return any(
            wanted.search(right) and holds(left, right)
            for left, right in equations(" ".join(self.turns[n].statements))
        )

    def _operands(self, n: int, wanted: re.Pattern[str]) -> set[int]:
        """Return the messages that first stated the figures from which an answer is calculated."""
        here = " ".join(self.turns[n].statements)
        used = {
            f for left, right in equations(here) if wanted.search(right) for f in _figures(left)
        }
        used -= _figures(self.task)
        first = [
            next((m for m in self.workers if m < n and self._states(m, _mention(f))), None)
            for f in used
        ]
        return {m for m in first if m is not None}

    def _reports(self, n: int, value: re.Pattern[str]) -> bool:
        """Return whether an agent states a value, or a program ends with it."""
        turn = self.turns[n]
        if turn.role == "terminal":
            return bool(value.search(_last_line(turn.text)))
        return n in self.acting and self._states(n, value)

    def _replaces(self, n: int, final: str) -> bool:
        """Return whether a value that no message had reported takes the place of one that was."""
        known = f"{self.task} {' '.join(turn.agent for turn in self.turns)} {final}"
        number = re.fullmatch(r"[\d.,]+", final) is not None
        digits = len(final.replace(",", "").partition(".")[0])
        # A value that is derived from the earlier one does not replace it.
        here = _figures("\n".join(self.turns[n].statements))
        stating = _words(" ".join(self.turns[n].statements)) | _words(self.task)
        for m, turn in enumerate(self.turns[:n]):
            for sentence in self._reported(m, turn):
                about = len(sentence.split()) < 12 or len(_words(sentence) & stating) > 1
                if not (about or _FINAL.search(sentence)):
                    continue
                if number and any(
                    len(figure.partition(".")[0]) == digits
                    and (digits > 1 or ("." in figure and "." in final))
                    for figure in _figures(sentence) - _figures(self.task) - here
                    if not _YEAR.fullmatch(figure)
                ):
                    return True
                if not number and any(name not in known for name in _NAME.findall(sentence)):
                    return True
        return False

    def _reported(self, n: int, turn: ChatTurn) -> Sequence[str]:
        """Return what a worker or a program reports."""
        if turn.role == "terminal":
            return [] if _FAILED_RUN.search(turn.text) else [_last_line(turn.text)]
        if turn.role != "worker" or n not in self.acting or turn.page:
            return []
        return turn.statements

    def _final_answer(self) -> str:
        """Return the answer of the log: a figure or a few words that its last messages state."""
        for n in range(len(self.turns) - 1, max(-1, len(self.turns) - 5), -1):
            turn = self.turns[n]
            if turn.role == "person":
                continue
            text = _ENDING.sub("", turn.text).strip()
            said = [before.text for before in self.turns[:n]]
            stated = [found.group(1) for found in reversed(list(_FINAL.finditer(text)))]
            phrases = list(stated)
            if n == len(self.turns) - 1 or text != turn.text.strip():
                bold = _BOLD.findall(text)
                # Several are headings.
                phrases += bold if len(bold) == 1 else []
                phrases += [text] if len(text.split()) <= SHORT_ANSWER else []
            for phrase in phrases:
                forms = _answer_forms(phrase)
                known = next((f for f in forms if any(_mention(f).search(m) for m in said)), "")
                # Words that no message used before may be a heading or a farewell.
                if known or (forms and (phrase in stated or _FIGURE.search(phrase))):
                    return known or forms[0]
        # No message calls it the answer: the only figure of the last one is, before a farewell.
        for turn in reversed(self.turns[-4:]):
            if turn.role in ("worker", "orchestrator"):
                # One of a single digit, too: nothing else can be the answer.
                figures = {
                    figure.strip("$%").replace(",", "")
                    for figure in _FIGURE.findall(" ".join(turn.statements))
                    if not _mention(figure.strip("$%")).search(self.task)
                }
                if figures or len(turn.text.split()) > SHORT_ANSWER:
                    return next(iter(figures)) if len(figures) == 1 else ""
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

    def _first_version(self, author: int) -> int:
        """Return the message that first held the code of a later one: a rerun repeats a mistake."""
        wanted = _code_lines(self.turns[author].text)
        for n in self.acting:
            if n < author and len(wanted & _code_lines(self.turns[n].text)) > 0.6 * len(wanted):
                return n
        return author

    def _calculations(self) -> None:
        """Equations that do not hold."""
        for n in self.acting:
            for left, right in equations(_FENCED.sub(" ", self.turns[n].text)[:6000]):
                if not holds(left, right):
                    self._add(n, "miscalculates")

    # -- what others say about it -----------------------------------------------------------------

    def _assumptions(self) -> None:
        seen: set[str] = set()
        for n in self.workers:
            turn = self.turns[n]
            text = " ".join(turn.statements) if turn.page else turn.text
            found = _ASSUMES.findall(text[:6000])
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
                self._add(earlier[-1], "corrected later", 0.3)

    def _approvals(self) -> None:
        for n, after in pairwise(self.acting):
            turn, reply = self.turns[n], self.turns[after]
            yields = reply.agent != turn.agent and _YIELDS.search(reply.text[:300])
            if turn.role == "worker" and yields and _OBJECTS.search(turn.text[:600]):
                self._add(n, "overturns what others said, and is followed")
        for n in self.workers:
            turn = self.turns[n]
            if not _APPROVES.search(" ".join(turn.statements)):
                continue
            before = self.turns[n - 1] if n else None
            if (
                before is not None
                and before.role == "terminal"
                and _FAILED_RUN.search(before.text[:2000])
                and not _CODE_BLOCK.search(turn.text)
            ):
                self._add(n, "approves what failed")
            elif _CHECKER.search(turn.agent):
                self._add(n, "approves")

    # -- code and sources -------------------------------------------------------------------------

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
                failed[0], "code fails and the failure recurs", min(1.5, 0.3 + len(failed) / 4)
            )

    def _sources(self) -> None:
        """Figures that a worker states first: without a source, or against an earlier one."""
        known = _figures(self.task)
        shown = [_figures(turn.text) for turn in self.turns]
        later: list[set[str]] = [set()]
        for turn, figures in zip(reversed(self.turns), reversed(shown), strict=True):
            later.append(later[-1] | (figures if turn.role != "terminal" else set()))
        later.reverse()
        for n, turn in enumerate(self.turns):
            if turn.role == "worker" and n in self.workers and not _CODE_BLOCK.search(turn.text):
                stated = "" if turn.page else " ".join(turn.statements)
                fresh = {figure for figure in _figures(stated) - known if len(figure) > 2}
                if fresh & later[n + 1]:
                    self._add(n, "figure without a source, reused")
                before = self.turns[n - 1] if n else None
                if before is not None and before.role == "terminal" and fresh:
                    near = [(a, b) for a in fresh for b in shown[n - 1] if _almost(a, b)]
                    if near:
                        self._add(n, "figure contradicts an earlier one")
            known |= shown[n]

    # -- the task and its instructions ------------------------------------------------------------

    def _conditions(self) -> None:
        """Years and references of the task that come out as others."""
        years, references = set(_YEAR.findall(self.task)), set(_REFERENCE.findall(self.task))
        seen: set[str] = set()
        for n, turn in enumerate(self.turns):
            here = " ".join(turn.statements)
            stated = set(_YEAR.findall(here))
            if n in self.acting and turn.role == "orchestrator" and years and stated - years - seen:
                near = [
                    y for y in stated - seen if any(0 < abs(int(y) - int(z)) <= 2 for z in years)
                ]
                if near and not stated & years:
                    first = next(
                        m for m in self.acting if any(y in self.turns[m].text for y in near)
                    )
                    self._add(first, "changes a condition of the task")
            named = set(_REFERENCE.findall(turn.text)) if references else set[str]()
            if n in self.acting:
                fresh = named - references - seen
                if any(_slipped(one, other) for one in fresh for other in references):
                    self._add(n, "reference differs from the task's")
            seen |= stated | named

    def _instructions(self) -> None:
        """Instructions that were not followed, that repeat in vain, or that leave the task."""
        task = _words(self.task)
        instructed: set[str] = set()
        given: dict[str, list[int]] = {}
        asked: int | None = None
        for before, after in pairwise(range(len(self.turns))):
            lead, worker = self.turns[before], self.turns[after]
            guess = lead.role == "orchestrator" and before in self.acting
            if guess and _ASKS_TO_GUESS.search(_instruction(lead.text)):
                # It is in the ledger before it is said.
                if asked is None:
                    self._add(before, "asks for a guess")
                asked = before
            if worker.role != "worker" or after not in self.acting:
                continue
            if asked == before:
                self._add(after, "guesses as it was told")
            if lead.role == "orchestrator" and _NOT_MINE.search(" ".join(worker.statements)[:1500]):
                self._add(before, "gives work to an agent that cannot do it")
                self._add(after, "was given work it cannot do")
            wanted = _words(lead.text) if lead.role == "orchestrator" else set[str]()
            instructed |= wanted
            aims = [o for s in worker.statements[:3] for o in _ACTED_ON.findall(s)]
            aimed = _words(" ".join(aims)) - _PAGE_WORDS
            if len(aimed) >= 2 and not _overlap(aimed, task | instructed):
                self._add(after, "acts on something else")
            if lead.role != "orchestrator":
                continue
            said = _words(worker.text)
            if (
                not worker.page
                and len(said) >= 6
                and len(task) >= 4
                and not _overlap(said, task | wanted)
            ):
                self._add(after, "has nothing to do with the task")
            shared = len(wanted & said) / max(4, len(wanted))
            if not worker.page and len(wanted) >= 4 and shared < 0.12 and len(worker.text) > 40:
                self._add(after, "does not follow its instruction")
            if _STUCK.search(" ".join(worker.statements)[:1500]):
                # A team that ends without an answer: who first came back with nothing?
                self._add(after, "reports no success", 4.0 if self.gave_up else 1.0)
                self.gave_up = False
            row = given.get(worker.agent, [])
            if row and _alike(self.turns[row[-1]].text, lead.text):
                given[worker.agent] = row = [*row, before]
                times = min(2.0, (len(row) - 1) / 2)
                self._set(row[0], "instruction repeated in vain", 0.4 * times)
                self._set(row[0] + 1, "instruction repeated in vain", times)
            else:
                given[worker.agent] = [before]
            if len(task) >= 4 and len(wanted) >= 6 and not _overlap(wanted, task):
                self._add(before, "instruction leaves the task")
                self._add(after, "does what a wrong instruction says")

    def _repetitions(self) -> None:
        """The first of at least three equal acts of an agent that got equal answers."""
        pairs: dict[tuple[str, str, str], list[int]] = {}
        for n in self.workers:
            turn = self.turns[n]
            reply = self.turns[n + 1] if n + 1 < len(self.turns) else None
            if reply is not None and reply.role == "terminal":
                key = (turn.agent, " ".join(turn.text.split())[:300], reply.text.strip()[:300])
                pairs.setdefault(key, []).append(n)
        for places in pairs.values():
            if len(places) >= 3:
                self._add(places[0], "repeats what was refused")


def _instruction(text: str) -> str:
    """Return what a message asks for: of a ledger, only its instruction."""
    found = _LEDGER_INSTRUCTION.search(text)
    if found is not None:
        return found[1]
    return "" if len(text) > LONGEST_INSTRUCTION else text


def _code_lines(text: str) -> set[str]:
    """Return the lines of code that do something: not imports, not the reading of a file."""
    lines = {one.strip() for block in _FENCED.findall(text) for one in block.splitlines()}
    return {one for one in lines if one and not _PREAMBLE.search(one)}


def _last_line(text: str) -> str:
    """Return the last line of an output: what a program prints in the end."""
    lines = [one for one in text.splitlines() if one.strip() and not _EXIT_LINE.match(one)]
    # A record of many values is no result.
    return lines[-1] if lines and len(_FIGURE.findall(lines[-1])) <= 3 else ""


def _slipped(one: str, other: str) -> bool:
    """Return whether a reference is another one with a slip: a digit changed, two swapped."""
    if len(one) != len(other):
        return False
    places = [n for n, (a, b) in enumerate(zip(one, other, strict=True)) if a != b]
    if len(places) == 1:
        return one[places[0]].isdigit() and other[places[0]].isdigit()
    return len(places) == 2 and sorted(one) == sorted(other)


def _overlap(words: set[str], others: set[str]) -> bool:
    """Return whether words have a common one, or one in another form."""
    stems = {stem(word) for word in others}
    return any(stem(word) in stems for word in words)


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
