"""`proctor warm`: commands start in a fork of a process that has imported everything."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from run_parts import journal, only_run

SUITE = """\
version: 1
agent: bot:answer
cases:
  - {id: c, input: hi, correctness: {expected_in_answer: [fine]}}
"""

AGENT = """\
import os, sys, time
async def answer(question):
    return f"fine {os.environ['COLOUR']} {'heavy' in sys.modules}"
"""


def proctor(*args: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "proctor", *args]
    more = {**os.environ, "PYTHONPATH": str(cwd / "lib"), **env}
    return subprocess.run(command, cwd=cwd, env=more, capture_output=True, text=True, check=False)


@pytest.fixture
def warm(tmp_path: Path) -> Iterator[tuple[Path, dict[str, str]]]:
    """A project, and the variable of its warm process."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "heavy.py").write_text("open('imported', 'a').write('once')\n")
    (tmp_path / "suite.yaml").write_text(SUITE)
    (tmp_path / "bot.py").write_text(AGENT)
    started = proctor("warm", "--import", "heavy", cwd=tmp_path)
    found = re.fullmatch(r"export (PROCTOR_WARM)=(.+)\n", started.stdout)
    assert found is not None, started.stderr
    env = {found[1]: found[2], "COLOUR": "red"}
    yield tmp_path, env
    assert proctor("warm", "--stop", cwd=tmp_path, **env).returncode == 0
    assert not Path(found[2]).parent.exists()


def answers(folder: Path) -> set[Any]:
    return {trial["answer"] for trial in journal(only_run(folder))}


@pytest.mark.slow
def test_a_command_in_the_warm_process_is_like_any_other(warm) -> None:
    """R-S3, R-R12: the same output, exit codes and folders; the environment is the command's, the
    code under test is imported for each run, and what was named is imported once."""
    project, env = warm
    cold = proctor("run", "suite.yaml", "--quiet", "--results", "cold", cwd=project, COLOUR="red")
    done = proctor("run", "suite.yaml", "--quiet", "--results", "one", cwd=project, **env)
    assert (done.returncode, done.stderr) == (cold.returncode, cold.stderr) == (0, "")
    assert done.stdout.replace("(one/", "(cold/") == cold.stdout
    assert answers(project / "cold") == {"fine red False"}
    assert answers(project / "one") == {"fine red True"}
    (project / "bot.py").write_text(AGENT.replace("fine", "changed a lot"))
    env["COLOUR"] = "blue"
    failed = proctor("run", "suite.yaml", "--quiet", "--results", "two", cwd=project, **env)
    assert failed.returncode == 1, failed.stderr
    assert answers(project / "two") == {"changed a lot blue True"}
    missing = proctor("run", "absent.yaml", cwd=project, **env)
    assert (missing.returncode, missing.stdout) == (2, "")
    assert "absent.yaml" in missing.stderr
    assert (project / "imported").read_text() == "once"
    # A process that is gone is no obstacle.
    env = {**env, "PROCTOR_WARM": f"{env['PROCTOR_WARM']}-gone"}
    again = proctor("run", "suite.yaml", "--quiet", "--results", "three", cwd=project, **env)
    assert again.returncode == 1, again.stderr
    assert answers(project / "three") == {"changed a lot blue False"}


@pytest.mark.slow
def test_signals_reach_the_command(warm) -> None:
    """R-R12: an interrupted run stops as usual, with its exit code, and can be resumed."""
    project, env = warm
    os.mkfifo(project / "begun")
    (project / "bot.py").write_text(
        "import asyncio\n"
        "async def answer(question):\n"
        "    await asyncio.to_thread(open, 'begun', 'w')\n"
        "    await asyncio.Event().wait()\n"
    )
    command = [sys.executable, "-m", "proctor", "run", "suite.yaml", "--trials", "1", "--quiet"]
    run = subprocess.Popen(command, cwd=project, env={**os.environ, **env}, stderr=subprocess.PIPE)
    with (project / "begun").open():
        run.send_signal(signal.SIGTERM)
    assert run.communicate()[1] is not None
    assert run.returncode == 143
    assert only_run(project / "results").is_dir()
