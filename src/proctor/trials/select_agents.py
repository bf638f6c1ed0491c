"""Who is put to the test: agents of the suite, of the settings, or named on the command line.

Each is kept with how it was written, environment variables as references, so that a run folder
can be resumed without holding a secret.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

from proctor.agents.base import AgentConfig
from proctor.agents.ensemble import EnsembleAgentConfig
from proctor.agents.registry import (
    UnknownAgentError,
    agent_config,
    find_agent,
    named_agents,
    resolve_agent,
)
from proctor.errors import did_you_mean
from proctor.imports import IMPORT_PATH
from proctor.spec import Configuration, Suite
from proctor.spec.located import Tree, escaped, plain
from proctor.spec.suite import AgentRef


class ChosenAgent(NamedTuple):
    """An agent that can be run, and what a run folder keeps of it."""

    config: AgentConfig
    written: Any

    @classmethod
    def of(cls, config: AgentConfig) -> ChosenAgent:
        """An agent made in Python, which was never written."""
        return cls(config, escaped(config.model_dump(mode="json", exclude_none=True)))


def choose_agents(
    suite: Suite, asked: Sequence[str], configuration: Configuration
) -> dict[str, ChosenAgent]:
    """The agents asked for, else those of the suite, else the one of the settings, by name."""
    fallback = configuration.settings.agent
    names = list(asked or suite.all_agents)
    if not names and fallback is not None:
        return {str(fallback): _of_settings(suite, fallback, configuration)}
    if not names:
        raise UnknownAgentError(
            "no agent: say what is under test",
            hint="give --agent (in a world, random will do), or write `agent:` into the file "
            "or the settings",
        )
    return {name: _named(suite, name, configuration) for name in names}


def _named(
    suite: Suite, name: str, configuration: Configuration, inside: tuple[str, ...] = ()
) -> ChosenAgent:
    own = suite.all_agents.get(name)
    if own is not None and own.kind is not None:
        config = agent_config(own.model_dump(exclude_none=True), base_dir=suite.folder)
        record = suite.resolved()
        chosen = ChosenAgent(config, record.get("agent") or record["agents"][name])
        return _with_members(chosen, suite, configuration, (*inside, name))
    registered = own.name if own is not None and own.name is not None else name
    options = configuration.settings.agents.get(registered)
    if options is not None:
        tree = _child(configuration.tree, "agents", registered)
        chosen = _placed(options, tree, configuration)
        return _with_members(chosen, suite, configuration, (*inside, name))
    if find_agent(registered) is not None:
        return ChosenAgent.of(resolve_agent(registered, base_dir=suite.folder))
    if own is None and re.fullmatch(IMPORT_PATH, name):
        target = {"kind": "python", "target": name}
        return ChosenAgent(agent_config(target, base_dir=suite.folder), target)
    raise _unknown(registered, suite, configuration)


def _with_members(
    chosen: ChosenAgent, suite: Suite, configuration: Configuration, inside: tuple[str, ...]
) -> ChosenAgent:
    """An ensemble with the agents it names put in, so that it stands for itself."""
    config = chosen.config
    if not isinstance(config, EnsembleAgentConfig):
        return chosen
    members: dict[str, Any] = dict(config.members)
    as_written = chosen.written.get("members")
    kept: dict[str, Any] = dict(
        cast("dict[str, Any]", as_written if isinstance(as_written, dict) else members)
    )
    judge, written = config.judge, dict(chosen.written)
    for name, ref in members.items():
        if found := _by_name(ref, suite, configuration, inside):
            members[name], kept[name] = _options(found), found.written
    if found := _by_name(judge, suite, configuration, inside):
        judge, written["judge"] = _options(found), found.written
    made = config.model_copy(update={"members": members, "judge": judge})
    return ChosenAgent(made, {**written, "members": kept})


def _by_name(
    ref: Any, suite: Suite, configuration: Configuration, inside: tuple[str, ...]
) -> ChosenAgent | None:
    """The agent that a member is named by; None where it is written out."""
    if not isinstance(ref, str) or re.fullmatch(IMPORT_PATH, ref):
        return None
    if ref in inside:
        raise UnknownAgentError(f"an ensemble is inside itself: {' > '.join((*inside, ref))}")
    return _named(suite, ref, configuration, inside)


def _options(agent: ChosenAgent) -> dict[str, Any]:
    """An agent's options, with what its import paths start from, which a record leaves out."""
    base = getattr(agent.config, "base_dir", None)
    options = agent.config.model_dump(exclude_none=True)
    return options if base is None else {**options, "base_dir": base}


def _of_settings(suite: Suite, ref: AgentRef, configuration: Configuration) -> ChosenAgent:
    if ref.kind is None and ref.name is not None:
        return _named(suite, ref.name, configuration)
    options = ref.model_dump(exclude_none=True)
    return _placed(options, _child(configuration.tree, "agent"), configuration)


def _placed(
    options: Mapping[str, Any], tree: Tree | None, configuration: Configuration
) -> ChosenAgent:
    """An agent of the settings: its import paths start at the settings' folder."""
    config = agent_config(options, base_dir=configuration.folder)
    written: Any = None if tree is None else plain(tree, as_written=True)
    # The short form is an import path, which cannot say where it starts.
    kept: dict[str, Any] = {**(written if isinstance(written, dict) else escaped(dict(options)))}
    if "base_dir" in type(config).model_fields:
        kept["base_dir"] = escaped(str(configuration.folder.resolve()))
    return ChosenAgent(config, kept)


def _child(tree: Tree | None, *names: str) -> Tree | None:
    for name in names:
        tree = None if tree is None else tree.child(name)
    return tree


def _unknown(name: str, suite: Suite, configuration: Configuration) -> UnknownAgentError:
    registered = configuration.settings.agents
    own = [*(n for n, ref in suite.all_agents.items() if ref.kind), *registered]
    listed = f"there are {', '.join(own)}" if own else None
    return UnknownAgentError(
        f"there is no agent {name!r}",
        hint=did_you_mean(name, [*own, *named_agents()])
        or listed
        or "write package.module:function, or add it to `agents` in proctor.yaml",
    )
