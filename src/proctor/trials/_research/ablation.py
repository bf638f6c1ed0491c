"""Ablation: the whole compared with the whole without one part, for each part.

One round: the whole and each variant run every case and seed. Mean scores of the same case and seed
(pairs) are compared, all together; p-values are adjusted by Holm's method over the variants, so
that among many useless parts the chance to call any of them useful stays below the stated level.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from proctor.runs.trial import Trial, params_key
from proctor.stats.compare import paired_means
from proctor.stats.intervals import bounded_mean
from proctor.stats.ranking import holm
from proctor.trials._research.rounds import Course, CourseResult, Round, Setup, Variant
from proctor.trials.plan import plan_trials

Pair = tuple[str, int | None]
"""The unit of comparison: a case and a seed."""


def ablation(setup: Setup) -> Course:
    """Run one round, then compare."""
    outline = setup.outline
    assert outline.research.ablation is not None
    assert outline.whole is not None
    whole = Variant("nothing", outline.whole, setup.fixed)
    groups = [whole, *outline.variants]
    trials = [
        trial
        for group in groups
        for trial in plan_trials(
            setup.cases,
            [group.agent],
            setup.options,
            setup.axes._replace(params=(group.params,)),
        ).trials
    ]
    results = yield Round(trials, (f"the whole and {len(groups) - 1} variants of it",))
    scores = [_scores(results, group) for group in groups]
    return _found(groups, scores, outline.research.ablation.confidence)


def _scores(results: Sequence[Trial], group: Variant) -> dict[Pair, float]:
    found: dict[Pair, list[float]] = defaultdict(list)
    params = params_key(group.params)
    for trial in results:
        if trial.agent != group.agent or params_key(trial.params) != params:
            continue
        if trial.status.judged and trial.score is not None:
            found[trial.case, trial.axis_seed].append(trial.score)
    return {pair: fmean(scores) for pair, scores in found.items()}


def _found(
    groups: Sequence[Variant], scores: Sequence[Mapping[Pair, float]], level: float
) -> CourseResult:
    whole = scores[0]
    rows: list[dict[str, Any]] = []
    for group, own in zip(groups[1:], scores[1:], strict=True):
        both = sorted(whole.keys() & own.keys(), key=str)
        first, second = [whole[pair] for pair in both], [own[pair] for pair in both]
        test = paired_means(first, second)
        gaps = [b - a for a, b in zip(first, second, strict=True)]
        interval = bounded_mean(gaps, bounds=(-1.0, 1.0), level=level)
        rows.append({
            "without": group.without,
            "agent": group.agent,
            "pairs": len(both),
            "left_out": len(whole.keys() | own.keys()) - len(both),
            "score": fmean(second) if second else None,
            "difference": test.difference,
            "low": interval.low,
            "high": interval.high,
            "p_value": test.p_value,
            "method": test.method,
        })  # fmt: skip
    # A comparison that could not be tested still counts among the tests.
    adjusted = holm([1.0 if row["p_value"] is None else row["p_value"] for row in rows])
    for row, p_value in zip(rows, adjusted, strict=True):
        row["adjusted"] = None if row["p_value"] is None else p_value
    mean = fmean(whole.values()) if whole else None
    facts: dict[str, Any] = {
        "whole": {"agent": groups[0].agent, "score": mean, "pairs": len(whole)},
        "variants": rows,
        "confidence": level,
        "correction": "holm",
    }
    return CourseResult(facts, tuple(_lines(facts)))


def _lines(facts: Mapping[str, Any]) -> list[str]:
    whole = facts["whole"]
    lines = [f"whole ({whole['agent']}): score {_number(whole['score'])}, {whole['pairs']} pairs"]
    lines.extend(
        f"without {row['without']}: score {_number(row['score'])}, "
        f"difference {_number(row['difference'], '+')} "
        f"[{_number(row['low'], '+')}, {_number(row['high'], '+')}], "
        f"p {_number(row['adjusted'])} (Holm over {len(facts['variants'])}), "
        f"{row['pairs']} pairs" + (f", {row['left_out']} left out" * bool(row["left_out"]))
        for row in facts["variants"]
    )
    return lines


def _number(value: float | None, sign: str = "") -> str:
    return "unknown" if value is None else f"{value:{sign}.3g}"
