"""`proctor run`: run suites, experiments and scenarios, store every trial, and resume runs."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import click

from proctor import api
from proctor.cli._command import Command
from proctor.cli._options import (
    agents_option,
    events_option,
    filter_option,
    folder_or_address,
    format_options,
    from_options,
    log_options,
    options_of,
    split_names,
    tags_option,
    warn,
)
from proctor.errors import EXIT_CANNOT_JUDGE, ProctorError
from proctor.trials.options import RunOptions

if TYPE_CHECKING:
    from types import TracebackType

    from proctor.ops.notify import Notifier
    from proctor.runs.folder import RunFolder
    from proctor.runs.run import Run
    from proctor.runs.trial import TrialStatus
    from proctor.trials.prepare import RunContext
    from proctor.trials.target import Target


SPELLED = {
    "max_cost_usd": "--max-cost",
    "max_seconds": "--max-time",
    "record_to": "--record",
    "replay_from": "--replay",
}
"""Options whose names are shorter than their fields'."""

RUN = click.Path(path_type=Path)


class Invocation(NamedTuple):
    """The options of the command, besides those of the run itself."""

    exclude: tuple[str, ...]
    axes: tuple[str, ...]
    agents: tuple[str, ...]
    listed_agents: tuple[str, ...]
    seeds: str | None
    settings: tuple[str, ...]
    tags: tuple[str, ...]
    expression: str
    results: Path | str | None
    name: str | None
    dry_run: bool
    smoke: bool
    quiet: bool
    as_json: bool
    formats: tuple[str, ...]
    outputs: tuple[str, ...]
    notify_to: tuple[str, ...]
    notify_on: tuple[str, ...]
    notify_template: str | None
    notify_baseline: str | None
    resume: Path | None
    retry_failed: Path | None
    retry_infra: Path | None


