"""`proctor ab`, `profile`, `fork` and `why`: experiments with an agent."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from proctor.cli import _options
from proctor.cli._command import Command
from proctor.cli._options import option
from proctor.cli._output import echo_report
from proctor.errors import EXIT_CANNOT_JUDGE, EXIT_PASS, ProctorError

if TYPE_CHECKING:
    from proctor.runs.folder import RunFolder
    from proctor.runs.run import Run
    from proctor.trials.prepare import RunContext
    from proctor.trials.resume import Carry


@click.command(cls=Command)
@click.argument("suite", type=click.Path(path_type=Path))
@option("--a AGENT", "first", "First arm; by default the suite's agent.")
@option("--b AGENT", "second", "Second arm, if it is another agent.")
@option(
    "--change KEY=VALUE",
    "changes",
    "Option of the agent that arm b changes; @FILE reads the value. Repeatable.",
    multiple=True,
)
@option("--trials N", "Trials per case and arm.", type=click.IntRange(1), default=20)
@option(
    "--looks N",
    "Looks at the results; the experiment may stop at each.",
    type=click.IntRange(1, 20),
    default=4,
)
@option(
    "--alpha X",
    "Error rate of the whole experiment.",
    type=click.FloatRange(0, 0.5, min_open=True, max_open=True),
    default=0.05,
)
@_options.estimand_option
@option("--concurrency N", "Trials at the same time.", type=click.IntRange(1))
@option("--results DIR", "Folder of runs.", type=click.Path(path_type=Path))
@_options.quiet_option
@_options.json_option
@click.pass_context
def ab(  # noqa: PLR0913 (one for each option)
    ctx: click.Context,
    *,
    suite: Path,
    first: str | None,
    second: str | None,
    changes: tuple[str, ...],
    trials: int,
    looks: int,
    alpha: float,
    estimand: Any,
    concurrency: int | None,
    results: Path | None,
    quiet: bool,
    as_json: bool,
) -> None:
    """Test whether a change of the agent helps.

    Both arms run on the same cases and seeds, in rounds. The verdict is HELPS, HURTS or NO
    DIFFERENCE SHOWN at the stated error rate, which holds although the experiment may stop at each
    look. If the traces show that the change never reached the agent, it is NOT RECEIVED.

    Exits with 0 for these verdicts except HURTS (1); with 2 if nothing could be judged.

    Examples:
      # a new system prompt for a chat agent
      proctor ab suite.yaml --change system=@new_prompt.txt
      # another model, with at most 40 trials per case
      proctor ab suite.yaml --a careful --change model=openai:gpt-5 --trials 40
      # two agents
      proctor ab suite.yaml --a careful --b fast --looks 1
    """
    from proctor import api
    from proctor.cli.run import allow_local_imports
    from proctor.report.console_results import render_ab
    from proctor.report.figures import document

    allow_local_imports()
    carry, signals = _carried(quiet)
    result = api.ab(
        suite,
        a=first,
        b=second,
        changes=_changes(changes, "--change"),
        trials=trials,
        looks=looks,
        alpha=alpha,
        estimand=estimand,
        concurrency=concurrency,
        results=results,
        carry=carry,
    )
    code = {"HURTS": 1, "NOT RECEIVED": EXIT_CANNOT_JUDGE, "INCOMPLETE": EXIT_CANNOT_JUDGE}.get(
        result.verdict, EXIT_PASS
    )
    if signals and signals[-1] is not None:
        code = 128 + signals[-1]
    echo_report(document("ab", result, exit_code=code) if as_json else render_ab(result))
    ctx.exit(code)


def _carried(quiet: bool) -> tuple[Carry, list[int | None]]:
    """Return what runs the trials with progress, and the signals that ended runs."""
    from proctor.cli.run import execute_run

    signals: list[int | None] = []

    def carry(context: RunContext, folder: RunFolder) -> Run:
        ended = execute_run(context, folder, quiet=quiet, events=False)
        signals.append(ended.signal)
        return ended.run

    return carry, signals


def _changes(texts: tuple[str, ...], option_name: str) -> dict[str, Any]:
    """Return options of the agent from KEY=VALUE; @FILE is read."""
    from proctor.trials.resolve_experiment import option_value

    changed: dict[str, Any] = {}
    for text in texts:
        key, sign, value = text.partition("=")
        if not sign or not key.strip():
            raise ProctorError("write it as KEY=VALUE", where=f"{option_name} {text}")
        if value.startswith("@"):
            try:
                changed[key.strip()] = Path(value[1:]).read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise ProctorError(f"cannot be read: {error}", where=value[1:]) from None
        else:
            changed[key.strip()] = option_value(value)
    return changed


@click.command(cls=Command)
@click.argument("suite", type=click.Path(path_type=Path))
@option("--agent AGENT", "Agent to profile; by default the suite's.")
@option("--trials N", "Trials per case and condition.", type=click.IntRange(2), default=10)
@option("--paraphrases N", "Paraphrases of each input.", type=click.IntRange(0, 20), default=2)
@option("--paraphrase-with MODEL", "Model that rewords inputs; without one, the form changes.")
@option(
    "--faults X",
    "Share of tool calls, and of model calls, that fail.",
    type=click.FloatRange(0, 1),
    default=0.2,
)
@option(
    "--environment KEY=VALUE",
    "Option of the agent in the other environment; @FILE reads the value. Repeatable.",
    multiple=True,
)
@option("--concurrency N", "Trials at the same time.", type=click.IntRange(1))
@option("--results DIR", "Folder of runs.", type=click.Path(path_type=Path))
@_options.quiet_option
@_options.json_option
@click.pass_context
def profile(
    ctx: click.Context,
    *,
    suite: Path,
    environment: tuple[str, ...],
    quiet: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Measure how reliable an agent is.

    Runs the suite as it is, with reworded inputs, with failing tools and model calls, and in
    another environment. Shows how alike trials are (outcome, path, cost), how the pass rate
    changes, whether stated confidence is right, how bad the worst is, and how many trials are
    enough. Each figure has its n and interval; the report of the first run has a section with them.

    Exits with 0, or with 2 if nothing could be judged.

    Examples:
      # everything that can be tested of the suite's agent
      proctor profile suite.yaml
      # a model rewords the inputs; another time zone and language
      proctor profile suite.yaml --paraphrase-with openai:gpt-5-mini --environment env.TZ=Asia/Tokyo
    """
    from proctor import api
    from proctor.cli.run import allow_local_imports
    from proctor.report.console_results import render_profile
    from proctor.report.figures import document

    allow_local_imports()
    carry, signals = _carried(quiet)
    changed = _changes(environment, "--environment")
    found = api.profile(suite, environment=changed, carry=carry, **given)
    code = EXIT_PASS if found.figure("pass rate").n else EXIT_CANNOT_JUDGE
    if signals and signals[-1] is not None:
        code = 128 + signals[-1]
    echo_report(document("profile", found, exit_code=code) if as_json else render_profile(found))
    ctx.exit(code)


