"""`proctor ab`, `profile`, `fork` and `why`: experiments with an agent."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from proctor import api
from proctor.cli import _options
from proctor.cli._command import Command
from proctor.cli._options import option
from proctor.cli._output import echo_report
from proctor.errors import EXIT_CANNOT_JUDGE, EXIT_PASS, ProctorError

if TYPE_CHECKING:
    from proctor.runs.folder import RunFolder
    from proctor.runs.run import Run
    from proctor.trials.prepare import RunContext

suite_argument = click.argument("suite", type=click.Path(path_type=Path))
results_option = option("--results DIR", "Folder of runs.", type=click.Path(path_type=Path))
error_rate_option = option(
    "--alpha X", "Error rate of the whole experiment.", type=_options.ONE_SIDED, default=0.05
)


class _Runner:
    """Runs the trials of an experiment with progress, then ends the command."""

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet
        self._signal: int | None = None

    def run(self, context: RunContext, folder: RunFolder) -> Run:
        """Run one part of the experiment; Ctrl-C stops it in order."""
        from proctor.cli.run import execute_run

        ended = execute_run(context, folder, quiet=self._quiet)
        self._signal = ended.signal
        return ended.run

    def end(
        self, kind: str, result: Any, render: Callable[[Any], str], code: int, as_json: bool
    ) -> NoReturn:
        """Print the result and exit with its code, or that of the signal that ended a run."""
        from proctor.report.figures import document

        code = code if self._signal is None else 128 + self._signal
        echo_report(document(kind, result, exit_code=code) if as_json else render(result))
        raise click.exceptions.Exit(code)


@click.command(cls=Command)
@suite_argument
@option("--a AGENT", "First arm; by default the suite's agent.")
@option("--b AGENT", "Second arm, if it is another agent.")
@option(
    "--change KEY=VALUE",
    "changes",
    "Option of the agent that arm b changes; @FILE reads the value. Repeatable.",
    multiple=True,
    callback=_options.key_values,
)
@option("--trials N", "Trials per case and arm.", type=click.IntRange(1), default=20)
@option(
    "--looks N",
    "How often to look at the results; the experiment may stop at each look.",
    type=click.IntRange(1, 20),
    default=4,
)
@error_rate_option
@_options.estimand_option
@_options.concurrency_option
@results_option
@_options.quiet_option
@_options.json_option
def ab(suite: Path, *, changes: dict[str, str], quiet: bool, as_json: bool, **given: Any) -> None:
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
    from proctor.report.console_results import render_ab

    runner = _Runner(quiet)
    result = api.ab(suite, changes=_values(changes), run_trials=runner.run, **given)
    codes = {"HURTS": 1, "NOT RECEIVED": EXIT_CANNOT_JUDGE, "INCOMPLETE": EXIT_CANNOT_JUDGE}
    runner.end("ab", result, render_ab, codes.get(result.verdict, EXIT_PASS), as_json)


def _values(texts: dict[str, str]) -> dict[str, Any]:
    """Return options of the agent as values; @FILE is read."""
    from proctor.trials.resolve_experiment import option_value

    values: dict[str, Any] = {}
    for key, text in texts.items():
        try:
            of_file = text.startswith("@")
            values[key] = Path(text[1:]).read_text("utf-8") if of_file else option_value(text)
        except (OSError, UnicodeDecodeError) as error:
            raise ProctorError(f"cannot be read: {error}", where=text[1:]) from None
    return values


@click.command(cls=Command)
@suite_argument
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
    callback=_options.key_values,
)
@_options.concurrency_option
@results_option
@_options.quiet_option
@_options.json_option
def profile(
    suite: Path, *, environment: dict[str, str], quiet: bool, as_json: bool, **given: Any
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
    from proctor.report.console_results import render_profile

    runner = _Runner(quiet)
    found = api.profile(suite, environment=_values(environment), run_trials=runner.run, **given)
    code = EXIT_PASS if found.figure("pass rate").n else EXIT_CANNOT_JUDGE
    runner.end("profile", found, render_profile, code, as_json)


@click.command(cls=Command)
@click.argument("trial", metavar="RUN:TRIAL")
@option(
    "--at STEP",
    "The first step to run again; steps before it are answered from the record.",
    type=click.IntRange(0),
    required=True,
)
@option(
    "--edit KEY=VALUE",
    "The change: answer, call, result, hint, remove, system, model or temperature; @FILE reads the"
    " value.",
)
@option("--trials N", "How often the agent continues.", type=click.IntRange(1), default=5)
@option("--max-cost USD", "max_cost_usd", "Cost limit of the run.", type=_options.POSITIVE)
@_options.concurrency_option
@results_option
@_options.quiet_option
@_options.json_option
def fork(
    *, trial: str, at: int, edit: str | None, quiet: bool, as_json: bool, **given: Any
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
    from proctor.causes.fork import edit_from, fork_result, prepare_fork
    from proctor.gateway.options import ForkArm
    from proctor.report.console_results import render_fork
    from proctor.runs.run import find_trial

    runner = _Runner(quiet)
    parent, recorded = find_trial(trial, given["results"] or api.results_root())
    arm = ForkArm(step=at, edit=None if edit is None else edit_from(edit))
    run = runner.run(*prepare_fork(parent, recorded, {recorded.agent: arm}, **given))
    result = fork_result(run, parent, recorded, arm)
    code = EXIT_PASS if result.judged else EXIT_CANNOT_JUDGE
    runner.end("fork", result, render_fork, code, as_json)


@click.command(cls=Command)
@click.argument("trial", metavar="RUN:TRIAL")
@option("--at STEP", "Test only this step.", type=click.IntRange(0))
@option("--suspects N", "Steps to test.", type=click.IntRange(1, 20), default=3)
@option("--trials N", "Most trials of each change.", type=click.IntRange(4), default=48)
@option(
    "--looks N",
    "How often to look at the results of a step.",
    type=click.IntRange(1, 20),
    default=3,
)
@error_rate_option
@option("--hint TEXT", "The hint to try, instead of one from passing trials.")
@option("--max-trials N", "Most trials in all.", type=click.IntRange(1), default=400)
@option("--max-cost USD", "max_cost_usd", "Cost limit of the experiment.", type=_options.POSITIVE)
@_options.concurrency_option
@_options.quiet_option
@_options.json_option
def why(*, trial: str, quiet: bool, as_json: bool, **given: Any) -> None:
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
    from proctor.causes.why import run_why
    from proctor.report.console_results import render_why
    from proctor.runs.run import find_trial

    runner = _Runner(quiet)
    result = run_why(*find_trial(trial, api.results_root()), runner.run, **given)
    tested = any(cause.outcome != "not testable" for cause in result.causes)
    runner.end("why", result, render_why, EXIT_PASS if tested else EXIT_CANNOT_JUDGE, as_json)
