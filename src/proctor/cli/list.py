"""`proctor list`: the cases, agents and experiments there are."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from proctor.cli._command import Command, Entry, Example, LazyGroup
from proctor.errors import EXIT_CANNOT_JUDGE, ProctorError
from proctor.sanitize import printable
from proctor.tables import table
from proctor.words import clipped

if TYPE_CHECKING:
    from collections.abc import Sequence

EXAMPLES = [
    Example("proctor list cases --filter difficulty:hard", "scenarios of the catalog"),
    Example("proctor list agents --filter 'kind:chat'", "agents by name"),
    Example("proctor list experiments", "experiments of the project"),
]

FILTER = click.option(
    "--filter",
    "expression",
    default="",
    metavar="EXPR",
    help="Only these, such as difficulty:hard.",
)
AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")

TABLE = {
    "cases": Entry(
        "proctor.cli.list", "cases", "List scenarios of the catalog, or cases of suites."
    ),
    "agents": Entry("proctor.cli.list", "agents", "List the agents that can be asked for by name."),
    "experiments": Entry("proctor.cli.list", "experiments", "List the experiments of the project."),
}


@click.group(name="list", cls=LazyGroup, table=TABLE, examples=EXAMPLES)
def list_all() -> None:
    """List cases, agents and experiments."""


@click.command(
    cls=Command,
    examples=[
        EXAMPLES[0],
        Example("proctor list cases suite.yaml --json", "cases of a suite, for a program"),
    ],
)
@click.argument("suites", nargs=-1, type=click.Path(path_type=Path))
@FILTER
@AS_JSON
@click.pass_context
def cases(ctx: click.Context, suites: tuple[Path, ...], expression: str, as_json: bool) -> None:
    """List scenarios of the catalog, or cases of suites.

    Exits with 2 when a template cannot be read; the others are listed.
    """
    from proctor.scenarios import catalog_for
    from proctor.spec import load_configuration, load_suite, select_cases
    from proctor.trials.sanity import readable

    found: list[Any] = []
    for path in suites:
        found.extend(load_suite(path, need_agent=False).cases)
    broken: list[Any] = []
    if not suites:
        templates, broken = readable(catalog_for(load_configuration()))
        found.extend(templates)
    for each in broken:
        click.echo(printable(f"error: {each.case} {each.problems[0]}"), err=True)
    chosen = select_cases(found, filter=expression)
    rows = [
        {
            "id": case.id,
            "difficulty": case.difficulty,
            "type": case.type,
            "tags": list(case.tags),
            "description": case.description,
        }
        for case in chosen
    ]
    _tell(rows, ("id", "difficulty", "type", "tags", "description"), as_json=as_json)
    if broken:
        ctx.exit(EXIT_CANNOT_JUDGE)


@click.command(cls=Command, examples=EXAMPLES[1:2])
@FILTER
@AS_JSON
def agents(expression: str, as_json: bool) -> None:
    """List the agents that can be asked for by name."""
    from proctor.cli.agent import agent_rows
    from proctor.spec import load_configuration, select_cases

    rows = agent_rows(load_configuration())
    chosen = select_cases([_Row(row) for row in rows], filter=expression, called="agents")
    _tell([each.row for each in chosen], ("name", "kind", "what", "from"), as_json=as_json)


@click.command(cls=Command, examples=EXAMPLES[2:])
@FILTER
@AS_JSON
@click.pass_context
def experiments(ctx: click.Context, expression: str, as_json: bool) -> None:
    """List the experiments of the project.

    Exits with 2 when one of them cannot be read; the others are listed.
    """
    from proctor.cli.run import find_modules_here
    from proctor.spec import load_configuration, select_cases
    from proctor.spec.load import find_experiments
    from proctor.trials.targets import listed_experiments

    find_modules_here()
    configuration = load_configuration()
    rows: list[dict[str, Any]] = []
    broken = False
    for name in listed_experiments(configuration):
        try:
            found = find_experiments(name, configuration.folder) or []
        except ProctorError as error:
            broken = True
            click.echo(printable(f"error: {error}"), err=True)
            continue
        several = len(found) > 1
        for each in found:
            own = f"{name}.{each.name.rpartition('.')[2]}" if several else name
            rows.append(
                {
                    "name": own,
                    "agents": list(each.agents),
                    "seeds": len(each.seeds),
                    "params": list(each.params),
                    "description": each.description,
                }
            )
    chosen = select_cases([_Row(row) for row in rows], filter=expression, called="experiments")
    shown = ("name", "agents", "seeds", "params", "description")
    _tell([each.row for each in chosen], shown, as_json=as_json)
    if broken:
        ctx.exit(EXIT_CANNOT_JUDGE)


class _Row:
    """A row that can be filtered: `name` is what a bare word means, other columns have keys."""

    tags: tuple[str, ...] = ()
    difficulty: str | None = None
    type: str | None = None

    def __init__(self, row: dict[str, Any]) -> None:
        self.row = row
        self.id = str(row["name"])
        self.properties = row


def _tell(rows: Sequence[dict[str, Any]], columns: Sequence[str], *, as_json: bool) -> None:
    if as_json:
        import json

        click.echo(json.dumps(rows, indent=2, ensure_ascii=False))
        return
    if not rows:
        click.echo("none", err=True)
        return
    cells = [[_text(row[name]) for name in columns] for row in rows]
    click.echo("\n".join(table(columns, cells, indent="")))


LONGEST = 60
"""Characters of one column; `--json` has all of it."""


def _text(value: Any) -> str:
    items = cast("list[Any]", value) if isinstance(value, list) else [value or ""]
    text = ", ".join(str(item) for item in items)
    return clipped(printable(" ".join(text.split())), LONGEST)
