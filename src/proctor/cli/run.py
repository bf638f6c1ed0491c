"""`proctor run`: suites, experiments and scenarios, kept in folders; and how to go on with one."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from proctor.cli._command import Command, Example
from proctor.cli._options import folder_or_address, from_options, log_options, options_of
from proctor.errors import EXIT_CANNOT_JUDGE
from proctor.trials.options import RunOptions

if TYPE_CHECKING:
    from proctor.cli.carrying import Carried
    from proctor.cli.telling import Telling
    from proctor.runs.folder import RunFolder
    from proctor.runs.run import Run
    from proctor.trials.prepare import RunContext
    from proctor.trials.resume import Restored
    from proctor.trials.session import Rerun
    from proctor.trials.targets import Target

EXAMPLES = [
    Example("proctor run suite.yaml --trials 10 --concurrency 8", "ask more than once"),
    Example("proctor run experiments/mutualism.yaml --seeds 10", "an experiment, ten seeds"),
    Example("proctor run mutualism.hidden_dependency --agent random --seed 7", "one scenario"),
    Example("proctor run mutualism --agent random", "a scope: every scenario in it"),
    Example("proctor run suite.yaml --dry-run", "how many trials would that be, at what cost?"),
    Example("proctor run suite.yaml --max-cost 2 --early-stop", "spend no more than needed"),
    Example("proctor run suite.yaml --record calls.jsonl", "keep the model's answers for CI"),
    Example("proctor run suite.yaml --replay calls.jsonl", "the same run without a key"),
    Example(
        "proctor run suite.yaml --notify slack://… --notify-on failure", "be told when it breaks"
    ),
    Example("proctor run suite.yaml --results s3://bucket/prefix", "kept in an object store"),
    Example("proctor run exp.yaml --executor ray --address ray://head:10001", "on many machines"),
    Example("proctor run --resume results/suite/2026-01-31_001", "go on after an interruption"),
]

SPELLED = {
    "max_cost_usd": "--max-cost",
    "max_seconds": "--max-time",
    "record_to": "--record",
    "replay_from": "--replay",
}
"""Options whose names are shorter than their fields'."""

RUN = click.Path(path_type=Path)


class How(NamedTuple):
    """What is to be done and told, besides the options of the run itself."""

    agents: tuple[str, ...]
    listed_agents: str
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
    notify_to: tuple[str, ...]
    notify_on: tuple[str, ...]
    notify_template: str | None
    notify_baseline: str | None
    resume: Path | None = None
    retry_failed: Path | None = None
    retry_infra: Path | None = None


NOTIFY_OPTIONS = (
    click.option(
        "--notify",
        "notify_to",
        multiple=True,
        metavar="URL",
        help="Tell this address of apprise how it ended; may be given again.",
    ),
    click.option(
        "--notify-on",
        "notify_on",
        multiple=True,
        type=click.Choice(("end", "failure", "regression", "budget")),
        help="What is worth a message: end (the default), failure, regression, budget.",
    ),
    click.option(
        "--notify-template", metavar="TEXT|@FILE", help="What it says, with {name}, {outcome}, …"
    ),
    click.option("--notify-baseline", metavar="RUN|TAG", help="What a regression is held against."),
)


def how_options(function: Any) -> Any:
    """The options of every command that begins runs."""
    options = (
        click.option(
            "--agent", "agents", multiple=True, metavar="AGENT", help="Try this one instead."
        ),
        click.option(
            "--agents", "listed_agents", default="", metavar="A,B", help="Try these instead."
        ),
        click.option(
            "--seeds", metavar="SEEDS", help="Seeds as an axis: a count, 1..10, or a list 1,5,9."
        ),
        click.option(
            "--set",
            "settings",
            multiple=True,
            metavar="KEY=VALUE",
            help="A parameter of the scenarios, or case.FIELD of every case.",
        ),
        click.option("--tags", multiple=True, metavar="A,B", help="Only cases with one of these."),
        click.option(
            "--filter", "expression", default="", metavar="EXPR", help="Only cases such as …"
        ),
        click.option(
            "--results",
            type=folder_or_address,
            metavar="PATH",
            help="The folder of runs, or an address: s3://bucket/prefix.",
        ),
        click.option("--name", help="What the run is kept under; its own name when absent."),
        click.option("--dry-run", is_flag=True, help="Check all, print the plan, run nothing."),
        click.option("--smoke", is_flag=True, help="One trial per agent, of the first case."),
        click.option("--quiet", is_flag=True, help="No progress, no events."),
        click.option(
            "--json", "as_json", is_flag=True, help="Events on stderr, one document on stdout."
        ),
    )
    for option in reversed((*options, *NOTIFY_OPTIONS, log_options)):
        function = option(function)
    return function