@click.command(cls=Command)
@click.argument("targets", nargs=-1, metavar="[TARGET]...")
@options_of(RunOptions, spelled=SPELLED, hidden=("default_trials",))
@agents_option
@click.option(
    "--agents", "listed_agents", multiple=True, metavar="A,B", help="Override the suite's agents."
)
@click.option("--seeds", metavar="SEEDS", help="A count, a range 1..10, or a list 1,5,9.")
@click.option(
    "--axis",
    "axes",
    multiple=True,
    metavar="NAME=A,B",
    help="Run with each of these values of a scenario parameter; repeatable.",
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="Set a scenario parameter, or case.FIELD of every case; repeatable.",
)
@tags_option
@filter_option("cases")
@click.option(
    "--exclude", multiple=True, metavar="GLOB", help="Skip matching scenarios; repeatable."
)
@click.option(
    "--results",
    type=folder_or_address,
    metavar="PATH",
    help="The results folder, or an address: s3://bucket/prefix.",
)
@click.option("--name", help="The name of the experiment.  [default: from TARGET]")
@click.option("--dry-run", is_flag=True, help="Check everything, print the plan, run nothing.")
@click.option("--smoke", is_flag=True, help="Run one trial of the first case per agent.")
@click.option("--quiet", is_flag=True, help="Show no progress and no events.")
@events_option
@format_options
@click.option(
    "--notify",
    "notify_to",
    multiple=True,
    metavar="URL",
    help="Notify this Apprise URL when the run ends; repeatable.",
)
@click.option(
    "--notify-on",
    "notify_on",
    multiple=True,
    type=click.Choice(("end", "failure", "regression", "budget")),
    help="When to notify.  [default: end]",
)
@click.option(
    "--notify-template", metavar="TEXT|@FILE", help="The message, with {name}, {outcome}, …"
)
@click.option("--notify-baseline", metavar="RUN|TAG", help="Baseline for regression alerts.")
@log_options
@click.option("--resume", type=RUN, metavar="RUN", help="Resume an unfinished run.")
@click.option("--retry-failed", type=RUN, metavar="RUN", help="Resume and retry failed trials.")
@click.option(
    "--retry-infra", type=RUN, metavar="RUN", help="Resume and retry infrastructure errors."
)
@click.pass_context
def run(ctx: click.Context, targets: tuple[str, ...], **given: Any) -> None:
    """Run suites, experiments or scenarios and store every trial.

    TARGET is a file (a suite, or experiments in YAML or Python), the dotted name of an experiment
    below the project's folder, a scenario of the catalog, or a scope: every scenario in it. Several
    targets, or a glob ('mutualism/*') or a filter (difficulty:hard) over the catalog, are run
    together as one experiment.

    Exits with 0 if every cell passed, 1 if one did not, 2 if something could not be judged or the
    run stopped at a limit, 130 or 143 if interrupted.

    Examples:
      # ten trials per case
      proctor run suite.yaml --trials 10 --concurrency 8
      # an experiment, ten seeds
      proctor run experiments/mutualism.yaml --seeds 10
      # one scenario
      proctor run mutualism.hidden_dependency --agent random --seed 7
      # all scenarios of a scope, two agents, ten seeds
      proctor run 'mutualism/*' --agents random,scripted --seeds 10
      # hard scenarios, with several values of a parameter
      proctor run difficulty:hard --agents random --axis species=5,7,9
      # print the plan and its estimated cost
      proctor run suite.yaml --dry-run
      # limit the cost
      proctor run suite.yaml --max-cost 2 --early-stop
      # record model calls for CI
      proctor run suite.yaml --record calls.jsonl
      # replay them without a key
      proctor run suite.yaml --replay calls.jsonl
      # notify on failure
      proctor run suite.yaml --notify slack://… --notify-on failure
      # store in an object store
      proctor run suite.yaml --results s3://bucket/prefix
      # on many machines
      proctor run exp.yaml --executor ray --address ray://head:10001
      # resume an unfinished run
      proctor run --resume results/suite/2026-01-31_001
    """
    how = Invocation(**{name: given.pop(name) for name in Invocation._fields})
    resumed = [path for path in (how.resume, how.retry_failed, how.retry_infra) if path is not None]
    if len(resumed) + bool(targets) != 1:
        raise click.UsageError("name what to run, or one run to resume")
    if how.formats or how.outputs:
        from proctor.report.outputs import plan_outputs

        if how.as_json:
            raise click.UsageError("--json prints its own document: leave out --format and -o")
        plan_outputs(how.formats, how.outputs, os.environ)  # refuses what cannot be written
    allow_local_imports()
    if not targets:
        with Notifications(how, resumed[0].parent.name) as notifications:
            ctx.exit(_resume(resumed[0], how, given, notifications))
    from proctor.trials.resolve_experiment import read_axes
    from proctor.trials.target import Kind, Target, batch_experiment, find_target

    first = Path(targets[0])
    if _is_selection(targets, how):
        name = how.name or "batch"
        with Notifications(how, name) as notifications:
            experiment = batch_experiment(
                targets, exclude=list(how.exclude), params=read_axes(how.axes), name=name
            )
            found = Target(Kind.EXPERIMENTS, experiments=(experiment,))
            ctx.exit(_start(found, how, given, notifications))
    with Notifications(
        how, first.stem, first.parent if first.is_file() else Path()
    ) as notifications:
        ctx.exit(_start(find_target(targets[0]), how, given, notifications))


def _is_selection(targets: tuple[str, ...], how: Invocation) -> bool:
    """Return whether the targets select cases, rather than name one file, experiment or scope."""
    if len(targets) != 1 or how.exclude or how.axes:
        return True
    (target,) = targets
    return not Path(target).exists() and any(sign in target for sign in "*?[:,")


def allow_local_imports() -> None:
    """Make modules in the working folder importable, as `python -m proctor` does."""
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))


