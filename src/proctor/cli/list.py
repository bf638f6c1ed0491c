"""`proctor list`: cases and experiments."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from proctor.cli._command import CommandGroup
from proctor.cli._options import complete_runs_or_files, filter_option, json_option
from proctor.cli._output import echo_json
from proctor.errors import EXIT_CANNOT_JUDGE, ProctorError
from proctor.formatting import clipped
from proctor.sanitize import printable
from proctor.tables import table

if TYPE_CHECKING:
    from collections.abc import Sequence


@click.group(name="list", cls=CommandGroup, moved={"agents": "is now `proctor agent list`"})
def list_all() -> None:
    """List cases and experiments.

    Examples:
      # scenarios of the catalog
      proctor list cases --filter difficulty:hard
      # experiments of the project
      proctor list experiments
    """


@list_all.command()
@click.argument("suites", nargs=-1, type=click.Path(path_type=Path))
@filter_option("cases")
@json_option
@click.pass_context
def cases(ctx: click.Context, suites: tuple[Path, ...], expression: str, as_json: bool) -> None:
    """List scenarios of the catalog, or cases of suites.

    Exits with 2 if a template cannot be read; the others are listed.

    Examples:
      # scenarios of the catalog
      proctor list cases --filter difficulty:hard
      # cases of a suite, as JSON
      proctor list cases suite.yaml --json
    """
    from proctor.scenarios import catalog_for
    from proctor.spec import load_configuration, load_suite, select_cases
    from proctor.trials.scenario_check import readable

    found: list[Any] = []
    for path in suites:
        found.extend(load_suite(path, need_agent=False).cases)
    broken: list[Any] = []
    if not suites:
        templates, broken = readable(catalog_for(load_configuration()))
        found.extend(templates)
    # A broken template must not hide the others; it is still an error at the end.
    for each in broken:
        click.echo(printable(f"error: {each.case} {each.problems[0]}"), err=True)
    chosen = select_cases(found, filter=expression)
    columns = ("id", "difficulty", "type", "tags", "description")
    echo_rows([{name: getattr(case, name) for name in columns} for case in chosen], as_json)
    if broken:
        ctx.exit(EXIT_CANNOT_JUDGE)


@list_all.command()
@filter_option("experiments", "mutualism*")
@json_option
@click.pass_context
def experiments(ctx: click.Context, expression: str, as_json: bool) -> None:
    """List the experiments of the project.

    Exits with 2 if one cannot be read; the others are listed.

    Examples:
      # experiments of the project
      proctor list experiments
    """
    from proctor.spec import load_configuration, select_cases
    from proctor.spec.load import find_experiments
    from proctor.trials.target import listed_experiments

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
        # A file with several experiments is run by `file.experiment`.
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
    chosen = select_cases(
        [FilterableRow(row) for row in rows], filter=expression, called="experiments"
    )
    echo_rows([each.row for each in chosen], as_json)
    if broken:
        ctx.exit(EXIT_CANNOT_JUDGE)


class FilterableRow:
    """A table row for `select_cases`: a bare word matches `name`, KEY:VALUE another column."""

    # `select_cases` expects the attributes of a case.
    tags: tuple[str, ...] = ()
    difficulty: str | None = None
    type: str | None = None

    def __init__(self, row: dict[str, Any]) -> None:
        self.row = row
        self.id = str(row["name"])
        self.properties = row


def echo_rows(rows: Sequence[dict[str, Any]], as_json: bool) -> None:
    """Print rows, which have the same columns, as a table or as JSON."""
    if as_json:
        echo_json(rows)
        return
    if not rows:
        # To stderr: a script that counts lines must find none.
        click.echo("none", err=True)
        return
    cells = [[_text(value) for value in row.values()] for row in rows]
    click.echo("\n".join(table(list(rows[0]), cells, indent="")))


MAX_WIDTH = 60
"""Characters of one column; `--json` has the whole text."""


def _text(value: Any) -> str:
    items = cast("Sequence[Any]", value if isinstance(value, list | tuple) else [value or ""])
    text = ", ".join(str(item) for item in items)
    return clipped(printable(" ".join(text.split())), MAX_WIDTH)


@click.group(cls=CommandGroup)
def data() -> None:
    """Show and compare the data that cases are made from.

    Examples:
      # which rows is it made of?
      proctor data show suite.yaml
      # what changed between two versions
      proctor data diff suite_v1.yaml suite.yaml
    """


@data.command()
@click.argument("source", metavar="SUITE|RUN", shell_complete=complete_runs_or_files)
@json_option
def show(source: str, as_json: bool) -> None:
    """Show the version of a suite's data, or of the data of a run.

    Examples:
      # which rows is it made of?
      proctor data show suite.yaml
    """
    version, cases = _data_of(source)
    if as_json:
        echo_json({"data": version, "cases": len(cases)})
        return
    if version is None:
        click.echo(f"{len(cases):,} cases, not made from data")
        return
    rows = [("file", version["file"]), ("rows", f"{version['rows']:,}")]
    rows += [(key, str(version[key])) for key in ("split", "sample", "seed") if version.get(key)]
    rows += [("version", version["sha256"]), ("cases", f"{len(cases):,}")]
    for name, value in rows:
        click.echo(f"{name:<9}{printable(value)}")


@data.command()
@click.argument("old", metavar="SUITE|RUN", shell_complete=complete_runs_or_files)
@click.argument("new", metavar="SUITE|RUN", shell_complete=complete_runs_or_files)
@click.option("--most", type=click.IntRange(0), default=20, help="Changes to list.")
@json_option
def diff(old: str, new: str, most: int, as_json: bool) -> None:
    """Show which cases were added, removed and changed between two versions.

    Cases are identified by their id, so data should have an id column.

    Examples:
      proctor data diff suite_v1.yaml suite.yaml
      # what changed since a run
      proctor data diff latest suite.yaml
    """
    from proctor.spec.datasets import case_changes

    changes = case_changes(_data_of(old)[1], _data_of(new)[1])
    counts = {
        kind: sum(c.change == kind for c in changes) for kind in ("added", "removed", "changed")
    }
    if as_json:
        echo_json({**counts, "changes": [change._asdict() for change in changes]})
        return
    for change in changes[:most]:
        fields = f": {', '.join(change.fields)}" if change.fields else ""
        click.echo(printable(f"{change.change:8} {change.case}{fields}"))
    if len(changes) > most:
        click.echo(f"and {len(changes) - most} more (--most {len(changes)})")
    click.echo(", ".join(f"{count} {kind}" for kind, count in counts.items()))


def _data_of(source: str) -> tuple[dict[str, Any] | None, dict[str, dict[str, Any]]]:
    """Return the recorded version of the data, and the cases by id, of a suite file or a run."""
    if Path(source).suffix in (".yaml", ".yml", ".json"):
        from proctor.spec import load_suite

        suite = load_suite(source, need_agent=False)
        written = suite.resolved()
        cases = zip((case.id for case in suite.cases), written["cases"], strict=True)
    else:
        from proctor.api import open_run

        written = open_run(source).folder.read_spec()["suite"]
        cases = ((str(case.get("id")), case) for case in written["cases"])
    return written.get("data"), {name: {**case, "id": name} for name, case in cases}
