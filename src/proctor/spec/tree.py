"""Values that remember where they were written.

A `Tree` is a YAML value whose every part knows its place, so that merging defaults or including
files loses no line number. Trees are shared (an alias is the same tree twice) and so are never
changed; whoever needs another makes a new one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias, cast

from proctor.spec.problems import Place

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

    place: Place
    value: Content
    keys: dict[str, Place] = field(default_factory=dict[str, Place])
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


def replace_content(tree: Tree, value: Content, keys: dict[str, Place] | None = None) -> Tree:
    """The same place with another content."""
    return replace(tree, value=value, keys=tree.keys if keys is None else keys, size=1, depth=1)
