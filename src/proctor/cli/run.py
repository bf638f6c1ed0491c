"""`proctor run` and `rerun`: run suites, experiments and scenarios; resume and repeat runs."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from proctor import api
from proctor.cli import _options
from proctor.cli._command import Command
from proctor.cli._options import option
from proctor.cli._output import echo_report, stdout_reserved
from proctor.errors import EXIT_CANNOT_JUDGE, ProctorError
from proctor.formatting import and_more, clipped, plural
from proctor.sanitize import printable
from proctor.trials.options import RunOptions

if TYPE_CHECKING:
    from proctor.runs.folder import RunFolder
    from proctor.runs.run import Run
    from proctor.runs.trial import TrialStatus
    from proctor.trials.prepare import RunContext
    from proctor.trials.resume import Rerun
    from proctor.trials.target import Target


SPELLED = {
    "max_cost_usd": "--max-cost",
    "max_seconds": "--max-time",
    "record_to": "--record",
    "replay_from": "--replay",
}
"""Options whose names are shorter than their fields'."""

FIXED = (
    *("agents", "listed_agents", "seeds", "settings", "tags", "expression", "axes", "exclude"),
    *("results", "name", "smoke"),
)
"""Parameters of the command that a resumed run takes from its spec."""

# No check that it exists: a run may also be named by a tag or as `latest`.
RUN = click.Path(path_type=Path)


GROUPS = {
    "Common options": "trials agents concurrency tags expression timeout max_cost_usd early_stop"
    " resume dry_run results quiet",
    "What to run": "listed_agents seed seeds axes settings exclude name smoke",
    "Limits": "max_tokens max_trials max_seconds max_retries max_not_judged on_agent_error",
    "Model calls": "record_to replay_from",
    "Resume": "retry_failed retry_infra retry_from_checkpoint keep_workdirs sync",
    "Output": "as_json formats outputs",
    "Many machines": "executor address workers",
    "Notifications": "notify_to notify_on notify_template notify_baseline",
    "Log": "log_file log_level",
}
"""The options as `--help-all` groups them; `--help` has the first group."""


