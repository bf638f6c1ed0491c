"""Inputs of the learned detector: facts of each span (position, outcome, phrasing) and its words.

Guarantees: facts are read from `Scene`s, never from a wire format, and have plain names, so that
the model's inputs can be inspected. A value lies between 0 and 1, or up to SITUATION_WEIGHT for
facts that combine several others; absent means 0.

Words are hashed into the same buckets on every machine, so there is no vocabulary to ship; two may
share a bucket. Texts are truncated, so that a long trace costs milliseconds.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

import numpy as np

from proctor.diagnose._steps import ANSWERING, asks_for_plan, offered_in, plain
from proctor.diagnose.rules import heard

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from proctor.diagnose._steps import AgentStep, Steps
    from proctor.diagnose.finding import Finding
    from proctor.trace import Span

    Facts = dict[str, float]
    Rules = Mapping[str, Sequence[str]]


# A step in its context: role, failure, repetition, plan. Everything reads `Steps`, so it holds for
# the traces of any framework; each text is cut and read once, so that a trace costs milliseconds.


_FACTS = re.compile(r"list of facts|facts survey|Facts given|Facts to look up")
_AGAIN = re.compile(r"\bnew (?:plan|list of facts)\b|\bupdated? (?:plan|list of facts)\b")
_ERROR = re.compile(r"\b(\w+(?:Error|Exception))\b")
_WORD = re.compile(r"[A-Za-z_]{3,24}|\d+(?:\.\d+)?")

# Patterns of failures, most informative first.
KINDS = (
    ("parse", re.compile(r"SyntaxError|IndentationError|code parsing|Code parsing|regex pattern")),
    ("arguments", re.compile(r"unexpected keyword|required positional|multiple values|TypeError")),
    ("import", re.compile(r"Import (?:of|from)|not allowed|ModuleNotFound|forbidden")),
    ("missing", re.compile(r"FileNotFound|No such file|not found|KeyError|IndexError")),
    ("empty", re.compile(r"[Nn]o (?:search )?results|less (?:restrictive|specific) query")),
    ("limit", re.compile(r"RateLimit|rate_limit|[Tt]imed? ?out|maximum number|context_length")),
    ("code", re.compile(r"[Cc]ode execution|InterpreterError|Traceback")),
)

# Outcomes that an observation can state.
OUTCOMES = {
    "not found": re.compile(r"was not found|[Nn]o results|[Nn]ot found|Could not find|couldn't"),
    "refused": re.compile(r"Error 4\d\d|403 Forbidden|Enable JavaScript"),
    "empty": re.compile(r"Execution logs:\s*Last output|None\s*\Z"),
    "gives up": re.compile(r"\b[Uu]nable to|could not be|no (?:direct|definitive|explicit)"),
    "letters": re.compile(r"\n\w\n\w\n\w\n\w\n"),
}

# Characters of an observation that describe the outcome of a step; the rest is content.
OBSERVED = 3000

# Characters compared for similarity: enough to distinguish a repeated step from a new one.
WORDS = 1500

# Earlier steps of a role that a step is compared with, the latest: comparing all pairs would take
# hours in a trace of 100,000 spans. No agent of TRAIL's traces has more than 26.
COMPARED = 60


@dataclass(slots=True)
class Scene:
    """One step with its context."""

    step: AgentStep
    place: int
    role: str
    kind: str
    """How it failed: one of KINDS, "other", or empty when it did not."""
    words: frozenset[str]
    previous: Scene | None = None
    following: Scene | None = None
    plan: Scene | None = None
    """The latest plan its agent made before it."""
    streak: int = 0
    """Failures in a row up to and with this one."""
    failures: int = 0
    """Failed steps of its agent before it."""
    successes: int = 0
    """Working steps of its agent before it that did not fail."""
    likeness: float = 0.0
    """To the most similar of its agent's latest `COMPARED` steps of its role, 0 to 1."""
    alike: int = 0
    """Earlier steps of its agent with the same first call."""
    run: int = 0
    """Steps in a row with the same first call, up to and with this one; planning between counts
    as a pause, not as an end."""
    same_failures: int = 0
    """Earlier failures of its agent in the same call and of the same kind."""
    call_likeness: float = 0.0
    """To the arguments of the latest earlier call of the same tool, 0 to 1."""
    outcomes: tuple[str, ...] = ()
    """What the observation that came back says of it: some of OUTCOMES."""
    acted: Scene | None = None
    """The latest earlier step of its agent that was not planning."""
    segment: int = 0
    """Steps in a row with the same first call, up to and with this one; planning ends the row."""
    sources: int = 0
    """For a plan: how often it mentions places to look something up."""
    self_contained: bool = False
    """For a plan: whether it needs only reasoning."""
    named: frozenset[str] = field(default_factory=frozenset[str])
    """Tools that its prompt offers, besides the one that answers, and its text names."""
    undone: frozenset[str] = field(default_factory=frozenset[str])
    """Tools that its plan named and that no step since has called."""
    next_call: Scene | None = None
    """The next step of its agent with a call; only for a step with one."""

    @property
    def call(self) -> str:
        """The name of its first call; empty without any."""
        return self.step.calls[0].name if self.step.calls else ""

    @property
    def planning(self) -> bool:
        """Whether it plans or surveys facts, and does no work."""
        return self.role.endswith(("plan", "facts"))

    @property
    def errors(self) -> list[str]:
        """Names of exceptions in its failure."""
        return _ERROR.findall(self.step.failure[:1000])[:3]


