"""`proctor compare`, `leaderboard`, `gate` and `power`: is the difference between runs real?"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from proctor import api
from proctor.cli import _options
from proctor.cli._command import Command
from proctor.cli._options import option
from proctor.cli._output import echo_report
from proctor.errors import EXIT_PASS, ProctorError

if TYPE_CHECKING:
    from proctor.results.gate import Policy
    from proctor.runs.folder import RunFolder
    from proctor.runs.run import Run
    from proctor.trials.prepare import RunContext


@click.command(cls=Command)
@click.argument("runs", nargs=-1, metavar="RUN_A [RUN_B]...", shell_complete=_options.complete_runs)
@option(
    "--agents A,B",
    "Compare agents of one run, or one agent of each run; a single name is the agent of all runs."
    " Unambiguous prefixes work.",
    multiple=True,
)
@option("--cases PATTERN", "Only cases whose id matches, e.g. 'x*'.")
@_options.estimand_option
@option("--level X", "The confidence level of intervals.", type=_options.PROBABILITY, default=0.95)
@option("--seed N", "The seed of resampling.", type=int, default=0)
@_options.readable_runs_option
@_options.json_option
def compare(
    *, runs: tuple[str, ...], agents: tuple[str, ...], root: Path, as_json: bool, **how: Any
) -> None:
    """Compare two or more runs or agents.

    Compares case by case and overall. A run is a folder, <experiment>/<date>_<seq>, a tag, `latest`
    or an address. Only instances (a case under one seed) that are the same in both are paired; the
    others are listed. Three or more are compared pair by pair, with p-values corrected by Holm.

    Examples:
      # what changed since the run tagged `main`?
      proctor compare main latest
      # the agents of one run: every pair
      proctor compare latest
      # two of them
      proctor compare latest --agents fast,careful
      # about cases like these, not only about these
      proctor compare main latest --estimand population
      # one agent, two settings
      proctor compare latest --agents 'fast (t=0),fast (t=1)'
      # some cases only
      proctor compare shop/2026-01-31_001 shop/2026-01-31_002 --cases 'refund-*'
    """

    from proctor.report.console_results import render_comparison
    from proctor.report.figures import document

    if not runs and not agents:
        raise click.UsageError("name two runs, or two agents of one run with --agents A,B")
    if len(agents) == 1:
        # A comma in parentheses belongs to an agent's parameters.
        agents = tuple(part.strip() for part in re.split(r",(?![^(]*\))", agents[0]))
    opened = [_open(text, runs, root) for text in runs or ("latest",)]
    found = api.compare(*opened, agents=agents, **how)
    echo_report(document("comparison", found) if as_json else render_comparison(found))


def _open(text: str, runs: tuple[str, ...], root: Path) -> Run:
    """Open a run; if an agent was named instead, hint how to compare agents."""

    try:
        return _options.read_run(text, root)
    except ProctorError as error:
        # `proctor compare fast careful` is a frequent mistake: both are agents, not runs.
        try:
            agents = {cell.agent for cell in _options.read_run("latest", root).cells}
        except ProctorError:
            agents = set[str]()
        if text in agents:
            error.hint = f"{text} is an agent: proctor compare latest --agents {','.join(runs)}"
        raise


@click.command(cls=Command)
@click.argument("runs", nargs=-1, metavar="[RUN]...", shell_complete=_options.complete_runs)
@option("--metric", "The metric to rank by.", choices=get_args(api.Metric), default="pass_rate")
@option(
    "--alpha X",
    "The significance level of all pairwise tests together.",
    type=_options.PROBABILITY,
    default=0.05,
)
@_options.estimand_option
@option("--seed N", "The seed of resampling.", type=int, default=0)
@_options.readable_runs_option
@_options.json_option
def leaderboard(*, runs: tuple[str, ...], root: Path, as_json: bool, **how: Any) -> None:
    """Rank agents, with rank ranges.

    Ranks the agents of the given runs, or of the latest. Agents without a significant difference
    share ranks. Agents are paired by instance: the same case under the same seed.

    Examples:
      # the agents of the latest run
      proctor leaderboard
      # of several runs
      proctor leaderboard shop/2026-01-31_001 shop/2026-01-31_002
      # the cheapest first
      proctor leaderboard --metric cost_usd
      # runs in an object store
      proctor leaderboard --results s3://bucket/results
    """
    from proctor.report.console_results import render_leaderboard
    from proctor.report.figures import document
    from proctor.runs.folder import place_of

    opened = [_options.read_run(text, root) for text in runs or ("latest",)]
    board = api.leaderboard(*opened, **how)
    if as_json:
        echo_report(document("leaderboard", board, runs=[place_of(run.path) for run in opened]))
    else:
        echo_report(render_leaderboard(board))


@click.command(
    cls=Command,
    groups={
        "Common options": "against margin inconclusive must_pass root as_json",
        "Rule": "alpha max_not_judged estimand corrected",
        "More trials": "extend_by extend_rounds quiet",
    },
)
@click.argument("run", shell_complete=_options.complete_runs)
@option("--against RUN|TAG", "The run to compare with.", required=True)
@_options.margin_option
@_options.alpha_option
@_options.max_not_judged_option
@option(
    "--inconclusive",
    "How to treat INCONCLUSIVE; `extend` runs more trials and judges again.",
    choices=("pass", "fail", "extend"),
    default="pass",
)
@_options.count_option(
    "--extend-by", "Trials to add per case (and seed).  [default: as many as were planned]"
)
@option(
    "--extend-rounds N",
    "How often to extend; alpha is divided among the looks.",
    type=click.IntRange(1, 10),
    default=1,
)
@_options.must_pass_option
@_options.estimand_option
@option("--corrected", "Decide by pass rates corrected by the labels of both runs.", is_flag=True)
@_options.readable_runs_option
@_options.quiet_option
@_options.json_option
def gate(
    *,
    run: str,
    against: str,
    max_not_judged: float | None,
    inconclusive: Policy,
    extend_by: int | None,
    extend_rounds: int,
    must_pass: tuple[str, ...],
    root: Path,
    quiet: bool,
    as_json: bool,
    **rule: Any,
) -> None:
    """Test whether a run is worse than another.

    Tests pass rates and, where scores say more than passes, scores. The verdict is REGRESSION, NO
    REGRESSION or INCONCLUSIVE, at a stated error rate. Exits with 0
    if the gate passes, 1 for a regression, 2 if it could not be judged: runs that cannot be
    compared, too many errors, or still inconclusive after extending.

    Examples:
      # compare with the run tagged `main`
      proctor gate latest --against main
      # tolerate a drop of up to 10 points
      proctor gate latest --against shop/2026-01-31_001 --margin 0.1
      # run more trials until it is clear
      proctor gate latest --against main --inconclusive extend
      # these cases may never fail
      proctor gate latest --against main --must-pass 'safety-*'
      # compare with a run in an object store
      proctor gate latest --against s3://bucket/results/shop/2026-01-31_001
    """
    from proctor.report.console_results import render_gate
    from proctor.report.figures import document
    from proctor.report.outputs import write_gate
    from proctor.runs.folder import address_of

    if inconclusive != "extend":
        _options.refuse_unused("extend_by extend_rounds", "without --inconclusive extend")
    # Both are opened first, so that a wrong name is reported before any trial is added.
    tested, reference = _options.read_run(run, root), _options.read_run(against, root)
    signal: int | None = None
    if inconclusive != "extend":
        facts = api.gate(
            tested, reference, must_pass=must_pass, max_not_judged=max_not_judged, **rule
        )
    else:
        from proctor.cli.run import EndedRun, execute_run
        from proctor.trials.resume import judge_extending

        for each in (tested, reference):
            # Trials are added to runs that are here, not to local copies.
            if address := address_of(each.path):
                raise ProctorError(
                    "a run at an address cannot be extended",
                    where=address,
                    hint="download it with `proctor runs sync ADDRESS FOLDER`",
                )
        ended: list[EndedRun] = []

        # The gate says which trials to add; the command runs them, with progress and Ctrl-C.
        def add_trials(context: RunContext, folder: RunFolder) -> Run:
            ended.append(execute_run(context, folder, quiet=quiet, events=as_json))
            return ended[-1].run

        facts = judge_extending(
            tested,
            reference,
            add_trials,
            rule=api.gate_rule(max_not_judged, **rule),
            rounds=extend_rounds,
            by=extend_by,
            must_pass=must_pass,
        )
        signal = ended[-1].signal if ended else None
    # An interrupted extension has no verdict of its own.
    code = facts.exit_code(inconclusive) if signal is None else 128 + signal
    if as_json:
        more = {"exit_code": code, "policy": inconclusive, "error_rate": facts.error_rate}
        echo_report(document("gate", facts, **more))
    else:
        echo_report(render_gate(facts))
        if facts.verdict == "INCONCLUSIVE" and inconclusive == "pass" and code == EXIT_PASS:
            click.echo(
                "INCONCLUSIVE passes by default (exit code 0): --inconclusive fail or extend"
                " changes that"
            )
    write_gate(facts, tested, os.environ, to_stderr=as_json)
    # A remote run is only a cached copy here: its gate is logged in the local results folder.
    far = address_of(tested.path)
    _options.record_audit(
        "gate",
        root if far is None else api.results_root(),
        run=far or tested.path,
        run_id=tested.run_id,
        outcome=f"{facts.verdict}: {facts.reason}",
        exit_code=code,
    )
    raise click.exceptions.Exit(code)


@click.command(cls=Command)
@option(
    "--effect X",
    "The difference in pass rate to detect: 0.1 is 10 points.",
    type=click.FloatRange(0, 1, min_open=True),
    required=True,
)
@option(
    "--power X",
    "The probability of detecting it.",
    type=click.FloatRange(0.5, 1, max_open=True),
    default=0.8,
)
@option("--alpha X", "Significance level.", type=_options.PROBABILITY, default=0.05)
@option("--from RUN", "source", "Take variance and cost from a run.")
@_options.count_option("--cases", "Plan for this many cases.")
@_options.count_option("--trials", "Plan for this many trials per case.")
@option("--sigma2 X", "The variance within a case.", type=_options.PROBABILITY)
@option("--omega2 X", "The variance of true differences by case.", type=_options.PROBABILITY)
@_options.readable_runs_option
@_options.json_option
def power(
    effect: float,
    power: float,
    alpha: float,
    source: str | None,
    root: Path,
    as_json: bool,
    **given: Any,
) -> None:
    """Compute how many cases and trials are needed.

    More trials reduce the variance within a case, more cases the variance between cases. For a
    population of cases, reports when only more cases help.

    Examples:
      # what shows a drop of 10 points?
      proctor power --effect 0.1 --power 0.8
      # with the variance of a run
      proctor power --effect 0.05 --from latest
      # how many trials of these 40 cases?
      proctor power --effect 0.1 --cases 40
    """
    from proctor.report.console_results import render_power
    from proctor.report.figures import document

    run = _options.read_run(source, root) if source else None
    found = api.power(effect, alpha=alpha, power=power, run=run, **given)
    echo_report(document("plan", found) if as_json else render_power(found))
