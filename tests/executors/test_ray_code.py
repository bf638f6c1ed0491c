"""Code that Ray sends: workers stand elsewhere and have nothing of the project but a copy."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from commands import proctor
from experiment_parts import write_experiment, write_project
from run_parts import journal, only_run, rows

pytestmark = pytest.mark.slow

AGENT = '''
import json, os, sys
from pathlib import Path
from shop.words import greeting

def answer(input):
    """Says where it is and what it sees."""
    root = Path(__file__).resolve().parent.parent
    return json.dumps({
        "said": f"{greeting()} {input}",
        "cwd": os.getcwd(),
        "file": __file__,
        "path": sys.path,
        "files": sorted(
            p.relative_to(root).as_posix()
            for p in root.rglob("*")
            if p.is_file() and p.suffix != ".pyc"  # which workers may make of what they import
        ),
        "token": os.environ.get("SHOP_TOKEN"),
    })
'''

CHECKS = '''
from pathlib import Path

def from_the_copy(ctx):
    """A check of the project's own: code is sent for it as for agents."""
    return Path(__file__).resolve().parent == Path.cwd() / "shop"
'''


SENT = {
    *(".gitignore", "evals/suite.yaml", "proctor.yaml"),
    *("shop/__init__.py", "shop/agent.py", "shop/checks.py", "shop/words.py"),
}


def project(folder: Path) -> Path:
    """A package, a suite below it in a folder of its own, and much that is not code."""
    suite = {
        "version": 1,
        "agent": "shop.agent:answer",
        "cases": [
            {
                "id": f"c{n}",
                "input": f"customer {n}",
                "correctness": {"expected_in_answer": [f"hello customer {n}"]},
                "checks": ["shop.checks:from_the_copy"],
            }
            for n in range(3)
        ],
    }
    written = {
        "proctor.yaml": "limits: {concurrency: 2}\n",
        ".gitignore": "private/\n",
        "shop/__init__.py": "",
        "shop/agent.py": AGENT,
        "shop/checks.py": CHECKS,
        "shop/words.py": "def greeting(): return 'hello'\n",
        "evals/suite.yaml": yaml.safe_dump(suite),
        "private/key.txt": "not for others",
        "results/old/notes.txt": "not code",
        ".venv/lib.py": "not ours",
    }
    for name, text in written.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def ran(folder: Path, address: str, *words: Any) -> subprocess.CompletedProcess[str]:
    """A run on the Ray at an address, as from a machine of its cluster: nothing is shared."""
    line = [sys.executable, "-m", "proctor", "run", *words, "--executor", "ray"]
    return subprocess.run(
        [*map(str, line), "--address", "auto", "--workers", "2"],
        cwd=folder,
        env={**os.environ, "RAY_ADDRESS": address, "SHOP_TOKEN": "of this machine"},
        capture_output=True,
        text=True,
        check=False,
        timeout=180,
    )


def test_code_is_sent(tmp_path: Path, room_on_ray: str) -> None:
    """R-R12: workers in another folder, without the project on their path, run a copy of it."""
    folder = project(tmp_path / "project")
    kept = tmp_path / "kept"
    done = ran(folder, room_on_ray, "evals/suite.yaml", "--trials", 1, "--results", kept)
    assert done.returncode == 0, done.stderr
    trials = journal(only_run(kept))
    assert sorted(trial["case"] for trial in trials) == ["c0", "c1", "c2"]
    for trial in trials:
        seen = json.loads(trial["answer"])
        copy = Path(seen["cwd"])
        assert not copy.is_relative_to(tmp_path)
        assert not [place for place in seen["path"] if Path(place).is_relative_to(tmp_path)]
        assert Path(seen["file"]) == copy / "shop" / "agent.py"
        assert set(seen["files"]) == SENT
        assert seen["token"] is None, "nothing of the environment is sent"


def test_what_was_begun_here_goes_on_there(tmp_path: Path, room_on_ray: str) -> None:
    """R-R7, R-R12: a run of this process is resumed on workers that have a copy of its code."""
    folder = project(tmp_path / "project")
    line = ("run", "evals/suite.yaml", "--trials", 1, "--max-trials", 1, "--results", "../kept")
    assert proctor(*line, cwd=folder).returncode in (1, 2)
    run = only_run(tmp_path / "kept")
    (first,) = journal(run)
    done = ran(folder, room_on_ray, "--resume", run, "--max-trials", 10)
    trials = journal(run)
    assert done.returncode == 0, done.stderr
    assert trials[0] == first
    assert [trial["status"] for trial in trials[1:]] == ["passed"] * 2
    assert not any(str(tmp_path) in trial["answer"] for trial in trials[1:])


def test_code_outside_of_the_project_is_told(tmp_path: Path, room_on_ray: str) -> None:
    """R-R12: what is not sent and not installed there is one error, before the first trial."""
    folder = project(tmp_path / "project")
    (folder / "proctor.yaml").unlink()  # so that the suite's folder is the project
    done = ran(folder, room_on_ray, "evals/suite.yaml", "--results", tmp_path / "kept")
    assert done.returncode == 2
    assert "on a worker: " in done.stderr
    assert "shop" in done.stderr
    assert not journal(only_run(tmp_path / "kept"))


def test_catalogs_are_sent(tmp_path: Path, room_on_ray: str) -> None:
    """R-R12, R-R5: scenarios come out alike on workers that have a copy of the catalog."""
    folder = write_project(tmp_path / "project")
    path = write_experiment(
        folder, cases=["arithmetic.sum@hard"], agents=["adder"], seeds=[1, 2, 3, 4]
    )
    here = proctor("run", path, "--results", tmp_path / "here", cwd=folder)
    assert here.returncode == 0, here.stderr
    there = ran(folder, room_on_ray, path, "--results", tmp_path / "there")
    assert there.returncode == 0, there.stderr
    assert len(rows(only_run(tmp_path / "there"))) == 4
    assert rows(only_run(tmp_path / "there")) == rows(only_run(tmp_path / "here"))