def role_of(step: AgentStep) -> str:
    """Return the role of a step."""
    end = step.prompt[-1500:]
    again = "re" if _AGAIN.search(end) else ""
    if asks_for_plan(end):
        return f"{again}plan"
    if _FACTS.search(end) or (not step.index and _FACTS.search(step.prompt)):
        return f"{again}facts"
    if not step.agent:
        return "aside"
    if step.answers:
        return "work and answer" if step.works else "answer"
    if step.works:
        return "act"
    return "code" if "```" in step.text else "say"


def kind_of(failure: str) -> str:
    """Return the kind of a failure."""
    if not failure:
        return ""
    head = failure[:1500]
    return next((name for name, pattern in KINDS if pattern.search(head)), "other")


class Scenes:
    """Every step with its context, by start time, and which of them belong together.

    Everything is found in one pass: facts take constant time per span however long the trace is.
    """

    def __init__(self, steps: Steps) -> None:
        self.all: list[Scene] = []
        self.of_role: dict[tuple[str, str], list[Scene]] = defaultdict(list)
        """By agent and role."""
        self.of_call: dict[tuple[str, str], list[Scene]] = defaultdict(list)
        """By agent and first call."""
        self.of_kind: dict[tuple[str, str, str], list[Scene]] = defaultdict(list)
        """By agent, first call and kind of failure."""
        self.failing: dict[str, list[Scene]] = defaultdict(list)
        """Failed steps by agent."""
        self.tools: dict[tuple[str, str | None], list[Span]] = defaultdict(list)
        """Tool spans by agent and name."""
        self.failed_tools: dict[tuple[str, str | None], list[Span]] = defaultdict(list)
        last: dict[str, Scene] = {}
        last_with_call: dict[str, Scene] = {}
        offers = _offers(steps)
        for place, step in enumerate(steps.steps):
            calls = " ".join(f" {c.name} {c.arguments[:200]}" for c in step.calls)
            words = frozenset(word.lower() for word in _WORD.findall(step.text[:WORDS] + calls))
            scene = Scene(step, place, role_of(step), kind_of(step.failure), words)
            scene.named = frozenset(name for name in offers[step.agent] if name in step.text)
            if scene.role.endswith("plan"):
                scene.sources, scene.self_contained = step.sources, step.self_contained
            # Only the beginning describes the outcome; the rest is content.
            head = step.observation[:OBSERVED]
            scene.outcomes = tuple(name for name, p in OUTCOMES.items() if p.search(head))
            _follow(scene, last.get(step.agent))
            last[step.agent] = scene
            alike = self.of_role[step.agent, scene.role]
            earlier = alike[-COMPARED:]
            scene.likeness = max((likeness(words, o.words) for o in earlier), default=0.0)
            alike.append(scene)
            if scene.call:
                self._add_call(scene, last_with_call.get(step.agent))
                last_with_call[step.agent] = scene
            if step.failure:
                self.failing[step.agent].append(scene)
            for tool in step.tools:
                self.tools[step.agent, tool.tool_name].append(tool)
                if tool.failed:
                    self.failed_tools[step.agent, tool.tool_name].append(tool)
            self.all.append(scene)

    def _add_call(self, scene: Scene, before: Scene | None) -> None:
        """Link a step with the earlier calls of its agent; `before` is the latest of them."""
        agent, call = scene.step.agent, scene.call
        same, failed = self.of_call[agent, call], self.of_kind[agent, call, scene.kind]
        scene.alike = len(same)
        scene.call_likeness = likeness(scene.words, same[-1].words) if same else 0.0
        scene.same_failures = len(failed) if scene.kind else 0
        scene.run = before.run + 1 if before and before.call == call else 1
        previous = scene.previous
        scene.segment = previous.segment + 1 if previous and previous.call == call else 1
        if before:
            before.next_call = scene
        same.append(scene)
        failed.append(scene)


