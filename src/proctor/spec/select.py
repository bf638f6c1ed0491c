"""Select cases by tag, id or any property.

`difficulty:hard,medium` is not two terms but an error with a hint: in a filter a comma means or
between whole terms (`difficulty:hard,difficulty:medium`), a space means and, `!` means not, and the
comma binds tighter. Values are globs, case ignored; `hidden*` also matches `mutualism.hidden_x` by
the end of its name. A filter that selects nothing is an error, because a gate over no cases would
pass.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple, Protocol, TypeVar

from proctor.errors import ProctorError, did_you_mean, hint_among
from proctor.formatting import some


class Selectable(Protocol):
    """The case properties that filters use."""

    @property
    def id(self) -> str:
        """Its name in the suite."""
        ...

    @property
    def tags(self) -> Sequence[str]:
        """Tags."""
        ...

    @property
    def difficulty(self) -> str | None:
        """Difficulty, if set."""

    @property
    def type(self) -> str | None:
        """Task type, if set."""

    @property
    def properties(self) -> dict[str, Any]:
        """Other properties."""
        ...


Some = TypeVar("Some", bound=Selectable)

KEYS = ("id", "tag", "difficulty", "type")

_TERM = re.compile(r'(?P<not>!?)(?:(?P<key>[\w.-]+):)?(?:"(?P<quoted>[^"]*)"|(?P<value>[^\s,"]*))')


class Term(NamedTuple):
    """One condition: a key, a glob for its value, and whether it is negated."""

    key: str
    glob: str
    negated: bool

    def holds(self, case: Selectable) -> bool:
        """Return whether a case meets the condition."""
        pattern = self.glob.casefold()
        found = any(fnmatchcase(text.casefold(), pattern) for text in _values(case, self.key))
        return found is not self.negated


class Filter(NamedTuple):
    """Groups of terms: one term of each group must hold."""

    groups: tuple[tuple[Term, ...], ...]

    def holds(self, case: Selectable) -> bool:
        """Return whether a case is selected."""
        return all(any(term.holds(case) for term in group) for group in self.groups)


def parse_filter(text: str) -> Filter:
    """Parse a filter; see the module for the language."""
    groups: list[tuple[Term, ...]] = []
    at = 0
    while at < len(text):
        if text[at].isspace():
            at += 1
            continue
        group: list[Term] = []
        more = True
        while more:
            found = _TERM.match(text, at)
            value = None if found is None else found["value"] or found["quoted"]
            if found is None or not value:
                raise ProctorError(
                    f"the filter {text!r} lacks a value at character {at + 1}",
                    hint='write key:value, such as difficulty:hard or region:"north sea"',
                )
            group.append(Term(found["key"] or "id", value, bool(found["not"])))
            more = text[found.end() : found.end() + 1] == ","
            at = found.end() + more
        if at < len(text) and not text[at].isspace():
            raise ProctorError(f"the filter {text!r} cannot be read from character {at + 1}")
        groups.append(tuple(group))
    return Filter(tuple(groups))


class NothingSelectedError(ProctorError):
    """No case has the wanted tags and matches the filter."""


def select_cases(
    cases: Sequence[Some],
    *,
    tags: Iterable[str] = (),
    filter: str | Filter = "",  # noqa: A002 (the word users write)
    called: str = "cases",
) -> list[Some]:
    """Return the cases with any of `tags` (if set) that the filter selects, in order."""
    return [cases[n] for n in select_numbers(cases, tags=tags, filter=filter, called=called)]


def select_numbers(
    cases: Sequence[Selectable],
    *,
    tags: Iterable[str] = (),
    filter: str | Filter = "",  # noqa: A002 (the word users write)
    called: str = "cases",
) -> list[int]:
    """Return the positions of the cases that `select_cases` returns."""
    wanted = {tag.strip().casefold() for tag in tags if tag.strip()}
    parsed = parse_filter(filter) if isinstance(filter, str) else filter
    _refuse_unknown(parsed, cases)
    chosen = [
        number
        for number, case in enumerate(cases)
        if (not wanted or any(tag.casefold() in wanted for tag in case.tags)) and parsed.holds(case)
    ]
    # A gate over no cases would pass.
    if cases and not chosen:
        options = [f"--tags {','.join(sorted(wanted))}"] if wanted else []
        options += [f"--filter {filter!r}"] if filter else []
        known = sorted({tag for case in cases for tag in case.tags})
        hints = (did_you_mean(tag, known) for tag in sorted(wanted))
        raise NothingSelectedError(
            f"none of {len(cases)} {called} is selected by {' '.join(options)}",
            hint=next((hint for hint in hints if hint), None)
            or _suggestion(parsed, cases)
            or (f"tags are {', '.join(known)}" if wanted and known else None),
        )
    return chosen


def _suggestion(parsed: Filter, cases: Sequence[Selectable]) -> str | None:
    """Return a suggestion for a term that no case matches."""
    for term in (term for group in parsed.groups for term in group):
        known = list(dict.fromkeys(text for case in cases for text in _values(case, term.key)))
        # A term that some case matches is not the one that is wrong.
        if term.negated or any(term.holds(case) for case in cases):
            continue
        # `difficulty=hard` is read as a glob for the id.
        if term.key == "id" and "=" in term.glob:
            return "write key:value, such as difficulty:hard"
        if near := did_you_mean(term.glob, known):
            return near
        return f"the {term.key} of a case is {some(known)}" if known else None
    return None


def _refuse_unknown(parsed: Filter, cases: Sequence[Selectable]) -> None:
    known: list[str] = [*KEYS, *{key: None for case in cases for key in case.properties}]
    for term in (term for group in parsed.groups for term in group):
        if cases and term.key not in known and term.key.partition(".")[0] not in known:
            raise ProctorError(
                f"no case has a property {term.key!r} to filter by",
                hint=hint_among(term.key, known),
            )


def names_of(case_id: str) -> list[str]:
    """Return the names of a case: its id, without its variant, and the end of a dotted name."""
    names = [case_id]
    bare, at, variant = case_id.partition("@")
    if at:
        names.append(bare)
    while "." in bare:
        bare = bare.partition(".")[2]
        names += [bare, f"{bare}@{variant}"] if at else [bare]
    return names


def _values(case: Selectable, key: str) -> list[str]:
    if key == "id":
        return names_of(case.id)
    if key == "tag":
        return list(case.tags)
    own = {"difficulty": case.difficulty, "type": case.type}
    return _texts(own[key] if key in own else _property(case.properties, key))


def _property(properties: dict[str, Any], key: str) -> Any:
    """Return a property by its name, or by a dotted path into it."""
    if key in properties:
        return properties[key]
    value: Any = properties
    for step in key.split("."):
        if not isinstance(value, dict) or step not in value:
            return None
        value = value[step]  # pyright: ignore[reportUnknownVariableType]
    return value  # pyright: ignore[reportUnknownVariableType]


def _texts(value: Any) -> list[str]:
    """Return a property's values as a user would write them; a list has several."""
    if value is None:
        return []
    if isinstance(value, list):
        return [text for item in value for text in _texts(item)]  # pyright: ignore[reportUnknownVariableType]
    return [value] if isinstance(value, str) else [json.dumps(value, ensure_ascii=False)]
