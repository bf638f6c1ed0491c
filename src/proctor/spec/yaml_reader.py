"""Read YAML into trees with positions, robust against any input.

Guarantees: no input causes a traceback or exhausts the machine: size, depth and the number of
values (each use of an alias counted) are bounded; only plain tags are known, so no object is ever
constructed. Reading continues after a problem where possible, so that all problems are reported at
once.
"""

from __future__ import annotations

import contextlib
import gc
import os
import re
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, NamedTuple, cast

import yaml

from proctor.errors import did_you_mean, hint_among
from proctor.files import unblocked
from proctor.spec.located import (
    Problems,
    Scalar,
    SourceLocation,
    SpecProblem,
    Tree,
    YamlDocument,
    substitute,
)

# YAML scalars and environment variables inside them. Scalars follow the YAML 1.2 core schema, as
# editors do: `no`, `on` and `12:30` are text, dates are text, and every value has a JSON type.
# Variables are substituted only where written `${NAME}`; their values are always text, so that no
# variable can change the shape of a file.


_MEANINGS: tuple[tuple[str, re.Pattern[str], Callable[[str], Scalar]], ...] = (
    ("null", re.compile(r"(?:null|Null|NULL|~|)"), lambda text: None),
    ("bool", re.compile(r"(?:true|True|TRUE)"), lambda text: True),
    ("bool", re.compile(r"(?:false|False|FALSE)"), lambda text: False),
    ("int", re.compile(r"[-+]?[0-9]+"), int),
    ("int", re.compile(r"0o[0-7]+"), lambda text: int(text[2:], 8)),
    ("int", re.compile(r"0x[0-9a-fA-F]+"), lambda text: int(text[2:], 16)),
    ("float", re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"), float),
    ("float", re.compile(r"[-+]?\.(?:inf|Inf|INF)"), lambda text: float(text.replace(".", "", 1))),
    ("float", re.compile(r"\.(?:nan|NaN|NAN)"), lambda text: float("nan")),
)

LONGEST_NUMBER = 1_000
"""Maximum digits of a number; Python itself refuses slightly more."""


def meaning(text: str, kind: str | None = None) -> Scalar:
    """Return the value of an unquoted scalar, or of one with an explicit tag (`!!int "3"`).

    Raise ValueError where the text is not of the kind of its tag.
    """
    # Converting very long numbers takes quadratic time.
    if kind != "str" and len(text) <= LONGEST_NUMBER:
        for name, pattern, read in _MEANINGS:
            # Integers are often written for floats: `!!float 3`.
            if kind in (None, name) and pattern.fullmatch(text):
                return read(text)
    if kind in (None, "str"):
        return text
    raise ValueError(f"{text[:40]!r} is not a value of type !!{kind}")


# Paths in specs: resolution and suggestions.


_SUGGESTED = (".yaml", ".yml", ".json", ".jsonl", ".csv", ".tsv", ".parquet")


def instead_of(path: Path) -> str | None:
    """Return suggestions for a path that is no file: a file in that folder, or a similar name."""
    is_folder = path.is_dir()
    # Suggestions are a courtesy: an unreadable folder must not hide the first problem.
    try:
        beside = sorted((path if is_folder else path.parent).iterdir())
    except OSError:
        return None
    files = [each for each in beside if each.suffix in _SUGGESTED]
    if is_folder:
        return f"name a file of it: {', '.join(f.name for f in files[:5])}" if files else None
    others = [each for each in files if each.name != path.name]
    near = [repr(each.name) for each in others if did_you_mean(path.stem, [each.stem])]
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


MAX_BYTES = 32 * 2**20
"""Maximum file size: 10,000 cases with inputs of 3 KB; what a file may build is bounded below."""

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


@contextlib.contextmanager
def collector_paused() -> Generator[None]:
    """Pause the cyclic garbage collector, also as a decorator.

    Reading a suite makes very many objects that stay, and hardly a cycle; the collector would look
    at all of them again and again, for half of the time. `MAX_VALUES` bounds what is built.
    """
    paused = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if paused:
            gc.enable()


@collector_paused()
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
    problems: Problems = field(default_factory=Problems)
    included: dict[Path, Tree | None] = field(default_factory=dict[Path, Tree | None])
    texts: dict[Path, str] = field(default_factory=dict[Path, str])

    def file(self, path: Path, name: str, within: tuple[Path, ...] = ()) -> Tree | None:
        """Return the tree of a file; `within` are the including files, outermost first."""
        self.files.append(path)
        try:
            text = _file_text(path, SourceLocation(name), name)
        except _StopReadingError as stop:
            self.problems.append(stop.problem)
            return None
        if path.suffix.lower() == ".json":
            text = _SURROGATES.sub(_one_character, text)
        return self.text(text, name, path, (*within, real_path(path)))

    def text(self, text: str, name: str, path: Path, within: tuple[Path, ...]) -> Tree | None:
        """Return the tree of a text; a fatal error is reported like any other problem."""
        # The byte order mark that some Windows editors write.
        text = text.removeprefix("\ufeff")
        try:
            if found := _UNPRINTABLE.search(text):
                raise _StopReadingError(
                    _place_at(text, found.start(), name),
                    f"the character U+{ord(found.group()):04X} is not allowed in YAML",
                    'write it as an escape in double quotes, such as "\\x1b"',
                )
            return _Builder(self, _events(text, name), name, path.parent, within).document()
        except _StopReadingError as stop:
            self.problems.append(stop.problem)
            return None

    def refuse(self, place: SourceLocation, message: str, hint: str | None = None) -> Tree:
        """Report a problem and return a value in place of the refused one."""
        self.problems.add(place, message, hint)
        return Tree(place, None, broken=True)

    def include(
        self, written: str, place: SourceLocation, base: Path, within: tuple[Path, ...]
    ) -> Tree:
        """Return the content of an `!include`: the data of a YAML or JSON file, else its text."""
        if self.root is None:
            return self.refuse(place, "there is no folder to include files from")
        target = real_path(base / written)
        name = os.path.normpath(base / written)
        if self.dialect.portable and is_absolute(written):
            message = "!include takes a path that starts at this file, not an absolute one"
            return self.refuse(place, message)
        if not target.is_relative_to(self.root):
            hint = "move the file there; links that lead outside count as outside"
            return self.refuse(place, f"!include may not leave the folder {str(self.root)!r}", hint)
        if target in within:
            chain = " → ".join(file.name for file in (*within[within.index(target) :], target))
            return self.refuse(place, f"circular !include: {chain}")
        if len(within) > MAX_INCLUDES:
            return self.refuse(place, f"files include each other more than {MAX_INCLUDES} deep")
        if not target.is_file():
            hint = instead_of(target) or "paths start at this file"
            return self.refuse(place, f"there is no file {name!r} to include", hint)
        if target.suffix.lower() in _DATA_SUFFIXES:
            # Read once, however often it is included: problems are reported once, too.
            if target not in self.included:
                self.included[target] = self.file(target, name, within)
            found = self.included[target]
            return Tree(place, None, broken=True) if found is None else replace(found, spliced=True)
        try:
            if target not in self.texts:
                self.files.append(target)
                self.texts[target] = _file_text(target, place, name)
            return Tree(place, self.texts[target])
        except _StopReadingError as stop:
            return self.refuse(*stop.problem)


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
        tree: Tree | None = None
        if depth <= MAX_DEPTH:
            if isinstance(event, yaml.AliasEvent):
                return self.alias(event)
            if isinstance(event, yaml.ScalarEvent):
                tree = self.scalar(event)
            elif isinstance(event, yaml.SequenceStartEvent):
                tree = self.sequence(event, depth)
            else:
                tree = self.mapping(event, depth)
        # An alias or an include brings its own depth, which the recursion did not count.
        if tree is None or depth + tree.depth > MAX_DEPTH + 1:
            message = f"values are nested more than {MAX_DEPTH} deep"
            raise _StopReadingError(self.place(event), message)
        if event.anchor:
            self.anchors[event.anchor] = tree
        return tree

    def alias(self, event: Any) -> Tree:
        found = self.anchors.get(event.anchor)
        if found is None:
            message = f"the alias *{event.anchor} names no anchor that ends before it"
            return self.refuse(event, message, did_you_mean(event.anchor, self.anchors))
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
            self.refuse(event, message, hint)
        value: Scalar = text
        # `!` alone forces text. A text with variables stays text: no variable changes a type.
        if event.tag and event.tag != "!":
            value = self.tagged(event, text)
        elif event.implicit[0] and text == event.value and not secrets:
            value = meaning(text)
        written = event.value if secrets else None
        return Tree(place, value, written=written, secrets=secrets, broken=bool(problems))

    def tagged(self, event: Any, text: str) -> Scalar:
        kind = event.tag.removeprefix(_STANDARD)
        if kind not in _SCALAR_TAGS:
            self.unknown_tag(event)
            return text
        try:
            return meaning(text, kind)
        except ValueError as error:
            # The value of a variable must not be shown, so the message leaves it out.
            shown = str(error) if text == event.value else f"the value is not a !!{kind}"
            self.refuse(event, shown)
            return text

    def unknown_tag(self, event: Any) -> None:
        shown = event.tag.replace(_STANDARD, "!!")
        tags = self.reading.dialect.tags
        if event.tag in tags:
            self.refuse(event, f"{shown} takes a text, not a list or a mapping")
        else:
            known = ["!include", *tags, *(f"!!{kind}" for kind in _SCALAR_TAGS)]
            self.refuse(event, f"unknown tag {shown!r}", hint_among(shown, known))

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
            key = self.key(inner, depth)
            item = self.value(next(self.events), depth + 1)
            size += item.size
            if size > MAX_VALUES:
                raise self.too_large(inner)
            if key == "<<" and isinstance(inner, yaml.ScalarEvent) and inner.implicit[0]:
                found = item.value if isinstance(item.value, list) else [item]
                if all(isinstance(base.value, dict) for base in found):
                    bases.extend(found)
                else:
                    self.refuse(inner, "`<<` takes a mapping, or a list of mappings")
            elif key in value:
                hint = f"the first is on line {keys[key].line}"
                self.refuse(inner, f"the key {key!r} is there twice", hint)
            elif key is not None:
                value[key], keys[key] = item, self.place(inner)
        # The mapping's own keys win, then those of the first base.
        for base in bases:
            if isinstance(base.value, dict):
                value, keys = {**base.value, **value}, {**base.keys, **keys}
        return Tree(self.place(event), value, keys)

    def too_large(self, event: Any) -> _StopReadingError:
        """Return the error that ends a collection before a hostile one fills the memory."""
        message = f"the file holds more than {MAX_VALUES:,} values, counting every use of an alias"
        hint = "cases from data are read row by row: `cases: questions.csv`"
        return _StopReadingError(self.place(event), message, hint)

    def key(self, event: Any, depth: int) -> str | None:
        """Return a key as its text: `2024:` and `true:` are not converted."""
        if isinstance(event, yaml.ScalarEvent):
            if event.tag not in self.reading.dialect.tags:
                return str(event.value)
            self.refuse(event, f"a key cannot be {event.tag}")
            return None
        tree = self.value(event, depth + 1)
        if isinstance(event, yaml.AliasEvent) and isinstance(tree.value, str):
            return tree.value
        self.refuse(event, "a key must be text", "in braces, ${NAME} needs quotes")
        return None

    def refuse(self, event: Any, message: str, hint: str | None = None) -> Tree:
        return self.reading.refuse(self.place(event), message, hint)

    def place(self, event: Any) -> SourceLocation:
        mark = event.start_mark
        return SourceLocation(self.name, mark.line + 1, mark.column + 1)


def _events(text: str, name: str) -> Iterator[Any]:
    """Yield the parser's events, with its errors converted to ours."""
    try:
        yield from cast("Iterator[Any]", yaml.parse(text, Loader=_Loader))  # pyright: ignore[reportUnknownMemberType]
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        at = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        place = SourceLocation(name, *at)
        reason = " ".join(str(part) for part in (error.problem, error.context) if part)
        hint = _advice(reason, text, place)
        if "flow" in reason and error.context_mark:
            hint = f"close the bracket that opens in line {error.context_mark.line + 1}"
        raise _StopReadingError(place, f"not YAML: {reason}", hint) from None
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
        with open(path, "rb", opener=unblocked) as file:
            # One byte more than allowed is enough to refuse a file of any size.
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        message = f"cannot be read: {error.strerror or error}"
        raise _StopReadingError(place, message, instead_of(path)) from None
    if len(data) > MAX_BYTES:
        hint = "split it into several files, and read long texts with !include"
        raise _StopReadingError(place, f"larger than {MAX_BYTES // 2**20} MiB", hint)
    encoding = encoding_of(data)
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        wide = encoding == "utf-16"
        before = data[: error.start].decode("utf-8", "replace") if not wide else ""
        message = f"not {'UTF-16' if wide else 'UTF-8'} text: {error.reason}"
        place = _place_at(before, len(before), name)
        raise _StopReadingError(place, message, "save the file as UTF-8") from None


def encoding_of(data: bytes) -> str:
    """Return the encoding of a file by its byte order mark."""
    # PowerShell writes UTF-16 with a byte order mark; YAML allows it.
    return "utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"


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
