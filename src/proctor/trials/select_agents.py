"""Select the agents to test: of the suite, of the settings, or named on the command line.

Each is recorded as written, with environment variables as references, so that a run folder can be
resumed without containing a secret.
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


class ChosenAgent(NamedTuple):
    """An agent that can be run, and its form in the record of a run."""

    config: AgentConfig
    written: Any

    @classmethod
    def of(cls, config: AgentConfig) -> ChosenAgent:
        """Return an agent made in Python, which has no written form."""
        return cls(config, escaped(config.model_dump(mode="json", exclude_none=True)))


def choose_agents(
    suite: Suite, names: Sequence[str], configuration: Configuration
) -> dict[str, ChosenAgent]:
    """Return the named agents, else those of the suite, else the one of the settings."""
    fallback = configuration.settings.agent
    names = list(names or suite.all_agents)
    if not names and fallback is not None:
        if fallback.kind is None and fallback.name is not None:
            return {str(fallback): _named(suite, fallback.name, configuration)}
        options = fallback.model_dump(exclude_none=True)
        tree = _child(configuration.tree, "agent")
        return {str(fallback): _placed(options, tree, configuration)}
    if not names:
        raise UnknownAgentError(
            "no agent: say what is under test",
            hint="use --agent (in a world, random will do), or set `agent:` in the file "
            "or the settings",
        )
    return {name: _named(suite, name, configuration) for name in names}


def _named(
    suite: Suite, name: str, configuration: Configuration, inside: tuple[str, ...] = ()
) -> ChosenAgent:
    own = suite.all_agents.get(name)
    if own is not None and own.kind is not None:
        config = agent_config(own.model_dump(exclude_none=True), base_dir=suite.folder)
        record = suite.resolved(cases=False)
        chosen = ChosenAgent(config, record.get("agent") or record["agents"][name])
        if isinstance(config, EnsembleAgentConfig):
            chosen = _with_members(chosen, config, suite, configuration, (*inside, name))
        return chosen
    registered = own.name if own is not None and own.name is not None else name
    options = configuration.settings.agents.get(registered)
    if options is not None:
        tree = _child(configuration.tree, "agents", registered)
        chosen = _placed(options, tree, configuration)
        if isinstance(chosen.config, EnsembleAgentConfig):
            chosen = _with_members(chosen, chosen.config, suite, configuration, (*inside, name))
        return chosen
    if find_agent(registered) is not None:
        return ChosenAgent.of(resolve_agent(registered, base_dir=suite.folder))
    if own is None and re.fullmatch(IMPORT_PATH, name):
        target = {"kind": "python", "target": name}
        return ChosenAgent(agent_config(target, base_dir=suite.folder), target)
    raise _unknown(registered, suite, configuration)


def _with_members(
    chosen: ChosenAgent,
    config: EnsembleAgentConfig,
    suite: Suite,
    configuration: Configuration,
    inside: tuple[str, ...],
) -> ChosenAgent:
    """Return an ensemble with the options of the agents it names, so that it is self-contained."""
    members: dict[str, Any] = dict(config.members)
    as_written = chosen.written.get("members")
    recorded = dict(cast("dict[str, Any]", as_written if isinstance(as_written, dict) else members))
    judge, written = config.judge, dict(chosen.written)
    for name, ref in members.items():
        if found := _by_name(ref, suite, configuration, inside):
            members[name], recorded[name] = _options(found), found.written
    if found := _by_name(judge, suite, configuration, inside):
        judge, written["judge"] = _options(found), found.written
    config = config.model_copy(update={"members": members, "judge": judge})
    return ChosenAgent(config, {**written, "members": recorded})


def _by_name(
    ref: Any, suite: Suite, configuration: Configuration, inside: tuple[str, ...]
) -> ChosenAgent | None:
    """Return the agent that a member refers to; None if the member is written out."""
    if not isinstance(ref, str) or re.fullmatch(IMPORT_PATH, ref):
        return None
    if ref in inside:
        raise UnknownAgentError(f"an ensemble is inside itself: {' > '.join((*inside, ref))}")
    return _named(suite, ref, configuration, inside)


def _options(agent: ChosenAgent) -> dict[str, Any]:
    """Return an agent's options with the base of its import paths, which a dump leaves out."""
    base = getattr(agent.config, "base_dir", None)
    options = agent.config.model_dump(exclude_none=True)
    return options if base is None else {**options, "base_dir": base}


def _placed(
    options: Mapping[str, Any], tree: Tree | None, configuration: Configuration
) -> ChosenAgent:
    """Return an agent of the settings; its import paths start at the settings' folder."""
    config = agent_config(options, base_dir=configuration.folder)
    written: Any = None if tree is None else plain(tree, as_written=True)
    # The short form is an import path, which cannot name its base.
    record: dict[str, Any] = {**(written if isinstance(written, dict) else escaped(dict(options)))}
    if "base_dir" in type(config).model_fields:
        record["base_dir"] = escaped(str(configuration.folder.resolve()))
    return ChosenAgent(config, record)


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