def _offers(steps: Steps) -> dict[str, frozenset[str]]:
    """Return the tools each agent is offered in any of its prompts, except the one that answers."""
    prompts: dict[str, set[str]] = {}
    for step in steps.steps:
        read = prompts.setdefault(step.agent, set())
        read.add(step.rules)
        if step.plans:
            read.add(step.prompt)
    return {
        agent: frozenset(name for text in read for name in offered_in(text)) - ANSWERING
        for agent, read in prompts.items()
    }


def _follow(scene: Scene, last: Scene | None) -> None:
    """Link a step with the previous one of its agent."""
    failed = bool(scene.step.failure)
    scene.streak = int(failed)
    if last is None:
        return
    scene.previous, last.following = last, scene
    scene.acted = last.acted if last.planning else last
    scene.plan = last if last.role.endswith("plan") else last.plan
    promised = last.named if scene.plan is last else last.undone
    scene.undone = promised - {call.name for call in scene.step.calls}
    scene.failures = last.failures + bool(last.step.failure)
    scene.successes = last.successes + (last.step.works and not last.step.failure)
    scene.streak = last.streak + 1 if failed else 0


def likeness(one: frozenset[str], other: frozenset[str]) -> float:
    """Return the fraction of words that two texts share."""
    both = len(one & other)
    union = len(one) + len(other) - both
    return both / union if union else 1.0


_NUMBER = re.compile(r"\d[\d,.]*\d|\d")

# Characters of an output searched for phrases.
READ = 4000

# Observations shorter than this rarely contain what was searched for.
LITTLE = 200

# Characters of an observation beyond which a reader skims.
MUCH = 1000

# Weight of a fact about the whole situation relative to plain ones: few spans share it, so the
# classifiers would otherwise underweight it. 2 to 3 gives the same figures.
SITUATION_WEIGHT = 2.0

# Phrases that distinguish a guess from work.
PHRASES = {
    "simulates": re.compile(r"\bsimulat|\bhypothetical|\bfor demonstration|\bplaceholder|\bdummy"),
    "assumes": re.compile(r"\b[Aa]ssum|\bsuppose|\bpresum|\bimagine"),
    "knows": re.compile(
        r"\bI recall|\bI know|\b(?:well[- ]|is )known\b|\bmemory\b|\b[Bb]ased on (?:my|what we)"
        r"|\bunderstanding of|\bliterature\b|\bmy knowledge"
    ),
    "found": re.compile(
        r"\b[Bb]ased on (?:the|our|all|extensive|confirm)|\b[Vv]erified|\bconfirm(?:s|ed)"
        r"|\bindicates|\bprovided by|\binvestigation|\bour search"
        r"|\bfindings|\brecords? (?:show|list)"
    ),
    "according": re.compile(r"\b[Aa]ccording to"),
    "ran": re.compile(
        r"\b[Cc]ode (?:confirmed|execution|output|show)|\bcomputed result|\bsimulation"
    ),
    "intends": re.compile(r"\bI will (?:now )?(?:ask|use|call|request|contact)|\bLet(?:'s| me)"),
    "retries": re.compile(r"\bagain\b|\b[Rr]etry|\bdifferent approach|\b[Ii]nstead\b|\bprevious"),
    "gives up": re.compile(
        r"\b[Uu]nable to|\bcould(?: not|n't)|\bcannot|\bfailed to|\bno (?:clear|direct)"
    ),
    "sorry": re.compile(r"\b[Aa]pologi|\b[Ss]orry"),
    "understands": re.compile(r"\bNow I (?:understand|have|can|see)|\bI understand"),
    "prints": re.compile(r"\bprint\("),
    "searches text": re.compile(r"\bre\.(?:search|findall|compile)|\.find\("),
    "slices": re.compile(r"\[\s*:?\s*\d{3,}\s*:?|:\s*\d{3,}\s*\]"),
    "defines": re.compile(r"^\s*def \w+|^\s*class \w+", re.MULTILINE),
    "imports": re.compile(r"^\s*(?:import|from) \w+", re.MULTILINE),
    "patch": re.compile(r"diff --git|^[-+]{3} [ab]/", re.MULTILINE),
    "tag": re.compile(r"<end_\w+>"),
    "numbered": re.compile(r"^\s*1\. ", re.MULTILINE),
    "approximate": re.compile(
        r"\b[Aa]pproximately|\babout \d|\b[Rr]oughly|\b[Tt]ypical|\blikely\b"
    ),
    "retrieves": re.compile(
        r"\b(?:[Ss]earch|[Rr]etrieve|[Ll]ocate|[Ll]ook up|[Aa]ccess|[Cc]onsult)\b"
    ),
    "reads files": re.compile(r"\b(?:attached|file)\b"),
    "ends with period": re.compile(r"\.\s*\Z"),
    "refuses": re.compile(r"\bI'm sorry|\bcopyright|\bpolicy\b"),
}


