"""`proctor baseline`: save the traces of a version, list saved versions, show what changed.

A baseline is a set of saved traces of one version of an agent. Runs are compared with
`proctor compare` and `proctor gate`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from proctor.cli import _options
from proctor.cli._command import CommandGroup
from proctor.cli._options import option
from proctor.cli._output import echo_json
from proctor.errors import EXIT_CANNOT_JUDGE, EXIT_FAIL
from proctor.files import write_atomic
from proctor.sanitize import line
from proctor.tables import table
from proctor.user_dirs import with_folder

if TYPE_CHECKING:
    from proctor.runs.baselines import Baseline, BaselineStore
    from proctor.trials.baseline_runs import SavedCase


@click.group(cls=CommandGroup)
def baseline() -> None:
    """Save the agent's traces, and show what changed since.

    Examples:
      # save how the agent behaves now
      proctor baseline save suite.yaml --version v1
      # what has changed since?
      proctor baseline diff suite.yaml --baseline v1
    """


def _suite_options(function: _options.Decorated) -> _options.Decorated:
    """Add the options that select cases and agents of a suite, for `_selected`."""
    concurrency = "Cases to run at the same time; 1 makes latencies comparable on a busy machine."
    # From the last to the first, because decorators apply from the bottom up.
    for added in (
        _options.count_option("--concurrency", concurrency),
        _options.timeout_option,
        option("--traces PATH", "Use recorded traces instead of running the agent.", multiple=True),
        _options.filter_option("cases"),
        _options.tags_option,
        option("--agent", "Only this agent of the suite."),
        click.argument("suite", type=click.Path(path_type=Path)),
    ):
        function = added(function)
    return function


def _selected(options: dict[str, Any]) -> dict[str, Any]:
    """Return the suite, cases, agents and options that the functions of baselines take."""
    from proctor.spec import load_suite, select_cases
    from proctor.trials.baseline_runs import agents_of
    from proctor.trials.options import RunOptions

    suite = load_suite(options["suite"], need_agent=False)
    tags = _options.split_names(options["tags"])
    return {
        "suite": suite,
        "cases": select_cases(suite.cases, tags=tags, filter=options["expression"]),
        "agents": agents_of(suite, agent=options["agent"], traces=options["traces"]),
        "options": RunOptions(timeout=options["timeout"], concurrency=options["concurrency"]),
    }


@baseline.command()
@_suite_options
@option("--version", "The name of the baseline, e.g. v1.", required=True)
@option("--force", "Save failing cases too, and replace saved ones.", is_flag=True)
@click.pass_context
def save(ctx: click.Context, *, version: str, force: bool, **options: Any) -> None:
    """Save the agent's traces as a baseline.

    Runs each case once and checks it first. Exits with 1 if a case failed and was not saved,
    else with 2 if one could not be judged or exists already.

    Examples:
      # save how the agent behaves now
      proctor baseline save suite.yaml --version v1
      # replace it, failing cases included
      proctor baseline save suite.yaml --version v1 --force
      # save recorded traces, run nothing
      proctor baseline save suite.yaml --version v1 --traces runs/
    """
    from proctor.trials.baseline_runs import SaveOutcome, save_baselines

    # The version is a folder name; an empty one would put files a level too high.
    if not version.strip():
        raise click.BadParameter("is empty", param_hint="--version")
    saved = save_baselines(version=version, force=force, **_selected(options))
    for each in saved:
        _echo_saved(each)
    outcomes = {each.outcome for each in saved}
    # As for a gate: a failure is more definite than a case that could not be judged, so it wins.
    if SaveOutcome.FAILED in outcomes:
        ctx.exit(EXIT_FAIL)
    ctx.exit(0 if outcomes == {SaveOutcome.SAVED} else EXIT_CANNOT_JUDGE)


def _echo_saved(each: SavedCase) -> None:
    from proctor.trials.baseline_runs import SaveOutcome

    name = f"{line(each.case, 120)} ({line(each.agent, 120)})"
    path = line(each.path, 500)
    if each.outcome == SaveOutcome.SAVED:
        why = f"; forced: {line(each.reason, 300)}" if each.reason else ""
        click.echo(f"saved {name}: {path}{why}")
        return
    what = {
        SaveOutcome.FAILED: "failed" if each.agent_error else "failed its checks",
        SaveOutcome.INFRA: "could not be judged",
        SaveOutcome.EXISTS: path,
    }[each.outcome]
    click.echo(f"not saved {name}: {what}: {line(each.reason, 300)}", err=True)
    if each.outcome == SaveOutcome.EXISTS:
        click.echo("  hint: choose another --version, or replace it with --force", err=True)


@baseline.command("list")
@option("--agent", "Only the baselines of this agent.")
@option("--suite", "List the baselines folder of this suite.", type=_options.FILE)
@option("--dir", "folder", "The baselines folder.", type=_options.FOLDER)
@_options.json_option
def list_baselines(
    agent: str | None, suite: Path | None, folder: Path | None, as_json: bool
) -> None:
    """List saved baselines.

    Examples:
      # the baselines in ./baselines
      proctor baseline list
      # those of one agent of a suite
      proctor baseline list --suite suite.yaml --agent my_pkg.agent:answer
      # as JSON
      proctor baseline list --json
    """

    store = _store(suite, folder)
    listing = store.list(agent)
    for problem in listing.problems:
        _options.warn(f"{line(problem, 500)}; skipped")
    if as_json:
        entries = [_entry(store, each) for each in listing.baselines]
        echo_json({"baselines": entries})
        return
    if not listing.baselines:
        whose = f" of agent {agent!r}" if agent else ""
        click.echo(line(f"no baselines{whose} in {store.root}", 500))
        click.echo("hint: save some with `proctor baseline save suite.yaml --version v1`", err=True)
        return
    rows: list[list[str]] = []
    for each in listing.baselines:
        names = [line(part, 60) for part in (each.agent, each.version, each.case)]
        precheck = str(each.precheck.status) + (", forced" if each.precheck.forced else "")
        models = line(", ".join(each.models), 60) or "-"
        rows.append([*names, f"{each.saved:%Y-%m-%d %H:%M} UTC", models, precheck])
    head = ("AGENT", "VERSION", "CASE", "SAVED", "MODEL", "PRECHECK")
    click.echo("\n".join(table(head, rows, indent="")))


def _store(suite: Path | None, folder: Path | None) -> BaselineStore:
    from proctor.runs.baselines import BaselineStore

    if suite is not None and folder is not None:
        raise click.UsageError("use --suite or --dir, not both")
    if folder is not None:
        return BaselineStore(folder)
    if suite is not None:
        from proctor.spec import load_suite
        from proctor.trials.prepare import store_of

        return store_of(load_suite(suite, need_agent=False))
    from proctor.spec import load_configuration

    return BaselineStore(load_configuration().baselines or Path("baselines"))


def _entry(store: BaselineStore, each: Baseline) -> dict[str, Any]:
    from msgspec.structs import asdict  # which has the defaults, unlike the struct as JSON

    shown = ("agent", "version", "case", "saved", "models", "spec_hash", "proctor")
    facts = asdict(each)
    return {
        **{name: facts[name] for name in shown},
        "saved": each.saved.isoformat(),
        "precheck": asdict(each.precheck),
        "path": store.path_of(each.agent, each.version, each.case),
    }


@baseline.command()
@_suite_options
@option("--baseline VERSION", "The baseline to compare with.", required=True)
@option("--compare VERSION", "Compare this baseline with it instead of a new run.")
@option(
    "--format", "form", "Output format.", choices=("console", "json", "markdown"), default="console"
)
@option("--json", "as_json", "The same as --format json.", is_flag=True)
@option("-o", "--output", "Write to this file.", type=_options.FILE)
@click.pass_context
def diff(
    ctx: click.Context,
    *,
    baseline: str,
    compare: str | None,
    form: str,
    as_json: bool,
    output: Path | None,
    **options: Any,
) -> None:
    """Show what changed since a baseline.

    Exits with 1 if a change is an error, else with 2 if a case could not be compared.

    Examples:
      # run the agent and compare
      proctor baseline diff suite.yaml --baseline v1
      # compare two baselines
      proctor baseline diff suite.yaml --baseline v1 --compare v2
      # write Markdown for a review
      proctor baseline diff suite.yaml --baseline v1 --format markdown -o diff.md
    """
    from proctor.report.diff import DIFF_FORMATS, summary
    from proctor.trials.baseline_runs import diff_with

    if compare is not None and options["traces"]:
        raise click.UsageError("use --compare or --traces, not both")
    # Before the agent runs: a path that cannot be written is reported at once.
    target = None if output is None else with_folder(output)
    found = diff_with(baseline=baseline, compare=compare, **_selected(options))
    text = DIFF_FORMATS["json" if as_json else form](found)
    if target is None:
        click.echo(text, nl=False)
    else:
        write_atomic(target, text.encode())
        click.echo(summary(found))
    ctx.exit(found.exit_code)
