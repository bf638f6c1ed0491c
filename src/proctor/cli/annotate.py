"""`proctor annotate`: say something about a run or a trial, beside its results."""

from __future__ import annotations

from pathlib import Path

import click

from proctor.cli._command import Command, Example
from proctor.cli._options import open_run, record_audit, results_option, results_root

EXAMPLES = [
    Example('proctor annotate latest "the search service was down until noon"', "of a run"),
    Example('proctor annotate latest refund-1/fast/0/2 "the judge is wrong here"', "of a trial"),
    Example("proctor annotate latest", "what was said so far"),
]


@click.command(cls=Command, examples=EXAMPLES)
@click.argument("run")
@click.argument("words", nargs=-1, metavar="[TRIAL] [TEXT]")
@results_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def annotate(run: str, words: tuple[str, ...], results: Path | None, as_json: bool) -> None:
    """Say something about a run or a trial.

    Without a text, list what was said. A trial is named as reports name it
    (case/agent/seed/index) or by its trace id.
    """
    from proctor.runs import annotations as notes

    if len(words) > 2:
        raise click.UsageError("put the text in quotes: proctor annotate RUN [TRIAL] TEXT")
    root = results_root(results)
    found = open_run(run, root)
    if words:
        trial = words[0] if len(words) > 1 else None
        notes.annotate(found.path, words[-1], trial=trial)
        record_audit("annotate", root, run=found.path, run_id=found.run_id)
    _list(found.path, as_json=as_json)


def _list(path: Path, *, as_json: bool) -> None:
    import msgspec

    from proctor.runs import annotations as notes
    from proctor.sanitize import printable

    problems: list[str] = []
    said = notes.annotations_of(path, problems)
    for problem in problems:
        click.echo(f"warning: {printable(problem)}; skipped", err=True)
    if as_json:
        document = {"run": str(path), "tags": notes.tags_of(path), "annotations": said}
        click.echo(msgspec.json.format(msgspec.json.encode(document), indent=2).decode())
        return
    for note in said:
        about = f" {note.trial}" if note.trial else ""
        click.echo(printable(f"{note.at} {note.who}{about}: {note.text}"))
    if not said:
        click.echo("nothing was said about this run yet")
