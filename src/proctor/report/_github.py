"""Annotations for GitHub Actions, and the step summary.

Promise: at most ten annotations (GitHub shows no more of a kind per step), errors before warnings,
each at the line of its case; everything stands in the step summary. No text of an agent can begin
a workflow command.
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
from proctor.runs.trial import TrialStatus
from proctor.sanitize import line, shown
from proctor.spec.located import SourceLocation

MOST_INLINE = 10
"""What GitHub shows of a step; more would push each other out."""

SUMMARY_LIMIT = 1024 * 1024
"""Bytes a step summary may have; a larger one is refused as a whole."""

_CUT = "\n\n… cut: a step summary holds at most 1 MiB\n"


class GithubAnnotation(NamedTuple):
    """One message at one place."""

    level: str
    title: str
    message: str
    place: SourceLocation | None


def render(facts: ReportFacts, environ: Mapping[str, str] | None = None) -> str:
    """The workflow commands; empty when there is nothing to say."""
    found = sorted(messages(facts), key=lambda each: each.level != "error")
    kept = found if len(found) <= MOST_INLINE else found[: MOST_INLINE - 1]
    environ = os.environ if environ is None else environ
    lines = [_command(each, environ) for each in kept]
    if left := len(found) - len(kept):
        errors = sum(each.level == "error" for each in found[len(kept) :])
        level = "error" if errors else "warning"
        more = f"{plural(left, 'more message')}, {errors} of them errors: see the step summary"
        lines.append(_command(GithubAnnotation(level, facts.title, more, None), environ))
    return "".join(f"{each}\n" for each in lines)


def messages(facts: ReportFacts) -> Iterator[GithubAnnotation]:
    """Everything worth a message, in the order of the report."""
    for each in facts.trials:
        yield from _of_trial(each)


def _of_trial(case: TrialFacts) -> Iterator[GithubAnnotation]:
    name, status = case.name, case.trial.status
    failures = case.with_status(CheckStatus.FAIL)
    if status == TrialStatus.INFRA_ERROR:
        yield GithubAnnotation("error", f"{name}: could not be judged", case.reason, case.place)
    elif status == TrialStatus.CANCELLED:
        yield GithubAnnotation("warning", f"{name}: stopped", case.reason, case.place)
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
    told = ",".join(f"{key}={escape_property(value)}" for key, value in properties.items())
    message = "\n".join(line(part) for part in annotation.message.split("\n", 8))
    return f"::{annotation.level} {told}::{escape_data(message)}"


def escape_data(text: str) -> str:
    """A message: what would end or continue the command is written as its code."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def escape_property(text: str) -> str:
    """The value of a property, where colon and comma would end it too."""
    return escape_data(text).replace(":", "%3A").replace(",", "%2C")


def _from_workspace(file: str, environ: Mapping[str, str]) -> str:
    """The file as GitHub knows it: from the root of the repository."""
    root = environ.get("GITHUB_WORKSPACE")
    if not root:
        return line(file)
    try:
        inside = Path(file).resolve().relative_to(Path(root).resolve())
    except ValueError:
        return line(file)
    return line(inside.as_posix())


# -- the step summary ------------------------------------------------------------------------------


def summary(facts: ReportFacts, taken: int = 0) -> bytes:
    """The report for a step summary that holds so many bytes already."""
    content = _markdown.render(facts).encode("utf-8", "replace")
    room = max(0, SUMMARY_LIMIT - taken)
    if len(content) <= room:
        return content
    cut = _CUT.encode()
    whole_lines = content[: max(0, room - len(cut))].rpartition(b"\n")[0]
    return (whole_lines + cut)[:room]