@click.command(cls=Command)
@click.argument("trial", metavar="RUN:TRIAL")
@option(
    "--at STEP",
    "First step that is not answered from the record; 1 is the first.",
    type=click.IntRange(0),
    required=True,
)
@option(
    "--edit KEY=VALUE",
    "The change: answer, call, result, hint, remove, system, model or temperature; @FILE reads the"
    " value.",
)
@option("--trials N", "How often the agent continues.", type=click.IntRange(1), default=5)
@option("--max-cost USD", "Cost limit of the run.", type=_options.POSITIVE)
@option("--concurrency N", "Trials at the same time.", type=click.IntRange(1))
@option("--results DIR", "Folder of runs.", type=click.Path(path_type=Path))
@_options.quiet_option
@_options.json_option
@click.pass_context
def fork(
    ctx: click.Context,
    *,
    trial: str,
    at: int,
    edit: str | None,
    trials: int,
    max_cost: float | None,
    concurrency: int | None,
    results: Path | None,
    quiet: bool,
    as_json: bool,
) -> None:
    """Continue a recorded trial from a step, with a change.

    Model answers and tool results before the step come from the record; then one thing changes and
    the real agent continues. Steps are numbered as `proctor diagnose` numbers them. The result is
    an ordinary run. A trial that does not repeat the recorded steps is not judged, and says where
    it left them.

    Exits with 0 if a trial was judged, else with 2.

    Examples:
      # continue from step 3, ten times, without a change
      proctor fork latest:refund/hasty/0/1 --at 3 --trials 10
      # another call at step 1
      proctor fork latest:refund/hasty/0/1 --at 1 --edit 'call=read_policy {"name": "returns"}'
      # a hint, from step 2 on
      proctor fork latest:refund/careful/0/0 --at 2 --edit 'hint=Look the order up first.'
    """
    from proctor import api
    from proctor.causes.fork import edit_from, find_trial, fork_result, prepare_fork
    from proctor.cli.run import allow_local_imports, execute_run
    from proctor.gateway.options import ForkArm
    from proctor.report.console_results import render_fork
    from proctor.report.figures import document

    allow_local_imports()
    parent, recorded = find_trial(trial, results or api.results_root())
    arm = ForkArm(step=at, edit=None if edit is None else edit_from(edit))
    context, folder = prepare_fork(
        parent,
        recorded,
        {recorded.agent: arm},
        trials=trials,
        results=results,
        concurrency=concurrency,
        max_cost_usd=max_cost,
    )
    ended = execute_run(context, folder, quiet=quiet, events=False)
    result = fork_result(ended.run, parent, recorded, arm)
    code = EXIT_PASS if result.judged else EXIT_CANNOT_JUDGE
    if ended.signal is not None:
        code = 128 + ended.signal
    echo_report(document("fork", result, exit_code=code) if as_json else render_fork(result))
    ctx.exit(code)