def facts_of_trace(scenes: Sequence[Scene], rules: Rules) -> Facts:
    """Facts that every span of a trace shares."""
    count = len(scenes)
    failures = sum(bool(s.step.failure) for s in scenes)
    found = {name for names in rules.values() for name in names}
    plan = next((s for s in scenes if s.role == "plan"), None)
    return {
        "trace self-contained": float(plan is not None and plan.self_contained),
        "trace length": _scaled(count, 40),
        "trace short": float(count <= 4),
        "trace failures": _scaled(failures, 10),
        "trace fails": float(failures > 0),
        "trace agents": _scaled(len({s.step.agent for s in scenes}), 4),
        "trace answers": float(any(s.step.answers for s in scenes)),
        "trace works": float(any(s.step.works for s in scenes)),
    } | {f"trace rule {name}": 1.0 for name in found}


def facts_of_step(scene: Scene, scenes: Scenes) -> Facts:
    """Facts of one model call."""
    step = scene.step
    head = step.text[:READ]
    facts = _place(scene, scenes) | _outcome(scene, scenes) | _sizes(scene)
    facts |= _run(scene, scenes) | {f"shown {name}": 1.0 for name in scene.outcomes}
    facts |= {f"call {call.name}": 1.0 for call in step.calls}
    facts |= {f"error {name}": 1.0 for name in scene.errors}
    facts |= {f"says {name}": 1.0 for name, p in PHRASES.items() if p.search(head)}
    situation = _needs(scene) | _report(scene) | _segment(scene)
    facts |= {name: SITUATION_WEIGHT * value for name, value in situation.items()}
    facts |= _plan(scene) | _support(scene) | _acted(scene)
    return facts | _before(scene) | _after(scene)


def _place(scene: Scene, scenes: Scenes) -> Facts:
    """Return facts about its position in the trace and among its agent's steps, and about
    repetition.
    """
    step = scene.step
    alike = scenes.of_role[step.agent, scene.role]
    return {
        "top agent": float(step.agent == scenes.all[0].step.agent),
        "place": scene.place / max(len(scenes.all) - 1, 1),
        "index": _scaled(step.index, 20),
        "left": _scaled(step.of - 1 - step.index, 20),
        "last": float(step.index == step.of - 1),
        "last but one": float(step.index == step.of - 2),
        "first of role": float(alike[0] is scene),
        "last of role": float(alike[-1] is scene),
        "times of role": _scaled(len(alike), 10),
        "likeness": scene.likeness,
        "much alike": float(scene.likeness > 0.7),
        "alike": _scaled(scene.alike, 8),
    }


def _outcome(scene: Scene, scenes: Scenes) -> Facts:
    """Return facts about the outcome of its step and of the agent's earlier steps."""
    failing = scenes.failing[scene.step.agent]
    return {
        "fails": float(bool(scene.step.failure)),
        f"fails {scene.kind}": float(bool(scene.kind)),
        "streak": _scaled(scene.streak, 5),
        "first failure": float(bool(failing) and failing[0] is scene),
        "last failure": float(bool(failing) and failing[-1] is scene),
        "failures before": _scaled(scene.failures, 8),
        "failed before": float(scene.failures > 0),
        "successes before": _scaled(scene.successes, 8),
        "unworked": float(scene.successes == 0),
        "never tried": float(scene.successes + scene.failures == 0),
    }


