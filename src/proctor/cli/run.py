"""`proctor run`: run suites, experiments and scenarios, store every trial, and resume runs."""

from __future__ import annotations

import contextlib
import logging
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

# No check that it exists: a run may also be named by a tag or as `latest`.
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

    Exits with 1 if a cell failed, else with 2 if more trials than tolerated could not be judged
    (--max-not-judged) or planned trials are missing, else with 0; with 130 or 143 if interrupted.

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
    options = Invocation(**{name: given.pop(name) for name in Invocation._fields})
    resumed = [
        path
        for path in (options.resume, options.retry_failed, options.retry_infra)
        if path is not None
    ]
    if len(resumed) + bool(targets) != 1:
        raise click.UsageError("name what to run, or one run to resume")
    if options.formats or options.outputs:
        from proctor.report.outputs import plan_outputs

        if options.as_json:
            raise click.UsageError("--json prints its own document: leave out --format and -o")
        # Now, not after the run: an impossible combination must not cost an hour of trials.
        plan_outputs(options.formats, options.outputs, os.environ)
    allow_local_imports()
    from proctor.trials.resolve_experiment import read_axes
    from proctor.trials.target import Kind, Target, batch_experiment, find_target

    # Several targets, a glob or a filter select cases for one new experiment; anything else names
    # one file, experiment or scope.
    selects = len(targets) != 1 or bool(options.exclude or options.axes)
    selects = selects or (not Path(targets[0]).exists() and bool(set("*?[:,") & set(targets[0])))
    folder = None
    if not targets:
        name = resumed[0].parent.name
    elif selects:
        name = options.name or "batch"
    else:
        name, first = Path(targets[0]).stem, Path(targets[0])
        folder = first.parent if first.is_file() else Path()
    # Opened before the target is read, so that an error in the target is notified too.
    with Notifications(options, name, folder) as notifications:
        if not targets:
            ctx.exit(_resume(resumed[0], options, given, notifications))
        if not selects:
            ctx.exit(_start(find_target(targets[0]), options, given, notifications))
        experiment = batch_experiment(
            targets, exclude=list(options.exclude), params=read_axes(options.axes), name=name
        )
        found = Target(Kind.EXPERIMENTS, experiments=(experiment,))
        ctx.exit(_start(found, options, given, notifications))


def allow_local_imports() -> None:
    """Make modules in the working folder importable, as `python -m proctor` does."""
    # At the end of the path: a file here must not replace an installed package.
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))


