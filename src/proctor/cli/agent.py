"""`proctor agent`: register agents under names, list, test and remove them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from proctor.cli._command import CommandGroup
from proctor.cli._options import (
    POSITIVE,
    complete_agents,
    filter_option,
    json_option,
    key_values,
    option,
)
from proctor.errors import EXIT_CANNOT_JUDGE, ProctorError, hint_among
from proctor.formatting import duration_ms, money
from proctor.sanitize import printable
from proctor.user_dirs import user_settings_file

if TYPE_CHECKING:
    from proctor.agents.registry import NamedAgent
    from proctor.runs.run import Run
    from proctor.spec import Configuration


HELLO = "Hello! In one sentence: what can you do?"
"""The default input of `proctor agent test`."""


user_option = option(
    "--user", "own", "Use your user settings instead of the project's.", is_flag=True
)


@click.group(cls=CommandGroup)
def agent() -> None:
    """Register, list, test and remove agents.

    Examples:
      # all agents
      proctor agent list
      # a model with a prompt
      proctor agent add shop --kind chat --set model=openai:gpt-4o-mini --set system='You sell
          shoes.'
      # does it work?
      proctor agent test shop --input 'Do you have red ones?'
    """


# -- add -----------------------------------------------------------------------------------------


@agent.command()
@click.argument("name")
@option("--kind", "The kind of agent: chat, python, command, http, …", required=True)
@option(
    "--set KEY=VALUE",
    "settings",
    "An option of that kind; a.b sets a nested key, [..] and {..} are YAML. Repeatable.",
    multiple=True,
    callback=key_values,
)
@option("--replace", "Replace an existing agent.", is_flag=True)
@user_option
def add(name: str, kind: str, settings: dict[str, str], replace: bool, own: bool) -> None:
    """Register an agent under a name.

    Writes to proctor.yaml (with --user, to your user settings) and leaves the rest of the file
    unchanged. API keys are never written: name the variable that holds one with api_key_env.

    Examples:
      # a model with a prompt
      proctor agent add shop --kind chat --set model=openai:gpt-4o-mini --set system='You sell
          shoes.'
    """
    from proctor.agents.registry import agent_config
    from proctor.spec.config_edit import add_agent, refuse_secrets

    options = {"kind": kind, **_options(kind, settings)}
    refuse_secrets(options)  # before anything is written
    path = _settings_path(own)
    agent_config(options, base_dir=path.parent)  # validates, so that no broken agent is stored
    add_agent(path, name, options, replace=replace)
    click.echo(printable(f"added {name} to {path}"))
    click.echo(printable(f"test it: proctor agent test {name}"))


def _settings_path(own: bool) -> Path:
    """Return the settings file to edit; a new project file is created in this folder."""

    from proctor.spec.config import find_project_file

    if own:
        path = user_settings_file(os.environ)
        if path is None:
            raise ProctorError("no home folder for user settings", hint="set HOME")
        return path
    path = find_project_file(Path()) or Path("proctor.yaml")
    if path.suffix == ".toml":
        raise ProctorError(
            "this project's settings are in pyproject.toml, which Proctor does not edit",
            where=str(path),
            hint="add [tool.proctor.agents.NAME] with the kind and its options yourself",
        )
    return path


def _options(kind: str, settings: dict[str, str]) -> dict[str, Any]:
    """Return the settings by the types of the kind's fields."""
    from proctor.agents.registry import kind_class
    from proctor.trials.resolve_experiment import option_value

    fields = {**kind_class(kind).model_fields}
    for ours in ("kind", "base_dir"):
        fields.pop(ours, None)
    options: dict[str, Any] = {}
    for key, text in settings.items():
        first, *rest = key.split(".")
        if first not in fields:
            message = f"agents of kind {kind} have no option {first!r}"
            raise ProctorError(message, where="--set", hint=hint_among(first, fields))
        wants: Any = fields[first].annotation
        # A text field takes its value as it is: `--set model=1e5` is not a number.
        is_text = not rest and wants in (str, str | None)
        _put(options, [first, *rest], text if is_text else option_value(text))
    return options


def _put(options: dict[str, Any], steps: list[str], value: Any) -> None:
    """Set a nested value, creating the mappings on the way."""
    here = options
    for step in steps[:-1]:
        inner: Any = here.setdefault(step, {})
        if not isinstance(inner, dict):
            raise ProctorError(f"{step!r} already has a value", where="--set")
        here = cast("dict[str, Any]", inner)
    here[steps[-1]] = value


# -- list ----------------------------------------------------------------------------------------


