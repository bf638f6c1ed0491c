"""The table of founding features: complete, and every command and name in it exists."""

import importlib
import re
import sys
from pathlib import Path

import click
import pytest

from proctor.cli.main import cli


@pytest.fixture(scope="module")
def parts(root: Path) -> dict[str, list[tuple[str, str, str]]]:
    sys.path.insert(0, str(root / "tools"))
    try:
        import _reference_founding as founding
    finally:
        sys.path.remove(str(root / "tools"))
    return {title: founding.rows(text) for title, text in founding.PARTS.items()}


def test_every_requirement_is_in_the_table(root: Path, parts) -> None:
    """R-S1: each id of T, C, S, A, R, D, Q and G that is done has a line."""
    lines = (root / "tests/requirement_ids.txt").read_text(encoding="utf-8").splitlines()
    done = [line.split()[0] for line in lines if line.endswith("done") and line[0] in "TCSARDQG"]
    founding = [name for name in done if name not in ("G8", "G9", "G10", "G11")]
    assert len(founding) > 60
    assert [row[0] for row in parts["Requirements"]] == founding


def test_every_founding_item_is_in_the_table(shared: Path, parts) -> None:
    """R-S1: each item of the founding documents that was not there once has a line."""
    text = (shared / "FOUNDING_ITEMS.md").read_text(encoding="utf-8")
    items = set(re.findall(r"^\| ([A-E]\d+) \|", text, re.MULTILINE))
    listed = [row[0] for title, rows in parts.items() if title != "Requirements" for row in rows]
    assert (len(listed), set(listed)) == (len(set(listed)), items)


def test_every_command_and_name_exists(parts) -> None:
    """R-S1: a command has its options, a dotted name resolves, and no line is without either."""
    problems = []
    for found in parts.values():
        for id_, _what, how in found:
            quoted = re.findall(r"`([^`]+)`", how)
            if not quoted:
                problems.append(f"{id_}: nothing to call")
            for each in quoted:
                if each.startswith("proctor "):
                    problems += [f"{id_}: {each}: {p}" for p in command_problems(each.split()[1:])]
                elif each.startswith("proctor.") and not resolves(each):
                    problems.append(f"{id_}: no {each}")
    assert problems == []


def command_problems(words: list[str]) -> list[str]:
    """What a command line has that the program does not."""
    command: click.Command = cli
    context = click.Context(command)
    options = [word for word in words if word.startswith("--")]
    for word in words[: len(words) - len(options)]:
        found = command.get_command(context, word) if isinstance(command, click.Group) else None
        if found is None:
            return [f"no command {word!r}"]
        command, context = found, click.Context(found, parent=context)
    known = {name for parameter in command.params for name in parameter.opts}
    return [f"no option {name}" for name in options if name not in known]


def resolves(name: str) -> bool:
    """Whether a dotted name leads to an object."""
    value, *rest = name.split(".")
    found = importlib.import_module(value)
    for part in rest:
        try:
            found = getattr(found, part)
        except AttributeError:
            try:
                found = importlib.import_module(f"{found.__name__}.{part}")
            except (ImportError, AttributeError):
                return False
    return True