class Notifications:
    """Sends notifications about the runs in its block, or about the error that prevented them.

    Waiting for slow services comes last, after everything is printed and stored.
    """

    def __init__(self, options: Invocation, name: str, folder: Path | None = None) -> None:
        from proctor.spec import load_configuration

        self._name = name
        self._interrupted = False
        self._notifier: Notifier | None = None
        configuration = load_configuration(folder)
        given = (
            options.notify_to,
            options.notify_on,
            options.notify_template,
            options.notify_baseline,
        )
        # Any of the options is checked before the run starts, also without an address.
        if not any(given) and not configuration.settings.notify.to:
            return
        from proctor.ops.notify import Notifier, notify_request

        request = notify_request(configuration, *given)
        if request.to:
            # Built for a dry run too: wrong URLs are reported before anything is run.
            notifier = Notifier(request, lambda problem: warn(f"notification: {problem}"))
            self._notifier = None if options.dry_run else notifier

    def ended(self, ended: EndedRun) -> None:
        """Start to send the notification for a run that has ended."""
        if self._notifier is None:
            return
        from proctor.ops.notify import run_notice
        from proctor.runs.audit import root_of

        interrupted = ended.signal is not None
        self._interrupted = self._interrupted or interrupted
        worse = None
        # An interrupted run is incomplete: the gate would compare other cases.
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
    found: Target, options: Invocation, given: dict[str, Any], notifications: Notifications
) -> int:
    """Prepare everything, then run it (or print the plan); return the exit code."""
    from proctor.trials.resolve_experiment import read_set
    from proctor.trials.target import folder_for, prepare_target

    if options.smoke:
        given["trials"] = 1
    # Only to check them: `prepare_target` combines them with the options of each experiment.
    from_options(RunOptions, given, spelled=SPELLED)
    if options.name and len(found.experiments) > 1:
        raise click.UsageError("--name needs a single experiment, and this file has several")
    agents = [*options.agents, *split_names(options.listed_agents)]
    # All experiments are prepared before the first one runs, so that a mistake in the last is found
    # at once.
    contexts = prepare_target(
        found,
        given,
        agents=agents or None,
        seeds=options.seeds,
        expression=options.expression,
        settings=read_set(options.settings) if options.settings else None,
        tags=split_names(options.tags),
        smoke=options.smoke,
    )
    # A smoke run says nothing about the experiment, so it is stored separately from its runs.
    suffix = "-smoke" if options.smoke else ""
    names = [(options.name or each.name) + suffix for each in contexts]
    if options.dry_run:
        return _echo_plans(contexts, options, names)
    ended: list[EndedRun] = []
    for each, name in zip(contexts, names, strict=True):
        run = execute_run(
            each,
            folder_for(each, options.results, name),
            quiet=options.quiet,
            events=options.as_json,
        )
        ended.append(run)
        notifications.ended(run)  # before the next run starts, which may take hours
        if run.signal is not None:
            break
    return _echo_runs(ended, options)


def _resume(
    path: Path, options: Invocation, given: dict[str, Any], notifications: Notifications
) -> int:
    from proctor.formatting import plural
    from proctor.runs.audit import root_of
    from proctor.runs.find import find_run
    from proctor.trials.resume import left_of, restore
    from proctor.trials.session import FAILED, INFRA, UNFINISHED

    # What a run does is fixed by its spec; only how it is done (limits, concurrency) may change.
    unused = {
        "--agent": options.agents,
        "--agents": options.listed_agents,
        "--seeds": options.seeds,
    }
    unused |= {"--set": options.settings, "--tags": options.tags, "--filter": options.expression}
    unused |= {"--axis": options.axes, "--exclude": options.exclude}
    unused |= {"--results": options.results, "--name": options.name, "--smoke": options.smoke}
    if wrong := [flag for flag, value in unused.items() if value]:
        raise click.UsageError(f"{wrong[0]} cannot be used when resuming a run")
    changes = {name: value for name, value in given.items() if value is not None}
    from_options(RunOptions, changes, spelled=SPELLED)
    context, folder = restore(find_run(path, api.results_root()), **changes)
    rerun = FAILED if options.retry_failed else INFRA if options.retry_infra else UNFINISHED
    if not options.dry_run:
        ended = execute_run(
            context, folder, rerun=rerun, quiet=options.quiet, events=options.as_json
        )
        notifications.ended(ended)
        return _echo_runs([ended], options)
    if context.unfolding is not None:
        # In research the remaining trials depend on results: print the plan it started with.
        return _echo_plans([context], options, [""])
    rest = left_of(context, folder, rerun)
    if not options.as_json:
        planned = plural(len(context.plan.trials), "trial")
        click.echo(f"{len(rest.plan.trials):,} of {planned} left")
        if not rest.plan.trials:
            return 0
    return _echo_plans([rest], options._replace(results=root_of(folder.path)), [context.name])


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
    from proctor.report.progress import ProgressGroup, RunLog, progress_for
    from proctor.runs.folder import run_name
    from proctor.runs.remote import REMEMBERED
    from proctor.trials.session import UNFINISHED, run_session

    # Standard error, so that standard output holds the result and nothing else.
    progress = progress_for(sys.stderr, quiet=quiet, events=events)
    logged = logging.getLogger("proctor.run").isEnabledFor(logging.INFO)
    log = RunLog(run_name(folder.path)) if logged else None
    observer = progress if log is None else ProgressGroup(progress, log)
    interrupts = Interrupts(resume_command(folder.path))
    with contextlib.ExitStack() as stack:
        shipping = None
        # Only a run that goes to an object store as well needs its package.
        if (folder.path / REMEMBERED).exists():
            from proctor.runs.remote.upload import uploading

            def warn_and_log(text: str) -> None:
                logging.getLogger("proctor.run").info("warning: %s", text)
                warn(text)

            shipping = stack.enter_context(uploading(folder, warn_and_log))
        # Innermost: during the final upload, which comes after this block, Ctrl-C ends the command.
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


