"""`proctor tag`: names for runs, such as the baseline of a gate."""

from __future__ import annotations

from pathlib import Path

import click

from proctor.cli._command import Command, Example
from proctor.cli._options import open_run, record_audit, results_option, results_root

EXAMPLES = [
    Example("proctor tag latest baseline", "`proctor gate latest --baseline baseline` finds it"),
    Example("proctor tag", "which runs have which names?"),
    Example("proctor tag shop/2026-01-31_001 baseline --remove", "take a name away"),
]


@click.command(cls=Command, examples=EXAMPLES)
@click.argument("run", required=False)
@click.argument("name", required=False)
@click.option("--remove", is_flag=True, help="Take the tag away.")
@results_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def tag(
    run: str | None, name: str | None, remove: bool, results: Path | None, as_json: bool
) -> None:
    """Give a run a name, such as baseline.

    Without a name, list tags. Tags stand beside the results. Where several runs carry one, the
    one tagged last is meant.
    """
    from proctor.runs import annotations as notes

    root = results_root(results)
    if remove and name is None:
        raise click.UsageError("name the run and the tag to take away")
    if run is None:
        _list(root, as_json=as_json)
        return
    found = open_run(run, root)
    if name is not None:
        notes.tag(found.path, name, remove=remove)
        what = f"{'removed ' if remove else ''}{name}"
        record_audit("tag", root, run=found.path, run_id=found.run_id, outcome=what)
    click.echo(_text(notes.tags_of(found.path), as_json=as_json))


def _text(tags: tuple[str, ...], *, as_json: bool) -> str:
    import json

    if as_json:
        return json.dumps({"tags": list(tags)})
    return ", ".join(tags) or "no tag"


def _list(root: Path, *, as_json: bool) -> None:
    import json

    from proctor.runs.annotations import tagged
    from proctor.sanitize import printable

    problems: list[str] = []
    found = tagged(root, problems)
    for problem in problems:
        click.echo(f"warning: {printable(problem)}; skipped", err=True)
    if as_json:
        rows = [{"tag": t.name, "run": str(t.run), "at": t.at, "who": t.who} for t in found]
        click.echo(json.dumps({"tags": rows}, indent=2))
        return
    for each in found:
        click.echo(printable(f"{each.name}  {each.run}  ({each.at}, {each.who})"))
    if not found:
        click.echo(printable(f"no run in {root} is tagged"))