@click.command(cls=Command, groups=GROUPS)
@click.argument("targets", nargs=-1, metavar="[TARGET]...", shell_complete=_options.complete_files)
@_options.options_of(RunOptions, spelled=SPELLED, hidden=("default_trials",))
@_options.agents_option
@option("--agents A,B", "listed_agents", "Override the suite's agents.", multiple=True)
@option("--seeds SEEDS", "A count, a range 1..10, or a list 1,5,9.")
@option(
    "--axis NAME=A,B",
    "axes",
    "Run with each of these values of a scenario parameter; repeatable.",
    multiple=True,
)
@option(
    "--set KEY=VALUE",
    "settings",
    "Set a scenario parameter, or case.FIELD of every case; repeatable.",
    multiple=True,
)
@_options.tags_option
@_options.filter_option("cases")
@option("--exclude GLOB", "Skip matching scenarios; repeatable.", multiple=True)
@option(
    "--results PATH",
    "The results folder, or an address: s3://bucket/prefix.",
    type=_options.folder_or_address,
)
@option("--name", "The name of the experiment.  [default: from TARGET]")
@option(
    "--dry-run",
    "Check everything and print the plan; agents and checks are imported by a worker, not called.",
    is_flag=True,
)
@option("--smoke", "Run one trial of the first case per agent.", is_flag=True)
@option("--quiet", "Print the verdict only: no progress, no events, no tables.", is_flag=True)
@_options.events_option
@_options.format_options
@option(
    "--notify URL",
    "notify_to",
    "Notify this Apprise URL when the run ends; repeatable.",
    multiple=True,
)
@_options.notify_on_option
@option("--notify-template TEXT|@FILE", "The message, with {name}, {outcome}, …")
@option("--notify-baseline RUN|TAG", "Baseline for regression alerts.")
@_options.log_options
@option("--resume RUN", "Resume an unfinished run.", type=RUN)
@option("--retry-failed RUN", "Resume and retry failed trials.", type=RUN)
@option("--retry-infra RUN", "Resume and retry infrastructure errors.", type=RUN)
@click.pass_context
def run(ctx: click.Context, targets: tuple[str, ...], **given: Any) -> None:
    """Run suites, experiments or scenarios and store every trial.

    TARGET is a file (a suite, or experiments in YAML or Python), the dotted name of an experiment,
    a scenario or a scope of the catalog. Several targets, a glob ('mutualism/*') or a filter
    (difficulty:hard) are one experiment.

    Exits with 1 if a cell failed, 2 if too many trials could not be judged (--max-not-judged) or
    planned trials are missing; 130 or 143 if interrupted.

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
    # What is left in `given` are the options of the run itself, the fields of `RunOptions`.
    others = [name for name in given if name not in RunOptions.model_fields]
    options = SimpleNamespace(**{name: given.pop(name) for name in others})
    resumed = [*filter(None, (options.resume, options.retry_failed, options.retry_infra))]
    if len(resumed) + bool(targets) != 1:
        raise click.UsageError("name what to run, or one run to resume")
    if options.formats or options.outputs:
        from proctor.report.outputs import plan_outputs

        if options.as_json:
            raise click.UsageError("--json prints its own document: leave out --format and -o")
        # Now, not after the run: an impossible combination must not cost an hour of trials.
        plan_outputs(options.formats, options.outputs, os.environ)
    from proctor.trials.resolve_experiment import read_axes
    from proctor.trials.target import Target, batch_experiment, find_target

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
    with notifications(options, name, folder) as notify:
        if not targets:
            ctx.exit(_resume(resumed[0], options, given, notify))
        if not selects:
            ctx.exit(_start(find_target(targets[0]), options, given, notify))
        experiment = batch_experiment(
            targets, exclude=list(options.exclude), params=read_axes(options.axes), name=name
        )
        found = Target(experiments=(experiment,))
        ctx.exit(_start(found, options, given, notify))


Ended = Callable[["EndedRun"], None]


@contextlib.contextmanager
def notifications(
    options: SimpleNamespace, name: str, folder: Path | None = None
) -> Generator[Ended]:
    """Notify of the runs in the block, or of the error that prevented them.

    Yields the function to call for a run that has ended. Waiting for slow services comes last,
    after everything is printed and stored.
    """
    from proctor.spec import load_configuration

    configuration = load_configuration(folder)
    named = ("notify_to", "notify_on", "notify_template", "notify_baseline")
    given = [getattr(options, name) for name in named]
    notifier = None
    # Any of the options is checked before the run starts, also without an address.
    if any(given) or configuration.settings.notify.to:
        from proctor.ops.notify import Notifier, notify_request

        request = notify_request(configuration, *given)
        if not request.to:
            _options.refuse_unused(" ".join(named), "without an address", "add --notify URL")
        else:
            # Built for a dry run too: wrong URLs are reported before anything is run.
            notifier = Notifier(request, lambda problem: _options.warn(f"notification: {problem}"))
    if notifier is None or options.dry_run:
        yield lambda ended: None
        return
    from proctor.ops.notify import INTERRUPTED_WAIT, MAX_WAIT, failed_start_notice, run_notice
    from proctor.runs.audit import root_of

    wait = MAX_WAIT

    def send(ended: EndedRun) -> None:
        nonlocal wait
        interrupted, worse = ended.signal is not None, None
        if interrupted:
            wait = INTERRUPTED_WAIT
        # An interrupted run is incomplete: the gate would compare other cases.
        elif notifier.wants_regressions:
            worse = notifier.regression(ended.run, root_of(ended.run.path))
        notifier.send(
            run_notice(ended.run, ended.exit_code, interrupted=interrupted, regression=worse)
        )

    try:
        yield send
    except ProctorError as error:
        notifier.send(failed_start_notice(name, error))
        raise
    finally:
        notifier.close(wait)


def _start(found: Target, options: SimpleNamespace, given: dict[str, Any], notify: Ended) -> int:
    """Prepare everything, then run it (or print the plan); return the exit code."""
    from proctor.trials.resolve_experiment import read_set
    from proctor.trials.target import folder_for, prepare_target

    if options.smoke:
        given["trials"] = 1
    # Only to check them: `prepare_target` combines them with the options of each experiment.
    _options.check_options(RunOptions, given, spelled=SPELLED)
    if options.name and len(found.experiments) > 1:
        raise click.UsageError("--name needs a single experiment, and this file has several")
    agents = [*options.agents, *_options.split_names(options.listed_agents)]
    # All experiments are prepared before the first one runs, so that a mistake in the last is found
    # at once.
    contexts = prepare_target(
        found,
        given,
        agents={name: name for name in agents} or None,
        seeds=options.seeds,
        expression=options.expression,
        settings=read_set(options.settings) if options.settings else None,
        tags=_options.split_names(options.tags),
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
        notify(run)  # before the next run starts, which may take hours
        if run.signal is not None:
            break
    return _echo_runs(ended, options)


def _resume(path: Path, options: SimpleNamespace, given: dict[str, Any], notify: Ended) -> int:
    from proctor.runs.audit import root_of
    from proctor.runs.folder import find_run
    from proctor.trials.resume import left_of, restore
    from proctor.trials.session import FAILED, INFRA, UNFINISHED

    # What a run does is fixed by its spec; only how it is done (limits, concurrency) may change.
    for parameter in run.params:
        if parameter.name in FIXED and getattr(options, parameter.name):
            raise click.UsageError(f"{parameter.opts[0]} cannot be used when resuming a run")
    changes = {name: value for name, value in given.items() if value is not None}
    _options.check_options(RunOptions, changes, spelled=SPELLED)
    context, folder = restore(find_run(path, api.results_root()), **changes)
    rerun = FAILED if options.retry_failed else INFRA if options.retry_infra else UNFINISHED
    if not options.dry_run:
        ended = execute_run(
            context, folder, rerun=rerun, quiet=options.quiet, events=options.as_json
        )
        notify(ended)
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
    options.results = root_of(folder.path)
    return _echo_plans([rest], options, [context.name])


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
                _options.warn(text)

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


def _echo_runs(ended: list[EndedRun], options: SimpleNamespace) -> int:
    """Print the runs; return the worst exit code: a failed cell counts before an unjudged one."""
    from proctor.report import console
    from proctor.report.facts import ReportFacts
    from proctor.report.json_report import render_summary
    from proctor.report.outputs import Output, in_actions, plan_outputs, write_outputs
    from proctor.sanitize import line

    # Codes above 2 come from signals. Of the others, 1 (a cell failed) is the more definite result
    # and must not be hidden by a 2 from another experiment.
    codes = [each.exit_code for each in ended]
    interrupted = next((code for code in codes if code > EXIT_CANNOT_JUDGE), None)
    exit_code = interrupted or (1 if 1 in codes else max(codes))
    if options.formats or options.outputs:
        runs = [each.run for each in ended]
        facts = ReportFacts(*runs, labels=[str(run.header["name"]) for run in runs])
        facts.exit_code, facts.signal = exit_code, ended[-1].signal
        write_outputs(facts, plan_outputs(options.formats, options.outputs, os.environ), os.environ)
        return exit_code
    documents: list[str] = []
    for each in ended:
        # An interrupted run is incomplete: a comparison would be about other cases.
        plain = not (options.quiet or options.as_json or each.signal)
        before = _baseline_of(each.run) if plain else None
        facts = ReportFacts(each.run, signal=each.signal, baseline=before)
        facts.exit_code = each.exit_code  # which knows whether the results have arrived
        if options.as_json:
            documents.append(render_summary(facts))
        elif options.quiet:
            echo_report(f"{facts.verdict}: {line(facts.headline)} ({line(facts.path, 400)})")
            # What is missing from the figures is never silent.
            for remark in facts.remarks:
                click.echo(f"note: {line(remark)}", err=True)
        else:
            echo_report(console.render(facts).rstrip("\n"))
            _echo_workdirs(each.run)
    _echo_documents("runs", documents)
    if in_actions(os.environ):
        for each in ended:
            # The one format that is not asked for: annotations, and the step summary with them.
            output = Output("github", None, to_stderr=options.as_json)
            write_outputs(ReportFacts(each.run, signal=each.signal), [output], os.environ)
    return exit_code


def _baseline_of(run: Run) -> Run | None:
    """Return the run of the experiment tagged `baseline`; None where it cannot be read."""
    from proctor.report.facts import tagged_baseline

    try:
        before = tagged_baseline(run)
        return before if before is not None and before.cells else None
    except ProctorError as error:  # the results of this run are printed all the same
        _options.warn(f"not compared with the baseline: {error}")
        return None


def _echo_workdirs(run: Run) -> None:
    """Print the working directories that `--keep-workdirs` kept."""
    if not run.header["options"].get("keep_workdirs"):
        return  # reading all trials of a large run takes time

    kept = [trial.workdir for trial in run.trials if trial.workdir is not None]
    if kept:
        count = plural(len(kept), "directory", "directories")
        click.echo(f"kept {count} of trials that did not pass: {and_more(kept, 3, str)}")


def _echo_plans(contexts: list[RunContext], options: SimpleNamespace, names: list[str]) -> int:
    from proctor.llm.prices import no_price
    from proctor.report.dry_run import plan_document, plan_lines
    from proctor.trials.plan import estimate
    from proctor.trials.prepare import check_names, named_models

    for each in contexts:
        check_names(each)
        for model in named_models(each.suite, each.agents.values(), each.configuration):
            if model.base_url is None and (remark := no_price(model.name, each.prices)):
                _options.warn(remark)
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


MAX_DIFFERENCES = 20
"""Differences listed; `--json` has more."""


@click.command(cls=Command)
@click.argument("run", shell_complete=_options.complete_runs)
@option("--results", "The results folder for the repeated run.", type=click.Path(path_type=Path))
@_options.concurrency_option
@_options.quiet_option
@_options.events_option
@click.pass_context
def rerun(
    ctx: click.Context,
    run: str,
    results: Path | None,
    concurrency: int | None,
    quiet: bool,
    as_json: bool,
) -> None:
    """Repeat a run and compare the results.

    RUN is a folder, <experiment>/<date>_<seq>, a tag or `latest`.

    Everything comes from the run's _spec_.yaml: plan, agents, scenarios, settings. Recorded model
    calls are replayed. Timestamps and ids are not compared.

    Exits with 0 if all results are identical, 1 if they differ, 2 if they cannot be compared.

    Examples:
      # is it reproducible?
      proctor rerun results/suite/2026-01-31_001
      # into another folder, as JSON
      proctor rerun RUN --results /tmp/again --json
    """
    import msgspec

    from proctor.runs.folder import find_run
    from proctor.trials.resume import compared, prepare_rerun

    # Concurrency does not change results, so it is the only option.
    options: dict[str, Any] = {} if concurrency is None else {"concurrency": concurrency}
    first, context, folder = prepare_rerun(
        find_run(run, api.results_root()), results=results, **options
    )
    _options.checked_run(first)
    ended = execute_run(context, folder, quiet=quiet, events=as_json)
    done = compared(first, ended.run)
    if as_json:
        document = {
            "first": str(done.first.path),
            "second": str(done.second.path),
            "identical": done.sameness.identical,
            "changed": done.changed,
            **msgspec.structs.asdict(done.sameness),
        }
        # msgspec writes NaN as null: JSON has no NaN, and results may.
        encoded = msgspec.json.encode(document, enc_hook=str)
        click.echo(msgspec.json.format(encoded, indent=2))
    else:
        _echo_rerun(done)
    # An interrupted repetition differs in any case, which says nothing.
    if ended.signal is not None:
        ctx.exit(ended.exit_code)
    ctx.exit(0 if done.sameness.identical else 1)


def _echo_rerun(done: Rerun) -> None:
    import msgspec

    same = done.sameness
    # First what changed around the run (versions, code): it may explain the differences.
    for line in done.changed:
        click.echo(printable(f"changed since: {line}"))
    for each in same.differences[:MAX_DIFFERENCES]:
        # As JSON: a status reads "hard_fail", not the representation of an enumeration.
        was, now = (
            clipped(msgspec.json.encode(value, enc_hook=str).decode(), 80)
            for value in (each.first, each.second)
        )
        click.echo(printable(f"  {each.trial}: {each.field} was {was}, is {now}"))
    if len(same.differences) > MAX_DIFFERENCES:
        click.echo("  and more")
    for label, names in (("only before", same.only_first), ("only now", same.only_second)):
        if names:
            click.echo(printable(f"{label}: {plural(len(names), 'trial')}, e.g. {names[0]}"))
    if same.identical:
        click.echo(
            f"identical: {same.compared} of {plural(same.compared, 'trial')}, "
            "ignoring timestamps and ids"
        )
    else:
        equal = same.compared - same.differing
        click.echo(f"not identical: {equal} of {plural(same.compared, 'trial')} the same")
    click.echo(printable(f"stored in {done.second.path}"))
