"""Profile how reliable an agent is: consistent, robust, calibrated, and how bad its worst is.

Each condition is an ordinary run of the same cases with the same seeds: the agent as it is
(`baseline`), with reworded inputs (`paraphrase`), with tools that fail (`tool_faults`), with model
calls that fail (`model_faults`), and in another environment (`environment`).

Promise: each figure has its n and an interval, or the reason why it has none. A condition that
cannot be applied to the agent is listed with the reason, never as a good result.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any, Literal, NamedTuple, cast

import msgspec

from proctor.causes.ab import changed_agent
from proctor.checks.base import FAILED
from proctor.checks.metrics import sequence_similarity
from proctor.files import write_atomic
from proctor.formatting import percent, plural
from proctor.llm.chat_model import ChatModel, ChatRequest
from proctor.runs.run import Run
from proctor.runs.trial import JUDGED, UNJUDGED, Trial, TrialStatus
from proctor.seeds import derive_seed
from proctor.spec.load import restore_suite
from proctor.spec.suite import Suite
from proctor.stats.compare import on_suite
from proctor.stats.describe import intraclass, trials_for_reliability
from proctor.stats.intervals import bounded_mean, case_rate, suite_rate
from proctor.stats.types import LEVEL, CaseCounts, Interval
from proctor.trace import Message
from proctor.trials.prepare import ChosenAgent, suite_name

FILE = "profile.json"
"""The file of the baseline's run folder that holds the profile; its report has a section."""

CONDITIONS = ("baseline", "paraphrase", "tool_faults", "model_faults", "environment")

DEFAULT_TRIALS, DEFAULT_PARAPHRASES, DEFAULT_FAULTS = 10, 2, 0.2

MAX_PAIRED = 20
"""Trials of a case of which every pair is compared: 190 pairs."""

MARK = "@p"
"""Between the id of a case and the number of its paraphrase."""

ENVIRONMENT = {"TZ": "Pacific/Kiritimati", "LC_ALL": "C", "COLUMNS": "40"}
"""Another time zone, another language and a narrow terminal: none should matter."""

CRITICAL = frozenset({"forbidden_tools", "safety_check", "state", "approvals"})
"""Checks whose failure means that the agent did harm, not only that it answered badly."""

TARGET_WIDTH = 0.05
"""Half the width of the pass rate's interval that the advice aims at."""


class ProfileCondition(NamedTuple):
    """A condition: the suite and the agent that its run uses."""

    name: str
    suite: Suite
    agent: ChosenAgent


class ProfileFigure(msgspec.Struct, frozen=True, kw_only=True):
    """One figure with its interval, or the reason why it is missing."""

    group: Literal["consistency", "robustness", "calibration", "severity"]
    name: str
    value: float | None
    low: float | None
    high: float | None
    n: int
    """Judged trials behind it."""
    cases: int
    signed: bool = False
    """Whether it is a difference, which has a sign."""
    reason: str | None = None
    about: str = ""


class ConfidenceBin(msgspec.Struct, frozen=True, kw_only=True):
    """Answers that state a confidence in a range, and how many of them were right."""

    low: float
    high: float
    n: int
    stated: float
    passed: Interval


class ReliabilityProfile(msgspec.Struct, frozen=True, kw_only=True):
    """How reliable an agent is on a suite."""

    suite: str
    agent: str
    trials: int
    level: float
    figures: tuple[ProfileFigure, ...]
    bins: tuple[ConfidenceBin, ...]
    intraclass: Interval
    advice: tuple[str, ...]
    not_tested: dict[str, str]
    """Condition → why it was not applied."""
    runs: dict[str, str]
    """Condition → its run folder."""

    def figure(self, name: str) -> ProfileFigure:
        """Return a figure by its name."""
        return next(each for each in self.figures if each.name == name)


# -- conditions ----------------------------------------------------------------------------------


