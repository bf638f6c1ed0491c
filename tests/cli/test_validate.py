"""`proctor validate` from outside: exit codes, places, all problems at once."""

import json
import os
import subprocess
from pathlib import Path

import commands

GOOD = "agent: m:f\ncases: [{input: hello there}]\n"
NOTE = "agents and checks were looked up in the source; --import imports them\n"
BAD = "agent: m:f\ncases:\n- {input: '', thresold: 1}\n"


def proctor(folder: Path, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
    given = {**os.environ, "XDG_CONFIG_HOME": str(folder / "xdg"), **env}
    (folder / "m.py").write_text("def f(question): ...\n")
    return commands.proctor(*args, cwd=folder, env=given)


def test_a_good_suite(tmp_path: Path) -> None:
    """R-S2: 0, and a line that says what was found."""
    (tmp_path / "s.yaml").write_text(GOOD)
    done = proctor(tmp_path, "validate", "s.yaml")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"s.yaml: 1 case, agent m:f\n{NOTE}"


def test_every_problem_of_every_file(tmp_path: Path) -> None:
    """R-S1 R-R11: 2, each problem once with its place and a hint; valid files are listed too."""
    (tmp_path / "good.yaml").write_text(GOOD)
    (tmp_path / "bad.yaml").write_text(BAD)
    done = proctor(tmp_path, "validate", "good.yaml", "bad.yaml", "missing.yaml")
    assert done.returncode == 2
    assert done.stdout == f"good.yaml: 1 case, agent m:f\n{NOTE}"
    assert done.stderr.splitlines() == [
        "bad.yaml:3:11: the input is empty: write the agent's task",
        "bad.yaml:3:15: unknown key 'thresold'",
        "  hint: did you mean 'threshold'?",
        "missing.yaml: cannot be read: No such file or directory",
        "3 problems in 2 files",
    ]


def test_a_path_that_is_no_file_gets_a_hint(tmp_path: Path) -> None:
    """R-S1: a misspelt name, a folder and an empty file: what happened, and what to do."""
    (tmp_path / "suite.yaml").write_text(GOOD)
    (tmp_path / "other.yaml").write_text("")
    done = proctor(tmp_path, "validate", "sute.yml", ".", "other.yaml")
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "sute.yml: cannot be read: No such file or directory",
        "  hint: did you mean 'suite.yaml'?",
        ".: cannot be read: Is a directory",
        "  hint: name a file of it: other.yaml, suite.yaml",
        "other.yaml:1:1: the file is empty",
        "  hint: `proctor init` writes a suite to start from",
        "3 problems in 3 files",
    ]


def test_for_programs(tmp_path: Path) -> None:
    """R-S1: one JSON document on stdout, nothing else."""
    (tmp_path / "bad.yaml").write_text(BAD)
    done = proctor(tmp_path, "validate", "--json", "bad.yaml")
    assert (done.returncode, done.stderr) == (2, "")
    document = json.loads(done.stdout)
    assert document["valid"] is False
    assert document["problems"][1] == {
        "file": "bad.yaml",
        "line": 3,
        "column": 15,
        "message": "unknown key 'thresold'",
        "hint": "did you mean 'threshold'?",
    }


def test_an_agent_from_elsewhere(tmp_path: Path) -> None:
    """R-S2 R-S6: an agent may come from the settings, and is not needed for recorded traces."""
    (tmp_path / "s.yaml").write_text("cases: [{input: x}]\n")
    assert proctor(tmp_path, "validate", "s.yaml").returncode == 2
    assert proctor(tmp_path, "validate", "--traces", "s.yaml").returncode == 0
    assert proctor(tmp_path, "validate", "s.yaml", PROCTOR_AGENT="m:f").returncode == 0


def test_hostile_text_is_printed_harmlessly(tmp_path: Path) -> None:
    """R-S1: what a file says is never obeyed by the terminal."""
    (tmp_path / "s.yaml").write_text('agent: m:f\ncases: [{input: x, "\\e[31mred\\a": 1}]\n')
    done = proctor(tmp_path, "validate", "s.yaml")
    assert done.returncode == 2
    assert "\x1b" not in done.stderr
    assert "\x07" not in done.stderr
    assert "red" in done.stderr


def test_what_a_variable_held_is_not_printed(tmp_path: Path) -> None:
    """R-S1: neither by validate nor by the last guard of the program."""
    (tmp_path / "s.yaml").write_text(
        "agent: m:f\ncases: [{id: '/${KEY}', input: x, trials: '${KEY}'}]\n"
    )
    done = proctor(tmp_path, "--debug", "validate", "s.yaml", KEY="s3cr3t-value")
    assert done.returncode == 2
    assert "s3cr3t" not in done.stdout + done.stderr


TEMPLATE = """\
params: {size: {type: choice, of: [4, 8], default: 4}}
variants: {small: {size: 4}}
input: !ev "'Add up ' + str(size) + ' and ' + str(2)"
correctness: {expected_in_answer: [!ev "str(size + 2)"]}
"""


def test_templates(tmp_path: Path) -> None:
    """R-S4: a scenario template is read as one, wherever it lies, and its problems are its own."""
    good, bad = tmp_path / "catalog/sum/easy/spec.yaml", tmp_path / "elsewhere.yaml"
    good.parent.mkdir(parents=True)
    good.write_text(TEMPLATE)
    bad.write_text(TEMPLATE.replace("variants", "variant").replace("str(2)", "strr(2)"))
    done = proctor(tmp_path, "validate", "catalog/sum/easy/spec.yaml")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == (
        "catalog/sum/easy/spec.yaml: scenario sum.easy, variants small, parameters size\n"
    )
    done = proctor(tmp_path, "validate", "elsewhere.yaml")
    assert done.returncode == 2
    assert "unknown key 'variant'" in done.stderr
    assert "did you mean 'variants'?" in done.stderr
    assert "strr" in done.stderr
    assert "cases" not in done.stderr


def test_what_the_hint_of_a_template_leads_to(tmp_path: Path) -> None:
    """R-S4 R-R11: an error with several problems says how to see them all, and that works."""
    spec = tmp_path / "catalog/sum/easy/spec.yaml"
    spec.parent.mkdir(parents=True)
    spec.write_text("in: x\nscenaro: y\n")
    result = proctor(tmp_path, "scenario", "build", "sum.easy", "--seed", "1", "-o", "built")
    assert result.returncode == 2
    done = proctor(tmp_path, "validate", str(spec.relative_to(tmp_path)))
    assert done.returncode == 2
    assert "unknown key 'scenaro'" in done.stderr
    assert "unknown key 'in'" in done.stderr


def test_settings(tmp_path: Path) -> None:
    """R-S6: the project's settings are settings, not a suite."""
    (tmp_path / "proctor.yaml").write_text("agents: {a: {kind: random}}\n")
    done = proctor(tmp_path, "validate", "proctor.yaml")
    assert (done.returncode, done.stdout) == (0, "proctor.yaml: settings, 1 agent\n")
    (tmp_path / "proctor.yaml").write_text("reslts: x\n")
    done = proctor(tmp_path, "validate", "proctor.yaml", "--json")
    assert done.returncode == 2
    (problem,) = json.loads(done.stdout)["problems"]
    assert (problem["line"], problem["hint"]) == (1, "did you mean 'results'?")
