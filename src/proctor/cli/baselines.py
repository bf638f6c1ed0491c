"""`proctor baselines`: which versions have been saved, of what, when, and how they did."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from proctor.cli._command import Command, Example
from proctor.tables import table

if TYPE_CHECKING:
    from proctor.runs.baselines import Baseline, BaselineStore

EXAMPLES = [
    Example("proctor baselines", "what is saved in ./baselines?"),
    Example("proctor baselines --suite suite.yaml --agent my_pkg.agent:answer", "of one agent"),
    Example("proctor baselines --json", "the same for a program to read"),
]


@click.command(cls=Command, examples=EXAMPLES)
@click.option("--agent", help="Only the baselines of this agent.")
@click.option(
    "--suite", type=click.Path(path_type=Path, dir_okay=False), help="Where this suite keeps them."
)
@click.option(
    "--dir", "folder", type=click.Path(path_type=Path, file_okay=False), help="The folder itself."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def baselines(agent: str | None, suite: Path | None, folder: Path | None, as_json: bool) -> None:
    """List saved baselines."""
    from proctor.sanitize import line

    store = _store(suite, folder)
    listing = store.list(agent)
    for problem in listing.problems:
        click.echo(f"warning: {line(problem, 500)}; skipped", err=True)
    if as_json:
        click.echo(
            json.dumps({"baselines": [_entry(store, b) for b in listing.baselines]}, indent=2)
        )
        return
    if not listing.baselines:
        whose = f" of agent {agent!r}" if agent else ""
        click.echo(line(f"no baselines{whose} in {store.root}", 500))
        click.echo("hint: `proctor save suite.yaml --version v1` saves some", err=True)
        return
    head = ("AGENT", "VERSION", "CASE", "SAVED", "MODEL", "PRECHECK")
    rows = [_row(each) for each in listing.baselines]
    click.echo("\n".join(table(head, rows, indent="")))


def _store(suite: Path | None, folder: Path | None) -> BaselineStore:
    from proctor.runs.baselines import BaselineStore

    if suite is not None and folder is not None:
        raise click.UsageError("give --suite or --dir, not both")
    if folder is not None:
        return BaselineStore(folder)
    if suite is not None:
        from proctor.spec import load_suite
        from proctor.trials.baselines import store_of

        return store_of(load_suite(suite, need_agent=False))
    from proctor.spec import load_configuration

    return BaselineStore(load_configuration().baselines or Path("baselines"))


def _row(each: Baseline) -> list[str]:
    from proctor.sanitize import line

    saved = f"{each.saved:%Y-%m-%d %H:%M} UTC"
    precheck = str(each.precheck.status) + (", forced" if each.precheck.forced else "")
    names = [line(part, 60) for part in (each.agent, each.version, each.case)]
    return [*names, saved, line(", ".join(each.models), 60) or "-", precheck]


def _entry(store: BaselineStore, each: Baseline) -> dict[str, Any]:
    return {
        "agent": each.agent,
        "version": each.version,
        "case": each.case,
        "saved": each.saved.isoformat(),
        "models": list(each.models),
        "spec_hash": each.spec_hash,
        "proctor": each.proctor,
        "precheck": {
            "status": str(each.precheck.status),
            "judged": each.precheck.judged,
            "score": each.precheck.score,
            "forced": each.precheck.forced,
            "reasons": list(each.precheck.reasons),
        },
        "path": str(store.path_of(each.agent, each.version, each.case)),
    }
