"""A comparison with a baseline: console, Markdown and JSON.

Guarantees: text of agents is shown but not interpreted, and long texts are cut; only JSON holds
them whole. Changing a JSON key breaks users' scripts: `format` rises when one has to change.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from proctor.checks.base import Layer
from proctor.formatting import plural
from proctor.runs.diff import CaseDiff, Change, ChangeKind, Diff, Severity, WordChange
from proctor.sanitize import json_value, line

JSON_FORMAT = 1
"""Version of the JSON document."""

CONTEXT = 40
"""Characters of unchanged text on each side of a change: enough to locate it."""

MAX_WORDS = 2_000
"""Characters of a word-level diff."""


def console(diff: Diff) -> str:
    """Return the comparison for a terminal."""
    return "\n".join(_console(diff)) + "\n"


def as_markdown(diff: Diff) -> str:
    """Return the comparison as Markdown, for pull requests and pages."""
    from proctor.report._markdown import render_template

    return render_template(
        "diff.md",
        diff=diff,
        title=_title(diff),
        summary=summary(diff),
        notes=_notes,
        has_words=_has_words,
        word_diff=word_diff,
    )


def summary(diff: Diff) -> str:
    """Return the number of cases by severity in one line; each case is in exactly one count."""
    counts = [
        (diff.count(Severity.ERROR), "with errors"),
        (diff.count(Severity.WARNING), "with warnings"),
        (diff.count(Severity.INFO), "with small changes"),
        (diff.count(Severity.NONE), "unchanged"),
        (len(diff.not_compared), "not compared"),
    ]
    total = plural(len(diff.cases) + len(diff.not_compared), "case")
    return f"{total}: " + (", ".join(f"{n} {what}" for n, what in counts if n) or "none")


def word_diff(words: Sequence[WordChange]) -> str:
    """Return changed words in their context: `the capital is [-Lyon-]{+Paris+}.`"""
    shown = "".join(_stretch(words, place) for place in range(len(words)))
    return line(shown, MAX_WORDS)


def _stretch(words: Sequence[WordChange], place: int) -> str:
    each = words[place]
    if each.op != "equal":
        signs = ("[-", "-]") if each.op == "removed" else ("{+", "+}")
        # White space after a word stays outside the marks, so that words remain separated.
        inner = each.text.rstrip()
        return f"{signs[0]}{inner}{signs[1]}{each.text[len(inner) :]}"
    text = each.text
    first, last = place == 0, place == len(words) - 1
    # Long unchanged text is cut on the side away from the change.
    if first and not last and len(text) > CONTEXT:
        return f"… {text[-CONTEXT:]}"
    if last and not first and len(text) > CONTEXT:
        return f"{text[:CONTEXT]} …"
    return text if len(text) <= 2 * CONTEXT + 3 else f"{text[:CONTEXT]} … {text[-CONTEXT:]}"


def _title(diff: Diff) -> str:
    now = "the current behaviour" if diff.compared is None else diff.compared
    return f"{now} compared with {diff.baseline}"


def _notes(diff: Diff, case: CaseDiff) -> Iterator[str]:
    if case.case_changed:
        yield f"the case changed since {diff.baseline}: its input or checks are not the same"
    yield from case.notes


# -- console ---------------------------------------------------------------------------------------


def _console(diff: Diff) -> Iterator[str]:
    yield line(_title(diff))
    for case in diff.cases:
        yield ""
        tiers = " · ".join(f"{tier} {severity}" for tier, severity in case.tiers.items())
        yield f"{line(case.case, 120)} ({line(case.agent, 120)}): {tiers}"
        for note in _notes(diff, case):
            yield f"  note     {line(note)}"
        for tier in Layer:
            for change in case.tier(tier):
                yield f"  {change.severity:<8} {tier}: {line(change.message)}"
                if _has_words(change):
                    yield f"           {word_diff(change.words)}"
    for each in diff.not_compared:
        yield ""
        yield f"{line(each.case, 120)} ({line(each.agent, 120)}): not compared"
        yield f"  {line(each.reason)}"
    yield ""
    for note in diff.notes:
        yield f"note: {line(note)}"
    yield summary(diff)


def _has_words(change: Change) -> bool:
    return change.kind == ChangeKind.ANSWER and any(w.op != "equal" for w in change.words)


# -- JSON ------------------------------------------------------------------------------------------


def as_json(diff: Diff) -> str:
    """Return the whole comparison as one JSON document."""
    document = {
        "format": JSON_FORMAT,
        "suite": diff.suite,
        "baseline": diff.baseline,
        "compared": diff.compared,
        "severity": str(diff.severity),
        "exit_code": diff.exit_code,
        "cases": [_case(case) for case in diff.cases],
        "not_compared": [msgspec.structs.asdict(each) for each in diff.not_compared],
        "notes": list(diff.notes),
    }
    return json.dumps(json_value(document), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _case(case: CaseDiff) -> dict[str, Any]:
    return {
        "case": case.case,
        "agent": case.agent,
        "severity": str(case.severity),
        "tiers": {str(tier): str(severity) for tier, severity in case.tiers.items()},
        "tool_similarity": case.similarity,
        "case_changed": case.case_changed,
        "changes": [_change(change) for change in case.changes],
        "notes": list(case.notes),
    }


def _change(change: Change) -> dict[str, Any]:
    data = msgspec.structs.asdict(change)
    data["words"] = [msgspec.structs.asdict(each) for each in change.words]
    # Most changes have neither words nor spans; `before` and `after` are there even if null.
    return {key: value for key, value in data.items() if value or key not in ("words", "span_ids")}


DIFF_FORMATS: dict[str, Callable[[Diff], str]] = {
    "console": console,
    "json": as_json,
    "markdown": as_markdown,
}
"""Format → its writer."""