@click.command(cls=Command, examples=EXAMPLES)
@click.argument("target", required=False)
@options_of(RunOptions, spelled=SPELLED, hidden=("default_trials",))
@how_options
@click.option("--resume", type=RUN, metavar="RUN", help="Do what is left of a run.")
@click.option("--retry-failed", type=RUN, metavar="RUN", help="And again what did not pass.")
@click.option("--retry-infra", type=RUN, metavar="RUN", help="And again what was not judged.")
@click.pass_context
def run(ctx: click.Context, target: str | None, **given: Any) -> None:
    """Run a suite, an experiment or a scenario and keep every trial.

    TARGET is a file (a suite, or experiments in YAML or Python), the dotted name of an experiment
    below the project's folder, a scenario of the catalog, or a scope: every scenario in it.

    Exits with 0 when every cell passed, 1 when one did not, 2 when something could not be judged
    or the run stopped at a limit, 130 or 143 when interrupted.
    """
    how = How(**{name: given.pop(name) for name in How._fields})
    began = [path for path in (how.resume, how.retry_failed, how.retry_infra) if path is not None]
    if len(began) + (target is not None) != 1:
        raise click.UsageError("name one suite, experiment or scenario, or one run to go on with")
    find_modules_here()
    if target is None:
        path = began[0]
        with telling(how, path.parent.name) as told:
            ctx.exit(_go_on(path, how, given, told))
    from proctor.trials.targets import find_target

    beside = Path(target).parent if Path(target).is_file() else Path()
    with telling(how, Path(target).stem, beside) as told:
        ctx.exit(begin(find_target(target), how, given, told))


def find_modules_here() -> None:
    """The command `proctor` finds modules where the user stands, as `python -m proctor` does."""
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))


def telling(how: How, name: str, folder: Path | None = None) -> Telling:
    """Who is told how the runs of this command end; wrong addresses are errors here and now."""
    from proctor.cli.telling import Telling
    from proctor.ops.notify import wish_for
    from proctor.spec import load_configuration

    wish = wish_for(
        load_configuration(folder),
        how.notify_to,
        how.notify_on,
        how.notify_template,
        how.notify_baseline,
    )
    return Telling(wish, name, dry_run=how.dry_run)


def begin(found: Target, how: How, given: dict[str, Any], told: Telling) -> int:
    """Make everything ready, then run it (or tell the plan); the exit code."""
    from proctor.trials.experiments import Changes, read_set
    from proctor.trials.targets import prepare_target

    if how.smoke:
        given["trials"] = 1
    from_options(RunOptions, given, spelled=SPELLED)
    if how.name and len(found.experiments) > 1:
        raise click.UsageError("--name is for one experiment, and there are several here")
    agents = [*how.agents, *_parts((how.listed_agents,))]
    changes = Changes(agents or None, how.seeds, how.expression, read_set(how.settings))
    ready = prepare_target(found, changes, given, tags=_parts(how.tags), smoke=how.smoke)
    # A smoke run says nothing of the experiment, so it is kept apart from its runs.
    suffix = "-smoke" if how.smoke else ""
    names = [(how.name or each.name) + suffix for each in ready]
    if how.dry_run:
        return _tell_plans(ready, how, names)
    carried: list[Carried] = []
    for each, name in zip(ready, names, strict=True):
        carried.append(_carried(each, _folder(each, how, name), how))
        told.ended(carried[-1])
        if carried[-1].signal is not None:
            break
    return _told(carried, how)