@click.command(cls=Command)
@click.argument("trial", metavar="RUN:TRIAL")
@option("--at STEP", "Test only this step.", type=click.IntRange(0))
@option("--suspects N", "Steps to test.", type=click.IntRange(1, 20), default=3)
@option("--trials N", "Most trials of each change.", type=click.IntRange(4), default=24)
@option("--looks N", "Looks at the results of a step.", type=click.IntRange(1, 20), default=3)
@option(
    "--alpha X",
    "Error rate of the whole experiment.",
    type=click.FloatRange(0, 0.5, min_open=True, max_open=True),
    default=0.05,
)
@option("--hint TEXT", "The hint to try, instead of one from passing trials.")
@option("--max-trials N", "Most trials in all.", type=click.IntRange(1), default=400)
@option("--max-cost USD", "Cost limit of the experiment.", type=_options.POSITIVE)
@option("--concurrency N", "Trials at the same time.", type=click.IntRange(1))
@_options.quiet_option
@_options.json_option
@click.pass_context
def why(ctx: click.Context, *, trial: str, quiet: bool, as_json: bool, **options: Any) -> None:
    """Test what a failing trial broke on.

    For the most suspicious steps of the diagnosis, the agent continues from the step as it was, and
    with changes: the step again, the call of passing trials, the right tool result, without the
    last message, with a hint. A step is decisive if a change removes half of the failures or more,
    contributing if fewer, at the stated error rate.

    Exits with 0 if a step could be tested, else with 2.

    Examples:
      # test the three most suspicious steps
      proctor why latest:refund/hasty/0/1
      # one step, at most 50 cents
      proctor why latest:refund/careful/0/0 --at 4 --max-cost 0.5
    """
    from proctor import api
    from proctor.causes.fork import find_trial
    from proctor.causes.why import run_why
    from proctor.cli.run import allow_local_imports
    from proctor.report.console_results import render_why
    from proctor.report.figures import document

    allow_local_imports()
    parent, recorded = find_trial(trial, api.results_root())
    carry, signals = _carried(quiet)
    options["max_cost_usd"] = options.pop("max_cost")
    result = run_why(parent, recorded, carry, **options)
    tested = any(cause.outcome != "not testable" for cause in result.causes)
    code = EXIT_PASS if tested else EXIT_CANNOT_JUDGE
    if signals and signals[-1] is not None:
        code = 128 + signals[-1]
    echo_report(document("why", result, exit_code=code) if as_json else render_why(result))
    ctx.exit(code)
