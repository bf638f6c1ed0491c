"""Annotations for GitHub Actions, and the step summary.

Guarantees: at most ten annotations (GitHub shows no more of a kind per step), errors before
warnings, each at the line of its case; the step summary has everything. No text of an agent can
start a workflow command.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from proctor.checks.base import CheckStatus
from proctor.formatting import plural
from proctor.report import _markdown
from proctor.report.facts import ReportFacts, TrialFacts
from proctor.report.figures import damage_note
from proctor.runs.trial import UNJUDGED, TrialStatus
from proctor.sanitize import line, shown
from proctor.spec.located import SourceLocation

MOST_INLINE = 10
"""GitHub shows no more annotations of a step."""

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
    found += [each for case in facts.trials for each in _of_trial(case)]
    found.sort(key=lambda each: each.level != "error")
    # The last place is for the message that counts the rest.
    kept = found if len(found) <= MOST_INLINE else found[: MOST_INLINE - 1]
    environ = os.environ if environ is None else environ
    lines = [_command(each, environ) for each in kept]
    if left := len(found) - len(kept):
        errors = sum(each.level == "error" for each in found[len(kept) :])
        level = "error" if errors else "warning"
        more = f"{plural(left, 'more message')}, {errors} of them errors: see the step summary"
        lines.append(_command(GithubAnnotation(level, facts.title, more, None), environ))
    return "".join(f"{each}\n" for each in lines)


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


def summary(facts: ReportFacts, taken: int = 0) -> bytes:
    """Return the report for a step summary that has `taken` bytes already."""
    content = _markdown.render(facts).encode("utf-8", "replace")
    room = max(0, SUMMARY_LIMIT - taken)
    if len(content) <= room:
        return content
    cut = _CUT.encode()
    # Cut between lines: half a table row would break the layout of the rest.
    whole_lines = content[: max(0, room - len(cut))].rpartition(b"\n")[0]
    return (whole_lines + cut)[:room]