def conditions_of(
    suite: Suite,
    agent: ChosenAgent,
    *,
    paraphrases: int = DEFAULT_PARAPHRASES,
    reword: Callable[[str, int], str] | None = None,
    faults: float = DEFAULT_FAULTS,
    environment: Mapping[str, Any] | None = None,
) -> tuple[list[ProfileCondition], dict[str, str]]:
    """Return the conditions that can be applied to an agent, and why the others cannot.

    `environment` are options of the agent that make another environment; by default variables of
    its process. `reword` returns paraphrase N of an input; without it, words stay and the
    surface changes (see `surface_changed`).
    """
    config, found = agent.config, [ProfileCondition("baseline", suite, agent)]
    left_out: dict[str, str] = {}
    options = config.model_dump(mode="json", exclude_unset=True)
    if not paraphrases:
        left_out["paraphrase"] = "no paraphrases were requested"
    elif (other := paraphrased(suite, paraphrases, reword or surface_changed)) is None:
        left_out["paraphrase"] = "no case has a text as its input"
    else:
        found.append(ProfileCondition("paraphrase", other, agent))

    def changed(name: str, changes: Mapping[str, Any]) -> None:
        found.append(ProfileCondition(name, suite, changed_agent(agent, changes, suite.folder)))

    tools = options.get("tools") if config.kind == "chat" else None
    if not faults:
        left_out |= dict.fromkeys(("tool_faults", "model_faults"), "no faults were requested")
    elif tools:
        numbers = range(len(cast("list[Any]", tools)))
        changed("tool_faults", {f"tools.{number}.faults": faults for number in numbers})
    else:
        left_out["tool_faults"] = "only the tools of a chat agent can be made to fail"
    through: Any = getattr(config, "gateway", False)
    if faults and through is not False:
        own: dict[str, Any] = {}
        if through is not True:
            own = through.model_dump(mode="json", exclude_unset=True)
        share = {"rate_limit": faults / 2, "server_error": faults / 2}
        changed("model_faults", {"gateway": {**own, "faults": share}})
    elif faults:
        left_out["model_faults"] = "the agent's model calls do not pass through the gateway"
    if environment:
        changed("environment", environment)
    elif "env" in type(config).model_fields:
        changed("environment", {"env": {**(options.get("env") or {}), **ENVIRONMENT}})
    else:
        left_out["environment"] = "say what changes, with --environment KEY=VALUE"
    return found, left_out


def paraphrased(suite: Suite, number: int, reword: Callable[[str, int], str]) -> Suite | None:
    """Return a suite of paraphrases; cases without a text as input are left out.

    The property `paraphrases` of a case, a list of texts, comes before those that are made.
    """
    record = suite.resolved()
    cases: list[dict[str, Any]] = []
    for case, written in zip(suite.cases, record["cases"], strict=True):
        if not isinstance(case.input, str) or case.turns or case.user is not None:
            continue
        own = case.properties.get("paraphrases")
        texts = [str(each) for each in own] if isinstance(own, list) else []  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        texts += [reword(case.input, at) for at in range(len(texts), number)]
        rest = {key: value for key, value in written.items() if key not in ("query", "input")}
        cases += [
            # `$${`: the text was substituted already, and must not be again.
            {**rest, "id": f"{case.id}{MARK}{at}", "input": text.replace("${", "$${")}
            for at, text in enumerate(texts[:number], 1)
        ]
    if not cases:
        return None
    name = "suite" if suite.path is None else str(suite.path)
    return restore_suite({**record, "cases": cases}, folder=suite.folder, name=name)


_WORD = re.compile(r"[a-z]{5,}")


def surface_changed(text: str, number: int) -> str:
    """Return a text with the same words in another form; `number` selects one of four.

    A frame, politeness, one swap of letters in a long word, or other spacing: nothing that changes
    the task. Numbers, names with capitals and quoted or marked-up parts stay as they are.
    """
    bare = text.strip()
    match number % 4:
        case 0:
            return f"Could you help me with the following, please?\n\n{bare}\n\nThank you!"
        case 1:
            words = [each for each in _WORD.finditer(bare) if not _quoted(bare, each.start())]
            if not words:
                return f"{bare}  "
            word = Random(derive_seed(number, bare)).choice(words)  # noqa: S311 (repeatable)
            at = word.start() + 1 + len(word[0]) // 3
            return bare[:at] + bare[at + 1] + bare[at] + bare[at + 2 :]
        case 2:
            return f"Task: {bare}\nPlease do exactly this."
        case _:
            return "\n".join(re.split(r"(?<=[.!?]) +", bare))


