"""Define positions in files and the problems reported there.

Guarantees: a problem names file, line and column, suggests a fix where possible, and is reported
with all others of the same file, so that a user can fix a suite in one go.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, cast

from proctor.errors import ProctorError
from proctor.runs.case_rows import escaped

MOST_NOTES = 20
"""Maximum problems shown below a traceback: about as many as are fixed at a time."""


class SourceLocation(NamedTuple):
    """A position: `file:line:column`, counted from 1.

    Sources without lines (an environment variable, an option) are a name alone.
    """

    file: str
    line: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        return ":".join(str(part) for part in self if part is not None)


class SpecProblem(NamedTuple):
    """A problem with its position and, where possible, a fix."""

    place: SourceLocation
    message: str
    hint: str | None = None

    @property
    def file(self) -> str:
        """The file, as it was named by the user."""
        return self.place.file

    @property
    def line(self) -> int | None:
        """The line, from 1; None without lines."""
        return self.place.line

    @property
    def column(self) -> int | None:
        """The column in characters, from 1; None without lines."""
        return self.place.column

    def __str__(self) -> str:
        return f"{self.place}: {self.message}"


class Problems(list[SpecProblem]):
    """Problems found so far; reading goes on, so that all are reported at once."""

    def add(self, place: SourceLocation, message: str, hint: str | None = None) -> None:
        """Report a problem."""
        self.append(SpecProblem(place, message, hint))


class SpecError(ProctorError):
    """User input is invalid; `problems` lists every reason, in the order of the file."""

    def __init__(self, problems: Iterable[SpecProblem]) -> None:
        self.problems = sorted_problems(problems)
        first = self.problems[0]
        more = len(self.problems) - 1
        others = f" (and {more} more problem{'s' if more > 1 else ''})" if more else ""
        see_all = f"`proctor validate {first.file}` lists them all"
        super().__init__(
            first.message + others,
            where=str(first.place),
            hint=first.hint or (see_all if more else None),
        )
        # In a traceback, notes show the other problems below the message.
        for problem in self.problems[1:MOST_NOTES]:
            self.add_note(f"{problem}\n  hint: {problem.hint}" if problem.hint else str(problem))


def sorted_problems(problems: Iterable[SpecProblem]) -> list[SpecProblem]:
    """Return problems in file order, each once: one in `defaults` appears in every case."""
    return sorted(
        dict.fromkeys(problems), key=lambda p: (p.file, p.line or 0, p.column or 0, p.message)
    )


# Values with positions. A `Tree` is a YAML value in which every part has a position, so that
# merging defaults or including files loses no line number. Trees are shared (an alias is the same
# tree twice) and therefore immutable.


Scalar = str | int | float | bool | None
Content: TypeAlias = "Scalar | list[Tree] | dict[str, Tree]"


@dataclass(slots=True, eq=False)
class Tree:
    """A value with its position.

    `keys` are the positions of a mapping's keys. `written` is the text in the file before
    environment variables were substituted, `secrets` their values. `broken` means that a problem
    with this value is already known. `size` and `depth` count every use of an alias. `tag` precedes
    a scalar that is evaluated later (`!ev` in a scenario template).
    """

    place: SourceLocation
    value: Content
    keys: dict[str, SourceLocation] = field(default_factory=dict[str, SourceLocation])
    written: str | None = None
    secrets: tuple[tuple[str, str], ...] = ()
    broken: bool = False
    spliced: bool = False
    tag: str | None = None
    # Not arguments: `dataclasses.replace` of the value has to count again.
    size: int = field(default=1, init=False)
    depth: int = field(default=1, init=False)

    def __post_init__(self) -> None:
        for child in self.children():
            self.size += child.size
            self.depth = max(self.depth, child.depth + 1)

    def children(self) -> Iterator[Tree]:
        """Return the direct children, in the order of the file."""
        if isinstance(self.value, dict):
            yield from self.value.values()
        elif isinstance(self.value, list):
            yield from self.value

    def child(self, step: str | int) -> Tree | None:
        """Return the value under a key or at an index, or None."""
        if isinstance(self.value, dict) and isinstance(step, str):
            return self.value.get(step)
        if isinstance(self.value, list) and isinstance(step, int) and step < len(self.value):
            return self.value[step]
        return None

    def walk(self) -> Iterator[Tree]:
        """Yield this value and all its descendants."""
        yield self
        for child in self.children():
            yield from child.walk()


def plain(tree: Tree, *, as_written: bool = False) -> Any:
    """Return the bare value; `as_written` retains references to environment variables."""
    if isinstance(tree.value, dict):
        return {key: plain(value, as_written=as_written) for key, value in tree.value.items()}
    if isinstance(tree.value, list):
        return [plain(item, as_written=as_written) for item in tree.value]
    if as_written:
        return escaped(tree.value) if tree.written is None else tree.written
    return tree.value


def merged(base: Tree, over: Tree) -> Tree:
    """Merge `over` into `base`: mappings key by key, anything else (lists too) replaces."""
    if not (isinstance(base.value, dict) and isinstance(over.value, dict)):
        return over
    # A new mapping: trees are shared between cases.
    value: dict[str, Tree] = dict(base.value)
    for key, item in over.value.items():
        value[key] = merged(value[key], item) if key in value else item
    return Tree(over.place, value, {**base.keys, **over.keys}, broken=over.broken)


def renamed(tree: Tree, spellings: Mapping[str, str]) -> Tree:
    """Return a mapping with alternative spellings replaced by the canonical key.

    Where both are present, the canonical one wins; `keys` still has the other, for the report.
    """
    if not isinstance(tree.value, dict) or not any(key in tree.value for key in spellings):
        return tree
    value, keys = dict(tree.value), dict(tree.keys)
    for other, key in spellings.items():
        if other in value and key in value:
            del value[other]
        elif other in value:
            value[key], keys[key] = value.pop(other), keys.pop(other)
    return replace(tree, value=value, keys=keys)


# -- environment variables and records ------------------------------------------------------------

_REFERENCE = re.compile(
    r"""(?P<escape>\$\$\{)
      | \$\{ (?P<name>[A-Za-z_][A-Za-z0-9_]*) (?: :- (?P<default>[^}]*) )? \}
      | (?P<malformed>\$\{ [^}]{0,40} \}?)""",
    re.VERBOSE,
)


class Substituted(NamedTuple):
    """A text with variables substituted, their values, and problems."""

    text: str
    secrets: tuple[tuple[str, str], ...] = ()
    problems: tuple[tuple[str, str], ...] = ()


def substitute(text: str, environ: Mapping[str, str]) -> Substituted:
    """Substitute environment variables for `${NAME}` or `${NAME:-default}`; `$${` is `${`.

    `secrets` pairs the value of a variable with its reference, `problems` pairs a message with a
    hint. Defaults are in the file and are no secrets.
    """
    if "${" not in text:
        return Substituted(text)
    secrets: list[tuple[str, str]] = []
    problems: list[tuple[str, str]] = []

    def put(match: re.Match[str]) -> str:
        if match["escape"]:
            return "${"
        if match["malformed"]:
            hint = "write ${NAME} or ${NAME:-default}; for a literal ${ write $${"
            message = f"{match.group()!r} is not a reference to an environment variable"
            problems.append((message, hint))
            return match.group()
        name, held = match["name"], environ.get(match["name"])
        # As in a shell, an empty variable uses the default too.
        if match["default"] is not None and not held:
            return match["default"]
        if held is None:
            hint = f"set it, or give a default: ${{{name}:-...}}"
            problems.append((f"the environment variable {name} is not set", hint))
            return ""
        if held:
            secrets.append((held, "${" + name + "}"))
        return held

    result = _REFERENCE.sub(put, text)
    return Substituted(result, tuple(secrets), tuple(problems))


class YamlDocument(NamedTuple):
    """The content of a file: its tree (None when unreadable) and every problem.

    `files` are the file itself and all its includes, for cache invalidation.
    """

    tree: Tree | None
    problems: Problems
    files: tuple[Path, ...] = ()

    def value(self) -> Any:
        """Return the bare value, or raise an error with every problem."""
        if self.problems or self.tree is None:
            raise SpecError(self.problems)
        return plain(self.tree)


Location = tuple[str, ...]
"""The keys that lead to a value; list items have the position of their list."""


def tree_of(
    value: Any,
    place_at: Callable[[Location], SourceLocation],
    environ: Mapping[str, str],
    problems: list[SpecProblem],
    path: Location = (),
) -> Tree:
    """Return a value as a tree, with environment variables substituted."""
    place = place_at(path)
    if isinstance(value, dict):
        table = cast("dict[Any, Any]", value)
        inner = {
            str(key): tree_of(item, place_at, environ, problems, (*path, str(key)))
            for key, item in table.items()
        }
        return Tree(place, inner, {key: tree.place for key, tree in inner.items()})
    if isinstance(value, list | tuple):
        items = cast("list[Any]", value)
        return Tree(place, [tree_of(v, place_at, environ, problems, path) for v in items])
    if not isinstance(value, str):
        # Dates are what TOML has beyond JSON; no setting takes one.
        known = value is None or isinstance(value, bool | int | float)
        return Tree(place, value if known else str(value))
    text, secrets, found = substitute(value, environ)
    problems.extend(SpecProblem(place, message, hint) for message, hint in found)
    return Tree(place, text, {}, value if secrets else None, secrets, bool(found))


# `[tool.proctor]` of a pyproject.toml as a tree. The standard parser has no line numbers, so they
# are found by searching for headers and keys. A key inside an inline table gets the line of that
# table: close enough to find it.


_HEADER = re.compile(r"\s*\[{1,2}\s*(?P<name>[^\]]+?)\s*\]{1,2}\s*(?:#.*)?$")
_KEY = re.compile(
    r"""\s*(?P<name>(?:[\w-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[\w-]+|"[^"]*"|'[^']*'))*)\s*="""
)
_PART = re.compile(r"""[\w-]+|"[^"]*"|'[^']*'""")
_TABLE = ("tool", "proctor")


def read_toml(path: Path, environ: Mapping[str, str]) -> YamlDocument:
    """Return the table as a tree; None when the file has none."""
    import tomllib  # most projects have no such file

    name, problems = str(path), Problems()
    try:
        text = path.read_text(encoding="utf-8-sig")
        data: Any = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        at = re.search(r"line (\d+), column (\d+)", str(error))
        place = SourceLocation(name, int(at[1]), int(at[2])) if at else SourceLocation(name, 1, 1)
        problems.add(place, f"not TOML: {str(error).partition(' (at')[0]}")
        return YamlDocument(None, problems)
    except (OSError, UnicodeDecodeError) as error:
        problems.add(SourceLocation(name, 1, 1), f"cannot be read: {error}")
        return YamlDocument(None, problems)
    # Any part of the path may be missing, or be something other than a table.
    for part in _TABLE:
        data = cast("dict[str, Any]", data).get(part) if isinstance(data, dict) else None
    if data is None:
        return YamlDocument(None, problems)
    places = _places(text, name)

    def place_at(path: tuple[str, ...]) -> SourceLocation:
        whole = _TABLE + path
        return next(places[whole[:n]] for n in range(len(whole), 0, -1) if whole[:n] in places)

    return YamlDocument(tree_of(data, place_at, environ, problems), problems)


def _places(text: str, name: str) -> dict[tuple[str, ...], SourceLocation]:
    """Return the positions of each header and each key at the start of a line."""
    places: dict[tuple[str, ...], SourceLocation] = {}
    table: tuple[str, ...] = ()
    for number, line in enumerate(text.splitlines(), 1):
        if header := _HEADER.match(line):
            table = _parts(header["name"])
            found, path = header, table
        elif key := _KEY.match(line):
            found, path = key, (*table, *_parts(key["name"]))
        else:
            continue
        # `[tool.proctor.limits]` also defines its parents, unless they have a header of their own.
        for length in range(1, len(path) + 1):
            places.setdefault(path[:length], SourceLocation(name, number, found.start("name") + 1))
    return places


def _parts(dotted: str) -> tuple[str, ...]:
    return tuple(part.strip("\"'") for part in _PART.findall(dotted))
