"""Formats of a report by name, and where each is written: a file or a stream.

Guarantees: options that cannot be met are reported before any agent runs; standard output never
holds two formats that programs read; in GitHub Actions, annotations and the step summary are
written without an option. A format is a function from `ReportFacts` to text in a module of its own,
imported when it is used. To add one, add a module and a line in `FORMATS`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import click

from proctor.errors import ProctorError, hint_among
from proctor.files import write_atomic
from proctor.user_dirs import with_folder

if TYPE_CHECKING:
    from proctor.report.facts import ReportFacts
    from proctor.results.gate import GateResult
    from proctor.runs.run import Run

STDOUT = "-"


class Format(NamedTuple):
    """Where a format's `render` lives, and whether programs read it (people read the others)."""

    module: str
    for_programs: bool
    about: str


FORMATS = {
    "console": Format("proctor.report.console", False, "for people, in a terminal"),
    "json": Format("proctor.report.json_report", True, "one document with everything"),
    "github": Format("proctor.report._github", True, "annotations at the lines of the cases"),
    "junit": Format("proctor.report._junit", True, "XML for the test views of CI systems"),
    "prometheus": Format("proctor.report._prometheus", True, "metrics in the text format"),
    "markdown": Format("proctor.report._markdown", True, "for pull requests and pages"),
}


def render(name: str, facts: ReportFacts) -> str:
    """Return the report in one format; the text ends with a line break."""
    found = FORMATS.get(name)
    if found is None:
        raise ProctorError(f"there is no format {name!r}", hint=hint_among(name, FORMATS))
    write = cast("Callable[[ReportFacts], str]", import_module(found.module).render)
    return write(facts)


class Output(NamedTuple):
    """One format and where it goes; without a file to a stream."""

    format: str
    file: Path | None = None
    to_stderr: bool = False


def plan_outputs(
    formats: Sequence[str], files: Sequence[str], environ: Mapping[str, str]
) -> list[Output]:
    """Match files to formats in their order; a format without a file goes to a stream."""
    names = list(formats or ("console",))
    _refuse_repeats(names, files)
    if len(files) > len(names):
        raise ProctorError(
            f"{len(files)} files for {len(names)} formats: each -o belongs to a --format",
            hint="the first -o belongs to the first --format, and so on; `-o -` is standard output",
        )
    # Fewer files than formats is fine: the rest goes to a stream.
    placed = {name: Path(file) for name, file in zip(names, files, strict=False) if file != STDOUT}
    for path in placed.values():
        _refuse_unwritable(path)
    programs = [name for name in names if name not in placed and FORMATS[name].for_programs]
    if len(programs) > 1:
        raise ProctorError(
            f"only one of {' and '.join(programs)} can go to standard output",
            hint=f"give the others a file: --format {programs[0]} -o FILE --format {programs[1]}",
        )
    outputs = [
        Output(name, placed.get(name), bool(programs) and not FORMATS[name].for_programs)
        for name in names
    ]
    if in_actions(environ) and "github" not in names:
        # The runner reads workflow commands on both streams.
        outputs.append(Output("github", None, to_stderr=bool(programs)))
    return outputs


def write_outputs(
    facts: ReportFacts, outputs: Sequence[Output], environ: Mapping[str, str]
) -> None:
    """Write every format; one that cannot be written does not stop the others."""
    problems: list[ProctorError] = []
    # The terminal shows the last lines, so streams come after files.
    for output in sorted(outputs, key=lambda each: each.file is None):
        text = render(output.format, facts)
        try:
            if output.file is None:
                _to_stream(text, output, environ)
                continue
            plain = click.unstyle(text) if output.format == "console" else text
            content = plain.encode("utf-8", "replace")
            # A pipe or a device cannot be replaced by renaming another file.
            if output.file.exists() and not output.file.is_file():
                _append(output.file, content)
            else:
                write_atomic(with_folder(output.file), content)
        except ProctorError as error:
            problems.append(error)
    if environ.get("GITHUB_STEP_SUMMARY"):
        try:
            write_step_summary(render("markdown", facts), environ)
        except ProctorError as error:
            problems.append(error)
    if problems:
        raise problems[0]


def write_step_summary(text: str, environ: Mapping[str, str]) -> None:
    """Append Markdown to the step summary of GitHub Actions, if there is one."""
    if not (step_summary := environ.get("GITHUB_STEP_SUMMARY")):
        return
    from proctor.report._github import summary

    path = Path(step_summary)
    try:
        # Earlier commands of the step may have written to it: the limit is for all together.
        taken = path.stat().st_size if path.exists() else 0
    except OSError as error:
        raise ProctorError(f"cannot read: {error.strerror}", where=str(path)) from None
    _append(path, summary(text, taken))


def write_gate(
    result: GateResult,
    run: Run,
    environ: Mapping[str, str],
    *,
    text: str | None = None,
    to_stderr: bool = False,
) -> None:
    """Write annotations and step summary (`text`, by default the evidence) of a gate."""
    from proctor.report import _github, _markdown

    if in_actions(environ):
        # The runner reads workflow commands on both streams.
        _to_stream(_github.render_gate(result, run), Output("github", None, to_stderr), environ)
    write_step_summary(text or _markdown.render_gate(result), environ)


def comment_text(facts: ReportFacts, verdict: str, **about: Any) -> str:
    """Return the comment of a pull request, as `_markdown.render_comment` writes it."""
    from proctor.report._markdown import render_comment

    return render_comment(facts, verdict, **about)


def in_actions(environ: Mapping[str, str]) -> bool:
    """Return whether this is a job of GitHub Actions."""
    # Documented by GitHub: always "true" in a workflow.
    return environ.get("GITHUB_ACTIONS") == "true"


def _to_stream(text: str, output: Output, environ: Mapping[str, str]) -> None:
    if FORMATS[output.format].for_programs:
        # Bytes, because these formats are UTF-8 whatever the terminal is; text where the stream
        # of a caller takes nothing else.
        stream = sys.stderr if output.to_stderr else sys.stdout
        binary = text.encode("utf-8", "replace") if hasattr(stream, "buffer") else text
        click.echo(binary, nl=False, err=output.to_stderr)
    else:
        color = False if environ.get("NO_COLOR") else None
        click.echo(text, nl=False, err=output.to_stderr, color=color)


def _append(path: Path, content: bytes) -> None:
    try:
        with path.open("ab") as file:
            file.write(content)
    except OSError as error:
        raise ProctorError(f"cannot write: {error.strerror}", where=str(path)) from None


def _refuse_repeats(formats: Sequence[str], files: Sequence[str]) -> None:
    for name in formats:
        if formats.count(name) > 1:
            raise ProctorError(f"--format {name} is given twice")
    places = [os.path.abspath(file) for file in files]  # noqa: PTH100 (nothing is resolved)
    for file, place in zip(files, places, strict=True):
        if places.count(place) > 1:
            raise ProctorError(f"-o {file} is given twice: one would overwrite the other")


def _refuse_unwritable(path: Path) -> None:
    """Look only: folders that are missing are made when there is something to write."""
    if path.is_dir():
        raise ProctorError("-o names a folder", where=str(path), hint="name a file in it")
    # Missing folders are created later, so the nearest existing one decides.
    nearest = next(place for place in (path, *path.parents) if place.exists())
    if nearest != path and not nearest.is_dir():
        raise ProctorError(
            f"{nearest} is a file, not a folder", where=str(path), hint="name another file"
        )
    if not os.access(nearest, os.W_OK):
        raise ProctorError(
            "cannot be written", where=str(path), hint="name a file that you may write"
        )
