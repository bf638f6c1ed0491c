"""`proctor runs`: the status, tags, notes, history, files and copies of stored runs."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Coroutine
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from proctor import api
from proctor.cli import _options
from proctor.cli._command import CommandGroup
from proctor.cli._options import option
from proctor.cli._output import echo_json
from proctor.cli.exchange import export, import_
from proctor.errors import EXIT_CANNOT_JUDGE, ProctorError, hint_among
from proctor.formatting import money, plural, rough_duration
from proctor.sanitize import line, printable

if TYPE_CHECKING:
    from proctor.runs.annotations import LabelVerdict
    from proctor.runs.heartbeat import Beat, Sign
    from proctor.runs.remote.object_store import StoreOptions
    from proctor.runs.remote.transfer import TransferResult, TransferStep


@click.group(cls=CommandGroup)
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


@runs.command()
@click.argument("run", required=False, shell_complete=_options.complete_runs)
@_options.readable_runs_option
@_options.json_option
@click.pass_context
def status(ctx: click.Context, run: str | None, root: Path, as_json: bool) -> None:
    """Show a run's progress.

    A run is alive, stalled, dead, ended, stopped or failed. Without RUN, shows every run of the
    results folder that has not ended normally. Exits with 2 if one is stalled, dead,
    failed or damaged.

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
    from proctor.runs.folder import all_runs, place_of
    from proctor.runs.heartbeat import UNWELL, Life, look_at
    from proctor.runs.run import Run

    if run is not None:
        found, root = api.find_run(run, results=root, warn=_options.warn)
        signs = {found: look_at(found)}
    else:
        every = {path: look_at(path) for path in all_runs(root)}
        # A run that ended or was stopped by a limit needs no attention.
        over = (Life.ENDED, Life.STOPPED)
        signs = {path: sign for path, sign in every.items() if sign.life not in over}
    signs = {path: _recounted(path, sign) for path, sign in signs.items()}
    # A torn last line is no damage: it may be about to be written.
    damaged: list[Run] = []
    for path in signs:
        with contextlib.suppress(ProctorError):  # a spec that cannot be read is in its sign
            if (each := Run(path)).damaged:
                damaged.append(_options.checked_run(each))
    if as_json:
        rows = [
            {"run": _name(path, root), "path": place_of(path), **sign._asdict()}
            for path, sign in signs.items()
        ]
        echo_json({"runs": rows})
    else:
        _echo_status(signs, root)
    if damaged or any(sign.life in UNWELL for sign in signs.values()):
        ctx.exit(EXIT_CANNOT_JUDGE)


def _recounted(path: Path, sign: Sign) -> Sign:
    """Count the trials of a run from its journal, as every other command does.

    The last beat is seconds old, and a running session cannot know yet which trials ended after an
    early stop.
    """
    from msgspec.structs import replace

    from proctor.runs.heartbeat import Life
    from proctor.runs.run import Run

    if sign.beat is None:
        return sign
    try:
        run = Run(path)
        totals, planned = run.totals, sum(cell.planned for cell in run.cells)
    except (ProctorError, KeyError, TypeError):
        return sign  # a damaged spec: the last beat is all there is
    alive = sign.life in (Life.ALIVE, Life.STALLED)
    same = ("passed", "cancelled", "cost_usd", "judge_cost_usd", "unpriced_calls")
    beat = replace(
        sign.beat,
        **{name: getattr(totals, name) for name in same},
        planned=planned + totals.after_stop,
        done=totals.trials + totals.after_stop,
        not_needed=0,
        running=sign.beat.running if alive else 0,
        failed=totals.failed + totals.hard_fail,
        errors=totals.unjudged,
        tokens=totals.tokens or 0,
        eta_s=sign.beat.eta_s if alive else None,
    )
    return sign._replace(beat=beat)