def _echo_runs(ended: list[EndedRun], options: Invocation) -> int:
    """Print the runs; return the worst exit code: a failed cell counts before an unjudged one."""
    from proctor.cli._output import echo_report
    from proctor.report import console
    from proctor.report.facts import ReportFacts
    from proctor.report.json_report import render_summary
    from proctor.report.outputs import plan_outputs, write_outputs

    # Codes above 2 come from signals. Of the others, 1 (a cell failed) is the more definite result
    # and must not be hidden by a 2 from another experiment.
    codes = [each.exit_code for each in ended]
    interrupted = next((code for code in codes if code > EXIT_CANNOT_JUDGE), None)
    exit_code = interrupted or (1 if 1 in codes else max(codes))
    if options.formats or options.outputs:
        runs = [each.run for each in ended]
        facts = ReportFacts(*runs, labels=[str(run.spec["name"]) for run in runs])
        facts.exit_code, facts.signal = exit_code, ended[-1].signal
        write_outputs(facts, plan_outputs(options.formats, options.outputs, os.environ), os.environ)
        return exit_code
    documents: list[str] = []
    for each in ended:
        facts = ReportFacts(each.run, signal=each.signal)
        facts.exit_code = each.exit_code  # which knows whether the results have arrived
        if options.as_json:
            documents.append(render_summary(facts))
        else:
            echo_report(console.render(facts).rstrip("\n"))
            _echo_workdirs(each.run)
    _echo_documents("runs", documents)
    return exit_code


def _echo_workdirs(run: Run) -> None:
    """Print the working directories that `--keep-workdirs` kept."""
    if not run.spec["options"].get("keep_workdirs"):
        return  # reading all trials of a large run takes time
    from proctor.formatting import and_more, plural

    kept = [trial.workdir for trial in run.trials if trial.workdir is not None]
    if kept:
        count = plural(len(kept), "directory", "directories")
        click.echo(f"kept {count} of trials that did not pass: {and_more(kept, 3, str)}")


def _echo_plans(contexts: list[RunContext], options: Invocation, names: list[str]) -> int:
    from proctor.report.dry_run import plan_document, plan_lines
    from proctor.trials.plan import estimate
    from proctor.trials.prepare import check_names

    for each in contexts:
        check_names(each)
    documents: list[str] = []
    for number, (each, name) in enumerate(zip(contexts, names, strict=True)):
        # Estimates come from earlier runs, which are read locally even if this one is uploaded.
        here = options.results if isinstance(options.results, Path) else each.configuration.results
        found = estimate(each, here, name)
        if options.as_json:
            documents.append(plan_document(each, found))
            continue
        heading = ["", each.name] if number else [each.name] if len(contexts) > 1 else []
        click.echo("\n".join([*heading, *plan_lines(each, found)]))
    _echo_documents("experiments", documents)
    return 0


def _echo_documents(key: str, documents: list[str]) -> None:
    """Print one JSON document; several are put into a list under the key."""
    # The documents are text already, and may be large: they are not parsed again.
    if len(documents) == 1:
        click.echo(documents[0])
    elif documents:
        click.echo(f'{{"{key}": [{", ".join(documents)}]}}')
