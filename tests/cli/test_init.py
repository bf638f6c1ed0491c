"""`proctor init`: files that work at once, and nothing overwritten."""

import json
import subprocess
import sys
from pathlib import Path

import commands
import jsonschema
import yaml


def proctor(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return commands.proctor(*args, cwd=folder)


def test_a_start_that_validates(tmp_path: Path) -> None:
    """R-S1: what is generated is right, and says what to do next."""
    done = proctor(tmp_path, "init", "evals")
    assert done.returncode == 0, done.stderr
    assert "proctor validate evals/suite.yaml" in done.stdout
    checked = proctor(tmp_path, "validate", "evals/suite.yaml")
    assert (checked.returncode, checked.stderr) == (0, "")
    found, note = checked.stdout.splitlines()
    assert found == "evals/suite.yaml: 3 cases, agent example_agent:answer"
    assert "looked up in the source" in note


def test_the_editor_finds_the_schema(tmp_path: Path) -> None:
    """R-S1: the suite names a schema that is there and that it meets."""
    proctor(tmp_path, "init")
    text = (tmp_path / "suite.yaml").read_text(encoding="utf-8")
    named = text.splitlines()[0].removeprefix("# yaml-language-server: $schema=")
    schema = json.loads((tmp_path / named).read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator(schema).validate(yaml.safe_load(text))


def test_the_example_agent_passes_its_suite(tmp_path: Path) -> None:
    """R-S2: the checks of the generated suite hold of the generated agent."""
    proctor(tmp_path, "init")
    code = (
        "import asyncio, sys\n"
        "sys.path.insert(0, '.')\n"
        "from proctor.trace.capture import capture\n"
        "from proctor.checks.evaluate import evaluate\n"
        "from proctor.checks.base import CheckContext\n"
        "from proctor.spec import load_suite, checks_of\n"
        "import example_agent\n"
        "for case in load_suite('suite.yaml').cases:\n"
        "    with capture(query=case.input) as trace:\n"
        "        trace.response = example_agent.answer(case.input)\n"
        "    context = CheckContext(case=case, trace=trace, answer=trace.response)\n"
        "    for result in asyncio.run(evaluate(checks_of(case), context)):\n"
        "        print(case.id, result.id, result.status)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert len(lines) == 8
    assert [line for line in lines if not line.endswith(" pass")] == []


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    """R-S1: a file that exists stays as it is, and that is said."""
    (tmp_path / "suite.yaml").write_text("mine\n")
    done = proctor(tmp_path, "init")
    assert done.returncode == 0
    assert (tmp_path / "suite.yaml").read_text() == "mine\n"
    assert "kept  suite.yaml" in done.stdout
    assert "wrote example_agent.py" in done.stdout


def test_what_can_be_inferred_is(tmp_path: Path) -> None:
    """R-S1: the repository, the Python version and how to install are read, not asked."""
    (tmp_path / ".git").mkdir()
    (tmp_path / "pyproject.toml").write_text(
        "[project]\nname = 'x'\nversion = '1'\nrequires-python = '>=3.13'\n"
    )
    (tmp_path / "my evals").mkdir()
    proctor(tmp_path, "init", "my evals")
    workflow = yaml.safe_load((tmp_path / ".github/workflows/proctor.yml").read_text())
    steps = workflow["jobs"]["test"]["steps"]
    assert steps[1]["with"]["python-version"] == "3.13"
    assert [step["run"] for step in steps if "run" in step] == [
        "pip install . proctor",
        "proctor test 'my evals/suite.yaml' --format console --format github",
    ]


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    """R-R11: one line, and 2."""
    (tmp_path / "file").write_text("")
    done = proctor(tmp_path, "init", "file/sub")
    assert done.returncode == 2
    assert done.stderr.startswith("error: file/sub/suite.yaml: cannot write: ")
