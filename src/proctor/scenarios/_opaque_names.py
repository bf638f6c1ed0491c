"""Opaque names, which an agent sees instead of words that would give the answer away.

Guarantees: a name depends only on the seed and its true name, so that adding one changes no other;
it is no word and does not reveal its order. Texts are renamed word by word (plurals and capitals
follow), keys too, and mappings whose keys were renamed are sorted by the new names. Trade-off: a
name inside a longer word (`beehive`) stays visible, since only whole words are replaced.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal, cast

from pydantic import BeforeValidator, Field, model_validator

from proctor.scenarios._randomness import RandomSource
from proctor.scenarios._resolve import numbered
from proctor.spec.located import SourceLocation, SpecProblem, Tree
from proctor.strict import Strict

# Codes have no characters that look alike (0 and O, 1 and I), and no vowels, which make words.
_CONSONANTS, _VOWELS, _CODE = "bdklmnrtvz", "aeou", "23456789BCDFGHJKMNPQRSTVWXZ"
SYLLABLES = 3
"""64,000 names: room for any list, and short enough to say."""

CODE_LENGTH = 5


class NameGroup(Strict):
    """Names of one sort, and how they are replaced."""

    of: tuple[str, ...] = ()
    """The true names."""
    count: Annotated[int, Field(ge=1, le=1_000)] | None = None
    """Number of names that have no true names of their own: those are GROUP_1, GROUP_2, …"""
    style: Literal["word", "code"] = "word"
    """`word`: syllables without a meaning; `code`: letters and digits."""
    prefix: Annotated[str, Field(pattern=r"^[A-Za-z]*$", max_length=12)] = ""
    """Prefix of each new name."""
    pool: tuple[Annotated[str, Field(min_length=1)], ...] | None = None
    """Names to use instead, drawn without repetition; at least as many as true ones."""

    @model_validator(mode="after")
    def _enough(self) -> NameGroup:
        if bool(self.of) == (self.count is not None):
            raise ValueError("a group has names `of` its own, or a `count`")
        return self


def _full_form(value: Any) -> Any:
    """Return a group in its long form: a list is short for its names."""
    return {"of": cast("Any", value)} if isinstance(value, list) else value


Group = Annotated[
    NameGroup, BeforeValidator(_full_form, json_schema_input_type=list[str] | NameGroup)
]


def with_numbers(groups: Mapping[str, NameGroup]) -> dict[str, NameGroup]:
    """Return the groups with true names for those that have only a count."""
    return {
        name: group
        if group.count is None
        else group.model_copy(update={"of": tuple(cast("list[str]", numbered(name, group.count)))})
        for name, group in groups.items()
    }


class OpaqueNames:
    """True names and their opaque ones, by group."""

    def __init__(self, groups: Mapping[str, Mapping[str, str]]) -> None:
        self.groups = {group: dict(names) for group, names in groups.items()}
        self._opaque = {
            true.casefold(): new for names in self.groups.values() for true, new in names.items()
        }
        words = sorted(self._opaque, key=lambda word: (-len(word), word))
        any_of = "|".join(r"\s+".join(map(re.escape, word.split())) for word in words)
        # Longest first, so that `honey bee` is found before `bee`. An underscore separates words:
        # `bee_count` is about bees.
        self._pattern = re.compile(
            rf"(?<![^\W_])({any_of})(e?s)?(?![^\W_])" if words else r"(?!)", re.IGNORECASE
        )

    def in_text(self, text: str) -> str:
        """Return a text with every true name replaced."""
        return self._pattern.sub(self._replaced, text)

    def exactly(self, text: str) -> str:
        """Return the opaque name if the text is exactly a true one, else the text."""
        found = self._pattern.fullmatch(text)
        return text if found is None or found[2] else self._replaced(found)

    def _replaced(self, match: re.Match[str]) -> str:
        found, ending = match[1], match[2] or ""
        new = self._opaque.get(" ".join(found.casefold().split()), found)
        if found.isupper():
            new = new.upper()
        elif found[0].isupper():
            new = new[0].upper() + new[1:]
        return new + ending

    def in_tree(self, tree: Tree, *, key_words: bool = True, keep_keys: int = 0) -> Tree:
        """Return a tree with names replaced in its texts and keys.

        Names are replaced inside keys, or (not `key_words`) only where a key is exactly a name;
        keys of the first `keep_keys` levels stay.
        """
        if isinstance(tree.value, str):
            return replace(tree, value=self.in_text(tree.value))
        if isinstance(tree.value, list):
            inner = [self.in_tree(t, key_words=key_words, keep_keys=keep_keys) for t in tree.value]
            return replace(tree, value=inner)
        if not isinstance(tree.value, dict):
            return tree
        rename = self.in_text if key_words else self.exactly
        new = {key: key if keep_keys > 0 else rename(key) for key in tree.value}
        moved = sorted((new[key], key) for key in new if new[key] != key)
        order = iter(key for _, key in moved)
        # Renamed keys are sorted among themselves: their order would give the true names away.
        keys = [key if new[key] == key else next(order) for key in tree.value]
        value = {
            new[key]: self.in_tree(tree.value[key], key_words=key_words, keep_keys=keep_keys - 1)
            for key in keys
        }
        places = {new[key]: tree.keys.get(key, tree.place) for key in keys}
        return replace(tree, value=value, keys=places)


def opaque_names(
    groups: Mapping[str, NameGroup], source: RandomSource
) -> dict[str, dict[str, str]]:
    """Return a name for each true one: group → true → opaque."""
    taken = {true.casefold() for group in groups.values() for true in group.of}
    found: dict[str, dict[str, str]] = {}
    for name, group in sorted(groups.items()):
        if group.pool is not None:
            # Sorted, so that the order in the template does not matter.
            drawn = source.stream(("names", name)).sample(sorted(set(group.pool)), len(group.of))
            found[name] = dict(zip(sorted(group.of), drawn, strict=True))
        else:
            found[name] = {
                true: _new_name(group, name, true, source, taken) for true in sorted(group.of)
            }
    return found


def _new_name(group: NameGroup, name: str, true: str, source: RandomSource, taken: set[str]) -> str:
    # A stream of its own for each true name: another name in the group changes nothing here.
    stream = source.stream(("names", name, true))
    while True:
        new = group.prefix
        if group.style == "word":
            for _ in range(SYLLABLES):
                new += _CONSONANTS[stream.below(len(_CONSONANTS))]
                new += _VOWELS[stream.below(len(_VOWELS))]
        else:
            new += "".join(_CODE[stream.below(len(_CODE))] for _ in range(CODE_LENGTH))
        if new.casefold() not in taken:
            taken.add(new.casefold())
            return new


def name_problems(groups: Mapping[str, NameGroup], place: SourceLocation) -> list[SpecProblem]:
    """Return the problems of all names together."""
    found: list[str] = []
    seen: set[str] = set()
    for true in (true for group in groups.values() for true in group.of):
        if true.casefold() in seen:
            found.append(f"{true!r} is there twice")
        elif not re.fullmatch(r"[^\W_].*[^\W_]", true):
            found.append(f"{true!r} must be two letters or digits, with anything between")
        seen.add(true.casefold())
    for name, group in groups.items():
        if group.pool is not None and len(set(group.pool)) < len(group.of):
            found.append(f"the pool of {name!r} is too small for {len(group.of)} names")
        known = [new for new in group.pool or () if new.casefold() in seen]
        found += [f"the pool of {name!r} holds the true name {new!r}" for new in known]
    return [SpecProblem(place, f"names: {message}") for message in found]
