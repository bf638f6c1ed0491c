"""Places in files, and what is wrong there.

Promise: a problem names file, line and column, says what to do when that can be guessed, and
travels with all others of the same file, so that a user mends a suite in one go.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias, cast

from proctor.errors import ProctorError

MOST_NOTES = 20
"""Problems shown below a traceback: as many as are mended before the file is tried again."""


class SourceLocation(NamedTuple):
    """Somewhere a person can go to: `file:line:column`, counted from 1.

    What has no lines (an environment variable, an option) is a name alone.
    """

    file: str
    line: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        return ":".join(str(part) for part in self if part is not None)


class SpecProblem(NamedTuple):
    """One thing to put right, where it is, and (when it can be guessed) how."""

    place: SourceLocation
    message: str
    hint: str | None = None

    @property
    def file(self) -> str:
        """The file, as it was named on the way to it."""
        return self.place.file

    @property
    def line(self) -> int | None:
        """The line, from 1; None for what has no lines."""
        return self.place.line

    @property
    def column(self) -> int | None:
        """The column in characters, from 1; None for what has no lines."""
        return self.place.column

    def __str__(self) -> str:
        return f"{self.place}: {self.message}"


class SpecError(ProctorError):
    """What a user wrote cannot be used; `problems` holds every reason, in the order of the file."""

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
        for problem in self.problems[1:MOST_NOTES]:
            self.add_note(f"{problem}\n  hint: {problem.hint}" if problem.hint else str(problem))


def sorted_problems(problems: Iterable[SpecProblem]) -> list[SpecProblem]:
    """In the order a reader meets them, each once: a slip in `defaults` shows in every case."""
    return sorted(
        dict.fromkeys(problems),
        key=lambda p: (p.file, p.line or 0, p.column or 0, p.message),
    )


# Values that remember where they were written.
#
# A `Tree` is a YAML value whose every part knows its place, so that merging defaults or
# including files loses no line number. Trees are shared (an alias is the same tree twice) and so
# are never changed; whoever needs another makes a new one.


Scalar = str | int | float | bool | None
Content: TypeAlias = "Scalar | list[Tree] | dict[str, Tree]"


@dataclass(slots=True, eq=False)
class Tree:
    """A value and its place.

    `keys` are the places of a mapping's keys. `written` is the text as it stands in the file when
    environment variables were put into it, `secrets` what they held. `broken` means that a problem
    with this very value is already known. `size` and `depth` count every use of an alias. `tag` is
    what stands before a scalar that still has to be worked out (`!ev` in a scenario template).
    """

    place: SourceLocation
    value: Content
    keys: dict[str, SourceLocation] = field(default_factory=dict[str, SourceLocation])
    written: str | None = None
    secrets: tuple[tuple[str, str], ...] = ()
    broken: bool = False
    spliced: bool = False
    size: int = 1
    depth: int = 1
    tag: str | None = None

    def __post_init__(self) -> None:
        for child in self.children():
            self.size += child.size
            self.depth = max(self.depth, child.depth + 1)

    def children(self) -> Iterator[Tree]:
        """The values directly inside, in the order they were written."""
        if isinstance(self.value, dict):
            yield from self.value.values()
        elif isinstance(self.value, list):
            yield from self.value

    def child(self, step: str | int) -> Tree | None:
        """The value under a key or at an index, if there is one."""
        if isinstance(self.value, dict) and isinstance(step, str):
            return self.value.get(step)
        if isinstance(self.value, list) and isinstance(step, int) and step < len(self.value):
            return self.value[step]
        return None

    def walk(self) -> Iterator[Tree]:
        """This value and all inside it."""
        yield self
        for child in self.children():
            yield from child.walk()


def plain(tree: Tree, *, as_written: bool = False) -> Any:
    """The bare value; `as_written` leaves environment variables as the references they were."""
    if isinstance(tree.value, dict):
        return {key: plain(value, as_written=as_written) for key, value in tree.value.items()}
    if isinstance(tree.value, list):
        return [plain(item, as_written=as_written) for item in tree.value]
    if as_written:
        return escaped(tree.value) if tree.written is None else tree.written
    return tree.value


def escaped(value: Any) -> Any:
    """A value whose texts mean themselves when environment variables are put in."""
    if isinstance(value, str):
        return value.replace("${", "$${")
    if isinstance(value, list):
        return [escaped(item) for item in cast("list[Any]", value)]
    if isinstance(value, dict):
        return {key: escaped(item) for key, item in cast("dict[str, Any]", value).items()}
    return value


def merged(base: Tree, over: Tree) -> Tree:
    """`over` laid upon `base`: mappings key by key, anything else (lists too) replaces."""
    if not (isinstance(base.value, dict) and isinstance(over.value, dict)):
        return over
    value: dict[str, Tree] = dict(base.value)
    for key, item in over.value.items():
        value[key] = merged(value[key], item) if key in value else item
    return Tree(over.place, value, {**base.keys, **over.keys}, broken=over.broken)


def renamed(tree: Tree, spellings: Mapping[str, str]) -> Tree:
    """A mapping with accepted spellings replaced by the proper key.

    Where both stand, the proper one counts; `keys` still has the other, so that it can be told.
    """
    if not isinstance(tree.value, dict) or not any(key in tree.value for key in spellings):
        return tree
    value, keys = dict(tree.value), dict(tree.keys)
    for other, key in spellings.items():
        if other in value and key in value:
            del value[other]
        elif other in value:
            value[key], keys[key] = value.pop(other), keys.pop(other)
    return replace_content(tree, value, keys)


def replace_content(
    tree: Tree, value: Content, keys: dict[str, SourceLocation] | None = None
) -> Tree:
    """The same place with another content."""
    return replace(tree, value=value, keys=tree.keys if keys is None else keys, size=1, depth=1)
