"""Repository rules: no private imports across packages, pinned packages, no machine paths."""

import ast
import functools
import os
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

import proctor

ROOT = Path(__file__).resolve().parent.parent
SRC = ROOT / "src"

# In parts, so that this file does not hold what it forbids.
PACKAGE_HOSTS = [
    ".".join(parts)
    for parts in (("pypi", "org"), ("pythonhosted", "org"), ("anaconda", "org"), ("npmjs", "org"))
]
PIN = re.compile(r"^([A-Za-z0-9][\w.-]*)==([^\s;]+)", re.MULTILINE)


def tracked_files() -> list[Path]:
    """Every file that git keeps, or would keep with the next `git add`."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    if listing.returncode != 0:
        pytest.skip("not a git checkout")
    paths = [ROOT / name for name in listing.stdout.decode().split("\0") if name]
    return [path for path in paths if path.is_file()]


def module_name(path: Path) -> str:
    parts = path.relative_to(SRC).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def package_name(path: Path) -> str:
    return ".".join(path.relative_to(SRC).parent.parts)


@functools.cache
def sources() -> list[tuple[Path, ast.Module]]:
    return [(path, ast.parse(path.read_text("utf-8"))) for path in sorted(SRC.rglob("*.py"))]


def imported_modules(node: ast.AST) -> list[str]:
    if isinstance(node, ast.ImportFrom):
        return [node.module or ""]
    return [alias.name for alias in node.names] if isinstance(node, ast.Import) else []


def private_names_of_others(tree: ast.Module, package: str, packages: set[str]) -> Iterator[str]:
    """Imported dotted names with a private part that belongs to a package we are not inside."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        for name in names:
            parts = name.split(".")
            private = [i for i, p in enumerate(parts) if p.startswith("_") and not p.endswith("__")]
            if parts[0] != "proctor" or not private:
                continue
            owner = ".".join(parts[: private[0]])
            if owner not in packages:  # a module: what it hides, its package may see
                owner = owner.rpartition(".")[0]
            if not f"{package}.".startswith(f"{owner}."):
                yield name


def test_private_names_stay_in_their_package() -> None:
    packages = {package_name(path) for path in SRC.rglob("*.py")}
    found = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path, tree in sources()
        for name in private_names_of_others(tree, package_name(path), packages)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("line", "package", "found"),
    [
        ("from proctor.trace.tree import _walk", "proctor.trace", []),
        ("from proctor.trace.tree import _walk", "proctor.trace.formats", []),
        ("from proctor.trace.tree import _walk", "proctor.checks", ["proctor.trace.tree._walk"]),
        ("from proctor.trace._tree import walk", "proctor.cli", ["proctor.trace._tree.walk"]),
        ("import proctor.trace._tree", "proctor.cli", ["proctor.trace._tree"]),
        ("from proctor import __version__", "proctor.cli", []),
    ],
)
def test_private_reach_is_seen(line: str, package: str, found: list[str]) -> None:
    packages = {"proctor", "proctor.trace", "proctor.trace.formats", "proctor.checks"}
    assert list(private_names_of_others(ast.parse(line), package, packages)) == found


def test_metrics_know_nothing_above_them() -> None:
    """import-linter holds the other layers, but a contract may not name a module yet to come."""
    rooms = ("checks.metrics", "stats", "trace", "errors", "formatting", "sanitize")
    below = tuple(f"proctor.{room}." for room in rooms)
    found = [
        f"{module_name(path)} imports {name}"
        for path, tree in sources()
        if f"{module_name(path)}.".startswith("proctor.checks.metrics.")
        for node in ast.walk(tree)
        for name in imported_modules(node)
        if name.startswith("proctor") and not f"{name}.".startswith(below)
    ]
    assert not found, "\n".join(found)


def test_modules_say_what_they_promise() -> None:
    silent = [str(p.relative_to(ROOT)) for p, tree in sources() if not ast.get_docstring(tree)]
    assert not silent, f"no module docstring: {silent}"


def test_no_public_class_name_is_defined_twice() -> None:
    places: dict[str, list[str]] = {}
    for path, tree in sources():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(module_name(path))
    twice = {name: modules for name, modules in places.items() if len(modules) > 1}
    assert not twice, f"give these classes names of their own: {twice}"


def test_no_file_names_this_machine_or_a_package_host() -> None:
    here = {str(ROOT), str(Path.home()), sys.base_prefix} - {"/", "/usr", "/usr/local"}
    places = "|".join(re.escape(place) for place in here)
    # A place counts as a whole path or the start of one, not within a longer word.
    forbidden = re.compile(rf"(?<![\w.-])(?:{places})(?![\w-])|{'|'.join(PACKAGE_HOSTS)}")
    found = [
        f"{path.relative_to(ROOT)}: {match.group()}"
        for path in tracked_files()
        for match in [forbidden.search(path.read_text(encoding="utf-8", errors="replace"))]
        if match
    ]
    assert not found, "\n".join(found)


def test_no_lock_file_is_committed() -> None:
    locks = {"package-lock.json", "conda-lock.yml", "pnpm-lock.yaml"}
    found = [p.name for p in tracked_files() if p.suffix == ".lock" or p.name in locks]
    assert not found, f"constraints/ is the only place of pins: {found}"


@pytest.mark.parametrize("name", ["core", "dev"])
def test_every_pin_has_hashes_and_names_no_source(name: str) -> None:
    text = (ROOT / "constraints" / f"{name}.txt").read_text(encoding="utf-8")
    pins = text.replace("\\\n", " ").splitlines()
    assert len(pins) > 10
    assert [line for line in pins if not PIN.match(line) or "--hash=sha256:" not in line] == []
    assert not re.search(r"://|--(?:extra-)?index|--find-links|\+", text)


def test_pins_agree_and_cover_the_dependencies() -> None:
    core, dev = (
        set(PIN.findall((ROOT / "constraints" / f"{name}.txt").read_text(encoding="utf-8")))
        for name in ("core", "dev")
    )
    assert core <= dev, f"pinned differently for core and dev: {core - dev}"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = {re.split(r"[\[<>=]", line)[0] for line in project["dependencies"]}
    assert wanted <= {name for name, _ in core}, "run `python3 dev.py pin`"
    for_dev = {re.split(r"[\[<>=]", line)[0] for line in project["optional-dependencies"]["dev"]}
    assert for_dev <= {name for name, _ in dev}, "run `python3 dev.py pin`"


def test_version_is_that_of_the_installed_package() -> None:
    assert metadata.version("proctor") == proctor.__version__


def test_every_public_name_can_be_used() -> None:
    for name in proctor.__all__:
        assert getattr(proctor, name) is not None
        assert name in dir(proctor)
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = proctor.no_such_name  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.skipif(not os.environ.get("CI"), reason="elsewhere, tests that lack a program skip")
def test_ci_has_every_program_that_tests_use() -> None:
    """Where `.ci/run` can install programs, no test may skip for the lack of one."""
    programs = runpy.run_path(str(ROOT / "dev.py"))["SYSTEM_PACKAGES"]
    assert [name for name in programs if shutil.which(name) is None] == []