def _echo_status(signs: dict[Path, Sign], root: Path) -> None:

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

    # Trials that early stopping made unnecessary will never be done.
    parts = [f"{beat.done}/{beat.planned - beat.not_needed} done"]
    parts += [f"{beat.running} running"] if beat.running else []
    # Rates are over judged trials; the others are counted separately.
    judged = beat.passed + beat.failed
    parts += [f"{beat.passed}/{judged} passed"] if judged else []
    parts += [f"{beat.errors} could not be judged"] if beat.errors else []
    after = beat.done - judged - beat.errors - beat.cancelled
    parts += [f"{after} after an early stop, not counted"] if after else []
    cost, judges = money(beat.cost_usd, beat.unpriced_calls), money(beat.judge_cost_usd)
    parts += [cost] if cost else []
    parts += [f"judges {judges}"] if judges else []
    parts += [f"about {rough_duration(beat.eta_s)} left"] if beat.eta_s is not None else []
    return parts


def _warn_skipped(problems: list[str]) -> None:
    for problem in problems:
        _options.warn(f"{problem}; skipped")


def _ago(moment: datetime, now: datetime) -> str:

    # The clocks of two machines may differ: never less than 0.
    return rough_duration(max(0.0, (now - moment).total_seconds()))


def _name(path: Path, root: Path) -> str:
    return str(path.relative_to(root)) if path.is_relative_to(root) else str(path)


# -- tags and notes ------------------------------------------------------------------------------


@runs.command()
@click.argument("run", required=False, shell_complete=_options.complete_runs)
@click.argument("name", required=False)
@option("--remove", "Remove the tag.", is_flag=True)
@_options.results_option
@_options.json_option
def tag(run: str | None, name: str | None, remove: bool, root: Path, as_json: bool) -> None:
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

    if remove and name is None:
        raise click.UsageError("--remove needs a run and a tag")
    if run is None:
        _list_tags(root, as_json=as_json)
        return
    found = _options.open_run(run, root)
    if name is not None:
        notes.tag(found.path, name, remove=remove)
        what = f"{'removed ' if remove else ''}{name}"
        _options.record_audit("tag", root, run=found.path, run_id=found.run_id, outcome=what)
    # The tags after the change, so that the user sees the result.
    tags = notes.tags_of(found.path)
    click.echo(json.dumps({"tags": list(tags)}) if as_json else ", ".join(tags) or "no tags")


def _list_tags(root: Path, *, as_json: bool) -> None:
    from proctor.runs.annotations import tagged

    problems: list[str] = []
    found = tagged(root, problems)
    _warn_skipped(problems)
    if as_json:
        rows = [{"tag": t.name, "run": str(t.run), "at": t.at, "who": t.who} for t in found]
        echo_json({"tags": rows})
        return
    for each in found:
        click.echo(printable(f"{each.name}  {each.run}  ({each.at}, {each.who})"))
    if not found:
        click.echo(printable(f"no tagged runs in {root}"))


@runs.command()
@click.argument("run", shell_complete=_options.complete_runs)
@click.argument("texts", nargs=-1, metavar="[TRIAL] [TEXT]")
@_options.results_option
@_options.json_option
def note(run: str, texts: tuple[str, ...], root: Path, as_json: bool) -> None:
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
    found = _options.open_run(run, root)
    if texts:
        trial = texts[0] if len(texts) > 1 else None
        notes.annotate(found.path, texts[-1], trial=trial)
        _options.record_audit("note", root, run=found.path, run_id=found.run_id)
    problems: list[str] = []
    every = notes.annotations_of(found.path, problems)
    _warn_skipped(problems)
    if as_json:
        tags = notes.tags_of(found.path)
        echo_json({"run": found.path, "tags": tags, "annotations": every})
        return
    for each in every:
        about = f" {each.trial}" if each.trial else ""
        click.echo(printable(f"{each.at} {each.who}{about}: {each.text}"))
    if not every:
        click.echo("no notes")


