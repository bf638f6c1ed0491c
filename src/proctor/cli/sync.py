"""`proctor sync`: runs to object stores and back."""

from __future__ import annotations

import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from proctor.cli._command import Command, Example
from proctor.cli._options import POSITIVE, record_audit, results_option, results_root
from proctor.sanitize import printable
from proctor.words import plural

if TYPE_CHECKING:
    from proctor.runs.remote.object_store import Patience
    from proctor.runs.remote.transfer import TransferResult, TransferStep

EXAMPLES = [
    Example("proctor sync latest s3://bucket/results", "send a run; again to go on where it was"),
    Example("proctor sync results s3://bucket/results", "send every run of a folder"),
    Example("proctor sync s3://bucket/results/shop/2026-01-31_001 results", "bring a run back"),
    Example("proctor sync s3://bucket/results --verify", "read all of it and compare checksums"),
]


@click.command(cls=Command, examples=EXAMPLES)
@click.argument("source")
@click.argument("target", required=False)
@click.option("--verify", is_flag=True, help="Read everything back and compare checksums.")
@click.option(
    "--at-once",
    type=click.IntRange(1, 64),
    default=4,
    show_default=True,
    help="Files under way at a time.",
)
@click.option(
    "--timeout",
    type=POSITIVE,
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="Silence after which a request is tried again.",
)
@click.option("--allow-http", is_flag=True, help="Let an endpoint beyond this machine be http://.")
@click.option("--quiet", is_flag=True, help="No progress.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@results_option
def sync(
    source: str,
    target: str | None,
    *,
    verify: bool,
    quiet: bool,
    as_json: bool,
    results: Path | None,
    **given: Any,
) -> None:
    """Send runs to an object store, or bring them back.

    SOURCE is a run, a folder of runs, or an address: s3://bucket/prefix, gs://, az://, file:///.
    TARGET is the folder or address that runs are kept below, each under its own name. Files that
    are there already with the same checksum are not sent again. With only an address and --verify,
    what is there is checked. Credentials come from the environment.
    """
    from proctor.report.progress import StatusLine
    from proctor.runs.remote.object_store import Patience

    patience = Patience(**given)
    root = results_root(results)
    status = None if quiet or not sys.stderr.isatty() else StatusLine(sys.stderr)

    def show(step: TransferStep) -> None:
        if status is not None:
            status.show(f"{step.done}/{step.of}  {step.name}")

    work, log = _work(source, target, root, patience, verify=verify, tell=show)
    try:
        moved = _to_end(work)
    finally:
        if status is not None:
            status.clear()
    if log is not None:
        for each in moved:
            record_audit("sync", log, run=each.name, outcome=f"{each.state}, to {target}")
    _tell(moved, as_json=as_json)


def _work(
    source: str,
    target: str | None,
    root: Path,
    patience: Patience,
    *,
    verify: bool,
    tell: Any,
) -> tuple[Coroutine[Any, Any, list[TransferResult]], Path | None]:
    """What is to be done, by which side is where; and the folder of runs it is put on record in."""
    from proctor.runs import audit
    from proctor.runs.remote import object_store, transfer
    from proctor.runs.remote.manifest import NAME

    far = source if object_store.is_address(source) else None
    if far is None and (Path(source) / NAME).is_file():
        far = object_store.of_folder(Path(source))
    if target is None:
        if far is None or not verify:
            raise click.UsageError("say where to: a folder, or an address such as s3://bucket/x")
        return transfer.look_over(far, patience, tell=tell), None
    to_far = object_store.is_address(target)
    if far is not None:
        if to_far:
            raise click.UsageError("one of the two must be a folder: bring the run here first")
        return transfer.bring(far, Path(target), patience, tell=tell), Path(target)
    runs = transfer.runs_meant(source, root)
    base = Path(source) if len(runs) > 1 else root
    to = target if to_far else object_store.of_folder(Path(target))
    work = transfer.send(runs, base, to, patience, verify=verify, tell=tell)
    return work, audit.root_of(runs[0])


def _to_end(work: Coroutine[Any, Any, list[TransferResult]]) -> list[TransferResult]:
    import asyncio

    try:
        return asyncio.run(work)
    except KeyboardInterrupt:
        click.echo("interrupted; the same command goes on from here", err=True)
        raise


def _tell(moved: list[TransferResult], *, as_json: bool) -> None:
    import json

    if as_json:
        click.echo(json.dumps({"runs": [each._asdict() for each in moved]}, indent=2))
        return
    for each in moved:
        same = each.files - each.moved
        parts = [f"{plural(each.moved, 'file')} moved ({each.bytes_moved:,} bytes)"]
        parts += [f"{same} were there"] if same else []
        parts += ["checksums verified"] if each.verified else []
        click.echo(printable(f"{each.name}: {', '.join(parts)}"))
        if each.state == "running":
            click.echo(
                "  the run had not ended when it was last shipped: "
                "`proctor run --resume` does what is left",
                err=True,
            )
