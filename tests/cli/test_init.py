"""`proctor init`: files that work at once, and nothing overwritten."""

import json
import shlex
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import commands
import jsonschema
import yaml

from proctor.spec import load_suite


def proctor(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return commands.proctor(*args, cwd=folder)


def test_a_start_that_validates(tmp_path: Path) -> None:
    """R-S1: what is generated is right, and says what to do next."""
    done = proctor(tmp_path, "init", "evals")
    assert done.returncode == 0, done.stderr
    assert "proctor validate evals/suite.yaml" in done.stdout
    # The suite says `trials: 3`: the next command is the one that runs them.
    assert "proctor run evals/suite.yaml" in done.stdout
    assert "proctor test" not in done.stdout
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
        "proctor ci 'my evals/suite.yaml' --trials 10",
    ]


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    """R-R11: one line, and 2."""
    (tmp_path / "file").write_text("")
    done = proctor(tmp_path, "init", "file/sub")
    assert done.returncode == 2
    assert done.stderr.startswith("error: file/sub/suite.yaml: cannot write: ")


def next_commands(said: str) -> list[list[str]]:
    lines = said.partition("next:\n")[2].splitlines()
    return [shlex.split(line)[1:] for line in lines if line.startswith("  proctor ")]


def test_the_next_commands_run_the_trials(tmp_path: Path) -> None:
    """R-N13: what `init` suggests works as printed and runs the trials of the suite."""
    done = proctor(tmp_path, "init")
    outputs = []
    for command in next_commands(done.stdout):
        said = proctor(tmp_path, *command)
        assert said.returncode == 0, said.stderr
        outputs.append(said.stdout)
    assert "9 of 9 judged trials" in outputs[-1]


def test_drafts(tmp_path: Path) -> None:
    """R-N13: cases are drafted from a trace, a run or a docstring; the next commands work."""
    recorded = files("proctor.data") / "support_agent.json"
    (tmp_path / "run.json").write_text(recorded.read_text(encoding="utf-8"))
    done = proctor(tmp_path, "init", "a", "--from", "run.json")
    assert done.returncode == 0, done.stderr
    (case,) = yaml.safe_load((tmp_path / "a/suite.yaml").read_text("utf-8"))["cases"]
    assert case["input"] == "Where is my order A-4711, and can I still send the helmet back?"
    assert case["correctness"] == {"expected_in_answer": ["30"]}
    assert case["path"]["expected_tools"] == ["get_order", "track_parcel"]
    _, check = next_commands(done.stdout)
    assert check == ["test", "a/suite.yaml", "--traces", "run.json"]
    assert proctor(tmp_path, *check).returncode == 0
    again = proctor(tmp_path, "init", "a", "--from", "run.json")
    assert again.returncode == 2
    assert "exists already" in again.stderr

    (tmp_path / "bot.py").write_text(
        "import sys\nsys.exit('imported')\n\n\n"
        "async def answer(question):\n"
        '    """Answer.\n\n    >>> answer("When are you open?")\n'
        '    \'from 9:00 ... 18:00\'\n\n    - May I pay with ${HOME}?\n    """\n'
        "    return 'open from 9:00 to 18:00'\n"
    )
    done = proctor(tmp_path, "init", "b", "--from", "bot:answer")
    assert done.returncode == 0, done.stderr
    suite = load_suite(tmp_path / "b/suite.yaml")
    assert [case.input for case in suite.cases] == ["When are you open?", "May I pay with ${HOME}?"]
    written = yaml.safe_load((tmp_path / "b/suite.yaml").read_text("utf-8"))
    assert written["cases"][0]["correctness"] == {"expected_in_answer": ["from 9:00", "18:00"]}
    assert next_commands(done.stdout)[-1] == ["run", "b/suite.yaml"]
    (tmp_path / "bot.py").write_text("def answer(question): 'Answers.'\n")
    none = proctor(tmp_path, "init", "c", "--from", "bot:answer")
    assert none.returncode == 2
    assert "no example to draft a case from" in none.stderr
    assert not (tmp_path / "c").exists()
