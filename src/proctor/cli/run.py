"""`proctor run`: a suite, many times, kept in a folder; and how to go on with one."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from proctor.cli.lazy import Command, Example
from proctor.cli.model_options import from_options, options_of
from proctor.trials.options import RunOptions

if TYPE_CHECKING:
    from proctor.runs.folder import RunFolder
    from proctor.runs.run import Run
    from proctor.trials.api import Prepared
    from proctor.trials.session import Rerun

EXAMPLES = [
    Example("proctor run suite.yaml --trials 10 --concurrency 8", "ask more than once"),
    Example("proctor run suite.yaml --dry-run", "how many trials would that be, at what cost?"),
    Example("proctor run suite.yaml --max-cost 2 --early-stop", "spend no more than needed"),
    Example("proctor run suite.yaml --record calls.jsonl", "keep the model's answers for CI"),
    Example("proctor run suite.yaml --replay calls.jsonl", "the same run without a key"),
    Example("proctor run --resume results/suite/2026-01-31_001", "go on after an interruption"),
]

SPELLED = {
    "max_cost_usd": "--max-cost",
    "max_seconds": "--max-time",
    "record_to": "--record",
    "replay_from": "--replay",
}
"""Options whose names are shorter than their fields'."""

RUN = click.Path(path_type=Path, exists=True, file_okay=False)


class How(NamedTuple):
    """What is to be done and told, besides the options of the run itself."""

    agents: tuple[str, ...]
    tags: tuple[str, ...]
    expression: str
    results: Path | None
    name: str | None
    dry_run: bool
    smoke: bool
    quiet: bool
    as_json: bool
    resume: Path | None
    retry_failed: Path | None
    retry_infra: Path | None


@click.command(cls=Command, examples=EXAMPLES)
@click.argument("suite", required=False, type=click.Path(path_type=Path))
@options_of(RunOptions, spelled=SPELLED, hidden=("default_trials",))
@click.option("--agent", "agents", multiple=True, metavar="AGENT", help="Try this one instead.")
@click.option("--tags", multiple=True, metavar="A,B", help="Only cases with one of these tags.")
@click.option("--filter", "expression", default="", metavar="EXPR", help="Only cases such as …")
@click.option("--results", type=click.Path(path_type=Path), help="The folder of runs.")
@click.option("--name", help="The name of the experiment; that of the suite when absent.")
@click.option("--resume", type=RUN, metavar="RUN", help="Do what is left of a run.")
@click.option("--retry-failed", type=RUN, metavar="RUN", help="And again what did not pass.")
@click.option("--retry-infra", type=RUN, metavar="RUN", help="And again what was not judged.")
@click.option("--dry-run", is_flag=True, help="Check everything, print the plan, run nothing.")
@click.option("--smoke", is_flag=True, help="One trial per agent, of the first case.")
@click.option("--quiet", is_flag=True, help="No progress.")
@click.option("--json", "as_json", is_flag=True, help="Events on stderr, one document on stdout.")
@click.pass_context
def run(ctx: click.Context, suite: Path | None, **given: Any) -> None:
    """Run a suite many times and keep every trial.

    Exits with 0 when every cell passed, 1 when one did not, 2 when something could not be judged
    or the run stopped at a limit, 130 or 143 when interrupted.
    """
    how = How(**{name: given.pop(name) for name in How._fields})
    # The command `proctor` finds modules here, as `python -m proctor` does.
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    began = [path for path in (how.resume, how.retry_failed, how.retry_infra) if path is not None]
    if len(began) + (suite is not None) != 1:
        raise click.UsageError("name one suite, or one run to go on with")
    if suite is None:
        ctx.exit(_go_on(began[0], how, given))
    ctx.exit(_begin(suite, how, given))


def _begin(suite: Path, how: How, given: dict[str, Any]) -> int:
    from proctor.spec import load_configuration, load_suite, select_cases
    from proctor.trials.api import given_agents, new_folder, prepare

    if how.smoke:
        given["trials"] = 1
    options = from_options(RunOptions, given, spelled=SPELLED)
    loaded = load_suite(suite, need_agent=False)
    configuration = load_configuration(loaded.folder)
    tags = [tag for part in how.tags for tag in part.split(",")]
    cases = select_cases(loaded.cases, tags=tags, filter=how.expression)
    ready = prepare(
        loaded,
        options,
        agents=given_agents(loaded, list(how.agents), configuration),
        cases=cases[:1] if how.smoke else cases,
        configuration=configuration,
    )
    root = how.results or configuration.results
    # A smoke run says nothing of the experiment, so it is kept apart from its runs.
    name = (how.name or suite.stem) + ("-smoke" if how.smoke else "")
    if how.dry_run:
        return _tell_plan(ready, root, name, as_json=how.as_json)
    return _carry_out(ready, new_folder(ready, root, name), how)


def _go_on(path: Path, how: How, given: dict[str, Any]) -> int:
    from proctor.trials.resume import restore
    from proctor.trials.session import FAILED, INFRA, UNFINISHED

    unused = {"--agent": how.agents, "--tags": how.tags, "--filter": how.expression}
    unused |= {"--results": how.results, "--name": how.name, "--smoke": how.smoke}
    if wrong := [flag for flag, value in unused.items() if value]:
        raise click.UsageError(f"{wrong[0]} is for a run that begins")
    changes = {name: value for name, value in given.items() if value is not None}
    from_options(RunOptions, changes, spelled=SPELLED)
    ready, folder = restore(path, **changes)
    if how.dry_run:
        return _tell_plan(ready, folder.path.parent.parent, "", as_json=how.as_json)
    rerun = FAILED if how.retry_failed else INFRA if how.retry_infra else UNFINISHED
    return _carry_out(ready, folder, how, rerun)


def _carry_out(ready: Prepared, folder: RunFolder, how: How, rerun: Rerun | None = None) -> int:
    """Run it, tell what it came to; the exit code."""
    from proctor.cli.carrying import carry_out_here

    carried = carry_out_here(ready, folder, rerun=rerun, quiet=how.quiet, events=how.as_json)
    _tell(carried.run, carried.exit_code, as_json=how.as_json)
    return carried.exit_code


def _tell(done: Run, code: int, *, as_json: bool) -> None:
    from proctor.cli.colour import wants_colour
    from proctor.report.run_console import render_run
    from proctor.report.run_json import run_document

    if as_json:
        click.echo(run_document(done, code))
    else:
        click.echo(render_run(done), color=wants_colour())


def _tell_plan(ready: Prepared, root: Path, name: str, *, as_json: bool) -> int:
    from proctor.report.run_plan import plan_document, plan_lines
    from proctor.trials.estimate import estimate

    found = estimate(ready, root, name)
    click.echo(plan_document(ready, found) if as_json else "\n".join(plan_lines(ready, found)))
    return 0
