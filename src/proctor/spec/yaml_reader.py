"""Read YAML into trees with positions, robust against any input.

Guarantees: no input causes a traceback or exhausts the machine: size, depth and the number of
values (each use of an alias counted) are bounded; only plain tags are known, so no object is ever
constructed. Reading continues after a problem where possible, so that all problems are reported at
once.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, NamedTuple, cast

import yaml

from proctor.errors import did_you_mean, hint_among
from proctor.spec.located import Scalar, SourceLocation, SpecProblem, Tree, YamlDocument, substitute

# YAML scalars and environment variables inside them. Scalars follow the YAML 1.2 core schema, as
# editors do: `no`, `on` and `12:30` are text, dates are text, and every value has a JSON type.
# Variables are substituted only where written `${NAME}`; their values are always text, so that no
# variable can change the shape of a file.


_NULL = re.compile(r"(?:null|Null|NULL|~|)")
_TRUE = re.compile(r"(?:true|True|TRUE)")
_FALSE = re.compile(r"(?:false|False|FALSE)")
_INT = re.compile(r"[-+]?[0-9]+")
_OCTAL = re.compile(r"0o[0-7]+")
_HEX = re.compile(r"0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_INFINITE = re.compile(r"[-+]?\.(?:inf|Inf|INF)")
_NAN = re.compile(r"\.(?:nan|NaN|NAN)")

_MEANINGS: tuple[tuple[str, re.Pattern[str], Callable[[str], Scalar]], ...] = (
    ("null", _NULL, lambda text: None),
    ("bool", _TRUE, lambda text: True),
    ("bool", _FALSE, lambda text: False),
    ("int", _INT, int),
    ("int", _OCTAL, lambda text: int(text[2:], 8)),
    ("int", _HEX, lambda text: int(text[2:], 16)),
    ("float", _FLOAT, float),
    ("float", _INFINITE, lambda text: float(text.replace(".", "", 1))),
    ("float", _NAN, lambda text: float("nan")),
)

LONGEST_NUMBER = 1_000
"""Maximum digits of a number; Python itself refuses slightly more."""


def meaning(text: str) -> Scalar:
    """Return the value of an unquoted scalar."""
    # Converting very long numbers takes quadratic time.
    if len(text) > LONGEST_NUMBER:
        return text
    for _, pattern, read in _MEANINGS:
        if pattern.fullmatch(text):
            return read(text)
    return text


def tagged(text: str, kind: str) -> Scalar:
    """Return the value of a scalar with an explicit tag (`!!int "3"`), or raise ValueError."""
    if kind == "str":
        return text
    for name, pattern, read in _MEANINGS:
        # Integers are often written for floats: `!!float 3`.
        if name == kind and len(text) <= LONGEST_NUMBER and pattern.fullmatch(text):
            return read(text)
    raise ValueError(f"{text[:40]!r} is not a value of type !!{kind}")


# Paths in specs: resolution and suggestions.


def instead_of(path: Path) -> str | None:
    """Return suggestions for a path that is no file: a file in that folder, or a similar name."""
    is_folder = path.is_dir()
    # Suggestions are a courtesy: an unreadable folder must not hide the first problem.
    try:
        beside = sorted((path if is_folder else path.parent).iterdir())
    except OSError:
        return None
    files = [each for each in beside if each.suffix in (".yaml", ".yml", ".json")]
    if is_folder:
        return f"name a file of it: {', '.join(f.name for f in files[:5])}" if files else None
    near = [repr(each.name) for each in files if did_you_mean(path.stem, [each.stem])]
    return f"did you mean {' or '.join(near[:3])}?" if near else None


def real_path(path: Path) -> Path:
    """Return the path without links; an unresolvable one is reported when it is opened."""
    try:
        return path.resolve()
    except (OSError, RuntimeError, ValueError):
        return path.absolute()


def is_absolute(written: str) -> bool:
    """Return whether a path is absolute on any system."""
    windows = PureWindowsPath(written)
    return PurePosixPath(written).is_absolute() or bool(windows.drive or windows.root)


MAX_BYTES = 8 * 2**20
"""Maximum file size: larger files are data, and parsing them would take seconds."""

MAX_VALUES = 500_000
"""About 20,000 cases with all checks. A "billion laughs" file exceeds it within a few lines."""

MAX_DEPTH = 64
"""No suite nests half as deep, and recursive readers of the result stay within the stack."""

MAX_INCLUDES = 16
"""Maximum depth of includes; the reader recurses into each of them."""

_STANDARD = "tag:yaml.org,2002:"
_SCALAR_TAGS = ("str", "int", "float", "bool", "null")
_LINE_BREAK = re.compile("\r\n|[\n\r\x85\u2028\u2029]")
_UNPRINTABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
# JSON escapes characters beyond the first plane as a pair, which YAML does not support.
_SURROGATES = re.compile(
    r"(?<!\\)(?P<slashes>(?:\\\\)*)\\u(?P<high>[dD][89abAB]..)\\u(?P<low>[dD][c-fC-F]..)"
)
_DATA_SUFFIXES = (".yaml", ".yml", ".json")

# libyaml's parser where PyYAML was built with it; the pure one is equivalent but slower.
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class FileDialect(NamedTuple):
    """Options for a kind of file other than suites.

    `root` is the folder that `!include` may not leave (by default the file's). `tags` are allowed
    on scalars: such a value is its text, and its tree has the tag. `portable` files mean the same
    on every machine: environment variables are not substituted, and included paths are not
    absolute.
    """

    root: Path | None = None
    tags: tuple[str, ...] = ()
    portable: bool = False


SUITES = FileDialect()


def read(
    path: Path, *, environ: Mapping[str, str] | None = None, dialect: FileDialect = SUITES
) -> YamlDocument:
    """Read a YAML file, with its includes and environment variables."""
    reading = _Reading(
        root=real_path(dialect.root or path.parent),
        environ=os.environ if environ is None else environ,
        dialect=dialect,
    )
    tree = reading.file(path, str(path))
    return YamlDocument(tree, reading.problems, tuple(reading.files))


def read_text(
    text: str, name: str, *, environ: Mapping[str, str] | None = None, dialect: FileDialect = SUITES
) -> YamlDocument:
    """Read YAML that is not in a file; it cannot include files."""
    environ = os.environ if environ is None else environ
    reading = _Reading(root=None, environ=environ, dialect=dialect)
    return YamlDocument(reading.text(text, name, Path(name), ()), reading.problems)


class _StopReadingError(Exception):
    """Raised when the rest of a file cannot be read; carries the problem."""

    def __init__(self, place: SourceLocation, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.problem = SpecProblem(place, message, hint)


@dataclass(slots=True)
class _Reading:
    """State of reading a file and its includes: the root folder, the problems."""

    root: Path | None
    environ: Mapping[str, str]
    dialect: FileDialect = SUITES
    files: list[Path] = field(default_factory=list[Path])
    problems: list[SpecProblem] = field(default_factory=list[SpecProblem])
    included: dict[Path, Tree | None] = field(default_factory=dict[Path, Tree | None])
    texts: dict[Path, str] = field(default_factory=dict[Path, str])

    def file(self, path: Path, name: str, within: tuple[Path, ...] = ()) -> Tree | None:
        """Return the tree of a file; `within` are the including files, outermost first."""
        self.files.append(path)
        try:
            text = _file_text(path, SourceLocation(name), name)
            if path.suffix.lower() == ".json":
                text = _SURROGATES.sub(_one_character, text)
            return self.text(text, name, path, (*within, real_path(path)))
        except _StopReadingError as stop:
            self.problems.append(stop.problem)
            return None

    def text(self, text: str, name: str, path: Path, within: tuple[Path, ...]) -> Tree | None:
        """Return the tree of a text; a fatal error is reported like any other problem."""
        # The byte order mark that some Windows editors write.
        text = text.removeprefix("\ufeff")
        try:
            if found := _UNPRINTABLE.search(text):
                place = _place_at(text, found.start(), name)
                raise _StopReadingError(
                    place,
                    f"the character U+{ord(found.group()):04X} is not allowed in YAML",
                    'write it as an escape in double quotes, such as "\\x1b"',
                )
            return _Builder(self, _events(text, name), name, path.parent, within).document()
        except _StopReadingError as stop:
            self.problems.append(stop.problem)
            return None

    def add(self, place: SourceLocation, message: str, hint: str | None = None) -> None:
        """Report a problem and continue."""
        self.problems.append(SpecProblem(place, message, hint))

    def include(
        self, written: str, place: SourceLocation, base: Path, within: tuple[Path, ...]
    ) -> Tree:
        """Return the content of an `!include`: the data of a YAML or JSON file, else its text."""
        broken = Tree(place, None, broken=True)
        if self.root is None:
            self.add(place, "there is no folder to include files from")
            return broken
        target = real_path(base / written)
        name = os.path.normpath(base / written)
        if self.dialect.portable and is_absolute(written):
            self.add(place, "!include takes a path that starts at this file, not an absolute one")
        elif not target.is_relative_to(self.root):
            self.add(
                place,
                f"!include may not leave the folder {str(self.root)!r}",
                "move the file there; links that lead outside count as outside",
            )
        elif target in within:
            chain = " → ".join(file.name for file in (*within[within.index(target) :], target))
            self.add(place, f"circular !include: {chain}")
        elif len(within) > MAX_INCLUDES:
            self.add(place, f"files include each other more than {MAX_INCLUDES} deep")
        elif not target.is_file():
            self.add(place, f"there is no file {name!r} to include", "paths start at this file")
        elif target.suffix.lower() in _DATA_SUFFIXES:
            # Read once, however often it is included: problems are reported once, too.
            if target not in self.included:
                self.included[target] = self.file(target, name, within)
            found = self.included[target]
            return broken if found is None else replace(found, spliced=True)
        else:
            try:
                if target not in self.texts:
                    self.files.append(target)
                    self.texts[target] = _file_text(target, place, name)
                return Tree(place, self.texts[target])
            except _StopReadingError as stop:
                self.problems.append(stop.problem)
        return broken


@dataclass(slots=True)
class _Builder:
    """Build the tree of one file from the parser's events."""

    reading: _Reading
    events: Iterator[Any]
    name: str
    base: Path
    within: tuple[Path, ...]
    anchors: dict[str, Tree] = field(default_factory=dict[str, Tree])

    def document(self) -> Tree:
        tree = Tree(SourceLocation(self.name, 1, 1), None)
        documents = 0
        for event in self.events:
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    raise _StopReadingError(
                        self.place(event), "a second document begins here", "keep one per file"
                    )
                tree = self.value(next(self.events), 1)
        return tree

    def value(self, event: Any, depth: int) -> Tree:
        if depth > MAX_DEPTH:
            raise _StopReadingError(
                self.place(event), f"values are nested more than {MAX_DEPTH} deep"
            )
        if isinstance(event, yaml.AliasEvent):
            return self.alias(event)
        if isinstance(event, yaml.ScalarEvent):
            tree = self.scalar(event)
        elif isinstance(event, yaml.SequenceStartEvent):
            tree = self.sequence(event, depth)
        else:
            tree = self.mapping(event, depth)
        # An alias or an include brings its own depth, which the recursion did not count.
        if depth + tree.depth > MAX_DEPTH + 1:
            raise _StopReadingError(
                self.place(event), f"values are nested more than {MAX_DEPTH} deep"
            )
        if event.anchor:
            self.anchors[event.anchor] = tree
        return tree

    def alias(self, event: Any) -> Tree:
        found = self.anchors.get(event.anchor)
        if found is None:
            self.reading.add(
                self.place(event),
                f"the alias *{event.anchor} names no anchor that ends before it",
                did_you_mean(event.anchor, self.anchors),
            )
            return Tree(self.place(event), None, broken=True)
        return found

    def scalar(self, event: Any) -> Tree:
        place = self.place(event)
        if event.tag == "!include":
            return self.reading.include(event.value, place, self.base, self.within)
        dialect = self.reading.dialect
        if event.tag in dialect.tags:
            return Tree(place, event.value, tag=event.tag)
        if dialect.portable:
            text, secrets, problems = event.value, (), ()
        else:
            text, secrets, problems = substitute(event.value, self.reading.environ)
        for message, hint in problems:
            self.reading.add(place, message, hint)
        value: Scalar = text
        # `!` alone forces text. A text with variables stays text: no variable changes a type.
        if event.tag and event.tag != "!":
            value = self.tagged(event, text, place)
        elif event.implicit[0] and text == event.value and not secrets:
            value = meaning(text)
        return Tree(
            place,
            value,
            written=event.value if secrets else None,
            secrets=secrets,
            broken=bool(problems),
        )

    def tagged(self, event: Any, text: str, place: SourceLocation) -> Scalar:
        kind = event.tag.removeprefix(_STANDARD)
        if kind not in _SCALAR_TAGS:
            self.unknown_tag(event)
            return text
        try:
            return tagged(text, kind)
        except ValueError as error:
            # The value of a variable must not be shown, so the message leaves it out.
            message = str(error) if text == event.value else f"the value is not a !!{kind}"
            self.reading.add(place, message)
            return text

    def unknown_tag(self, event: Any) -> None:
        shown = event.tag.replace(_STANDARD, "!!")
        if event.tag in self.reading.dialect.tags:
            self.reading.add(self.place(event), f"{shown} takes a text, not a list or a mapping")
            return
        known = ["!include", *self.reading.dialect.tags, *(f"!!{kind}" for kind in _SCALAR_TAGS)]
        self.reading.add(
            self.place(event),
            f"unknown tag {shown!r}",
            hint_among(shown, known),
        )

    def sequence(self, event: Any, depth: int) -> Tree:
        if event.tag not in (None, "!", f"{_STANDARD}seq"):
            self.unknown_tag(event)
        items: list[Tree] = []
        size = 0
        while not isinstance(inner := next(self.events), yaml.SequenceEndEvent):
            item = self.value(inner, depth + 1)
            # A list included as an item of a list is expanded: cases can be in many files.
            if item.spliced and isinstance(item.value, list):
                items.extend(item.value)
            else:
                items.append(item)
            size += item.size
            if size > MAX_VALUES:
                raise self.too_large(inner)
        return Tree(self.place(event), items)

    def mapping(self, event: Any, depth: int) -> Tree:
        if event.tag not in (None, "!", f"{_STANDARD}map"):
            self.unknown_tag(event)
        value: dict[str, Tree] = {}
        keys: dict[str, SourceLocation] = {}
        bases: list[Tree] = []
        size = 0
        while not isinstance(inner := next(self.events), yaml.MappingEndEvent):
            key, place = self.key(inner, depth), self.place(inner)
            item = self.value(next(self.events), depth + 1)
            size += item.size
            if size > MAX_VALUES:
                raise self.too_large(inner)
            if key == "<<" and isinstance(inner, yaml.ScalarEvent) and inner.implicit[0]:
                bases.extend(self.bases(item, place))
            elif key in value:
                first = keys[key].line
                self.reading.add(
                    place, f"the key {key!r} is there twice", f"the first is on line {first}"
                )
            elif key is not None:
                value[key], keys[key] = item, place
        # The mapping's own keys win, then those of the first base.
        for base in bases:
            if isinstance(base.value, dict):
                value, keys = {**base.value, **value}, {**base.keys, **keys}
        return Tree(self.place(event), value, keys)

    def too_large(self, event: Any) -> _StopReadingError:
        """Return the error that ends a collection before a hostile one fills the memory."""
        return _StopReadingError(
            self.place(event),
            f"the file holds more than {MAX_VALUES:,} values once aliases are expanded",
        )

    def key(self, event: Any, depth: int) -> str | None:
        """Return a key as its text: `2024:` and `true:` are not converted."""
        if isinstance(event, yaml.ScalarEvent):
            if event.tag in self.reading.dialect.tags:
                self.reading.add(self.place(event), f"a key cannot be {event.tag}")
                return None
            return str(event.value)
        tree = self.value(event, depth + 1)
        if isinstance(event, yaml.AliasEvent) and isinstance(tree.value, str):
            return tree.value
        self.reading.add(self.place(event), "a key must be text", "in braces, ${NAME} needs quotes")
        return None

    def bases(self, item: Tree, place: SourceLocation) -> list[Tree]:
        found = item.value if isinstance(item.value, list) else [item]
        if all(isinstance(base.value, dict) for base in found):
            return found
        self.reading.add(place, "`<<` takes a mapping, or a list of mappings")
        return []

    def place(self, event: Any) -> SourceLocation:
        mark = event.start_mark
        return SourceLocation(self.name, mark.line + 1, mark.column + 1)


def _events(text: str, name: str) -> Iterator[Any]:
    """Yield the parser's events, with its errors converted to ours."""
    try:
        yield from cast("Iterator[Any]", yaml.parse(text, Loader=_Loader))  # pyright: ignore[reportUnknownMemberType]
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = (
            SourceLocation(name, mark.line + 1, mark.column + 1)
            if mark
            else SourceLocation(name, 1, 1)
        )
        reason = " ".join(str(part) for part in (error.problem, error.context) if part)
        raise _StopReadingError(
            place, f"not YAML: {reason}", _advice(reason, text, place)
        ) from None
    except (yaml.YAMLError, RecursionError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise _StopReadingError(SourceLocation(name, 1, 1), f"not YAML: {reason}") from None


def _advice(reason: str, text: str, place: SourceLocation) -> str | None:
    lines = _LINE_BREAK.split(text)
    line = lines[place.line - 1] if place.line and place.line <= len(lines) else ""
    if "\t" in line[: len(line) - len(line.lstrip())] or r"'\t'" in reason:
        return "indent with spaces; YAML allows no tabs there"
    if "mapping values are not allowed" in reason:
        return "a colon inside text needs quotes around the text"
    if "start any token" in reason:
        return "text that begins with a special character needs quotes"
    if "did not find expected" in reason or "expected <block end>" in reason:
        return "check that this line is indented like its neighbours"
    return None


def _file_text(path: Path, place: SourceLocation, name: str) -> str:
    """Return the text of a file; `place` names what refers to it, `name` the file itself."""
    try:
        with path.open("rb") as file:
            # One byte more than allowed is enough to refuse a file of any size.
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        message = f"cannot be read: {error.strerror or error}"
        raise _StopReadingError(place, message, instead_of(path)) from None
    if len(data) > MAX_BYTES:
        raise _StopReadingError(
            place,
            f"larger than {MAX_BYTES // 2**20} MiB",
            "split it into several files, and read long texts with !include",
        )
    # PowerShell writes UTF-16 with a byte order mark; YAML allows it.
    wide = data[:2] in (b"\xff\xfe", b"\xfe\xff")
    try:
        return data.decode("utf-16" if wide else "utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start].decode("utf-8", "replace") if not wide else ""
        raise _StopReadingError(
            _place_at(before, len(before), name),
            f"not {'UTF-16' if wide else 'UTF-8'} text: {error.reason}",
            "save the file as UTF-8",
        ) from None


def _one_character(pair: re.Match[str]) -> str:
    try:
        units = bytes.fromhex(pair["high"] + pair["low"])
        return pair["slashes"] + units.decode("utf-16-be")
    except ValueError:
        return pair.group()


def _place_at(text: str, index: int, name: str) -> SourceLocation:
    line, start = 1, 0
    for found in _LINE_BREAK.finditer(text, 0, index):
        line, start = line + 1, found.end()
    return SourceLocation(name, line, index - start + 1)
