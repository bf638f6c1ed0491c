"""`proctor agent`, from outside; and settings files edited without harm."""

import json
import os
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

import commands
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from proctor.errors import ProctorError
from proctor.llm import MockLLM
from proctor.spec.config_edit import add_agent, remove_agent

BARE = {k: v for k, v in os.environ.items() if not k.startswith("PROCTOR_") and "KEY" not in k}
KEY = "sk-proj-" + "a1B2c3D4" * 6

FILE = """\
# The settings of a shop.
results: out  # kept here

agents:
  # The one in production.
  live:
    kind: http
    url: https://shop.example/ask   # v2
  # Chance.
  die: {kind: random, actions: [a, b]}

# Money.
limits:
  max_cost_usd: 2
"""


def proctor(folder: Path, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
    given = {**BARE, "XDG_CONFIG_HOME": str(folder / "xdg"), **env}
    return commands.proctor("agent", *args, cwd=folder, env=given)


def test_add_list_test_remove(tmp_path):
    """R-A1: an agent is registered, listed with its place, asked once, and forgotten."""
    call = {"tool_calls": [{"name": "stock", "arguments": {"of": "shoes"}, "id": "c1"}]}
    with MockLLM(
        [call, {"text": "Three\x1b[31m left.", "usage": {"input": 9, "output": 3}}]
    ) as server:
        added = proctor(
            tmp_path, "add", "shop", "--kind", "chat", "--set", "model=openai:gpt-4o-mini",
            "--set", f"base_url={server.base_url}", "--set", "system=You: sell.",
            "--set", "temperature=0.5", "--set", "tools=[{name: stock, reply: 3}]",
        )  # fmt: skip
        assert added.returncode == 0, added.stderr
        written = yaml.safe_load((tmp_path / "proctor.yaml").read_text())
        assert written["agents"]["shop"]["temperature"] == 0.5
        assert written["agents"]["shop"]["system"] == "You: sell."
        listed = json.loads(proctor(tmp_path, "list", "--json").stdout)
        assert listed[0]["name"] == "shop"
        assert listed[0]["from"].endswith("proctor.yaml:3:5")
        assert {"gpt-4o-mini", "random"} <= {each["name"] for each in listed}
        tried = proctor(tmp_path, "test", "shop", "--input", "How many shoes?")
    assert tried.returncode == 0, tried.stderr
    assert "\x1b" not in tried.stdout
    assert "answer   Three\\x1b[31m left." in tried.stdout
    assert "tool stock" in tried.stdout
    assert "calls    2 to models, 1 to tools" in tried.stdout
    assert "cost     unknown, 2 calls unpriced" in tried.stdout
    assert proctor(tmp_path, "remove", "shop").returncode == 0
    gone = proctor(tmp_path, "test", "shop")
    assert gone.returncode == 2
    assert "there is no agent 'shop'" in gone.stderr


def test_ones_own_settings(tmp_path):
    """R-A1: --user writes into the XDG folder, and the project's agents win over it."""
    assert proctor(tmp_path, "add", "me", "--kind", "human", "--user").returncode == 0
    own = tmp_path / "xdg" / "proctor" / "config.yaml"
    assert yaml.safe_load(own.read_text()) == {"agents": {"me": {"kind": "human"}}}
    proctor(tmp_path, "add", "me", "--kind", "random", "--set", "actions=[x]")
    assert "answer   x" in proctor(tmp_path, "test", "me").stdout
    assert proctor(tmp_path, "remove", "me", "--user").returncode == 0
    assert own.read_text() == ""


@pytest.mark.parametrize(
    "setting",
    [
        f"api_key_env={KEY}",
        f"headers.Authorization=Bearer {KEY}",
        f"body={{token: {KEY}}}",
        "headers.X-Api-Key=hunter2-and-more",
    ],
)
def test_keys_are_refused(tmp_path, setting):
    """R-A1: what looks like a key is neither written nor repeated."""
    kind = "chat" if setting.startswith("api_key_env") else "http"
    needed = "model=openai:m" if kind == "chat" else "url=http://h"
    done = proctor(tmp_path, "add", "x", "--kind", kind, "--set", needed, "--set", setting)
    assert done.returncode == 2
    assert "looks like a key" in done.stderr
    assert "api_key_env" in done.stderr
    assert KEY not in done.stderr
    assert "hunter2" not in done.stderr
    assert not (tmp_path / "proctor.yaml").exists()


def test_references_to_variables_are_not_keys(tmp_path):
    """R-A1: ${NAME} stays as it is written."""
    done = proctor(
        tmp_path, "add", "x", "--kind", "http", "--set", "url=http://h",
        "--set", "headers.Authorization=Bearer ${SHOP_TOKEN}",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Bearer ${SHOP_TOKEN}" in (tmp_path / "proctor.yaml").read_text()


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["add", "x", "--kind", "chta"], "did you mean 'chat'"),
        (["add", "x", "--kind", "chat"], "model"),
        (["add", "x", "--kind", "chat", "--set", "modle=openai:m"], "did you mean 'model'"),
        (["add", "x", "--kind", "chat", "--set", "model"], "KEY=VALUE"),
        (["add", "no way", "--kind", "human"], "cannot be an agent's name"),
        (["remove", "lvie"], "did you mean 'live'"),
        (["add", "live", "--kind", "human"], "--replace"),
        (["test", "live", "--input", "{broken"], "not JSON"),
    ],
)
def test_slips(tmp_path, args, said):
    """R-A1: each slip is one line with what to do, exit code 2, and nothing written."""
    (tmp_path / "proctor.yaml").write_text(FILE)
    done = proctor(tmp_path, *args)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert (tmp_path / "proctor.yaml").read_text() == FILE


