"""`proctor mcp`, used by a real client, and `proctor mcp lint` on real servers."""

import asyncio
import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from commands import proctor
from mcp import Client, StdioServerParameters

from proctor.agents.mcp import lint_tools
from proctor.cli.mcp import MAX_ANSWER

SHOP = Path(__file__).parents[1] / "agents" / "mcp_shop.py"

AGENT = """
import pathlib, sys, time

def answer(question):
    print("noise on standard output")
    if question == "slow":
        pathlib.Path("began").touch()
        time.sleep(3600)
    return "blue" if question == "sky" else "\\x1b[31m" + "x" * 50_000
"""

SUITE = """
agent: bot:answer
cases:
  - {id: sky, input: sky, correctness: {expected_in_answer: [blue]}}
  - {id: sea, input: sea, correctness: {expected_in_answer: [blue]}}
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "bot.py").write_text(AGENT)
    (tmp_path / "suite.yaml").write_text(SUITE)
    (tmp_path / "broken.yaml").write_text("cases: [{inputs: a}]\nagent: bot:answer\n")
    (tmp_path / "nowhere.yaml").symlink_to("gone.yaml")
    os.mkfifo(tmp_path / "pipe.yaml")
    slow = SUITE.partition("  - {id: sea")[0].replace("sky", "slow")
    (tmp_path / "slow.yaml").write_text(slow)
    return tmp_path


def client(folder: Path) -> Client:
    return Client(
        StdioServerParameters(
            command=sys.executable, args=["-m", "proctor", "mcp"], cwd=folder, env={**os.environ}
        )
    )


@pytest.mark.slow
async def test_a_client_runs_a_suite_and_reads_what_broke(project: Path) -> None:
    """R-N5: list, run with progress, failures, trace, diagnosis, comparison; short answers."""
    steps: list[Any] = []

    async def progress(done: float, total: float | None, message: str | None) -> None:
        steps.append((done, total, message))

    async with client(project) as connected:

        async def call(name: str, **arguments: Any) -> str:
            result = await connected.call_tool(name, arguments, progress_callback=progress)
            (block,) = result.content
            text: str = getattr(block, "text", "")
            assert len(text) < MAX_ANSWER + 100
            assert "\x1b" not in text
            assert result.is_error == text.startswith("Error")
            return text

        listed = (await connected.list_tools()).tools
        dumped = [each.model_dump(mode="json", by_alias=True) for each in listed]
        assert lint_tools(dumped) == [], "what we ask of others"
        suites = await call("list_suites")
        assert "suite.yaml: 2 cases (sky, sea)" in suites
        assert "broken.yaml: cannot be read" in suites
        assert await call("list_runs") == "no runs yet"
        report = await call("run_suite", target="suite.yaml", trials=2)
        assert "1 of 2 cells passed" in report
        assert "4 trials, 50% of 4 passed" in await call("list_runs")
        failed = await call("failures")
        assert "2 trials of 4 did not pass" in failed
        assert "sea/bot:answer/0/1  hard_fail" in failed
        assert "sky/" not in failed
        shown = await call("trace", trial="sea/bot:answer/0/1")
        assert "expected_in_answer" in shown
        assert "x" * 500 in shown
        assert "has no trial 'sea/bot:answer/0/9'" in await call(
            "trace", trial="sea/bot:answer/0/9"
        )
        assert "trace" in await call("diagnose", details=True)
        again = await call("run_suite", target="suite.yaml", trials=2, cases="sky")
        assert "PASS     2/2" in again
        runs = [each.partition(":")[0] for each in (await call("list_runs")).splitlines()]
        assert "compared with" in await call("compare", before=runs[1], after=runs[0])
        assert "nix.yaml" in await call("run_suite", target="nix.yaml")
        assert "--version" in await call("run_suite", target="--version"), "a name, not an option"
    assert {(done, total) for done, total, _ in steps} >= {(n, 4.0) for n in (1, 2, 3, 4)}
    assert {message for *_, message in steps} == {"sky: passed", "sea: hard_fail"}


def until_stopped(project: Path) -> None:
    """Wait until the run has written that it was stopped."""
    waiting = threading.Event()
    while not any(
        json.loads(beat.read_bytes())["state"] == "stopped"
        for beat in project.glob("results/slow/*/heartbeat.json")
    ):
        waiting.wait(0.05)


@pytest.mark.slow
async def test_a_cancelled_call_stops_its_run(project: Path) -> None:
    """R-N5: the run ends in order, is stored, and no process is left; the server goes on."""
    async with client(project) as connected:
        work = asyncio.ensure_future(connected.call_tool("run_suite", {"target": "slow.yaml"}))
        while not (project / "began").exists():
            await asyncio.wait({work}, timeout=0.05)
            assert not work.done(), work
        work.cancel()
        await asyncio.wait({work})
        await asyncio.to_thread(until_stopped, project)
        result = await connected.call_tool("list_runs", {})
        assert "slow/" in getattr(result.content[0], "text", "")


@pytest.mark.slow
def test_lint_of_a_program(tmp_path: Path) -> None:
    """R-N5: findings and exit codes; wrong calls are made only when asked for."""
    shop = ["mcp", "lint", "--json", "--probe", "--", sys.executable, str(SHOP)]
    done = proctor(*shop, cwd=tmp_path)
    assert done.returncode == 0
    document = json.loads(done.stdout)
    assert document["tools"] == 2
    assert [each["message"] for each in document["findings"]] == [
        "parameter 'item' has no description"
    ]
    careless = tmp_path / "careless.py"
    careless.write_text(CARELESS)
    done = proctor("mcp", "lint", "--probe", "--", sys.executable, str(careless), cwd=tmp_path)
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert "error: add: accepts no 'a'" in lines
    assert "error: add: accepts 'wrong' for 'a'" in lines
    assert any("a tool that does not exist does not name it: no" in each for each in lines)
    assert not any("user-id" in each for each in lines)  # its errors name the argument
    quiet = proctor("mcp", "lint", "--", sys.executable, str(careless), cwd=tmp_path)
    assert quiet.returncode == 0
    gone = proctor("mcp", "lint", "--", sys.executable, "nix.py", cwd=tmp_path)
    assert (gone.returncode, "nix.py" in gone.stderr) == (2, True)
    assert proctor("mcp", "lint", cwd=tmp_path).returncode == 2
    skill = proctor("mcp", "skill", cwd=tmp_path).stdout
    assert skill.startswith("---\nname: proctor\n")
    assert all(name in skill for name in ("run_suite", "failures", "diagnose", "compare"))


# A server that checks nothing, by the protocol's own words: the oldest version, one line each.
CARELESS = """
import json, sys

