"""`proctor validate` and `proctor run --dry-run`: what a suite names exists and can be used."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from commands import proctor

AGENT = """
print("executed")
def answer(question): return "Paris"
def search(query: str) -> str: return query
class Clerk:
    def run(self, request): ...
def cites(ctx): return True
number = 3
"""


def suite(folder: Path, **changes: Any) -> None:
    case = {"input": "capital?", "correctness": {"expected_in_answer": ["Paris"]}}
    (folder / "agent.py").write_text(AGENT)
    (folder / "broken.py").write_text("def answer(")
    document = {"agent": "agent:answer", "cases": [case], **changes}
    (folder / "suite.yaml").write_text(json.dumps(document))


def environment(**more: str) -> dict[str, str]:
    import os

    return {**{k: v for k, v in os.environ.items() if not k.endswith("_API_KEY")}, **more}


@pytest.mark.parametrize("more", [(), ("--import",)])
def test_an_agent_in_the_working_folder_is_found_as_when_it_runs(
    tmp_path: Path, more: tuple[str, ...]
) -> None:
    """R-S1: what `test` runs from this folder is valid, wherever the suite is."""
    (tmp_path / "suites").mkdir()
    suite(tmp_path / "suites", agent="local_agent:answer")
    (tmp_path / "local_agent.py").write_text("def answer(question): return 'Paris'")
    found = proctor("validate", *more, "suites/suite.yaml", cwd=tmp_path)
    assert found.returncode == 0, found.stderr


WRONG = [
    ({"agent": "agent:answr"}, "agent:answr: agent has no 'answr'"),
    ({"agent": "agnt:answer"}, "agnt:answer: no module 'agnt'\n  hint: did you mean 'agent'?"),
    ({"agent": "agent:Clerk.walk"}, "agent.Clerk has no 'walk'"),
    (
        {"agent": "agent.py:answer"},
        "no module 'agent.py'\n  hint: write 'agent': modules are named",
    ),
    ({"agent": {"kind": "langgraph", "target": "agent:graph"}}, "agent has no 'graph'"),
    (
        {"agent": {"kind": "chat", "model": "openai:m", "tools": [{"python": "agent:find"}]}},
        "agent has no 'find'",
    ),
    ({"agent": {"kind": "chat", "model": "nosuch:m"}}, "no provider 'nosuch' is known"),
    ({"judge": "opnai:gpt-4o"}, "no provider 'opnai' is known"),
    ({"cases": [{"input": "x", "checks": [{"check": "agent:cite"}]}]}, "agent has no 'cite'"),
    ({"agent": "os.path:joined"}, "os.path has no 'joined'"),
    ({"agent": {"kind": "command", "command": ["no-such"]}}, "there is no program 'no-such'"),
    (
        {"cases": [{"input": "x", "correctness": {"llm_judge": [{"rule": "is polite"}]}}]},
        "no judge is configured",
    ),
    ({"baseline": "v9"}, "has no version 'v9'"),
]


NO_FOLDER = ({"workspace": "./nowhere"}, "suite.yaml:1:124: there is no folder './nowhere'")
NO_PYTHON = ({"agent": "broken:answer"}, "broken:answer: broken.py, line 1, is not Python 3.")


@pytest.mark.parametrize(("changes", "message"), [*WRONG, NO_FOLDER, NO_PYTHON])
def test_names_are_looked_up_without_running_code(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    """R-S1: agents, tools, checks and models that do not exist are found in the source."""
    suite(tmp_path, **changes)
    done = proctor("validate", "suite.yaml", cwd=tmp_path, env=environment())
    assert done.returncode == 2
    assert message in done.stderr
    if '"baseline"' not in (tmp_path / "suite.yaml").read_text():
        assert re.search(r"^suite\.yaml:1:\d+: ", done.stderr, re.MULTILINE), "with its place"
    assert "executed" not in done.stdout + done.stderr
    assert "looked up in the source" in done.stdout


@pytest.mark.parametrize(("changes", "message"), WRONG, ids=[m for _, m in WRONG])
def test_a_dry_run_uses_what_it_names(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    """R-R7: a dry run finds the same, by importing; nothing is written."""
    suite(tmp_path, **changes)
    env = environment(OPENAI_API_KEY="none")
    done = proctor("run", "suite.yaml", "--dry-run", cwd=tmp_path, env=env)
    assert done.returncode == 2
    assert message.rpartition(": ")[2] in done.stderr
    assert not (tmp_path / "results").exists()


def test_names_that_only_running_code_knows(tmp_path: Path) -> None:
    """R-S1: a name that the source cannot show is no problem; with --import it is loaded."""
    suite(tmp_path, agent="agent:made")
    (tmp_path / "agent.py").write_text(AGENT + "globals()['made'] = answer\n__getattr__ = None\n")
    done = proctor("validate", "suite.yaml", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    done = proctor("validate", "--import", "suite.yaml", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "executed" in done.stdout + done.stderr
    assert "agents and checks were imported" in done.stdout


def test_a_missing_key(tmp_path: Path) -> None:
    """R-R7: a key that is not set is a warning of validate and an error of a dry run."""
    suite(tmp_path, agent={"kind": "chat", "model": "openai:gpt-4o-mini"})
    done = proctor("validate", "suite.yaml", cwd=tmp_path, env=environment())
    assert done.returncode == 0
    assert "warning: the environment variable OPENAI_API_KEY is not set" in done.stderr
    done = proctor("run", "suite.yaml", "--dry-run", cwd=tmp_path, env=environment())
    assert done.returncode == 2
    assert "OPENAI_API_KEY is not set" in done.stderr


def test_a_model_nobody_publishes(tmp_path: Path) -> None:
    """R-R7: a mistyped model of a known provider is a warning of both; an endpoint of one's own, or
    a price of one's own, is not."""
    warned = "warning: openai:gpt-4o-mimi has no published price: check the name"
    named = {"kind": "chat", "model": "openai:gpt-4o-mimi"}
    keys = {**environment(), "OPENAI_API_KEY": "x"}
    for agent, said in ((named, True), ({**named, "base_url": "http://localhost:1/v1"}, False)):
        suite(tmp_path, agent=agent)
        for command in (("validate", "suite.yaml"), ("run", "suite.yaml", "--dry-run")):
            done = proctor(*command, cwd=tmp_path, env=keys)
            assert (done.returncode, warned in done.stderr) == (0, said), (command, done.stderr)
    suite(tmp_path, agent=named)
    (tmp_path / "proctor.yaml").write_text("prices: {gpt-4o-mimi: {input: 1, output: 2}}\n")
    assert warned not in proctor("validate", "suite.yaml", cwd=tmp_path, env=keys).stderr


