"""`proctor runs sync`: copy runs to and from object stores."""

from __future__ import annotations

import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from proctor.cli import _options
from proctor.cli._command import Command
from proctor.cli._options import option
from proctor.cli._output import echo_json
from proctor.formatting import plural
from proctor.sanitize import printable

if TYPE_CHECKING:
    from proctor.runs.remote.object_store import StoreOptions
    from proctor.runs.remote.transfer import TransferResult, TransferStep


@click.command(cls=Command)
@click.argument("source")
@click.argument("target", required=False)
@option("--verify", "Read all files back and compare checksums.", is_flag=True)
@option("--at-once", "Files to transfer at the same time.", type=click.IntRange(1, 64), default=4)
@option(
    "--timeout SECONDS",
    "Retry a request after this long without data.",
    type=_options.POSITIVE,
    default=30.0,
)
@option("--allow-http", "Allow http:// for endpoints on other machines.", is_flag=True)
@_options.quiet_option
@_options.json_option
@_options.results_option
def sync(
    source: str,
    target: str | None,
    *,
    verify: bool,
    quiet: bool,
    as_json: bool,
    root: Path,
    **given: Any,
) -> None:
    """Copy runs to or from an object store.

    SOURCE is a run, a results folder, or an address: s3://bucket/prefix, gs://, az://, file:///.
    TARGET is the results folder or address to copy to; runs keep their names. Files that exist
    there with the same checksum are skipped. With --verify and only an address, its files are
    verified. Credentials come from the environment.

    Examples:
      # upload a run; repeat to resume
      proctor runs sync latest s3://bucket/results
      # upload all runs of a folder
      proctor runs sync results s3://bucket/results
      # download a run
      proctor runs sync s3://bucket/results/shop/2026-01-31_001 results
      # verify all checksums there
      proctor runs sync s3://bucket/results --verify
    """
    from proctor.background import run_sync
    from proctor.report.progress import StatusLine
    from proctor.runs.remote.object_store import StoreOptions

    options = StoreOptions(**given)
    # A progress line would fill a log file with copies of itself.
    status = None if quiet or not sys.stderr.isatty() else StatusLine(sys.stderr)

    def show(step: TransferStep) -> None:
        if status is not None:
            status.show(f"{step.done}/{step.of}  {step.name}")

    work, log = _work(source, target, root, options, verify=verify, progress=show)
    try:
        moved = run_sync(work)
    except KeyboardInterrupt:
        click.echo("interrupted; run the same command to resume", err=True)
        raise
    finally:
        if status is not None:
            status.clear()
    # Logged only after the transfer has succeeded.
    if log is not None:
        for each in moved:
            _options.record_audit("sync", log, run=each.name, outcome=f"{each.state}, to {target}")
    if as_json:
        echo_json({"runs": [each._asdict() for each in moved]})
        return
    for each in moved:
        same = each.files - each.moved
        parts = [f"{plural(each.moved, 'file')} copied ({each.bytes_moved:,} bytes)"]
        parts += [f"{same} unchanged"] if same else []
        parts += ["checksums verified"] if each.verified else []
        click.echo(printable(f"{each.name}: {', '.join(parts)}"))
        if each.state == "running":
            click.echo(
                "  the run was still in progress when it was last uploaded: "
                "continue it with `proctor run --resume`",
                err=True,
            )


def _work(
    source: str,
    target: str | None,
    root: Path,
    options: StoreOptions,
    *,
    verify: bool,
    progress: Any,
) -> tuple[Coroutine[Any, Any, list[TransferResult]], Path | None]:
    """Return the transfer to run, and the results folder whose audit log records it."""
    from proctor.runs import audit
    from proctor.runs.remote import object_store, transfer
    from proctor.runs.remote.object_store import NAME

    # A folder with a manifest was written by `sync`, so it is read like an object store.
    far = source if object_store.is_address(source) else None
    if far is None and (Path(source) / NAME).is_file():
        far = object_store.of_folder(Path(source))
    if target is None:
        # Only verification needs no target.
        if far is None or not verify:
            raise click.UsageError(
                "TARGET is missing: a folder, or an address such as s3://bucket/x"
            )
        return transfer.verify_runs(far, options, on_step=progress), None
    to_far = object_store.is_address(target)
    if far is not None:
        if to_far:
            raise click.UsageError("one of the two must be a local folder: download the run first")
        return transfer.download_runs(far, Path(target), options, on_step=progress), Path(target)
    runs = transfer.select_runs(source, root)
    # Runs keep their names relative to the folder that was given.
    base = Path(source) if len(runs) > 1 else root
    to = target if to_far else object_store.of_folder(Path(target))
    work = transfer.upload_runs(runs, base, to, options, verify=verify, on_step=progress)
    return work, audit.root_of(runs[0])
