"""Annotations for GitHub Actions, and the step summary.

Guarantees: at most ten annotations (GitHub shows no more of a kind per step), errors before
warnings, each at the line of its case; the step summary has everything. Where cases ran several
times, a case has one annotation with its counts. No text of an agent can start a workflow command.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from proctor.checks.base import CheckStatus
from proctor.formatting import plural
from proctor.report.facts import ReportFacts, TrialFacts
from proctor.report.figures import GATE_STYLES, damage_note, moved_cases, points
from proctor.results.gate import GateResult
from proctor.runs.run import Run
from proctor.runs.summary import Verdict
from proctor.runs.trial import UNJUDGED, TrialStatus
from proctor.sanitize import line, shown
from proctor.spec.located import SourceLocation

MOST_INLINE = 10
"""GitHub shows no more annotations of a step."""

MOST_REASONS = 3
"""Failed checks named in the annotation of a case."""

SUMMARY_LIMIT = 1024 * 1024
"""Maximum bytes of a step summary; GitHub refuses a larger one as a whole."""

_CUT = "\n\n… cut: a step summary holds at most 1 MiB\n"


class GithubAnnotation(NamedTuple):
    """A message at a position."""

    level: str
    title: str
    message: str
    place: SourceLocation | None


def render(facts: ReportFacts, environ: Mapping[str, str] | None = None) -> str:
    """Return the workflow commands; empty where every trial passed without a warning."""
    found = [
        GithubAnnotation("error", f"{facts.title}: damaged", damage_note(run), None)
        for run in facts.runs
        if run.damaged
    ]
    if facts.detailed:
        found += [each for case in facts.trials for each in _of_trial(case)]
    else:
        found += [each for run in facts.runs for each in _of_cells(run)]
    return _commands(found, facts.title, os.environ if environ is None else environ)


def render_gate(result: GateResult, run: Run, environ: Mapping[str, str] | None = None) -> str:
    """Return the workflow commands of a gate: its verdict, and the cases that got worse."""
    level = GATE_STYLES[result.verdict].level
    found = [GithubAnnotation(level, result.verdict, result.reason, None)]
    if result.verdict == "REGRESSION":
        found += [
            GithubAnnotation(
                "warning",
                f"{move.case}: {points(-move.drop)} points",
                f"{arm.name}: {move.candidate.passes} of {move.candidate.trials} trials passed,"
                f" {move.baseline.passes} of {move.baseline.trials} in the reference",
                _place(run, move.case),
            )
            for arm in result.arms
            for move in moved_cases(arm.gate)
            if move.drop > 0
        ]
    return _commands(found, "gate", os.environ if environ is None else environ)


def _of_cells(run: Run) -> Iterator[GithubAnnotation]:
    """Yield one annotation for each cell that did not pass, with its most harmful failures."""
    several = len({cell.agent for cell in run.cells}) > 1
    for cell in run.cells:
        if cell.verdict == Verdict.PASS:
            continue
        name = f"{cell.case} ({cell.cell.arm})" if several else cell.case
        counts = f"{cell.passed:,} of {plural(cell.judged, 'judged trial')} passed"
        if cell.unjudged:
            counts += f"; {cell.unjudged} without a verdict"
        lines = [counts] + [
            f"{each.check_id} failed {each.count}×: {each.samples[0].reason}"
            for each in cell.failures[:MOST_REASONS]
            if each.samples
        ]
        title = f"{name}: {cell.verdict.value}"
        yield GithubAnnotation("error", title, "\n".join(lines), _place(run, cell.case))


def _place(run: Run, case: str) -> SourceLocation | None:
    place = run.places.get(case)
    return None if place is None else SourceLocation(*place)


def _of_trial(case: TrialFacts) -> Iterator[GithubAnnotation]:
    name, status = case.name, case.trial.status
    failures = case.with_status(CheckStatus.FAIL)
    if status in UNJUDGED:
        yield GithubAnnotation("error", f"{name}: could not be judged", case.reason, case.place)
    elif status == TrialStatus.CANCELLED:
        yield GithubAnnotation("warning", f"{name}: stopped", case.reason, case.place)
    # Failed checks have their own messages below.
    elif case.is_gate_failure and not failures:
        yield GithubAnnotation("error", f"{name}: failed", case.reason, case.place)
    for result in case.with_status(CheckStatus.FAIL, CheckStatus.WARN):
        level = "error" if result.status == CheckStatus.FAIL else "warning"
        actual = "" if result.actual is None else f"\nactual: {shown(result.actual)}"
        message = f"{line(result.reason)}{actual}"
        yield GithubAnnotation(level, f"{name}: {result.id}", message, case.place)


# -- writing commands ------------------------------------------------------------------------------


def _commands(found: list[GithubAnnotation], title: str, environ: Mapping[str, str]) -> str:
    found.sort(key=lambda each: each.level != "error")
    # The last place is for the message that counts the rest.
    kept = found if len(found) <= MOST_INLINE else found[: MOST_INLINE - 1]
    lines = [_command(each, environ) for each in kept]
    if left := len(found) - len(kept):
        errors = sum(each.level == "error" for each in found[len(kept) :])
        level = "error" if errors else "warning"
        more = f"{plural(left, 'more message')}, {errors} of them errors: see the step summary"
        lines.append(_command(GithubAnnotation(level, title, more, None), environ))
    return "".join(f"{each}\n" for each in lines)


def _command(annotation: GithubAnnotation, environ: Mapping[str, str]) -> str:
    properties = {"title": line(annotation.title)}
    if annotation.place is not None:
        file, number, column = annotation.place
        properties = {
            "file": _from_workspace(file, environ),
            **({} if number is None else {"line": str(number)}),
            **({} if column is None else {"col": str(column)}),
            **properties,
        }
    # In the value of a property, a colon or a comma would end it.
    options = ",".join(
        f"{key}={_escape(value).replace(':', '%3A').replace(',', '%2C')}"
        for key, value in properties.items()
    )
    message = "\n".join(line(part) for part in annotation.message.split("\n", 8))
    return f"::{annotation.level} {options}::{_escape(message)}"


def _escape(text: str) -> str:
    """Return a text without what would end or continue a command."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _from_workspace(file: str, environ: Mapping[str, str]) -> str:
    """Return the file as GitHub names it: relative to the root of the repository."""
    root = environ.get("GITHUB_WORKSPACE")
    if not root:
        return line(file)
    # A suite outside the repository keeps its own path.
    try:
        inside = Path(file).resolve().relative_to(Path(root).resolve())
    except ValueError:
        return line(file)
    return line(inside.as_posix())


# -- the step summary ------------------------------------------------------------------------------


def summary(text: str, taken: int = 0) -> bytes:
    """Return a Markdown text for a step summary that has `taken` bytes already."""
    content = text.encode("utf-8", "replace")
    room = max(0, SUMMARY_LIMIT - taken)
    if len(content) <= room:
        return content
    cut = _CUT.encode()
    # Cut between lines: half a table row would break the layout of the rest.
    whole_lines = content[: max(0, room - len(cut))].rpartition(b"\n")[0]
    return (whole_lines + cut)[:room]
