"""Every format a report can be written in, by name.

A format is one function from `ReportFacts` to text, in a module of its own that is imported when
it is needed. Adding one is a module and a line in the table.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple, cast

from proctor.errors import ProctorError, hint_among

if TYPE_CHECKING:
    from proctor.report.facts import ReportFacts


class Format(NamedTuple):
    """Where a format's `render` lives, and whether programs read it (people read the others)."""

    module: str
    for_programs: bool
    about: str


FORMATS = {
    "console": Format("proctor.report.console", False, "for people, in a terminal"),
    "json": Format("proctor.report.json_report", True, "one document with everything"),
    "github": Format("proctor.report.github", True, "annotations at the lines of the cases"),
    "junit": Format("proctor.report.junit", True, "XML for the test views of CI systems"),
    "prometheus": Format("proctor.report.prometheus", True, "metrics in the text format"),
    "markdown": Format("proctor.report.markdown", True, "for pull requests and pages"),
}


def render(name: str, facts: ReportFacts) -> str:
    """The report in one format; what it says ends with a line break."""
    found = FORMATS.get(name)
    if found is None:
        raise ProctorError(
            f"there is no format {name!r}",
            hint=hint_among(name, FORMATS),
        )
    write = cast("Callable[[ReportFacts], str]", import_module(found.module).render)
    return write(facts)
