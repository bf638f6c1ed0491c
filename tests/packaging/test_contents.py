"""What is published: everything it needs and nothing else, with its licence."""

import re
import tarfile
import zipfile
from email.parser import HeaderParser
from pathlib import Path

import pytest

TOP = {
    *("src", "tests", "constraints", "dev.py"),
    *("CHANGELOG.md", "README.md", "LICENSE", "NOTICE", "pyproject.toml", "PKG-INFO"),
    *(".gitignore", "examples", "docs", "benchmarks", "tools", "mkdocs.yml"),
    *("ARCHITECTURE.md", "CONTRIBUTING.md", ".pre-commit-hooks.yaml", "action.yml"),
}
"""What the source distribution may hold at its top."""


@pytest.fixture(scope="module")
def wheel(built) -> zipfile.ZipFile:
    return zipfile.ZipFile(built.wheel)


def tracked(root: Path) -> set[str]:
    """Files of the package as they lie in this tree, without what running leaves behind."""
    package = root / "src" / "proctor"
    left = ("__pycache__", ".pyc")
    return {
        f"proctor/{path.relative_to(package).as_posix()}"
        for path in package.rglob("*")
        if path.is_file() and not any(part in path.as_posix() for part in left)
    }


def test_the_wheel_is_the_package(wheel: zipfile.ZipFile, root: Path) -> None:
    """R-D1: every file of the package, data files included, and nothing beside it."""
    names = set(wheel.namelist())
    ours = {name for name in names if name.startswith("proctor/")}
    assert ours <= tracked(root)
    assert not [name for name in ours if re.search(r"/(tests|results/suite)/|\.pyc$", name)]
    about = {name.partition("/")[2] for name in names - ours}
    assert about == {
        *("METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE", "licenses/NOTICE"),
    }
    for needed in (
        "proctor/py.typed",
        "proctor/catalog/mutualism/hidden_dependency/spec.yaml",
        "proctor/diagnose/learned/model.npz",
        "proctor/report/html/templates/page.html",
        "proctor/server/pages/templates/frame.html",
        "proctor/server/pages/static/viewer.js",
        "proctor/data/templates/suite.yaml",
        "proctor/demo/suite.yaml",
    ):
        assert needed in ours
    assert sum(entry.file_size for entry in wheel.infolist()) < 12_000_000


def test_its_metadata(wheel: zipfile.ZipFile) -> None:
    """R-D1 R-N13: licence, Python, and extras that a user can name."""
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    about = HeaderParser().parsestr(wheel.read(name).decode())
    assert about["License-Expression"] == "Apache-2.0"
    assert set(about.get_all("License-File", [])) == {"LICENSE", "NOTICE"}
    assert about["Requires-Python"] == ">=3.11"
    extras = set(about.get_all("Provides-Extra", []))
    assert {"llm", "server", "charts", "cloud", "ray"} <= extras
    # The base installation stays small: what these bring is in extras, or written out.
    base = {
        re.split(r"[^\w.-]", need)[0].lower()
        for need in about.get_all("Requires-Dist", [])
        if "extra ==" not in need
    }
    assert not base & {
        "scipy",
        "pandas",
        "pyarrow",
        "altair",
        "vl-convert-python",
        "litellm",
        "ray",
    }
    assert len(base) <= 20
    # Tested versions and systems, and no others.
    classifiers = about.get_all("Classifier", [])
    versions = [c.split(" :: ")[-1] for c in classifiers if re.search(r"Python :: 3\.\d", c)]
    assert versions == ["3.11", "3.12", "3.13"]
    assert [c for c in classifiers if c.startswith("Operating System")] == [
        "Operating System :: POSIX :: Linux"
    ]
    points = wheel.read(name.replace("METADATA", "entry_points.txt")).decode()
    assert "proctor = proctor.cli.main:main" in points
    assert "proctor = proctor.pytest_plugin" in points


def test_the_source_distribution(built) -> None:
    """R-D1: what is needed to build and to test, no results, caches or environments."""
    with tarfile.open(built.sdist) as archive:
        names = [name.partition("/")[2] for name in archive.getnames()]
    assert {name.partition("/")[0] for name in names if name} <= TOP
    bad = re.compile(r"(^|/)(\.venv|\.cache|__pycache__|\.git|\.hypothesis|node_modules)(/|$)")
    assert not [name for name in names if bad.search(name)]
    assert not [n for n in names if re.search(r"^(results|examples/\w+/results)/", n)]
    assert {"src/proctor/__init__.py", "LICENSE", "NOTICE", "pyproject.toml"} <= set(names)
    assert {"action.yml", "README.md", "docs/images/report.png"} <= set(names)


def test_notices_name_what_is_not_ours(root: Path) -> None:
    """R-D1: what was made from others' data, or ends in our output, is told with its licence."""
    notice = (root / "NOTICE").read_text(encoding="utf-8")
    for word in ("TRAIL", "MIT", "Vega", "BSD-3-Clause", "model.npz"):
        assert word in notice
    # Scripts and styles that ship are our own: others' would say so at their top.
    for path in (root / "src").rglob("*"):
        if path.suffix in (".js", ".css", ".html"):
            assert not re.search(r"copyright|@license|\(c\)", path.read_text("utf-8"), re.I), path