def _folder(ready: RunContext, how: How, name: str) -> RunFolder:
    """A new folder for a run: where it is said, or in the folder of the settings, to be shipped."""
    from proctor.trials.targets import folder_for

    return folder_for(ready, how.results, name)


def _parts(texts: tuple[str, ...]) -> list[str]:
    return [part.strip() for text in texts for part in text.split(",") if part.strip()]


def _go_on(path: Path, how: How, given: dict[str, Any], told: Telling) -> int:
    from proctor.cli._options import results_root
    from proctor.runs.find import find_run
    from proctor.trials.resume import restore
    from proctor.trials.session import FAILED, INFRA, UNFINISHED

    unused = {"--agent": how.agents, "--agents": how.listed_agents, "--seeds": how.seeds}
    unused |= {"--set": how.settings, "--tags": how.tags, "--filter": how.expression}
    unused |= {"--results": how.results, "--name": how.name, "--smoke": how.smoke}
    if wrong := [flag for flag, value in unused.items() if value]:
        raise click.UsageError(f"{wrong[0]} is for a run that begins")
    changes = {name: value for name, value in given.items() if value is not None}
    from_options(RunOptions, changes, spelled=SPELLED)
    ready, folder = restored = restore(find_run(path, results_root(None)), **changes)
    rerun = FAILED if how.retry_failed else INFRA if how.retry_infra else UNFINISHED
    if how.dry_run:
        return _tell_rest(restored, rerun, how)
    carried = _carried(ready, folder, how, rerun)
    told.ended(carried)
    return _told([carried], how)


def _tell_rest(restored: Restored, rerun: Rerun, how: How) -> int:
    """Say what is left of a run; of research, where that follows from results, what it began as."""
    from proctor.runs.audit import root_of
    from proctor.trials.resume import left_of
    from proctor.words import plural

    ready, folder = restored
    if ready.unfolding is not None:
        return _tell_plans([ready], how, [""])
    rest = left_of(restored, rerun)
    planned = len(ready.plan.trials)
    if not how.as_json:
        click.echo(f"{len(rest.plan.trials):,} of {plural(planned, 'trial')} left")
    if not rest.plan.trials and not how.as_json:
        return 0
    return _tell_plans([rest], how._replace(results=root_of(folder.path)), [ready.name])


def _carried(ready: RunContext, folder: RunFolder, how: How, rerun: Rerun | None = None) -> Carried:
    from proctor.cli.carrying import carry_out_here

    return carry_out_here(ready, folder, rerun=rerun, quiet=how.quiet, events=how.as_json)


def _told(carried: list[Carried], how: How) -> int:
    """Say what the runs came to; the exit code of the worst, failed gates before unjudged ones."""
    from proctor.cli._output import wants_colour
    from proctor.report.run_console import render_run
    from proctor.report.run_json import run_document

    documents: list[str] = []
    for each in carried:
        if how.as_json:
            documents.append(run_document(each.run, each.exit_code))
        else:
            click.echo(render_run(each.run), color=wants_colour())
            _tell_workdirs(each.run)
    _echo_documents("runs", documents)
    codes = [each.exit_code for each in carried]
    ended = next((code for code in codes if code > EXIT_CANNOT_JUDGE), None)
    return ended or (1 if 1 in codes else max(codes))


def _tell_workdirs(run: Run) -> None:
    """Say where the directories are that were kept, if that was asked for."""
    if not run.spec["options"].get("keep_workdirs"):
        return
    from proctor.words import and_more, plural

    kept = [trial.workdir for trial in run.trials if trial.workdir is not None]
    if kept:
        count = plural(len(kept), "directory", "directories")
        click.echo(f"kept {count} of trials that did not pass: {and_more(kept, 3, str)}")


def _tell_plans(ready: list[RunContext], how: How, names: list[str]) -> int:
    from proctor.report.run_plan import plan_document, plan_lines
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


def _echo_documents(several: str, documents: list[str]) -> None:
    """One JSON document: of several, one that holds them under the name given."""
    if len(documents) == 1:
        click.echo(documents[0])
    elif documents:
        click.echo(f'{{"{several}": [{", ".join(documents)}]}}')