def _quoted(text: str, at: int) -> bool:
    """Whether a position is inside quotes, a code span, a path or an address."""
    before = text[:at]
    inside = any(before.count(mark) % 2 for mark in ("`", '"'))
    return inside or re.search(r"[\w./@:_-]*[./@:_][\w-]*$", before) is not None


REWRITE = (
    "Rewrite the request below in other words. Keep its meaning, every number, every name and "
    "everything in quotes. Answer with the rewritten request only.\n\n"
)


async def reworded_by(
    model: ChatModel, texts: Sequence[str], number: int
) -> dict[tuple[str, int], str]:
    """Return paraphrases by a model; one that lost a number or a quoted part is not used."""
    found: dict[tuple[str, int], str] = {}
    for text, at in itertools.product(dict.fromkeys(texts), range(number)):
        request = ChatRequest(
            messages=(Message("user", REWRITE + text),), temperature=0.7, max_tokens=2000, seed=at
        )
        said = (await model.complete(request)).text.strip()
        kept = re.findall(r'\d[\d.,:]*\d|\d|"[^"]+"|`[^`]+`', text)
        if said and all(part in said for part in kept):
            found[text, at] = said
    return found


def run_profile(
    suite: Suite,
    agent: ChosenAgent,
    run_condition: Callable[[ProfileCondition], Run],
    **applied: Any,
) -> ReliabilityProfile:
    """Run every condition of `conditions_of(…, **applied)` and store the profile of the runs."""
    conditions, not_tested = conditions_of(suite, agent, **applied)
    runs: dict[str, Run] = {}
    for condition in conditions:
        runs[condition.name] = run = run_condition(condition)
        if run.stopped:
            left = [each.name for each in conditions if each.name not in runs]
            not_tested |= dict.fromkeys(left, "the profile was stopped")
            break
    profile = profile_of(runs, not_tested=not_tested, suite=suite_name(suite))
    write_atomic(runs["baseline"].path / FILE, msgspec.json.encode(profile) + b"\n")
    return profile


# -- figures -------------------------------------------------------------------------------------


def profile_of(
    runs: Mapping[str, Run],
    *,
    not_tested: Mapping[str, str] | None = None,
    level: float = LEVEL,
    suite: str = "",
) -> ReliabilityProfile:
    """Return the profile of the runs of an agent, by condition; `baseline` is one of them."""
    base = runs["baseline"]
    cases = _by_case(base)
    counts = {case: _counts(trials) for case, trials in cases.items()}
    figures = [
        *_consistency(base, cases, counts, level),
        *(
            _robustness(name, counts, run, level)
            for name, run in runs.items()
            if name != "baseline"
        ),
    ]
    calibration, bins = _calibration(cases, level)
    figures += calibration
    figures += _severity(runs, cases, level)
    between = intraclass(list(counts.values()), level=level)
    return ReliabilityProfile(
        suite=suite or str(base.spec.get("name") or ""),
        agent=", ".join(sorted({cell.agent for cell in base.cells})),
        trials=max((cell.asked for cell in base.cells), default=0),
        level=level,
        figures=tuple(figures),
        bins=tuple(bins),
        intraclass=between,
        advice=tuple(_advice(list(counts.values()), between)),
        not_tested=dict(not_tested or {}),
        runs={name: str(run.path) for name, run in runs.items() if run.saved},
    )


def _by_case(run: Run) -> dict[str, list[Trial]]:
    found: dict[str, list[Trial]] = defaultdict(list)
    for trial in run.trials:
        found[trial.case].append(trial)
    return {case: sorted(found[case], key=lambda trial: trial.index) for case in sorted(found)}


