"""`proctor ab`: experiments that test causes."""

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
    from proctor.causes.ab import changed_agent, run_ab
    from proctor.cli.run import allow_local_imports, execute_run
    from proctor.report.console_results import render_ab
    from proctor.report.figures import document
    from proctor.spec import load_configuration, load_suite
    from proctor.trials.prepare import NamedAgents
    from proctor.trials.resolve_experiment import option_value
    from proctor.trials.select_agents import choose_agents
    from proctor.trials.target import Kind, Target, folder_for, prepare_target

    if bool(second) == bool(changes):
        raise ProctorError("say what arm b is", hint="use --change KEY=VALUE, or --b AGENT")
    allow_local_imports()
    loaded = load_suite(suite, need_agent=False)
    configuration = load_configuration(loaded.folder)
    arms_of = choose_agents(loaded, [first] if first else [], configuration)
    ((name, chosen), *others) = arms_of.items()
    if others:
        known = ", ".join([name, *(each for each, _ in others)])
        raise ProctorError(f"the suite has the agents {known}", hint="choose one with --a")
    changed: dict[str, Any] = {}
    for text in changes:
        key, sign, value = text.partition("=")
        if not sign or not key.strip():
            raise ProctorError("write it as KEY=VALUE", where=f"--change {text}")
        if value.startswith("@"):
            try:
                changed[key.strip()] = Path(value[1:]).read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise ProctorError(f"cannot be read: {error}", where=value[1:]) from None
        else:
            changed[key.strip()] = option_value(value)
    if second:
        other = choose_agents(loaded, [second], configuration)[second]
        arms = {name: chosen, second if second != name else f"{second} (b)": other}
    else:
        arms = {"a": chosen, "b": changed_agent(chosen, changed, loaded.folder)}
    options = {"trials": -(-trials // looks), "concurrency": concurrency}
    found = Target(Kind.SUITE, suite=loaded)
    (context,) = prepare_target(found, options, agents=NamedAgents(arms))
    signals: list[int | None] = []

    def carry(context: RunContext, folder: RunFolder) -> Run:
        ended = execute_run(context, folder, quiet=quiet, events=False)
        signals.append(ended.signal)
        return ended.run

    result = run_ab(
        context,
        folder_for(context, results, None),
        carry,
        changes=changed,
        trials=trials,
        looks=looks,
        alpha=alpha,
        estimand=estimand,
    )
    code = {"HURTS": 1, "NOT RECEIVED": EXIT_CANNOT_JUDGE, "INCOMPLETE": EXIT_CANNOT_JUDGE}.get(
        result.verdict, EXIT_PASS
    )
    if signals[-1] is not None:
        code = 128 + signals[-1]
    echo_report(document("ab", result, exit_code=code) if as_json else render_ab(result))
    ctx.exit(code)
