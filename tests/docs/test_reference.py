"""The reference says what the code does: generated pages are current, written ones are complete."""

import re
import sys
import tomllib
from pathlib import Path

import pytest

from proctor.checks import metrics
from proctor.spec import schema_of


@pytest.fixture(scope="module")
def generator(root: Path):
    """The program that writes the pages."""
    sys.path.insert(0, str(root / "tools"))
    try:
        import reference
    finally:
        sys.path.remove(str(root / "tools"))
    return reference


def test_generated_pages_are_current(root: Path, generator) -> None:
    """Whoever changes a command or a public name runs tools/reference.py."""
    for name, write in generator.PAGES.items():
        page = (root / "docs/reference" / name).read_text(encoding="utf-8")
        assert page == write(root / "src"), f"{name}: run `python tools/reference.py`"


def test_every_check_is_on_its_page(root: Path) -> None:
    """R-C2 R-C3 R-C4 R-C10: no check goes without a line on the page of checks."""
    page = (root / "docs/reference/checks.md").read_text(encoding="utf-8")
    parts = schema_of("suite")["$defs"]
    layers = [
        name for part in ("Correctness", "PathChecks", "CostChecks") for name in keys(parts[part])
    ]
    kinds = [part["properties"]["type"]["const"] for part in parts.values() if is_assertion(part)]
    assert len(layers) > 20
    assert len(kinds) > 10
    assert [name for name in (*layers, *kinds) if f"`{name}" not in page] == []


def keys(part: dict) -> list[str]:
    return list(part["properties"])


def is_assertion(part: dict) -> bool:
    return "const" in part.get("properties", {}).get("type", {})


def test_every_metric_is_on_its_page(root: Path) -> None:
    """R-C3: every public figure of `checks.metrics` is on the page with its formula."""
    page = (root / "docs/reference/metrics.md").read_text(encoding="utf-8")
    names = [name for name in metrics.__all__ if name[0].islower()]
    assert len(names) > 5
    assert [name for name in names if name not in page] == []


def test_every_address_is_on_its_page(root: Path) -> None:
    """R-D7: programs find every address of the server on the page, and no other."""
    sources = "".join(
        path.read_text(encoding="utf-8") for path in (root / "src/proctor/server").rglob("*.py")
    )
    there = {
        path.replace(":str}", "}")
        for path in re.findall(r'"(/(?:api|v1)/[^" ]*|/healthz)"', sources)
    }
    page = (root / "docs/reference/http.md").read_text(encoding="utf-8")
    told = set(re.findall(r"`(?:GET|POST) (/[^`?]*)`", page))
    there -= {"/api/public/scores"}  # of Langfuse, which we call
    assert len(there) > 5
    assert told == there


def test_every_extra_is_on_the_page(root: Path) -> None:
    """Whoever installs finds what each extra brings."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    page = (root / "docs/how-to/install.md").read_text(encoding="utf-8")
    table = "".join(line.split("|")[1] for line in page.splitlines() if line.startswith("| `"))
    named = set(re.findall(r"`([\w-]+)`", table))
    assert named == {*project["optional-dependencies"]} - {"dev", "all"}