def _counts(trials: Sequence[Trial], *, unjudged_fail: bool = False) -> CaseCounts:
    judged = [trial for trial in trials if trial.status in JUDGED]
    lost = [trial for trial in trials if trial.status in UNJUDGED]
    n = len(judged) + (len(lost) if unjudged_fail else 0)
    return CaseCounts(sum(trial.passed for trial in judged), n, len(lost))


def _figure(
    group: Any, name: str, found: Interval, about: str, *, signed: bool = False
) -> ProfileFigure:
    return ProfileFigure(
        group=group,
        name=name,
        value=found.value,
        low=found.low,
        high=found.high,
        n=found.n,
        cases=found.cases,
        signed=signed,
        reason=found.reason,
        about=about,
    )


def _undefined(group: Any, name: str, why: str, about: str) -> ProfileFigure:
    return ProfileFigure(
        group=group, name=name, value=None, low=None, high=None, n=0, cases=0, reason=why,
        about=about,
    )  # fmt: skip


def _consistency(
    run: Run,
    cases: Mapping[str, Sequence[Trial]],
    counts: Mapping[str, CaseCounts],
    level: float,
) -> list[ProfileFigure]:
    """Return how alike the trials of a case are: the mean over pairs, then over cases."""
    rate = suite_rate(list(counts.values()), level=level)
    figures = [_figure("consistency", "pass rate", rate, "of exactly these cases")]
    # Of c passes in k trials, c(c-1) + (k-c)(k-c-1) of k(k-1) ordered pairs agree.
    same = [
        (row.passes * (row.passes - 1) + (row.trials - row.passes) * (row.trials - row.passes - 1))
        / (row.trials * (row.trials - 1))
        for row in counts.values()
        if row.trials > 1
    ]
    n = sum(row.trials for row in counts.values() if row.trials > 1)
    about = "chance that two trials of a case have the same outcome"
    figures.append(_pairs("same outcome", same, n, about, level))
    paths: list[float] = []
    steps = n = 0
    for trials in cases.values():
        traces = [run.readable_trace(t, []) for t in trials[:MAX_PAIRED] if t.status in JUDGED]
        sequences = [trace.tool_sequence for trace in traces if trace is not None]
        steps += sum(map(len, sequences))
        if len(sequences) > 1:
            n += len(sequences)
            paths.append(_mean_of_pairs(sequences, sequence_similarity))
    about = "similarity of the tool calls of two trials: 2 · LCS / (|A| + |B|)"
    if paths and not steps:
        figures.append(_undefined("consistency", "same path", "no trial called a tool", about))
    else:
        figures.append(_pairs("same path", paths, n, about, level))
    names = {"cost_usd": "cost", "tokens": "number of tokens", "latency_ms": "latency"}
    for key, name in names.items():
        ratios: list[float] = []
        n = 0
        for trials in cases.values():
            values = [value for t in trials[:MAX_PAIRED] if (value := _used(t, key)) is not None]
            if len(values) > 1 and max(values) > 0:
                n += len(values)
                ratios.append(_mean_of_pairs(values, lambda a, b: min(a, b) / (max(a, b) or 1.0)))
        if ratios or key == "latency_ms":
            about = f"the smaller {name} of two trials divided by the larger"
            figures.append(_pairs(f"same {name}", ratios, n, about, level))
            break
    return figures


def _used(trial: Trial, key: str) -> float | None:
    if trial.status not in JUDGED:
        return None
    if key == "tokens":
        parts = [each for each in (trial.input_tokens, trial.output_tokens) if each is not None]
        return float(sum(parts)) if parts else None
    if key == "cost_usd" and trial.unpriced_calls:
        return None  # a part of a cost is no cost
    return getattr(trial, key)


def _mean_of_pairs(items: Sequence[Any], alike: Callable[[Any, Any], float]) -> float:
    pairs = [alike(a, b) for a, b in itertools.combinations(items, 2)]
    return math.fsum(pairs) / len(pairs)


