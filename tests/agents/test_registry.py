"""Agents by name: settings, installed packages, shipped profiles."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

from proctor.agents._chat import ChatAgentConfig
from proctor.agents.base import AgentRequest
from proctor.agents.registry import (
    KINDS,
    PROFILES,
    UnknownAgentError,
    agent_config,
    find_agent,
    kind_class,
    known_kinds,
    named_agents,
    resolve_agent,
)
from proctor.llm import cost_usd

SETTINGS = {
    "shop": {"kind": "chat", "model": "openai:gpt-4o", "system": "Sell."},
    "gpt-4o": {"kind": "scripted", "replies": ["mine"]},
}


@pytest.fixture
def installed(tmp_path, monkeypatch) -> Iterator[Path]:
    """A package that brings a kind and two named agents."""
    (tmp_path / "their_agents.py").write_text(
        "from typing import Literal\n"
        "from proctor.agents.base import AgentConfig, AgentReply\n"
        "class EchoConfig(AgentConfig):\n"
        "    kind: Literal['echo'] = 'echo'\n"
        "    suffix: str = '!'\n"
        "    def create(self):\n"
        "        return Echo(self.suffix)\n"
        "class Echo:\n"
        "    def __init__(self, suffix):\n"
        "        self.suffix = suffix\n"
        "    async def run(self, request):\n"
        "        return AgentReply(answer=request.input + self.suffix)\n"
        "loud = {'kind': 'echo', 'suffix': '!!!'}\n"
        "def plain(question):\n"
        "    return question\n"
    )
    info = tmp_path / "their_agents-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-agents\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[proctor.agents]\necho = their_agents:EchoConfig\n"
        "[proctor.named_agents]\nloud = their_agents:loud\nplain = their_agents:plain\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("their_agents", None)


async def said(config) -> str:
    return (await config.create().run(AgentRequest("hi", case="c"))).answer


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_can_be_loaded(kind):
    """R-A2: each kind in the table is a class that takes this name and no other of them."""
    taken = get_args(kind_class(kind).model_fields["kind"].annotation)
    assert kind in taken
    assert all(kind_class(other) is kind_class(kind) for other in taken)


async def test_a_package_brings_a_kind_and_agents(installed):
    """R-A1: a third-party kind is one class and an entry point; so is a named agent."""
    assert "echo" in known_kinds()
    assert await said(agent_config({"kind": "echo"})) == "hi!"
    listed = named_agents()
    assert listed["loud"].origin == "their-agents"
    assert await said(resolve_agent("loud")) == "hi!!!"
    assert await said(resolve_agent({"name": "loud", "suffix": "?"})) == "hi?"
    assert await said(resolve_agent("plain")) == "hi"
    with pytest.raises(UnknownAgentError, match="cannot take options"):
        resolve_agent({"name": "plain", "suffix": "?"})


def test_names_are_listed_without_importing_anyone(installed):
    """R-A1: a package that cannot be imported does not spoil the list."""
    (installed / "their_agents.py").write_text("raise RuntimeError('broken')\n")
    assert "loud" in named_agents()


async def test_settings_win_over_profiles():
    """R-A1: a name in the settings is the user's; options may be laid over it."""
    assert await said(resolve_agent("gpt-4o", SETTINGS)) == "mine"
    shop = resolve_agent({"name": "shop", "temperature": 0.5}, SETTINGS)
    assert isinstance(shop, ChatAgentConfig)
    assert (shop.model, shop.system, shop.temperature) == ("openai:gpt-4o", "Sell.", 0.5)
    profile = resolve_agent("gpt-4o-mini", SETTINGS)
    assert isinstance(profile, ChatAgentConfig)
    assert profile.model == "openai:gpt-4o-mini"


async def test_import_paths_start_where_they_were_written(tmp_path):
    """R-A1: an agent of the settings is looked for beside them, one of a suite beside the suite."""
    for name in ("project", "suite"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "where_from.py").write_text(f"def agent(q):\n    return {name!r}\n")
    settings = {"mine": {"kind": "python", "target": "where_from:agent"}}
    places = {"base_dir": tmp_path / "suite", "settings_dir": tmp_path / "project"}
    assert await said(resolve_agent("mine", settings, **places)) == "project"
    assert await said(resolve_agent("where_from:agent", settings, **places)) == "suite"


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("gpt-4o-mni", "did you mean 'gpt-4o-mini'"),
        ("shopp", "did you mean 'shop'"),
        ("chat", "is a kind of agent"),
        ("zzzzzz", "proctor agent list"),
    ],
)
def test_unknown_names_are_told_their_neighbours(name, hint):
    """R-A1: an unknown agent is an error with what was probably meant."""
    assert find_agent(name, SETTINGS) is None
    with pytest.raises(UnknownAgentError, match="there is no agent") as raised:
        resolve_agent(name, SETTINGS)
    assert hint in str(raised.value.hint)


@pytest.mark.parametrize("name", PROFILES)
def test_profiles_are_valid_and_priced(name):
    """R-A1 R-A4: every profile can be made, and a remote model in one has a published price."""
    config = resolve_agent(name)
    assert config.create() is not None
    if isinstance(config, ChatAgentConfig) and config.provider != "local":
        provider, _, model = config.model.partition(":")
        price = cost_usd(model, provider, input_tokens=1000, output_tokens=1000)
        assert price is not None
        assert price > 0


def test_the_page_about_agents_is_true(root, monkeypatch):
    """R-A2: every kind shown in the how-to is accepted as written, and none is left out."""
    import re

    import yaml

    page = (root / "docs/how-to/agents.md").read_text(encoding="utf-8")
    shown = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", page, re.S)]
    agents = [options for options in shown if "kind" in options]
    for options in agents:
        assert agent_config(options).kind == options["kind"]
    assert {options["kind"] for options in agents} == set(KINDS)
