"""Completion as shells use it: through the script that `proctor config completion` prints."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import commands
import pytest

HERE = Path(sys.executable).parent


def ask(shell: str, program: str, cwd: Path) -> str:
    """Return the output of a shell script that can call this environment's `proctor`."""
    done = subprocess.run(
        [shell, *(["--norc", "--noprofile"] if shell == "bash" else []), "-c", program],
        cwd=cwd,
        env={**os.environ, "PATH": f"{HERE}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def in_bash(lines: Iterable[str], cwd: Path) -> dict[str, list[str]]:
    """What one bash would offer after each line: its variables in, its variable out."""
    program = (
        'eval "$(proctor config completion bash)"\n'
        "complete -p proctor > /dev/null\n"  # it was registered
        'compopt() { echo "files: $*"; }\n'  # only works while a user presses tab
    )
    for line in lines:
        words = line.split(" ")
        program += (
            f"COMP_WORDS=({' '.join(repr(word) for word in words)}); COMP_CWORD={len(words) - 1}\n"
            "COMPREPLY=()\n_proctor_completion proctor\n"
            'printf "%s\\n" "${COMPREPLY[@]}"; echo "--"\n'
        )
    offers = ask("bash", program, cwd).split("--\n")[:-1]
    return dict(zip(lines, (offer.split() for offer in offers), strict=True))


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash here")
def test_bash(tmp_path: Path) -> None:
    """R-S6: commands, commands of groups, options and their values, at a press of tab; where a
    file is expected, the shell completes file names."""
    expected = {
        "proctor do": ["doctor"],
        "proctor trace q": ["query"],
        "proctor doctor --o": ["--online"],
        "proctor gate x --inconclusive e": ["extend"],
        "proctor config completion z": ["zsh"],
        "proctor validate su": ["files:", "-o", "default"],
    }
    assert in_bash(expected, tmp_path) == expected


@pytest.mark.parametrize(
    ("shell", "instruction", "offered"),
    [
        ("zsh", "zsh_complete", "plain\ndoctor\nCheck the installation, settings and keys."),
        ("fish", "fish_complete", "plain,doctor\tCheck the installation, settings and keys."),
    ],
)
def test_other_shells(tmp_path: Path, shell: str, instruction: str, offered: str) -> None:
    """R-S6: the printed lines ask in the words this shell is answered in."""
    script = subprocess.run(
        [HERE / "proctor", "config", "completion", shell],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert f"_PROCTOR_COMPLETE={instruction}" in script
    asked = {"COMP_WORDS": "proctor do", "COMP_CWORD": "do" if shell == "fish" else "1"}
    done = subprocess.run(
        [HERE / "proctor"],
        env={**os.environ, **asked, "_PROCTOR_COMPLETE": instruction},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.startswith(offered), done.stdout
    if shutil.which(shell) is not None:  # the shell itself finds no fault in them
        (tmp_path / "script").write_text(script)
        ask(shell, f"{shell} -n script", tmp_path)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash here")
def test_names_of_the_project(tmp_path: Path) -> None:
    """R-N13: tab offers runs, agents, cases and tags, without running the code of the agent."""
    (tmp_path / "bot.py").write_text("def answer(q): return q\n")
    (tmp_path / "suite.yaml").write_text(
        "version: 1\nagents: {careful: {kind: python, target: bot:answer}}\ncases:\n"
        "- {id: refund-1, input: a, tags: [smoke, money], correctness: {expected_in_answer: [a]}}\n"
        "- {id: hours, input: b, tags: [night], correctness: {expected_in_answer: [b]}}\n"
    )
    (tmp_path / "proctor.yaml").write_text(
        "agents: {cautious: {kind: python, target: bot:answer}}\n"
    )
    assert commands.proctor("run", "suite.yaml", "--quiet", cwd=tmp_path).returncode == 0
    assert commands.proctor("runs", "tag", "latest", "lovely", cwd=tmp_path).returncode == 0
    (tmp_path / "bot.py").write_text("raise SystemExit('imported')\n")
    (run,) = (tmp_path / "results/suite").iterdir()
    expected = {
        "proctor report l": ["latest", "lovely"],
        "proctor gate latest --against s": [f"suite/{run.name}"],
        "proctor trace show lo": ["lovely"],
        "proctor run suite.yaml --agent ca": ["careful", "cautious"],
        "proctor run suite.yaml --tags m": ["money"],
        "proctor run suite.yaml --tags money,n": ["money,night"],
        "proctor test suite.yaml --filter h": ["hours"],
        "proctor gate latest --against lovely --must-pass r": ["refund-1"],
        "proctor results --case ho": ["hours"],
        "proctor results --tag ni": ["night"],
        "proctor results lo": ["lovely"],
        "proctor runs verify l": ["latest", "lovely"],
        "proctor runs validity lo": ["lovely"],
        "proctor runs audit --run lo": ["lovely"],
        "proctor data show lo": ["lovely"],
        "proctor case from lo": ["lovely"],
        "proctor agent test cau": ["cautious"],
        "proctor ab suite.yaml --b caref": ["careful"],
        "proctor report nothing": [],
    }
    files = ("proctor trace show x.j", "proctor run su", "proctor ci su")
    found = in_bash([*expected, *files], tmp_path)
    assert {line: found[line] for line in expected} == expected
    assert [found[line][:3] for line in files] == [["files:", "-o", "default"]] * len(files)