def reply(id, result):
    print(json.dumps({"jsonrpc": "2.0", "id": id, "result": result}), flush=True)

for line in sys.stdin:
    message = json.loads(line)
    method, id = message["method"], message.get("id")
    if method == "initialize":
        reply(id, {"protocolVersion": "2024-11-05", "capabilities": {"tools": {}},
                   "serverInfo": {"name": "careless", "version": "1"}})
    elif method == "tools/list":
        number = {"type": "number", "description": "A number to add."}
        reply(id, {"tools": [{"name": "add", "description": "Add two numbers to each other.",
            "inputSchema": {"type": "object", "properties": {"a": number}, "required": ["a"]}},
            {"name": "find", "description": "Find a user by number.",
             "inputSchema": {"type": "object", "properties": {"user-id": number},
                             "required": ["user-id"]}}]})
    elif method == "tools/call" and message["params"]["name"] == "find":
        reply(id, {"isError": True, "content": [{"type": "text", "text": "wrong user-id"}]})
    elif method == "tools/call" and message["params"]["name"] == "add":
        reply(id, {"content": [{"type": "text", "text": "3"}]})
    elif id is not None:
        print(json.dumps({"jsonrpc": "2.0", "id": id,
                          "error": {"code": -32601, "message": "no"}}), flush=True)
"""
