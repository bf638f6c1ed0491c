"""Which requirement ids there are, which are claimed done, and which tests name them."""

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
NAMED = re.compile(r"\bR-([A-Z]+\d+)\b")


def claims() -> dict[str, str]:
    """Requirement id → `done` or `open`, from the committed list."""
    lines = (HERE / "requirement_ids.txt").read_text(encoding="utf-8").splitlines()
    rows = [line.split() for line in lines if line.strip() and not line.startswith("#")]
    found = {row[0]: row[1] for row in rows if len(row) == 2 and row[1] in {"done", "open"}}
    if len(found) != len(rows):
        raise ValueError("each line of requirement_ids.txt is `<id> done` or `<id> open`, once")
    return found


def is_test(node: ast.AST) -> bool:
    """Whether pytest would collect this function or class."""
    if isinstance(node, ast.ClassDef):
        return node.name.startswith("Test")
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test")


def ids_in(source: str) -> Iterator[str]:
    """The ids named by docstrings of test functions and test classes."""
    for node in ast.walk(ast.parse(source)):
        if is_test(node):
            assert isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            yield from NAMED.findall(ast.get_docstring(node) or "")


@functools.cache
def named() -> dict[str, set[str]]:
    """Requirement id → the test files that name it."""
    found: dict[str, set[str]] = {}
    for path in sorted(HERE.rglob("test_*.py")):
        for identifier in ids_in(path.read_text(encoding="utf-8")):
            found.setdefault(identifier, set()).add(path.relative_to(HERE).as_posix())
    return found


def unnamed() -> list[str]:
    """The ids that no test names yet, in the order of the list."""
    found = named()
    return [identifier for identifier in claims() if identifier not in found]
