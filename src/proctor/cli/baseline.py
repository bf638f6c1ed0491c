"""`proctor baseline`: save the traces of a version, list saved versions, show what changed.

A baseline is a set of saved traces of one version of an agent. Runs are compared with
`proctor compare` and `proctor gate`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from proctor.cli._command import Command, Entry, Example, LazyGroup
from proctor.cli._options import SuiteSelection, json_option, suite_options
from proctor.errors import EXIT_CANNOT_JUDGE
from proctor.tables import table

if TYPE_CHECKING:
    from proctor.runs.baselines import Baseline, BaselineStore
    from proctor.trials.baseline_runs import SavedCase

_HERE = "proctor.cli.baseline"

EXIT_REFUSED = 1
"""A case that fails its checks is not saved; as for a gate, that is exit code 1."""


@click.group(
    cls=LazyGroup,
    table={
        "save": Entry(_HERE, "save", "Save the agent's traces as a baseline."),
        "list": Entry(_HERE, "list_baselines", "List saved baselines."),
        "diff": Entry(_HERE, "diff", "Show what changed since a baseline."),
    },
    examples=[
        Example("proctor baseline save suite.yaml --version v1", "save how the agent behaves now"),
        Example("proctor baseline diff suite.yaml --baseline v1", "what has changed since?"),
    ],
)
def baseline() -> None:
    """Save the agent's traces, and show what changed since."""


@click.command(
    cls=Command,
    examples=[
        Example("proctor baseline save suite.yaml --version v1", "save how the agent behaves now"),
        Example(
            "proctor baseline save suite.yaml --version v1 --force",
            "replace it, failing cases included",
        ),
        Example(
            "proctor baseline save suite.yaml --version v1 --traces runs/",
            "save recorded traces, run nothing",
        ),
    ],
)
@suite_options
@click.option("--version", required=True, help="The name of the baseline, e.g. v1.")
@click.option("--force", is_flag=True, help="Save failing cases too, and replace saved ones.")
@click.pass_context
def save(ctx: click.Context, *, selection: SuiteSelection, version: str, force: bool) -> None:
    """Save the agent's traces as a baseline.

    Runs each case once and checks it first. Exits with 1 if a case failed its checks and was not
    saved, else with 2 if one could not be run or exists already.
    """
    from proctor.trials.baseline_runs import SaveOutcome, save_baselines

    if not version.strip():
        raise click.BadParameter("is empty", param_hint="--version")
    saved = save_baselines(
        selection.suite,
        version,
        cases=selection.cases,
        agents=selection.agents,
        options=selection.options,
        force=force,
    )
    for each in saved:
        _echo_saved(each)
    outcomes = {each.outcome for each in saved}
    if SaveOutcome.FAILED in outcomes:
        ctx.exit(EXIT_REFUSED)
    ctx.exit(0 if outcomes == {SaveOutcome.SAVED} else EXIT_CANNOT_JUDGE)


def _echo_saved(each: SavedCase) -> None:
    from proctor.sanitize import line
    from proctor.trials.baseline_runs import SaveOutcome

    name = f"{line(each.case, 120)} ({line(each.agent, 120)})"
    path = line(each.path, 500)
    if each.outcome == SaveOutcome.SAVED:
        why = f"; forced: {line(each.reason, 300)}" if each.reason else ""
        click.echo(f"saved {name}: {path}{why}")
        return
    what = {
        SaveOutcome.FAILED: "failed its checks",
        SaveOutcome.INFRA: "could not be judged",
        SaveOutcome.EXISTS: path,
    }[each.outcome]
    click.echo(f"not saved {name}: {what}: {line(each.reason, 300)}", err=True)
    if each.outcome == SaveOutcome.EXISTS:
        click.echo("  hint: choose another --version, or replace it with --force", err=True)


@click.command(
    "list",
    cls=Command,
    examples=[
        Example("proctor baseline list", "the baselines in ./baselines"),
        Example(
            "proctor baseline list --suite suite.yaml --agent my_pkg.agent:answer",
            "those of one agent of a suite",
        ),
        Example("proctor baseline list --json", "as JSON"),
    ],
)
@click.option("--agent", help="Only the baselines of this agent.")
@click.option(
    "--suite",
    type=click.Path(path_type=Path, dir_okay=False),
    help="List the baselines folder of this suite.",
)
@click.option(
    "--dir",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="The baselines folder.",
)
@json_option
def list_baselines(
    agent: str | None, suite: Path | None, folder: Path | None, as_json: bool
) -> None:
    """List saved baselines."""
    from proctor.sanitize import line

    store = _store(suite, folder)
    listing = store.list(agent)
    for problem in listing.problems:
        click.echo(f"warning: {line(problem, 500)}; skipped", err=True)
    if as_json:
        entries = [_entry(store, each) for each in listing.baselines]
        click.echo(json.dumps({"baselines": entries}, indent=2))
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
    return {
        "agent": each.agent,
        "version": each.version,
        "case": each.case,
        "saved": each.saved.isoformat(),
        "models": list(each.models),
        "spec_hash": each.spec_hash,
        "proctor": each.proctor,
        "precheck": {
            "status": str(each.precheck.status),
            "judged": each.precheck.judged,
            "score": each.precheck.score,
            "forced": each.precheck.forced,
            "reasons": list(each.precheck.reasons),
        },
        "path": str(store.path_of(each.agent, each.version, each.case)),
    }


@click.command(
    cls=Command,
    examples=[
        Example("proctor baseline diff suite.yaml --baseline v1", "run the agent and compare"),
        Example(
            "proctor baseline diff suite.yaml --baseline v1 --compare v2", "compare two baselines"
        ),
        Example(
            "proctor baseline diff suite.yaml --baseline v1 --format markdown -o diff.md",
            "write Markdown for a review",
        ),
    ],
)
@suite_options
@click.option("--baseline", required=True, metavar="VERSION", help="The baseline to compare with.")
@click.option(
    "--compare", metavar="VERSION", help="Compare this baseline with it instead of a new run."
)
@click.option(
    "--format",
    "form",
    type=click.Choice(("console", "json", "markdown")),
    default="console",
    show_default=True,
    help="Output format.",
)
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="Write to this file."
)
@click.pass_context
def diff(
    ctx: click.Context,
    *,
    selection: SuiteSelection,
    baseline: str,
    compare: str | None,
    form: str,
    as_json: bool,
    output: Path | None,
) -> None:
    """Show what changed since a baseline.

    Exits with 1 if a change is an error, else with 2 if a case could not be compared.
    """
    from proctor.files import write_atomic
    from proctor.report.diff import DIFF_FORMATS, summary
    from proctor.trials.baseline_runs import diff_with
    from proctor.user_dirs import room_for

    if compare is not None and selection.recorded:
        raise click.UsageError("use --compare or --traces, not both")
    target = None if output is None else room_for(output)
    found = diff_with(
        selection.suite,
        baseline,
        compare=compare,
        cases=selection.cases,
        agents=selection.agents,
        options=selection.options,
    )
    text = DIFF_FORMATS["json" if as_json else form](found)
    if target is None:
        click.echo(text, nl=False)
    else:
        write_atomic(target, text.encode())
        click.echo(summary(found))
    ctx.exit(found.exit_code)
