"""A report as Markdown, for pull requests, step summaries, wikis and papers.

Guarantees: text of an agent is shown as text or code and never becomes markup, HTML or a mention:
templates pass it through the filters `md` and `code`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from proctor.checks.base import CheckStatus, Layer
from proctor.report.facts import MOST_SPANS, REPORTED, ReportFacts, TrialFacts, status_word, when
from proctor.report.figures import GATE_STYLES, template_globals
from proctor.runs.folder import run_name
from proctor.runs.trial import TrialStatus
from proctor.sanitize import markdown, markdown_code, shown

if TYPE_CHECKING:
    from jinja2 import Environment

    from proctor.results.gate import GateResult
    from proctor.runs.run import Run

MOST_CASES = 60
"""Rows of the table of cases, the worst first: what a pull request shows without scrolling."""

MOST_FAILURES = 10
MOST_MOVES = 12

_MARKS = {
    TrialStatus.PASSED: "✅",
    TrialStatus.FAILED: "❌",
    TrialStatus.HARD_FAIL: "❌",
    TrialStatus.INFRA_ERROR: "⚠️",
    TrialStatus.NOT_JUDGED: "⚠️",
    TrialStatus.CANCELLED: "⏹️",
}


def render(facts: ReportFacts) -> str:
    """Return the report: trials one by one where each cell has one, else agents and cells."""
    return render_template("report.md", facts=facts)


def render_gate(result: GateResult) -> str:
    """Return the verdict of a gate, with its evidence."""
    mark = GATE_STYLES[result.verdict].mark
    body = render_template("gate.md", result=result, names=("reference", "candidate"))
    return f"## {mark} {result.verdict}\n\n{body}"


def render_comment(
    facts: ReportFacts,
    verdict: str,
    *,
    result: GateResult | None = None,
    reference: Run | None = None,
    names: tuple[str, str] = ("reference", "this change"),
    notes: Sequence[str] = (),
    link: str = "",
) -> str:
    """Return the comment of a pull request: the verdict, what changed, the cost, a link.

    With `result`, the gate of the run against `reference`, its evidence is part of it.
    """
    return render_template(
        "ci.md",
        facts=facts,
        verdict=verdict,
        result=result,
        reference=reference,
        names=names,
        notes=notes,
        link=link,
    )


def render_template(name: str, **values: Any) -> str:
    """Return a template filled with values; its parts are separated by one blank line."""
    text = _environment().get_template(name).render(values)
    return re.sub(r"\n{3,}", "\n\n", text).strip("\n") + "\n"


@cache
def _environment() -> Environment:
    # Imported here: a run outside CI prints no Markdown.
    from jinja2 import Environment, PackageLoader, StrictUndefined

    found: Any = Environment(  # noqa: S701 (Markdown has its own escapes, the filters below)
        loader=PackageLoader("proctor.report"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters |= {"md": markdown, "code": markdown_code}
    found.globals |= template_globals() | {
        "MARKS": _MARKS,
        "MOST_CASES": MOST_CASES,
        "MOST_FAILURES": MOST_FAILURES,
        "MOST_MOVES": MOST_MOVES,
        "MOST_SPANS": MOST_SPANS,
        "REPORTED": REPORTED,
        "VERDICT_MARKS": {"PASS": "✅", "FAIL": "❌", "NOT JUDGED": "⚠️"},
        "cells_by_case": _cells_by_case,
        "layers": list(Layer),
        "says_why": _says_why,
        **{f.__name__: f for f in (Path, run_name, shown, status_word, when)},
    }
    return found


def _says_why(each: TrialFacts) -> tuple[CheckStatus, ...]:
    """Return statuses of checks whose own lines give the reason of this trial's failure."""
    own = (CheckStatus.NOT_JUDGED,) if each.trial.status == TrialStatus.NOT_JUDGED else ()
    return (CheckStatus.FAIL, CheckStatus.UNSCORED, *own)


def _cells_by_case(facts: ReportFacts) -> dict[tuple[str, str], str]:
    return {
        (cell.case, cell.cell.arm): f"{cell.passed}/{cell.judged} {cell.verdict.value}"
        for cell in facts.cells
    }
