"""`proctor validate`: every problem of suites, at its place, all at once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from proctor.cli.lazy import Command, Example
from proctor.cli.terminal import printable
from proctor.errors import EXIT_CANNOT_JUDGE

if TYPE_CHECKING:
    from proctor.spec import Problem, Suite

EXAMPLES = [
    Example("proctor validate suite.yaml", "is there anything wrong with a suite?"),
    Example("proctor validate --json suites/*.yaml", "the same for a program to read"),
]


@click.command(cls=Command, examples=EXAMPLES)
@click.argument("suites", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option("--traces", is_flag=True, help="For recorded traces: a suite needs no agent.")
@click.pass_context
def validate(ctx: click.Context, suites: tuple[Path, ...], as_json: bool, traces: bool) -> None:
    """Check suites without running anything.

    Exits with 0 when all are good, else with 2.
    """
    problems: list[Problem] = []
    good: dict[Path, Suite] = {}
    for path in suites:
        found = _checked(path, traces=traces)
        if isinstance(found, list):
            # Two suites may include the same file, or stand under the same settings.
            problems.extend(problem for problem in found if problem not in problems)
        else:
            good[path] = found
    if as_json:
        click.echo(_document(good, problems))
    else:
        _print(good, problems, len(suites))
    if problems:
        ctx.exit(EXIT_CANNOT_JUDGE)


def _checked(path: Path, *, traces: bool) -> Suite | list[Problem]:
    from proctor.spec import SpecError, load_configuration, load_suite

    try:
        configured = load_configuration(path.parent).settings.agent is not None
        return load_suite(path, need_agent=not (traces or configured))
    except SpecError as error:
        return error.problems


def _print(good: dict[Path, Suite], problems: list[Problem], asked: int) -> None:
    for path, suite in good.items():
        cases, agents = len(suite.cases), ", ".join(suite.all_agents) or "none"
        click.echo(printable(f"{path}: {_count(cases, 'case')}, agent {agents}"))
    print_problems(problems)
    if problems:
        bad = asked - len(good)
        click.echo(f"{_count(len(problems), 'problem')} in {_count(bad, 'file')}", err=True)


def print_problems(problems: list[Problem]) -> None:
    """Every problem on standard error, with what to do about it."""
    for problem in problems:
        click.echo(printable(str(problem)), err=True)
        if problem.hint:
            click.echo(printable(f"  hint: {problem.hint}"), err=True)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _document(good: dict[Path, Suite], problems: list[Problem]) -> str:
    import json

    def told(problem: Problem) -> dict[str, Any]:
        where = {"file": problem.file, "line": problem.line, "column": problem.column}
        return {**where, "message": problem.message, "hint": problem.hint}

    document = {
        "valid": not problems,
        "suites": [
            {"file": str(path), "cases": [case.id for case in suite.cases]}
            for path, suite in good.items()
        ],
        "problems": [told(problem) for problem in problems],
    }
    return json.dumps(document, indent=2)
