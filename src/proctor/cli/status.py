"""`proctor status`: how runs are doing, from what they say of themselves."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from proctor.cli._command import Command, Example
from proctor.cli._options import readable_runs_option, results_root, warn
from proctor.errors import EXIT_CANNOT_JUDGE
from proctor.sanitize import printable

if TYPE_CHECKING:
    from datetime import datetime

    from proctor.runs.heartbeat import Beat, Sign

EXAMPLES = [
    Example("proctor status", "runs that are under way, or ended without saying so"),
    Example("proctor status latest", "one run, however it is"),
    Example("proctor status latest --json", "for a program that watches"),
    Example("proctor status --results s3://bucket/results", "runs that ship to an object store"),
]


@click.command(cls=Command, examples=EXAMPLES)
@click.argument("run", required=False)
@readable_runs_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.pass_context
def status(ctx: click.Context, run: str | None, results: Path | None, as_json: bool) -> None:
    """Say how a run under way is doing.

    It is alive, stalled, dead, ended, stopped or failed. Without RUN, every run of the folder
    that has not ended in order. Exits with 2 when one of them is stalled, dead or failed.
    """
    from proctor.runs.find import all_runs
    from proctor.runs.heartbeat import UNWELL, Life, look_at

    root = results_root(results)
    if run is not None:
        from proctor import api

        found, root = api.find_run(run, results=root, warn=warn)
        signs = {found: look_at(found)}
    else:
        all_of = {path: look_at(path) for path in all_runs(root)}
        over = (Life.ENDED, Life.STOPPED)
        signs = {path: sign for path, sign in all_of.items() if sign.life not in over}
    if as_json:
        _tell_program(signs, root)
    else:
        _tell_person(signs, root)
    if any(sign.life in UNWELL for sign in signs.values()):
        ctx.exit(EXIT_CANNOT_JUDGE)


def _tell_program(signs: dict[Path, Sign], root: Path) -> None:
    import msgspec

    from proctor.runs.folder import place_of

    runs: list[dict[str, Any]] = [
        {"run": _name(path, root), "path": place_of(path), **sign._asdict()}
        for path, sign in signs.items()
    ]
    text = msgspec.json.encode({"runs": runs}, enc_hook=str)
    click.echo(msgspec.json.format(text, indent=2).decode())


def _tell_person(signs: dict[Path, Sign], root: Path) -> None:
    from datetime import UTC, datetime

    from proctor.runs.heartbeat import Life

    if not signs:
        click.echo("no run is under way")
        return
    now = datetime.now(UTC)
    for path, sign in signs.items():
        parts = [_life(sign, now), *(_counts(sign.beat) if sign.beat is not None else [])]
        click.echo(printable(f"{_name(path, root)}: {' · '.join(parts)}"))
        if sign.beat is not None:
            where = f"  process {sign.beat.pid} on {sign.beat.host}"
            click.echo(printable(f"{where}, last heard of {_ago(sign.beat.at, now)} ago"))
        if sign.life in (Life.DEAD, Life.FAILED):
            click.echo(printable(f"hint: {_resuming(path, root)}"), err=True)


def _resuming(path: Path, root: Path) -> str:
    from proctor.runs.folder import address_of

    if (address := address_of(path)) is None:
        return f"proctor run --resume {path}"
    here = results_root(None)
    return f"proctor sync {address} {here}, then proctor run --resume {here / _name(path, root)}"


def _life(sign: Sign, now: datetime) -> str:
    if sign.since is None:
        return sign.life
    said = f": {sign.beat.reason}" if sign.beat is not None and sign.beat.reason else ""
    return f"{sign.life} since {sign.since:%Y-%m-%d %H:%M:%S}Z ({_ago(sign.since, now)}){said}"


def _counts(beat: Beat) -> list[str]:
    from proctor.report.progress import duration
    from proctor.words import money

    parts = [f"{beat.done}/{beat.planned - beat.not_needed} done"]
    parts += [f"{beat.running} running"] if beat.running else []
    judged = beat.passed + beat.failed
    parts += [f"{beat.passed}/{judged} passed"] if judged else []
    parts += [f"{beat.errors} could not be judged"] if beat.errors else []
    cost = money(beat.cost_usd, beat.unpriced_calls)
    parts += [cost] if cost else []
    parts += [f"about {duration(beat.eta_s)} left"] if beat.eta_s is not None else []
    return parts


def _ago(moment: datetime, now: datetime) -> str:
    from proctor.report.progress import duration

    return duration(max(0.0, (now - moment).total_seconds()))


def _name(path: Path, root: Path) -> str:
    return str(path.relative_to(root)) if path.is_relative_to(root) else str(path)