def test_experiments_in_python_need_import(tmp_path: Path) -> None:
    """R-S3: validating one would execute it, so it is asked for."""
    (tmp_path / "exp.py").write_text("raise SystemExit('ran')\n")
    done = proctor("validate", "exp.py", cwd=tmp_path)
    assert done.returncode == 2
    assert "validate it with --import" in done.stderr
    assert "ran" not in done.stderr.replace("import", "")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"agent": {"kind": "pydantic_ai", "target": "agent:answer"}},
            "agent:answer is not a pydantic_ai.Agent but a function",
        ),
        (
            {
                "cases": [
                    {"input": "x", "correctness": {"llm_judge": {"rule": "r", "model": "no:m"}}}
                ]
            },
            "no provider 'no' is known",
        ),
    ],
)
@pytest.mark.parametrize("command", [("validate", "--import"), ("run", "--dry-run")])
def test_what_only_imported_code_shows(
    tmp_path: Path, changes: dict[str, Any], message: str, command: tuple[str, ...]
) -> None:
    """R-R7: a target of another type and the model of a single check are found before a trial."""
    pytest.importorskip("pydantic_ai")
    suite(tmp_path, **changes)
    done = proctor(*command, "suite.yaml", cwd=tmp_path, env=environment())
    assert done.returncode == 2, done.stdout
    assert message in done.stderr


@pytest.mark.parametrize("agent", ["os.path:join", "math:sqrt"])
def test_modules_without_a_file_are_found(tmp_path: Path, agent: str) -> None:
    """R-S1: `os.path` and built-in modules exist, though no source file has their names."""
    suite(tmp_path, agent=agent)
    done = proctor("validate", "suite.yaml", cwd=tmp_path, env=environment())
    assert done.returncode == 0, done.stderr


def test_nothing_was_imported_from_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    """R-S1: the command says "imported" only where it imported something."""
    (tmp_path / "suite.yaml").write_text("agent: agent:answer\ncases: [{inptu: x}]\n")
    done = proctor("validate", "--import", "suite.yaml", cwd=tmp_path, env=environment())
    assert done.returncode == 2
    assert "imported" not in done.stdout