def _pairs(name: str, values: Sequence[float], n: int, about: str, level: float) -> ProfileFigure:
    if not values:
        why = "needs two judged trials of a case"
        return _undefined("consistency", name, why, about)
    # Sums of floats may exceed 1 by the last digit.
    found = bounded_mean([min(1.0, each) for each in values], n=n, level=level)
    return _figure("consistency", name, found, about)


def _robustness(name: str, base: Mapping[str, CaseCounts], run: Run, level: float) -> ProfileFigure:
    """Return the change of the pass rate under a condition, paired by case."""
    faulty = name.endswith("_faults")
    found: dict[str, list[Trial]] = defaultdict(list)
    for case, trials in _by_case(run).items():
        found[case.rpartition(MARK)[0] if name == "paraphrase" else case] += trials
    rows = [case for case in base if case in found]
    other = [_counts(found[case], unjudged_fail=faulty) for case in rows]
    compared = on_suite([base[case] for case in rows], other, level=level)
    test, interval = compared.test, compared.interval
    rate = suite_rate(other).value
    about = "change of the pass rate"
    if rate is not None:
        about += f", to {percent(rate)}"
    if test.p_value is not None:
        about += f"; p {test.p_value:.3g}"
    if faulty:
        about += "; a trial without a verdict counts as not passed"
    return _figure("robustness", name.replace("_", " "), interval, about, signed=True)


_CONFIDENCE = re.compile(
    r"""confidence ["'*_]* \s* (?:is|of|level|score)? ["'*_]* \s* [:=]? ["'*_]* \s* ["']?
        (?P<a>\d+(?:\.\d+)?) \s* (?P<p>%)?
      | (?P<b>\d{1,3}(?:\.\d+)?) \s* % \s* (?:confident|sure|certain|confidence)""",
    re.IGNORECASE | re.VERBOSE,
)


def stated_confidence(answer: str | None) -> float | None:
    """Return the confidence that an answer states, from 0 to 1; None if it states none.

    `confidence: 0.8`, `"confidence": 80`, `80 % sure`; the last one counts. A number above 1
    is percent.
    """
    found = None
    for match in _CONFIDENCE.finditer(answer or ""):
        value = float(match["a"] or match["b"])
        of_hundred = bool(match["b"] or match["p"]) or value > 1
        value = value / 100 if of_hundred else value
        found = value if value <= 1 else found
    return found


def _calibration(
    cases: Mapping[str, Sequence[Trial]], level: float
) -> tuple[list[ProfileFigure], list[ConfidenceBin]]:
    stated: dict[str, list[tuple[float, bool]]] = {}
    for case, trials in cases.items():
        answers = [
            (confidence, trial.passed)
            for trial in trials
            if trial.status in JUDGED
            and (confidence := stated_confidence(trial.answer)) is not None
        ]
        if answers:
            stated[case] = answers
    texts = {
        "overconfidence": "stated confidence minus pass rate; above 0 is too sure",
        "Brier score": "mean squared error of the stated confidence; 0 is perfect, 0.25 a coin",
    }
    if not stated:
        why = "no answer states a confidence"
        return [_undefined("calibration", name, why, about) for name, about in texts.items()], []
    n = sum(map(len, stated.values()))
    gaps = [math.fsum(c - p for c, p in each) / len(each) for each in stated.values()]
    errors = [math.fsum((c - p) ** 2 for c, p in each) / len(each) for each in stated.values()]
    found = {
        "overconfidence": bounded_mean(gaps, n=n, bounds=(-1.0, 1.0), level=level),
        "Brier score": bounded_mean(errors, n=n, level=level),
    }
    figures = [
        _figure("calibration", name, each, texts[name], signed=name == "overconfidence")
        for name, each in found.items()
    ]
    bins: list[ConfidenceBin] = []
    for at in range(5):
        inside = {
            case: [(c, p) for c, p in each if min(4, int(c * 5)) == at]
            for case, each in stated.items()
        }
        rows = [CaseCounts(sum(p for _, p in each), len(each)) for each in inside.values() if each]
        if rows:
            everything = [c for each in inside.values() for c, _ in each]
            bins.append(
                ConfidenceBin(
                    low=at / 5,
                    high=(at + 1) / 5,
                    n=len(everything),
                    stated=math.fsum(everything) / len(everything),
                    passed=suite_rate(rows, level=level),
                )
            )
    return figures, bins


