"""`proctor runs`: the status, tags, notes and history of stored runs, and runs as one file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from proctor import api
from proctor.cli._command import Command, Entry, LazyGroup
from proctor.cli._options import (
    FILE,
    checked_run,
    count_option,
    json_option,
    open_run,
    readable_runs_option,
    record_audit,
    results_option,
    warn,
)
from proctor.cli._output import echo_json
from proctor.errors import EXIT_CANNOT_JUDGE, ProctorError
from proctor.sanitize import printable

if TYPE_CHECKING:
    from datetime import datetime

    from proctor.runs.heartbeat import Beat, Sign

_HERE = "proctor.cli.runs"
_EXCHANGE = "proctor.cli.exchange"


@click.group(
    cls=LazyGroup,
    table={
        "status": Entry(_HERE, "status", "Show a run's progress."),
        "tag": Entry(_HERE, "tag", "Tag a run, e.g. as main."),
        "note": Entry(_HERE, "note", "Add a note to a run or trial."),
        "audit": Entry(_HERE, "audit", "Show the log of commands that changed or judged runs."),
        "share": Entry(_HERE, "share", "Write a run to one file to send."),
        # In other modules, which are imported only when they are used.
        "sync": Entry("proctor.cli.sync", "sync", "Copy runs to or from an object store."),
        "export": Entry(_EXCHANGE, "export", "Export trials to CSV, JSON, Parquet or MLflow."),
        "import": Entry(_EXCHANGE, "import_", "Import results of other tools as runs."),
    },
)
def runs() -> None:
    """Manage stored runs: progress, tags, notes, copies.

    Examples:
      # which runs are in progress?
      proctor runs status
      # name a run, to compare with it later
      proctor runs tag latest main
      # for a spreadsheet
      proctor runs export latest -o trials.csv
    """


# -- status --------------------------------------------------------------------------------------


@click.command(cls=Command)
@click.argument("run", required=False)
@readable_runs_option
@json_option
@click.pass_context
def status(ctx: click.Context, run: str | None, results: Path | None, as_json: bool) -> None:
    """Show a run's progress.

    A run is alive, stalled, dead, ended, stopped or failed. Without RUN, shows every run of the
    results folder that has not ended normally. Exits with 2 if one is stalled, dead or failed.

    Examples:
      # runs in progress, and runs that ended abnormally
      proctor runs status
      # one run, whatever its state
      proctor runs status latest
      # for a monitoring script
      proctor runs status latest --json
      # runs in an object store
      proctor runs status --results s3://bucket/results
    """
    from proctor.runs.find import all_runs
    from proctor.runs.folder import place_of
    from proctor.runs.heartbeat import UNWELL, Life, look_at

    root = api.results_root(results)
    if run is not None:
        found, root = api.find_run(run, results=root, warn=warn)
        signs = {found: look_at(found)}
    else:
        every = {path: look_at(path) for path in all_runs(root)}
        # A run that ended or was stopped by a limit needs no attention.
        over = (Life.ENDED, Life.STOPPED)
        signs = {path: sign for path, sign in every.items() if sign.life not in over}
    signs = {path: _recounted(path, sign) for path, sign in signs.items()}
    if as_json:
        rows = [
            {"run": _name(path, root), "path": place_of(path), **sign._asdict()}
            for path, sign in signs.items()
        ]
        echo_json({"runs": rows})
    else:
        _echo_status(signs, root)
    if any(sign.life in UNWELL for sign in signs.values()):
        ctx.exit(EXIT_CANNOT_JUDGE)


def _recounted(path: Path, sign: Sign) -> Sign:
    """Count the trials of a dead run from its journal: its last beat was seconds too early."""
    from msgspec.structs import replace

    from proctor.runs.heartbeat import Life
    from proctor.runs.run import Run

    if sign.life != Life.DEAD or sign.beat is None:
        return sign
    try:
        run = Run(path)
        totals, planned = run.totals, sum(cell.planned for cell in run.cells)
    except (ProctorError, KeyError, TypeError):
        return sign  # a damaged spec: the last beat is all there is
    beat = replace(
        sign.beat,
        planned=planned,
        done=totals.trials,
        not_needed=0,
        running=0,
        passed=totals.passed,
        failed=totals.failed + totals.hard_fail,
        errors=totals.unjudged,
        cancelled=totals.cancelled,
        cost_usd=totals.cost_usd,
        judge_cost_usd=totals.judge_cost_usd,
        unpriced_calls=totals.unpriced_calls,
        tokens=totals.tokens or 0,
        eta_s=None,
    )
    return sign._replace(beat=beat)


def _echo_status(signs: dict[Path, Sign], root: Path) -> None:
    from datetime import UTC, datetime

    from proctor.runs.folder import address_of
    from proctor.runs.heartbeat import Life

    if not signs:
        click.echo("no run in progress")
        return
    now = datetime.now(UTC)
    for path, sign in signs.items():
        life = str(sign.life)
        if sign.since is not None:
            reason = f": {sign.beat.reason}" if sign.beat and sign.beat.reason else ""
            since = f"{sign.since:%Y-%m-%d %H:%M:%S}Z ({_ago(sign.since, now)})"
            life = f"{sign.life} since {since}{reason}"
        parts = [life, *(_counts(sign.beat) if sign.beat is not None else [])]
        click.echo(printable(f"{_name(path, root)}: {' · '.join(parts)}"))
        if sign.beat is not None:
            process = f"  process {sign.beat.pid} on {sign.beat.host}"
            click.echo(printable(f"{process}, last heartbeat {_ago(sign.beat.at, now)} ago"))
        if sign.life in (Life.DEAD, Life.FAILED):
            resume = f"proctor run --resume {path}"
            # A remote run is only a copy here: it must be downloaded before it can be resumed.
            if (address := address_of(path)) is not None:
                here = api.results_root()
                resume = (
                    f"proctor runs sync {address} {here}, "
                    f"then proctor run --resume {here / _name(path, root)}"
                )
            click.echo(printable(f"hint: {resume}"), err=True)


def _counts(beat: Beat) -> list[str]:
    from proctor.formatting import money, rough_duration

    # Trials that early stopping made unnecessary will never be done.
    parts = [f"{beat.done}/{beat.planned - beat.not_needed} done"]
    parts += [f"{beat.running} running"] if beat.running else []
    # Rates are over judged trials; the others are counted separately.
    judged = beat.passed + beat.failed
    parts += [f"{beat.passed}/{judged} passed"] if judged else []
    parts += [f"{beat.errors} could not be judged"] if beat.errors else []
    cost, judges = money(beat.cost_usd, beat.unpriced_calls), money(beat.judge_cost_usd)
    parts += [cost] if cost else []
    parts += [f"judges {judges}"] if judges else []
    parts += [f"about {rough_duration(beat.eta_s)} left"] if beat.eta_s is not None else []
    return parts


def _ago(moment: datetime, now: datetime) -> str:
    from proctor.formatting import rough_duration

    # The clocks of two machines may differ: never less than 0.
    return rough_duration(max(0.0, (now - moment).total_seconds()))


def _name(path: Path, root: Path) -> str:
    return str(path.relative_to(root)) if path.is_relative_to(root) else str(path)


# -- tags and notes ------------------------------------------------------------------------------


@click.command(cls=Command)
@click.argument("run", required=False)
@click.argument("name", required=False)
@click.option("--remove", is_flag=True, help="Remove the tag.")
@results_option
@json_option
def tag(
    run: str | None, name: str | None, remove: bool, results: Path | None, as_json: bool
) -> None:
    """Tag a run, e.g. as main.

    Without a name, lists tags. Tags are stored with the results. If several runs have the same tag,
    it refers to the one tagged last.

    Examples:
      # then: proctor gate latest --against main
      proctor runs tag latest main
      # list all tags
      proctor runs tag
      # remove a tag
      proctor runs tag shop/2026-01-31_001 main --remove
    """
    from proctor.runs import annotations as notes

    root = api.results_root(results)
    if remove and name is None:
        raise click.UsageError("--remove needs a run and a tag")
    if run is None:
        _list_tags(root, as_json=as_json)
        return
    found = open_run(run, root)
    if name is not None:
        notes.tag(found.path, name, remove=remove)
        what = f"{'removed ' if remove else ''}{name}"
        record_audit("tag", root, run=found.path, run_id=found.run_id, outcome=what)
    # The tags after the change, so that the user sees the result.
    tags = notes.tags_of(found.path)
    click.echo(json.dumps({"tags": list(tags)}) if as_json else ", ".join(tags) or "no tags")


def _list_tags(root: Path, *, as_json: bool) -> None:
    from proctor.runs.annotations import tagged

    problems: list[str] = []
    found = tagged(root, problems)
    for problem in problems:
        warn(f"{problem}; skipped")
    if as_json:
        rows = [{"tag": t.name, "run": str(t.run), "at": t.at, "who": t.who} for t in found]
        echo_json({"tags": rows})
        return
    for each in found:
        click.echo(printable(f"{each.name}  {each.run}  ({each.at}, {each.who})"))
    if not found:
        click.echo(printable(f"no tagged runs in {root}"))


@click.command(cls=Command)
@click.argument("run")
@click.argument("texts", nargs=-1, metavar="[TRIAL] [TEXT]")
@results_option
@json_option
def note(run: str, texts: tuple[str, ...], results: Path | None, as_json: bool) -> None:
    """Add a note to a run or trial.

    Without TEXT, lists the notes. TRIAL is its name in reports (case/agent/seed/index) or its trace
    id.

    Examples:
      # about a run
      proctor runs note latest "the search service was down until noon"
      # about a trial
      proctor runs note latest refund-1/fast/0/2 "the judge is wrong here"
      # list the notes
      proctor runs note latest
    """
    from proctor.runs import annotations as notes

    # Most often a text without quotes, of which the shell made several words.
    if len(texts) > 2:
        raise click.UsageError("put the text in quotes: proctor runs note RUN [TRIAL] TEXT")
    root = api.results_root(results)
    found = open_run(run, root)
    if texts:
        trial = texts[0] if len(texts) > 1 else None
        notes.annotate(found.path, texts[-1], trial=trial)
        record_audit("note", root, run=found.path, run_id=found.run_id)
    problems: list[str] = []
    every = notes.annotations_of(found.path, problems)
    for problem in problems:
        warn(f"{problem}; skipped")
    if as_json:
        tags = notes.tags_of(found.path)
        echo_json({"run": found.path, "tags": tags, "annotations": every})
        return
    for each in every:
        about = f" {each.trial}" if each.trial else ""
        click.echo(printable(f"{each.at} {each.who}{about}: {each.text}"))
    if not every:
        click.echo("no notes")


# -- audit and share -----------------------------------------------------------------------------


@click.command(cls=Command)
@click.option("--command", metavar="NAME", help="Only this command, e.g. run or gate.")
@click.option("--run", metavar="TEXT", help="Only entries about runs with this in their path.")
@count_option("--last", "Only the last N entries.")
@results_option
@json_option
def audit(
    command: str | None, run: str | None, last: int | None, results: Path | None, as_json: bool
) -> None:
    """Show the log of commands that changed or judged runs.

    Shows who ran which command, when, with which commit and on which host. The log is append-only.

    Examples:
      # everything, newest last
      proctor runs audit
      # the last five gates
      proctor runs audit --command gate --last 5
      # as JSON
      proctor runs audit --json
    """
    from proctor.errors import hint_among
    from proctor.runs.audit import entries

    root = api.results_root(results)
    problems: list[str] = []
    every = list(entries(root, problems))
    found = [
        entry
        for entry in every
        if (command is None or entry.command == command)
        and (run is None or run in (entry.run or ""))
    ][-(last or 0) :]  # -0 is 0: without --last, all of them
    for problem in problems:
        warn(f"{problem}; skipped")
    if as_json:
        echo_json({"root": root, "entries": found})
        return
    for entry in found:
        commit = "no commit" if entry.commit is None else entry.commit[:10]
        changed = "+changes" if entry.dirty else ""
        about = f" {entry.run}" if entry.run else ""
        code = "" if entry.exit_code is None else f" → {entry.exit_code}"
        outcome = f" ({entry.outcome})" if entry.outcome else ""
        line = (
            f"{entry.at} {entry.who}@{entry.host} {commit}{changed} {entry.command}{about}"
            f"{code}{outcome}: {entry.line}"
        )
        click.echo(printable(line))
    # A name that no entry has is probably a typing error.
    if not found and every and command is not None:
        click.echo(printable(f"no entries for the command {command!r} in {root}"))
        known = list(dict.fromkeys(entry.command for entry in every))
        click.echo(f"hint: {hint_among(command, known)}", err=True)
    elif not found:
        click.echo(printable(f"no entries in {root}"))


@click.command(cls=Command)
@click.argument("run")
@click.option(
    "-o",
    "--output",
    type=FILE,
    help="The file to write: .html for one page, .zip for everything.  "
    "[default: <experiment>-<run>.zip]",
)
@results_option
def share(*, run: str, output: Path | None, results: Path | None) -> None:
    """Write a run to one file to send.

    RUN is a run folder, a tag, or `latest`. Secrets are redacted again. Prints what the file
    contains.

    Examples:
      # everything, in a zip named after the run
      proctor runs share latest
      # one page to send
      proctor runs share latest -o report.html
      # the page and all results
      proctor runs share RUN -o run.zip
    """
    from proctor.formatting import plural
    from proctor.report.share import share as share_run
    from proctor.sanitize import line
    from proctor.spec import load_configuration

    root = api.results_root(results)
    found = checked_run(open_run(run, root))
    # Secrets are redacted when a run is stored, but patterns may have been added since.
    redactor = load_configuration().settings.redactor()
    if output is None:
        output = Path(f"{found.path.resolve().parent.name}-{found.path.resolve().name}.zip")
    made = share_run(found, output, redactor)
    record_audit("share", root, run=found.path, run_id=found.run_id, outcome=output.name)
    click.echo(f"{line(str(made.path), 400)}: {made.size / 1e6:.1f} MB")
    for part in made.inside:
        click.echo(f"  {line(part, 400)}")
    click.echo(f"redacted again: {plural(made.redacted, 'secret')} removed")