@runs.command()
@click.argument("run", shell_complete=_options.complete_runs)
@click.argument("trial", required=False)
@click.argument("verdict", required=False, type=click.Choice(["pass", "fail", "skip"]))
@option("--category", "A kind of failure, e.g. wrong amount.", default="")
@option("--comment", "Why.", default="")
@option("--rater", "Who judged it; default: your user name.")
@option("--sample", "The trial is one of a random sample.", is_flag=True)
@_options.results_option
@_options.json_option
def label(
    run: str,
    trial: str | None,
    verdict: LabelVerdict | None,
    *,
    category: str,
    comment: str,
    rater: str | None,
    sample: bool,
    root: Path,
    as_json: bool,
) -> None:
    """Label a trial by hand: pass, fail or skip.

    Without TRIAL, lists the labels, the agreement of raters and judge, and the corrected pass
    rates. Only labels of a random sample correct pass rates: those of the random queue in the
    viewer, and with --sample those of a sample you drew.

    Examples:
      # the judge passed it, but the amount is wrong
      proctor runs label latest refund-1/fast/0/2 fail --comment "wrong amount"
      # what do the labels say?
      proctor runs label latest
    """
    from proctor.report.figures import agreement_lines, corrected_notes
    from proctor.results.outcomes import corrected_rates, trial_agreement
    from proctor.runs import annotations as notes

    if trial is not None and verdict is None:
        raise click.UsageError("say pass, fail or skip after the trial")
    found = _options.open_run(run, root)
    if trial is not None and verdict is not None:
        rule = "sample" if sample else "chosen"
        given = notes.label(
            found.path, trial, verdict, rater=rater, category=category, comment=comment, rule=rule
        )
        outcome = f"{given.trial}: {verdict}"
        _options.record_audit("label", root, run=found.path, run_id=found.run_id, outcome=outcome)
    problems: list[str] = []
    every = notes.labels_of(found.path, problems)
    _warn_skipped(problems)
    read = _options.read_run(run, root)
    agreed = trial_agreement(every, {one.name: one.passed for one in read.trials()})
    if as_json:
        corrected = corrected_rates(read)
        echo_json({"run": found.path, "labels": every, "agreement": agreed, "corrected": corrected})
        return
    for each in every:
        about = " ".join(part for part in (each.category, each.comment) if part)
        more = f": {about}" if about else ""
        click.echo(printable(f"{each.trial}  {each.verdict}  {each.rater} ({each.rule}){more}"))
    for text in (*agreement_lines(agreed), *corrected_notes(read)):
        click.echo(printable(text))
    if not every:
        click.echo("no labels")


# -- verify, audit and share -----------------------------------------------------------------------


@runs.command()
@click.argument(
    "runs", nargs=-1, required=True, metavar="RUN...", shell_complete=_options.complete_runs
)
@_options.results_option
@_options.json_option
@click.pass_context
def verify(ctx: click.Context, runs: tuple[str, ...], root: Path, as_json: bool) -> None:
    """Check that a run is as it was written.

    Reads the spec, every line of the journal, every trace and every derived file, and compares
    them with their checksums. RUN is a run folder, a tag, or `latest`. Lists what is damaged,
    where, and what to do; exits with 2 if anything is. Runs of older versions have no checksums:
    only what cannot be read is found.

    Examples:
      # one run
      proctor runs verify latest
      # every run of an experiment
      proctor runs verify results/suite/*
    """
    from proctor.formatting import plural
    from proctor.runs.folder import find_run
    from proctor.runs.run import verify as verify_run

    rows, broken = list[dict[str, object]](), 0
    for text in runs:
        path = find_run(text, root)
        damage, checked = verify_run(path)
        broken += bool(damage)
        state = "damaged" if damage else "verified" if checked else "not verified"
        rows.append(
            {"run": str(path), "state": state, "damage": [each._asdict() for each in damage]}
        )
        if as_json:
            continue
        found = plural(len(damage), "part") + " cannot be read" if damage else state
        older = "" if checked else " (an older version wrote it without checksums)"
        click.echo(printable(f"{path}: {found}{older}"))
        for where, what, remedy in damage:
            click.echo(printable(f"  {where}: {what}"))
            click.echo(printable(f"    {remedy}"))
    if as_json:
        echo_json({"runs": rows})
    if broken:
        ctx.exit(EXIT_CANNOT_JUDGE)