def severity_of(trial: Trial) -> int:
    """Return how bad the outcome of a trial is.

    0 passed, 1 not good enough, 2 a blocking check failed or the agent broke, 3 it did harm: a
    forbidden tool, an unsafe answer, wrong data, an action without approval.
    """
    if trial.status not in JUDGED or trial.status == TrialStatus.PASSED:
        return 0
    failed = {result.check for result in trial.checks if result.status in FAILED}
    if failed & CRITICAL:
        return 3
    return 2 if trial.status == TrialStatus.HARD_FAIL or trial.category else 1


def _severity(
    runs: Mapping[str, Run], cases: Mapping[str, Sequence[Trial]], level: float
) -> list[ProfileFigure]:
    judged = {
        case: [trial for trial in trials if trial.status in JUDGED]
        for case, trials in cases.items()
    }
    figures: list[ProfileFigure] = []
    for least, name in ((2, "major failures"), (3, "critical failures")):
        rows = [
            CaseCounts(sum(severity_of(trial) >= least for trial in trials), len(trials))
            for trials in judged.values()
        ]
        worst = "; ".join(
            f"{seen} in {condition.replace('_', ' ')}"
            for condition, run in runs.items()
            if (seen := sum(severity_of(trial) >= least for trial in run.trials))
        )
        what = "share of trials in which a blocking check failed or the agent broke"
        if least == 3:
            what = "share of trials with a forbidden tool, an unsafe answer, wrong data"
        found = suite_rate(rows, level=level)
        figures.append(_figure("severity", name, found, f"{what} (seen: {worst or 'none'})"))
    rated = [
        (sum(t.passed for t in each) / len(each), case) for case, each in judged.items() if each
    ]
    if rated:
        _, case = min(rated)
        trials = judged[case]
        # The lowest of several rates is low by chance, too: the interval holds for all of them.
        shared = 1 - (1 - level) / len(rated)
        passes = sum(trial.passed for trial in trials)
        found = case_rate(passes, len(trials), method="clopper-pearson", level=shared)
        about = f"pass rate of {case}; its interval allows for {plural(len(rated), 'case')}"
        figures.append(_figure("severity", "worst case", found, about))
    return figures


def _advice(counts: Sequence[CaseCounts], between: Interval) -> list[str]:
    """Return how many trials per case are enough, for the suite's rate and for single cases."""
    rows = [row for row in counts if row.trials]
    if not rows:
        return ["no trial was judged"]
    most = max(row.trials for row in rows)
    smooth = [(row.passes + 1) / (row.trials + 2) for row in rows]
    noise = math.fsum(p * (1 - p) for p in smooth) / len(rows)
    needed = max(1, math.ceil(1.96**2 * noise / (len(rows) * TARGET_WIDTH**2)))
    verdict = "enough" if needed <= most else f"{most} are too few"
    within = f"for the pass rate of these cases within ± {TARGET_WIDTH:.0%}"
    lines = [f"{within}: {plural(needed, 'trial')} per case ({verdict})"]
    if between.value is None or between.low is None:
        return [*lines, f"for single cases: {between.reason}"]
    enough, surely = trials_for_reliability(between.value), trials_for_reliability(between.low)
    if enough is None:
        return [*lines, "to tell cases apart: they do not differ beyond chance"]
    text = f"to tell cases apart (reliability 0.8): {plural(enough, 'trial')} per case"
    if surely is None:
        text += "; cases may not differ at all"
    elif surely > enough:
        text += f", {surely} at the low end of the interval"
    return [*lines, text]