@agent.command("list")
@filter_option("agents", "kind:chat")
@json_option
def list_agents(expression: str, as_json: bool) -> None:
    """List registered agents.

    Lists the agents of the project's settings, of your user settings, of installed packages, and
    those that come with Proctor. If a name occurs twice, the first of these wins.

    Examples:
      # all agents, with their kind and origin
      proctor agent list
      # chat agents only
      proctor agent list --filter kind:chat
      # as JSON
      proctor agent list --json
    """
    from proctor.agents.registry import named_agents
    from proctor.cli.list import FilterableRow, echo_rows
    from proctor.spec import load_configuration, select_cases

    configuration = load_configuration()
    found = named_agents(configuration.settings.agents)
    # The user's own agents first, those of Proctor last.
    order = {"settings": 0, "proctor": 2}
    agents = sorted(found.values(), key=lambda each: (order.get(each.origin, 1), each.name))
    rows = [FilterableRow(_row(each, configuration)) for each in agents]
    chosen = select_cases(rows, filter=expression, called="agents")
    echo_rows([each.row for each in chosen], as_json)


def _row(each: NamedAgent, configuration: Configuration) -> dict[str, str]:
    """Describe one agent; options are never shown in full, because they may contain anything."""
    from collections.abc import Mapping

    from proctor.trace.redact import default_redactor

    written: Any = each.agent
    options: dict[str, Any] = {**written} if isinstance(written, Mapping) else {}
    shown = ("model", "target", "url", "command", "entry_point", "traces")
    what = next((str(options[key]) for key in shown if key in options), "")
    origin = each.origin
    if origin == "settings":
        tree = configuration.tree.child("agents")
        entry = None if tree is None else tree.child(each.name)
        if entry is not None:
            origin = str(entry.place)
            # A value from an environment variable may be a key.
            what = "(hidden)" if entry.secrets else what
    return {
        "name": each.name,
        "kind": str(options.get("kind", "")),
        "what": default_redactor().text(what),
        "from": origin,
    }


# -- test ----------------------------------------------------------------------------------------


@agent.command()
@click.argument("name", metavar="AGENT", shell_complete=complete_agents)
@option("--input", "text", "The input; parsed as JSON if it is an object or a list.", default=HELLO)
@option("--seed", "The seed passed to the agent.", type=int, default=0)
@option("--timeout SECONDS", "Time limit.", type=POSITIVE)
@click.pass_context
def test(ctx: click.Context, name: str, text: str, seed: int, timeout: float | None) -> None:
    """Run an agent once and show its trace.

    AGENT is a name, or package.module:function. Nothing is stored. Exits with 2 if the agent could
    not be run.

    Examples:
      # does it work?
      proctor agent test shop --input 'Do you have red ones?'
    """
    from proctor.agents.registry import resolve_agent
    from proctor.background import run_sync
    from proctor.runs.trial import NO_CHECKS
    from proctor.spec import Case, Suite, load_configuration
    from proctor.trials.options import RunOptions
    from proctor.trials.prepare import prepare
    from proctor.trials.session import run_session

    configuration = load_configuration()
    config = resolve_agent(
        name, configuration.settings.agents, Path(), settings_dir=configuration.folder
    )
    suite = Suite(cases=(Case(id="test", input=_question(text)),))
    context = prepare(
        suite,
        RunOptions(seed=seed, timeout=timeout, trials=1),
        agents={name: config},
        configuration=configuration,
    )
    run = run_sync(run_session(context))
    _show(run)
    if run.trials[0].error is not None and run.trials[0].category != NO_CHECKS:
        ctx.exit(EXIT_CANNOT_JUDGE)


def _question(text: str) -> Any:

    # Only these: a number or a quoted text is more likely a question than JSON.
    if text.lstrip()[:1] not in ("{", "["):
        return text
    try:
        return json.loads(text)
    except ValueError as error:
        raise ProctorError(f"not JSON: {error}", where="--input") from None


def _show(run: Run) -> None:
    from proctor.runs.trial import NO_CHECKS

    (trial,) = run.trials
    trace = run.trace(trial)
    if trace is not None:
        click.echo(printable(trace.tree(), keep="\n"))
        click.echo()
    # The agent is only run here, so that there is nothing to check.
    if trial.error is not None and trial.category != NO_CHECKS:
        click.echo(printable(f"error: {trial.error.type}: {trial.error.message}"), err=True)
    else:
        click.echo(f"answer   {printable(trial.answer or '', keep=chr(10)) or '(empty)'}")
    # Without model calls there are no tokens; with some, the provider may not report them.
    uncounted = "unknown" if trial.llm_calls else ""
    facts = {
        "latency": duration_ms(trial.latency_ms),
        "calls": f"{trial.llm_calls or 0} to models, {trial.tool_calls or 0} to tools",
        "tokens": uncounted if trial.tokens is None else f"{trial.tokens:,}",
        "cost": money(trial.cost_usd, trial.unpriced_calls or 0),
        "retries": str(trial.retries) if trial.retries else "",
    }
    for label, value in facts.items():
        if value:
            click.echo(f"{label:<8} {value}")


# -- remove --------------------------------------------------------------------------------------


@agent.command()
@click.argument("name")
@user_option
def remove(name: str, own: bool) -> None:
    """Remove an agent from the settings.

    Examples:
      # remove one
      proctor agent remove shop
    """
    from proctor.spec.config_edit import remove_agent

    path = _settings_path(own)
    remove_agent(path, name)
    click.echo(printable(f"removed {name} from {path}"))