def _sizes(scene: Scene) -> Facts:
    """Return facts about the size of its output, prompt and observation, and its tools."""
    step, shown = scene.step, len(scene.step.observation)
    # The names of facts are the inputs of the shipped model: renaming one means training it again.
    return {
        "says": _scaled(len(step.text), 6000),
        "says nothing": float(not step.text.strip() and not step.calls),
        "told": _scaled(len(step.prompt), 20000),
        "shown": _scaled(shown, 20000),
        "shown little": float(0 < shown < LITTLE),
        "shown nothing": float(scene.following is not None and not shown),
        "shown much": float(shown > MUCH),
        "shown very much": float(shown > 4 * MUCH),
        "prints": _scaled(step.text.count("print("), 12),
        "calls": _scaled(len(step.calls), 4),
        "tools": _scaled(len(step.tools), 4),
        "names tools": _scaled(len(scene.named), 4),
        "names no tool": float(not scene.named),
        "names uncalled": float(bool(scene.named - {c.name for c in step.calls})),
    }


def _before(scene: Scene) -> Facts:
    """Return facts about the previous step, its outcome and its result."""
    before = scene.previous
    if before is None:
        return {}
    shown = len(before.step.observation)
    facts = {
        f"after {before.role}": 1.0,
        f"after failure {before.kind}": float(bool(before.kind)),
        "after failure": float(bool(before.kind)),
        "same failure": float(bool(before.kind) and before.kind == scene.kind),
        "was shown": _scaled(shown, 20000),
        "was shown little": float(0 < shown < LITTLE),
        "was shown nothing": float(not shown),
        "was shown much": float(shown > MUCH),
        "was shown very much": float(shown > 4 * MUCH),
        "told the same": float(before.step.prompt == scene.step.prompt),
    }
    facts |= {f"was shown {name}": 1.0 for name in before.outcomes}
    facts |= {f"after error {name}": 1.0 for name in before.errors}
    return facts | {f"after call {call.name}": 1.0 for call in before.step.calls}


def _after(scene: Scene) -> Facts:
    """Return facts about the next step and its outcome."""
    after = scene.following
    if after is None:
        return {}
    facts = {f"before {after.role}": 1.0, f"before failure {after.kind}": 1.0}
    return facts | {f"before call {call.name}": 1.0 for call in after.step.calls}


def _needs(scene: Scene) -> Facts:
    """Return whether the plan, its own or the one it follows, needs outside information; pure
    reasoning may answer without any work.
    """
    plan = scene if scene.role.endswith("plan") else scene.plan
    if plan is None:
        return {}
    worked = "worked" if scene.successes else "unworked"
    needs = "self-contained" if plan.self_contained else "needs sources"
    return {
        "plan sources": _scaled(plan.sources, 8),
        needs: 1.0,
        f"{scene.role} {needs}": 1.0,
        f"{scene.role} {worked} {needs}": 1.0,
    }


def _report(scene: Scene) -> Facts:
    """Return facts about the report of a sub-agent and its use."""
    report = scene.step.report
    if report is None:
        return {}
    outcome = "report without result" if report.gives_up else "report"
    ends = "gives up" if scene.step.gives_up else "goes on"
    return {
        outcome: 1.0,
        f"{scene.role} after {outcome}": 1.0,
        f"{scene.role} after {outcome}, {ends}": 1.0,
    }


def _segment(scene: Scene) -> Facts:
    """Return whether it ends a row of similar calls, at a pause or at another call."""
    if scene.segment < 2:
        return {}
    after = scene.following
    ends = after is None or after.call != scene.call
    return {
        "segment": _scaled(scene.segment, 5),
        "segment ends": float(ends),
        "segment ends in planning": float(after is not None and after.planning),
        f"segment of {scene.call} ends": float(ends),
        "segment ends failing": float(ends and bool(scene.kind)),
        "segment ends without failure": float(ends and not scene.kind),
    }