class Notifications:
    """Sends notifications about the runs in its block, or about the error that prevented them.

    Waiting for slow services comes last, after everything is printed and stored.
    """

    def __init__(self, how: Invocation, name: str, folder: Path | None = None) -> None:
        from proctor.spec import load_configuration

        self._name = name
        self._interrupted = False
        self._notifier: Notifier | None = None
        configuration = load_configuration(folder)
        options = (how.notify_to, how.notify_on, how.notify_template, how.notify_baseline)
        # Any of the options is checked before the run starts, also without an address.
        if not any(options) and not configuration.settings.notify.to:
            return
        from proctor.ops.notify import Notifier, notify_request

        request = notify_request(configuration, *options)
        if request.to:
            # Built for a dry run too: wrong URLs are reported before anything is run.
            notifier = Notifier(request, lambda problem: warn(f"notification: {problem}"))
            self._notifier = None if how.dry_run else notifier

    def ended(self, ended: EndedRun) -> None:
        """Start to send the notification for a run that has ended."""
        if self._notifier is None:
            return
        from proctor.ops.notify import run_notice
        from proctor.runs.audit import root_of

        interrupted = ended.signal is not None
        self._interrupted = self._interrupted or interrupted
        worse = None
        if self._notifier.wants_regressions and not interrupted:
            worse = self._notifier.regression(ended.run, root_of(ended.run.path))
        self._notifier.send(
            run_notice(ended.run, ended.exit_code, interrupted=interrupted, regression=worse)
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._notifier is None:
            return
        from proctor.ops.notify import INTERRUPTED_WAIT, MAX_WAIT, failed_start_notice

        if isinstance(error, ProctorError):
            self._notifier.send(failed_start_notice(self._name, error))
        self._notifier.close(INTERRUPTED_WAIT if self._interrupted else MAX_WAIT)


def _start(
    found: Target, how: Invocation, given: dict[str, Any], notifications: Notifications
) -> int:
    """Prepare everything, then run it (or print the plan); return the exit code."""
    from proctor.trials.resolve_experiment import read_set
    from proctor.trials.target import folder_for, prepare_target

    if how.smoke:
        given["trials"] = 1
    from_options(RunOptions, given, spelled=SPELLED)
    if how.name and len(found.experiments) > 1:
        raise click.UsageError("--name needs a single experiment, and this file has several")
    agents = [*how.agents, *split_names(how.listed_agents)]
    ready = prepare_target(
        found,
        given,
        agents=agents or None,
        seeds=how.seeds,
        expression=how.expression,
        settings=read_set(how.settings) if how.settings else None,
        tags=split_names(how.tags),
        smoke=how.smoke,
    )
    # A smoke run says nothing about the experiment, so it is stored separately from its runs.
    suffix = "-smoke" if how.smoke else ""
    names = [(how.name or each.name) + suffix for each in ready]
    if how.dry_run:
        return _echo_plans(ready, how, names)
    ended: list[EndedRun] = []
    for each, name in zip(ready, names, strict=True):
        run = execute_run(
            each, folder_for(each, how.results, name), quiet=how.quiet, events=how.as_json
        )
        ended.append(run)
        notifications.ended(run)
        if run.signal is not None:
            break
    return _echo_runs(ended, how)


def _resume(
    path: Path, how: Invocation, given: dict[str, Any], notifications: Notifications
) -> int:
    from proctor.formatting import plural
    from proctor.runs.audit import root_of
    from proctor.runs.find import find_run
    from proctor.trials.resume import left_of, restore
    from proctor.trials.session import FAILED, INFRA, UNFINISHED

    unused = {"--agent": how.agents, "--agents": how.listed_agents, "--seeds": how.seeds}
    unused |= {"--set": how.settings, "--tags": how.tags, "--filter": how.expression}
    unused |= {"--axis": how.axes, "--exclude": how.exclude}
    unused |= {"--results": how.results, "--name": how.name, "--smoke": how.smoke}
    if wrong := [flag for flag, value in unused.items() if value]:
        raise click.UsageError(f"{wrong[0]} cannot be used when resuming a run")
    changes = {name: value for name, value in given.items() if value is not None}
    from_options(RunOptions, changes, spelled=SPELLED)
    ready, folder = restore(find_run(path, api.results_root()), **changes)
    rerun = FAILED if how.retry_failed else INFRA if how.retry_infra else UNFINISHED
    if not how.dry_run:
        ended = execute_run(ready, folder, rerun=rerun, quiet=how.quiet, events=how.as_json)
        notifications.ended(ended)
        return _echo_runs([ended], how)
    if ready.unfolding is not None:
        # In research the remaining trials depend on results: print the plan it started with.
        return _echo_plans([ready], how, [""])
    rest = left_of(ready, folder, rerun)
    if not how.as_json:
        planned = plural(len(ready.plan.trials), "trial")
        click.echo(f"{len(rest.plan.trials):,} of {planned} left")
        if not rest.plan.trials:
            return 0
    return _echo_plans([rest], how._replace(results=root_of(folder.path)), [ready.name])


class EndedRun(NamedTuple):
    """A run that has ended, and the signal that ended it, if one did."""

    run: Run
    signal: int | None
    uploaded: bool = True
    """Whether its results reached their address; false if the object store was unreachable."""

    @property
    def exit_code(self) -> int:
        """Return the code of the signal, else that of the verdicts."""
        if self.signal is not None:
            return 128 + self.signal
        return self.run.exit_code or (0 if self.uploaded else EXIT_CANNOT_JUDGE)


def execute_run(
    context: RunContext,
    folder: RunFolder,
    *,
    rerun: frozenset[TrialStatus] | None = None,
    quiet: bool = False,
    events: bool = False,
) -> EndedRun:
    """Run the remaining trials of a run, with progress, and with Ctrl-C to stop it in order."""
    from proctor.background import run_sync
    from proctor.cli._output import stdout_reserved
    from proctor.cli._signals import Interrupts
    from proctor.report.console import resume_command
    from proctor.report.progress import ProgressGroup, RunLog, logs_runs, progress_for
    from proctor.runs.folder import run_name
    from proctor.runs.remote import REMEMBERED
    from proctor.trials.session import UNFINISHED, run_session

    progress = progress_for(sys.stderr, quiet=quiet, events=events)
    log = RunLog(run_name(folder.path)) if logs_runs() else None
    observer = progress if log is None else ProgressGroup(progress, log)
    interrupts = Interrupts(resume_command(folder.path))
    with contextlib.ExitStack() as stack:
        shipping = None
        if (folder.path / REMEMBERED).exists():
            from proctor.runs.remote.upload import uploading

            shipping = stack.enter_context(uploading(folder, _warn_upload))
        stack.enter_context(stdout_reserved())
        stack.enter_context(interrupts.listening())
        work = run_session(
            context,
            folder,
            rerun=rerun or UNFINISHED,
            observer=observer,
            on_session=interrupts.watch,
        )
        try:
            run = run_sync(work)
        finally:
            for each in (progress, log):
                if each is not None:
                    each.close()
    ended = EndedRun(run, interrupts.signal, shipping is None or shipping.arrived)
    if log is not None:
        log.ended(run, ended.exit_code)
    return ended


def _warn_upload(text: str) -> None:
    import logging

    from proctor.cli._options import warn

    logging.getLogger("proctor.run").info("warning: %s", text)
    warn(text)


def _echo_runs(ended: list[EndedRun], how: Invocation) -> int:
    """Print the runs; return the worst exit code: a failed cell counts before an unjudged one."""
    from proctor.cli._output import echo_report
    from proctor.report import console
    from proctor.report.facts import ReportFacts
    from proctor.report.json_report import render_summary
    from proctor.report.outputs import plan_outputs, write_outputs

    codes = [each.exit_code for each in ended]
    interrupted = next((code for code in codes if code > EXIT_CANNOT_JUDGE), None)
    exit_code = interrupted or (1 if 1 in codes else max(codes))
    if how.formats or how.outputs:
        runs = [each.run for each in ended]
        facts = ReportFacts(*runs, labels=[str(run.spec["name"]) for run in runs])
        facts.exit_code, facts.signal = exit_code, ended[-1].signal
        write_outputs(facts, plan_outputs(how.formats, how.outputs, os.environ), os.environ)
        return exit_code
    documents: list[str] = []
    for each in ended:
        facts = ReportFacts(each.run, signal=each.signal)
        facts.exit_code = each.exit_code  # which knows whether the results have arrived
        if how.as_json:
            documents.append(render_summary(facts))
        else:
            echo_report(console.render(facts).rstrip("\n"))
            _echo_workdirs(each.run)
    _echo_documents("runs", documents)
    return exit_code


def _echo_workdirs(run: Run) -> None:
    """Print the working directories that `--keep-workdirs` kept."""
    if not run.spec["options"].get("keep_workdirs"):
        return
    from proctor.formatting import and_more, plural

    kept = [trial.workdir for trial in run.trials if trial.workdir is not None]
    if kept:
        count = plural(len(kept), "directory", "directories")
        click.echo(f"kept {count} of trials that did not pass: {and_more(kept, 3, str)}")


def _echo_plans(ready: list[RunContext], how: Invocation, names: list[str]) -> int:
    from proctor.report.dry_run import plan_document, plan_lines
    from proctor.trials.estimate import estimate

    documents: list[str] = []
    for number, (each, name) in enumerate(zip(ready, names, strict=True)):
        here = how.results if isinstance(how.results, Path) else each.configuration.results
        found = estimate(each, here, name)
        if how.as_json:
            documents.append(plan_document(each, found))
            continue
        heading = ["", each.name] if number else [each.name] if len(ready) > 1 else []
        click.echo("\n".join([*heading, *plan_lines(each, found)]))
    _echo_documents("experiments", documents)
    return 0


def _echo_documents(key: str, documents: list[str]) -> None:
    """Print one JSON document; several are put into a list under the key."""
    if len(documents) == 1:
        click.echo(documents[0])
    elif documents:
        click.echo(f'{{"{key}": [{", ".join(documents)}]}}')