def test_pyproject_is_left_alone(tmp_path):
    """R-A1: settings in pyproject.toml are not rewritten; what to write there is said."""
    (tmp_path / "pyproject.toml").write_text('[tool.proctor]\nresults = "out"\n')
    done = proctor(tmp_path, "add", "x", "--kind", "human")
    assert done.returncode == 2
    assert "[tool.proctor.agents.NAME]" in done.stderr


def test_an_agent_that_fails(tmp_path):
    """R-A1 R-R11: the error, the trace so far, and exit code 2."""
    (tmp_path / "mine.py").write_text("def agent(q):\n    raise ValueError('no shoes')\n")
    done = proctor(tmp_path, "test", "mine:agent")
    assert done.returncode == 2
    assert "ValueError: no shoes" in done.stderr
    assert "mine:agent" in done.stdout


# -- files are edited, not rewritten -------------------------------------------------------------


def test_comments_and_order_stay(tmp_path):
    """R-A1: only the lines of the agent in question change."""
    path = tmp_path / "proctor.yaml"
    path.write_text(FILE)
    add_agent(path, "new", {"kind": "chat", "model": "openai:m"})
    want = FILE.replace("b]}\n", "b]}\n  new:\n    kind: chat\n    model: openai:m\n")
    assert path.read_text() == want
    remove_agent(path, "live")
    assert "https" not in path.read_text()
    assert "# Chance." in path.read_text()
    remove_agent(path, "new")
    remove_agent(path, "die")
    left = path.read_text()
    assert yaml.safe_load(left) == {"results": "out", "limits": {"max_cost_usd": 2}}
    assert "# kept here" in left
    assert "# Money." in left


def test_a_replaced_agent_keeps_its_place(tmp_path):
    """R-A1: --replace rewrites the entry where it is; line ends of the others stay."""
    path = tmp_path / "proctor.yaml"
    path.write_text(FILE)
    add_agent(path, "live", {"kind": "human"}, replace=True)
    old = "    kind: http\n    url: https://shop.example/ask   # v2\n"
    assert path.read_text() == FILE.replace(old, "    kind: human\n")
    path.write_bytes(FILE.replace("\n", "\r\n").encode())
    remove_agent(path, "die")
    line = "  die: {kind: random, actions: [a, b]}\n"
    assert path.read_bytes() == FILE.replace(line, "").replace("\n", "\r\n").encode()


def test_a_file_that_cannot_be_edited_is_left(tmp_path):
    """R-A1: an anchor that others use would be lost; the file stays and the lines are shown."""
    path = tmp_path / "proctor.yaml"
    text = "agents:\n  a: &base {kind: human}\nagent: *base\n"
    path.write_text(text)
    with pytest.raises(ProctorError):
        remove_agent(path, "a")
    assert path.read_text() == text
    path.write_text("agents: [1]\n")
    with pytest.raises(ProctorError, match="not a mapping"):
        add_agent(path, "a", {"kind": "human"})


names = st.text(alphabet="abcxyz019_-", min_size=1, max_size=8).filter(lambda n: n[0] not in "-")
plain = st.one_of(
    st.none(), st.booleans(), st.integers(-9, 99), st.text(alphabet="ab: #'\"\n{[é-|", max_size=12)
)
options = st.dictionaries(
    st.sampled_from(["kind", "body", "x"]), plain | st.lists(plain), max_size=3
)
comments = st.sampled_from(["", "# one\n", "\n", "\n# two\n\n"])


@given(st.dictionaries(names, options, max_size=4), st.booleans(), comments, names, options)
def test_any_file_survives_adding_and_removing(agents, flow, comment, name, entry):
    """R-A1: whatever stood there still does; what was added is there, and gone when removed."""
    others = {"results": "out", "limits": {"trials": 4}}
    with TemporaryDirectory() as folder:
        path = Path(folder, "proctor.yaml")
        listed = yaml.safe_dump({"agents": agents}, sort_keys=False)
        if flow:
            listed = "agents: " + yaml.safe_dump(agents, default_flow_style=True, sort_keys=False)
        rest = yaml.safe_dump(others)
        path.write_text(f"{comment}{listed}{comment}{rest}", encoding="utf-8")
        add_agent(path, name, entry, replace=True)
        after = yaml.safe_load(path.read_text(encoding="utf-8"))
        assert after == {**others, "agents": {**agents, name: entry}}
        for gone in [*after["agents"]]:
            remove_agent(path, gone)
        left = yaml.safe_load(path.read_text(encoding="utf-8"))
        assert {k: v for k, v in left.items() if v} == others
        if comment.strip():
            assert "# " in path.read_text(encoding="utf-8")