@runs.command()
@click.argument("run", shell_complete=_options.complete_runs)
@_options.readable_runs_option
@_options.json_option
@click.pass_context
def validity(ctx: click.Context, run: str, root: Path, as_json: bool) -> None:
    """Search a run for cheating and for cases that measure nothing.

    Looks for trials that read answers, change the grader, copy from the history of a repository,
    answer without work or pass with nothing, and for cases that nobody or everybody passes, that
    better agents fail, that the known solution fails (agents named scripted, oracle or gold) or an
    agent that does nothing passes (named noop or empty). Each finding is a reason to look. Exits
    with 1 if there is any.

    Examples:
      # before anyone reads the figures
      proctor runs validity latest
    """
    from proctor.causes.validity import scan_run, shares_of

    report = scan_run(_options.read_run(run, root))
    if as_json:
        echo_json(report)
    else:
        for finding in report.findings:
            who = f" {finding.agent}" if finding.agent else ""
            who += f" trial {finding.trial}" if finding.trial is not None else ""
            click.echo(printable(f"{finding.kind:24} {finding.case}{who}: {finding.evidence}"))
        counts = ", ".join(f"{kind} {count}" for kind, count in shares_of(report).items())
        click.echo(
            f"{counts or 'no findings'}; searched {report.traces} of {report.trials} trials,"
            f" {plural(report.cases, 'case')}, {plural(report.agents, 'agent')}"
        )
    if report.findings:
        ctx.exit(1)


@runs.command()
@option("--command NAME", "Only this command, e.g. run or gate.")
@option("--run TEXT", "Only entries about runs with this in their path.")
@_options.count_option("--last", "Only the last N entries.")
@_options.results_option
@_options.json_option
def audit(
    command: str | None, run: str | None, last: int | None, root: Path, as_json: bool
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
    from proctor.runs.audit import entries

    problems: list[str] = []
    every = list(entries(root, problems))
    found = [
        entry
        for entry in every
        if (command is None or entry.command == command)
        and (run is None or run in (entry.run or ""))
    ][-(last or 0) :]  # -0 is 0: without --last, all of them
    _warn_skipped(problems)
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


@runs.command()
@click.argument("run", shell_complete=_options.complete_runs)
@option(
    "-o",
    "--output",
    "The file to write: .html for one page, .zip for everything.  "
    "[default: <experiment>-<run>.zip]",
    type=_options.FILE,
)
@_options.results_option
def share(*, run: str, output: Path | None, root: Path) -> None:
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
    from proctor.report.share import share as share_run

    found = _options.checked_run(_options.open_run(run, root))
    # Secrets are redacted when a run is stored, but patterns may have been added since.
    redactor = api.settings().settings.redactor()
    if output is None:
        output = Path(f"{found.path.resolve().parent.name}-{found.path.resolve().name}.zip")
    made = share_run(found, output, redactor)
    _options.record_audit("share", root, run=found.path, run_id=found.run_id, outcome=output.name)
    click.echo(f"{line(str(made.path), 400)}: {made.size / 1e6:.1f} MB")
    for part in made.inside:
        click.echo(f"  {line(part, 400)}")
    click.echo(f"redacted again: {plural(made.redacted, 'secret')} removed")


# -- copies --------------------------------------------------------------------------------------


@runs.command()
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

    work, log = _transfer(source, target, root, options, verify=verify, progress=show)
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


def _transfer(
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


for command in (export, import_):
    runs.add_command(command)