def _acted(scene: Scene) -> Facts:
    """Return facts about the outcome of its agent's latest step, ignoring planning in between."""
    acted = scene.acted
    if acted is None:
        return {}
    between = "" if acted is scene.previous else " and planning"
    return {
        "acts after failure": float(bool(acted.kind)),
        f"acts after failure {acted.kind}": float(bool(acted.kind)),
        f"acts after failure{between}": float(bool(acted.kind)),
        "acts after the same": float(bool(scene.call) and acted.call == scene.call),
        "told and fails": float(bool(acted.kind) and bool(scene.kind)),
        "told only": float(bool(acted.kind) and not scene.kind),
        "fails only": float(bool(scene.kind) and not acted.kind),
    }


def _plan(scene: Scene) -> Facts:
    """Return facts about the tools its plan named and those it never called."""
    plan = scene.plan
    if plan is None:
        return {"no plan": 1.0}
    promised = plan.named
    return {
        "plan names tools": float(bool(promised)),
        "plan undone": float(bool(scene.undone)),
        "plan done": float(bool(promised) and not scene.undone),
        "plan lacks tag": float("<end_plan>" not in plan.step.text),
        "plan again": float(plan.role == "replan"),
        "plan retrieves": float(bool(PHRASES["retrieves"].search(plan.step.text))),
        "plan reads files": float(bool(PHRASES["reads files"].search(plan.step.text))),
        "plan tools": _scaled(len(promised), 4),
        "plan tool share": len(scene.undone) / len(promised) if promised else 0.0,
    }


def _run(scene: Scene, scenes: Scenes) -> Facts:
    """Return whether it repeats a call, how often so far, and whether it is the last time."""
    if not scene.call:
        return {}
    agent, call = scene.step.agent, scene.call
    ends = scene.next_call is None or scene.next_call.call != call
    fails_on = scenes.of_kind[agent, call, scene.kind][-1] is not scene
    return {
        "run": _scaled(scene.run, 8),
        "run ends": float(ends and scene.run > 1),
        "run starts": float(scene.run == 1 and not ends),
        "same failures": _scaled(scene.same_failures, 6),
        "first such failure": float(bool(scene.kind) and not scene.same_failures),
        "last such failure": float(bool(scene.kind) and not fails_on),
        "call likeness": scene.call_likeness,
        "same call": float(scene.call_likeness > 0.75),
        "never again": float(scenes.of_call[agent, call][-1] is scene),
    }


def _support(scene: Scene) -> Facts:
    """Return whether the numbers of its answer occur in its observations."""
    answers = [call.arguments for call in scene.step.calls if call.answers]
    if not answers:
        return {}
    shown = " ".join((m.content or "")[:20_000] for m in scene.step.span.input_messages)
    numbers = _NUMBER.findall(answers[-1][:300])
    unseen = [number for number in numbers if number not in shown]
    return {
        "answer numbers": float(bool(numbers)),
        "answer unseen": float(bool(unseen)),
        "answer ends with period": float(bool(re.search(r"""\.['")\s]*\Z""", answers[-1][:300]))),
        "answer long": float(len(answers[-1]) > 150),
    }


def facts_of_rules(scene: Scene, rules: Rules) -> Facts:
    """Return facts about rule findings on a model call and its neighbours."""
    facts = {f"rule {name}": 1.0 for name in rules.get(scene.step.span_id, ())}
    for near, other in (("after", scene.previous), ("before", scene.following)):
        if other is not None:
            names = rules.get(other.step.span_id, ())
            facts |= {f"{near} rule {name}": 1.0 for name in names}
    return facts


def facts_of_tool(scene: Scene, tool: Span, scenes: Scenes) -> Facts:
    """Facts of one tool span."""
    alike = scenes.tools[scene.step.agent, tool.tool_name]
    failed = scenes.failed_tools[scene.step.agent, tool.tool_name]
    kind = kind_of(tool.error_message or "") if tool.failed else ""
    of_step = _plan(scene) | _run(scene, scenes) | _segment(scene) | _acted(scene)
    return {
        f"tool {tool.tool_name}": 1.0,
        "failed": float(tool.failed),
        f"failed {kind}": float(tool.failed),
        "silent": float(tool.tool_output is None),
        "move cut": float(scene.step.cut),
        "place": scene.place / max(len(scenes.all) - 1, 1),
        "last alike": float(alike[-1] is tool),
        "first alike": float(alike[0] is tool),
        "alike": _scaled(len(alike), 10),
        "once": float(len(alike) == 1),
        "failed alike": _scaled(len(failed), 10),
        "last failed": float(bool(failed) and failed[-1] is tool),
        "first failed": float(bool(failed) and failed[0] is tool),
        "streak": _scaled(scene.streak, 5),
        "unworked": float(scene.successes == 0),
        "failures before": _scaled(scene.failures, 8),
    } | {f"move {name}": value for name, value in of_step.items()}


