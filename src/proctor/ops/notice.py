"""What a notification says: events, named fields, and a template that can do nothing but name them.

Promise: a template holds `{field}` for fields of a fixed set and no attribute, index or format; an
unknown one is an error before the run. Every value is one line of plain text without control
characters, secrets or mentions, whatever an agent wrote.
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from proctor.errors import EXIT_CANNOT_JUDGE, ProctorError, hint_among
from proctor.report.run_words import sentence
from proctor.runs.identity import host
from proctor.runs.run import Run
from proctor.trace.redact import default_redactor
from proctor.trace.text import safe
from proctor.words import money


class Event(StrEnum):
    """What can be worth a message. The last three are among the ways a run ends."""

    END = "end"
    FAILURE = "failure"
    REGRESSION = "regression"
    BUDGET = "budget"


FIELDS: Mapping[str, str] = {
    "name": "what the run is kept under",
    "outcome": "passed, failed, not judged, stopped, interrupted, or did not start",
    "events": "which of end, failure, regression, budget happened",
    "summary": "how many cells and trials passed, with denominators",
    "passed": "trials that passed",
    "judged": "trials that were judged",
    "trials": "trials that finished, judged or not",
    "errors": "trials that could not be judged",
    "cost": "what the agents' model calls cost, as far as prices are known",
    "stopped": "why the run ended before its plan did",
    "failures": "the three checks that failed most, with counts",
    "regression": "what the gate says against the baseline, when it was asked",
    "exit_code": "the exit code of the command",
    "run_id": "the id of the run",
    "path": "the run folder",
    "host": "the machine it ran on",
    "details": "of the fields above, one line for each that has something to say",
}
"""Every field of a template and what it holds; a field with nothing to say is empty."""

DEFAULT_TEMPLATE = "{name}: {outcome}\n{details}"

MOST_FAILURES = 3
"""Checks named in a message: it is read on a telephone, the report has the rest."""

LONGEST_VALUE = 300
LONGEST_TEMPLATE = 4_000
"""Characters; services cut or refuse longer messages."""

_DETAILS = ("summary", "failures", "regression", "stopped", "cost", "path")

# `@name` and Slack's `<!channel>` call people in several chat services, whoever wrote them.
_MENTION = re.compile(r"@(?=\w)|<(?=[!@#])")

_LIMITS = ("trial limit", "time limit", "token limit", "cost limit", "no known price")
"""What `proctor.trials.limits` says when a cap ended a run."""


class Notice(NamedTuple):
    """Something to be told: what happened, and the values of every field."""

    events: frozenset[Event]
    fields: Mapping[str, str]

    @property
    def title(self) -> str:
        """One line for services that have a subject."""
        return f"proctor: {self.fields['name']} {self.fields['outcome']}"


def checked_template(text: str, where: str) -> str:
    """A template that `filled` can fill, or what is wrong with it."""
    if len(text) > LONGEST_TEMPLATE:
        raise ProctorError(
            f"the template has {len(text):,} characters, and {LONGEST_TEMPLATE:,} at most",
            where=where,
        )
    try:
        parts = list(string.Formatter().parse(text))
    except ValueError as error:
        raise ProctorError(
            f"not a template: {error}", where=where, hint="write {{ and }} for braces"
        ) from None
    for _, name, spec, conversion in parts:
        if name is None:
            continue
        if name not in FIELDS:
            hint = hint_among(name, FIELDS)
            raise ProctorError(f"no field {name!r}", where=where, hint=hint)
        if spec or conversion:
            raise ProctorError(
                f"the field {name!r} has a format", where=where, hint=f"write {{{name}}} alone"
            )
    return text


def read_template(given: str | None, where: str, folder: Path | None = None) -> str:
    """The template as text, `@FILE` for one in a file, or the default."""
    if given is None:
        return DEFAULT_TEMPLATE
    if not given.startswith("@"):
        # A shell passes `\n` as two characters, and nobody means those.
        return checked_template(given.replace("\\n", "\n"), where)
    path = (folder or Path()) / Path(given[1:]).expanduser()
    try:
        return checked_template(path.read_text(encoding="utf-8").rstrip("\n"), str(path))
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise ProctorError(f"cannot read the template: {reason}", where=str(path)) from None


def filled(template: str, notice: Notice) -> str:
    """The message of a notice."""
    return template.format_map(notice.fields).strip()


def harmless(value: object, limit: int = LONGEST_VALUE) -> str:
    """A value as one line that calls nobody and holds no secret."""
    # A zero-width space parts the mark from the name; the text reads the same.
    return _MENTION.sub(
        lambda m: m.group() + "\u200b", safe(default_redactor().text(str(value)), limit)
    )


def of_run(run: Run, exit_code: int, *, interrupted: bool, regression: str | None = None) -> Notice:
    """What a run that has ended has to tell. `regression` is the gate's word when it found one."""
    totals = run.totals
    at_limit = run.stopped is not None and any(words in run.stopped for words in _LIMITS)
    happened = {
        Event.END: True,
        Event.FAILURE: exit_code != 0,
        Event.REGRESSION: regression is not None,
        Event.BUDGET: at_limit,
    }
    failures = [f"{f.check_id} {f.count} of {f.of}" for f in run.failures[:MOST_FAILURES]]
    return notice(
        (event for event, did in happened.items() if did),
        name=run.path.parent.name,
        outcome=_outcome(run, exit_code, interrupted),
        summary=sentence(run.cells, totals),
        passed=totals.passed,
        judged=totals.judged,
        trials=totals.trials,
        errors=totals.infra_error,
        cost=money(totals.cost_usd, totals.unpriced_calls),
        stopped=run.stopped or "",
        failures=f"failed: {', '.join(failures)}" if failures else "",
        regression=regression or "",
        exit_code=exit_code,
        run_id=run.run_id,
        path=run.path,
    )


def of_failed_start(name: str, error: Exception, exit_code: int = EXIT_CANNOT_JUDGE) -> Notice:
    """What there is to tell of a run that could not begin, or whose process died."""
    return notice(
        (Event.END, Event.FAILURE),
        name=name,
        outcome="did not start",
        stopped=error,
        exit_code=exit_code,
    )


def notice(events: Iterable[Event], **values: object) -> Notice:
    """A notice whose fields are all there and all harmless."""
    happened = frozenset(events)
    told = [str(event) for event in Event if event in happened]
    values = {"host": host(), "events": ", ".join(told), **values}
    fields = {name: harmless(values.get(name, "")) for name in FIELDS}
    details = [fields[name] for name in _DETAILS if fields[name]]
    return Notice(happened, {**fields, "details": "\n".join(details)})


def _outcome(run: Run, exit_code: int, interrupted: bool) -> str:
    if interrupted:
        return "interrupted"
    if exit_code == 1:
        return "failed"
    if run.stopped:
        return "stopped"
    return "passed" if exit_code == 0 else "not judged"
