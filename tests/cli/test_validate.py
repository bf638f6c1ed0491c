"""`proctor validate` from outside: exit codes, places, all problems at once."""

import json
import os
import subprocess
import sys
from pathlib import Path

GOOD = "agent: m:f\ncases: [{input: hello there}]\n"
BAD = "agent: m:f\ncases:\n- {input: '', thresold: 1}\n"


def proctor(folder: Path, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "proctor", *args],
        cwd=folder,
        env={**os.environ, "XDG_CONFIG_HOME": str(folder / "xdg"), **env},
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
    )


def test_a_good_suite(tmp_path: Path) -> None:
    """R-S2: 0, and a line that says what was found."""
    (tmp_path / "s.yaml").write_text(GOOD)
    done = proctor(tmp_path, "validate", "s.yaml")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "s.yaml: 1 case, agent m:f\n"


def test_every_problem_of_every_file(tmp_path: Path) -> None:
    """R-S1 R-R11: 2, each problem once with its place and a hint, good files told as well."""
    (tmp_path / "good.yaml").write_text(GOOD)
    (tmp_path / "bad.yaml").write_text(BAD)
    done = proctor(tmp_path, "validate", "good.yaml", "bad.yaml", "missing.yaml")
    assert done.returncode == 2
    assert done.stdout == "good.yaml: 1 case, agent m:f\n"
    assert done.stderr.splitlines() == [
        "bad.yaml:3:11: the input is empty: write what the agent is asked",
        "bad.yaml:3:15: unknown key 'thresold'",
        "  hint: did you mean 'threshold'?",
        "missing.yaml: cannot be read: No such file or directory",
        "3 problems in 2 files",
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