def _scaled(count: float, most: float) -> float:
    """Return a count on a log scale, 0 to 1, constant from `most` on."""
    return math.log1p(min(count, most)) / math.log1p(most)


# How much a step reads at a time: the slices in its code, and the text it is then shown. Prompts
# tell agents to read long files in small pieces, and annotators mark those that do not, at the step
# that requests too much or at the one that is shown it.


_SLICE = re.compile(r"\[[^\]\n:]*:\s*[^\]\n]*?(\d{2,7})\]")
_CODE = re.compile(
    r"^[ \t]*(?:def|return|if|for|import|from|class|raise|else|elif|try|except|with|while|@\w+)\b"
    r"|^[ \t]*self\.",
    re.MULTILINE,
)
# A text printed letter by letter, as lines or as a list: the code took it for a list of lines.
_LETTERS = re.compile(r"(?:^\w?$\n){5}|(?:'.', ){5}", re.MULTILINE)

_NOTHING = re.compile(r"output from code snippet:\s*None\s*\Z")

# Characters of an observation in which lines of code are counted.
AMOUNTS_READ = 20_000

# Characters of an observation in which a text printed letter by letter is looked for.
LETTERS_WITHIN = 4000

# Characters that prompts allow at a time; code that slices at most this many complies.
PIECE = 500

# A slice up to this length is printed; a longer one is searched.
SOME = 2000

# Characters of an observation beyond a piece of 500 and the framework's own words.
LONG = 950

# Characters of an observation that holds nothing besides the framework's own words.
SHORT = 130

# Lines of code that distinguish a passage of a file from a name in it, and from a single function.
FEW, MANY = 3, 8


def facts_of_amounts(scene: Scene) -> dict[str, float]:
    """Return facts of a model call about how much it requests to read and was shown."""
    facts = _slice_facts(scene)
    before = scene.previous
    if before is None:
        return facts
    shown = before.step.observation
    lines = len(_CODE.findall(shown[:AMOUNTS_READ]))
    too_much = not before.step.failure and lines >= FEW and len(shown) > LONG
    asks = bool(facts.get("reads too much"))
    return facts | {
        "was shown code": _scaled(lines, 60),
        "was shown some code": float(lines >= FEW),
        "was shown much code": float(lines >= MANY),
        "was shown a piece": float(len(shown) > PIECE + 200),
        "was shown more than a piece": float(len(shown) > LONG),
        "was shown single letters": float(bool(_LETTERS.search(shown[:LETTERS_WITHIN]))),
        "was shown None": float(len(shown) < SHORT and bool(_NOTHING.search(shown))),
        "was shown too much": float(too_much),
        "over the limit": float(too_much or asks),
        "twice over the limit": float(too_much and asks),
        "read too much before": float(max(_slices(before), default=0) > PIECE),
    }


def _slice_facts(scene: Scene) -> dict[str, float]:
    """Return facts about the slices in its code; an agent's first step only looks around."""
    sizes = _slices(scene) if scene.step.index else []
    if not sizes:
        return {}
    most, over = max(sizes), sum(size > PIECE for size in sizes)
    return {
        "reads pieces": float(most <= PIECE),
        "reads too much": float(PIECE < most <= SOME),
        "reads all": float(most > SOME),
        "slices too long": _scaled(over, 5),
    }


def _slices(scene: Scene) -> list[int]:
    return [int(size) for size in _SLICE.findall(scene.step.text)]


# Doubling it gains nothing measurable on TRAIL; the model stays small.
BUCKETS = 1 << 13

_TOKEN = re.compile(r"[a-z_]{2,24}|[<>/=]{2,}")

# Fields of a span: its output, its last input, the failure of its step, the observation, the
# failure before, and the plan it follows. Each has its own buckets.
FIELDS = ("output", "input", "failed", "shown", "failed before", "plan")

# Fields whose pairs of words are left out: prompts repeat, and pairs would only count that.
_SINGLE = frozenset({"input"})

# Characters read of each field.
_MOST = {"output": 3000, "input": 1200, "failed": 500, "shown": 1200}

