"""ARCHITECTURE.md describes what is executed, not what was planned."""

import json
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

SECTIONS = {"trial": "The path of a trial", "span": "The path of a live span"}

MODULE = re.compile(r"`((?:\w+/)*\w+\.py)`")


@cache
def walked(root: Path, job: str) -> frozenset[str]:
    """The modules that a job executes."""
    command = [sys.executable, root / "tools" / "walk.py", job, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return frozenset(json.loads(done.stdout))


def page(root: Path) -> str:
    return (root / "ARCHITECTURE.md").read_text(encoding="utf-8")


def named(root: Path, job: str) -> set[str]:
    """The modules that the steps of a section name."""
    section = page(root).split(f"## {SECTIONS[job]}\n")[1].split("\n## ")[0]
    return set(MODULE.findall("".join(re.findall(r"^\d\..*(?:\n   .*)*", section, re.MULTILINE))))


def package(module: str) -> str:
    """The package of a module; modules at the bottom have none."""
    return module.split("/", maxsplit=1)[0] if "/" in module else ""


@pytest.mark.parametrize("job", SECTIONS)
def test_every_module_on_the_page_is_executed(root: Path, job: str) -> None:
    """The page names no module that the job does not go through."""
    modules, executed = named(root, job), walked(root, job)
    assert len(modules) > 10
    missing = modules - executed
    assert not missing, f"named in '{SECTIONS[job]}' but not executed: {sorted(missing)}"


@pytest.mark.parametrize("job", SECTIONS)
def test_every_package_that_is_executed_is_on_the_page(root: Path, job: str) -> None:
    """No package takes part in a job unnoticed."""
    packages = {package(module) for module in walked(root, job)}
    missing = packages - {package(module) for module in named(root, job)} - {""}
    assert not missing, f"not named in '{SECTIONS[job]}': {sorted(missing)}"


def test_every_package_has_a_row(root: Path) -> None:
    """The table of packages is complete."""
    source = root / "src" / "proctor"
    packages = {path.parent.name for path in source.glob("*/__init__.py")}
    rows = re.findall(r"^\| (`.*?`) \|", page(root), re.MULTILINE)
    named_in_rows = set(re.findall(r"`(\w+)`", " ".join(rows)))
    assert packages <= named_in_rows, sorted(packages - named_in_rows)


def test_every_module_on_the_page_exists(root: Path) -> None:
    """Names of modules change; the page changes with them."""
    source = root / "src" / "proctor"
    # Within a step, later modules of a package may be named without its path.
    files = {path.relative_to(source).as_posix() for path in source.rglob("*.py")}
    ends = {path.rsplit("/", 1)[-1] for path in files}
    modules = {m for m in MODULE.findall(page(root)) if not m.startswith("tests/")}
    missing = {m for m in modules - files if "/" in m or m not in ends}
    missing -= {"tools/walk.py"}
    assert not missing, f"no such module: {sorted(missing)}"
