"""The pages about worlds hold code that works as printed."""

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

BLOCK = re.compile(r"```(?:python|yaml)\n# (\S+)\n(.*?)```", re.DOTALL)


@pytest.fixture
def project(root: Path, tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "project"
    page = (root / "docs/how-to/write-a-world.md").read_text(encoding="utf-8")
    files = BLOCK.findall(page)
    assert len(files) == 3
    for name, text in files:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


def proctor(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "proctor", *arguments],
        cwd=folder,
        env={**os.environ, "NO_COLOR": "1", "PYTHONIOENCODING": "utf-8"},
        capture_output=True,
        encoding="utf-8",
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_the_world_of_the_how_to(project, root):
    """R-S5: the world, its template and its agent work as written, and check says what is shown."""
    page = (root / "docs/how-to/write-a-world.md").read_text(encoding="utf-8")
    shown = page.partition("$ proctor check catalog\n")[2].partition("$")[0]
    assert shown in proctor(project, "check", "catalog")
    assert "2 of 2 cells passed" in proctor(
        project, "run", "games", "--agent", "player:halve", "--seeds", "10"
    )


def test_the_reference_shows_an_episode(root):
    """R-S5: the example of the reference plays an episode."""
    page = (root / "docs/reference/worlds.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names: dict = {}
    exec(code, names)
    outcome = asyncio.run(names["try_it"]())
    assert 0.0 < outcome.score < 0.5
    assert outcome.ended == "terminated"