# Separates the first word of a pair from the second.
_STRIDE = 31


class HashedWords(NamedTuple):
    """Buckets of a text, each once, with the log of its count."""

    buckets: NDArray[np.intp]
    values: NDArray[np.float32]


NOTHING = HashedWords(np.zeros(0, dtype=np.intp), np.zeros(0, dtype=np.float32))


class Hasher:
    """Count words into buckets, caching word codes within one trace."""

    def __init__(self) -> None:
        self._codes: dict[str, int] = {}

    def __call__(self, field: str, text: str) -> HashedWords:
        """Return log counts of a text's words and word pairs, by bucket."""
        words = _TOKEN.findall(text[: _MOST[field]].lower())
        if not words:
            return NOTHING
        known = self._codes
        for word in set(words) - known.keys():
            # Unlike hash(), the same in every process and on every machine.
            known[word] = crc32(word.encode())
        codes = np.fromiter((known[word] for word in words), dtype=np.int64, count=len(words))
        if field not in _SINGLE:
            codes = np.concatenate([codes, codes[:-1] * _STRIDE + codes[1:]])
        counts = np.bincount(codes % BUCKETS, minlength=BUCKETS)
        buckets = np.flatnonzero(counts)
        return HashedWords(buckets, np.log1p(counts[buckets]).astype(np.float32))


# One row for each span a detector may mark: model calls and tool spans, with facts and words.


class FeatureRow(NamedTuple):
    """One span to classify: facts by name, words of each field by bucket."""

    span: Span
    scene: Scene
    facts: dict[str, float]
    words: dict[str, HashedWords]

    @property
    def cut(self) -> bool:
        """Return whether it is a model call with lost data: it is neither trained on nor
        classified.
        """
        return self.span is self.scene.step.span and self.scene.step.cut


def rows_of(steps: Steps, findings: Iterable[Finding]) -> list[FeatureRow]:
    """Return a row for every model call and every tool span, by start time of their steps.

    `findings` are those of the rules; agreement with them is among the facts.
    """
    rules: dict[str, list[str]] = {}
    for finding in heard(findings):
        name = f"{finding.detector.removeprefix('rule:')}: {finding.category.value}"
        rules.setdefault(finding.location, []).append(name)
    scenes = Scenes(steps)
    trace = facts_of_trace(scenes.all, rules)
    hasher = Hasher()
    words: dict[int, dict[str, HashedWords]] = {}
    rows: list[FeatureRow] = []
    for scene in scenes.all:
        facts = facts_of_step(scene, scenes) | trace | facts_of_rules(scene, rules)
        facts |= facts_of_amounts(scene)
        words[scene.place] = _words(scene, words, hasher)
        rows.append(_row(scene.step.span, scene, "model", facts, words[scene.place]))
        for tool in scene.step.tools:
            facts = facts_of_tool(scene, tool, scenes) | trace
            facts |= {f"rule {name}": 1.0 for name in rules.get(tool.span_id, ())}
            shown = f"{plain(tool.tool_output)[:800]} {plain(tool.tool_input)[:400]}"
            held: dict[str, HashedWords] = {"failed": hasher("failed", tool.error_message or "")}
            held["shown"] = hasher("shown", shown)
            rows.append(_row(tool, scene, "tool", facts, held))
    return rows


def _row(
    span: Span, scene: Scene, kind: str, facts: dict[str, float], words: dict[str, HashedWords]
) -> FeatureRow:
    held = {name: value for name, value in facts.items() if value}
    held["is tool" if kind == "tool" else f"is {scene.role}"] = 1.0
    return FeatureRow(span, scene, held, words)


def _words(
    scene: Scene, known: dict[int, dict[str, HashedWords]], hasher: Hasher
) -> dict[str, HashedWords]:
    """Return the words of a step; those of the previous step and of the plan are cached."""
    step, before, plan = scene.step, scene.previous, scene.plan
    asked = " ".join(f"{call.name} {call.arguments}" for call in step.calls)
    return {
        "output": hasher("output", f"{step.text[:2500]} {asked}"),
        "input": hasher("input", step.prompt[-1200:]),
        "failed": hasher("failed", step.failure),
        "shown": hasher("shown", step.observation),
        "failed before": known[before.place]["failed"] if before else NOTHING,
        "plan": known[plan.place]["output"] if plan else NOTHING,
    }
