"""A scenario template: `catalog/a/b/spec.yaml`, read and checked but not yet built.

Guarantees: every mistake that does not depend on a seed is reported here, with file, line and
column: unknown keys, invalid expressions, parameters without a type. The fields that select cases
(tags, difficulty, type) do not depend on the seed, so a plan needs no build.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from proctor.errors import ProctorError, did_you_mean
from proctor.scenarios._expressions import ExpressionError, is_name, parse
from proctor.scenarios._interpreter import KNOWN, Value
from proctor.scenarios._randomness import Place
from proctor.scenarios._resolve import (
    EV,
    REF,
    TAGS,
    FailedError,
    Resolver,
    SeedNeededError,
    circle_message,
    quoted_message,
    step_key,
)
from proctor.scenarios.params import Param, accepted_params, params_from_text, read_params
from proctor.spec.located import Problems, SpecError, SpecProblem, Tree, plain, renamed
from proctor.spec.suite import Case, problem_with_id
from proctor.spec.yaml_reader import FileDialect, encoding_of, read

if TYPE_CHECKING:
    from proctor.scenarios.scenario import Built


MAX_PARTS = 200_000
"""Parts of a template that are checked, aliases counted at each use: a build takes no more."""


def circle_problems(root: Tree, tag: str) -> list[SpecProblem]:
    """Return one problem for each circle of references with this tag, used or not.

    An expression may refer to a value only under a condition, so circles through `!ev` are found
    by the build, when it follows them.
    """
    if root.size > MAX_PARTS:
        return []  # the build refuses it
    leaves = dict(_leaves(root, (), tag))
    done: set[Place] = set()
    left = MAX_PARTS
    problems = Problems()
    for start in leaves:
        path: dict[Place, None] = {}
        waiting = [iter([start])]
        while waiting and left:
            place = next(waiting[-1], None)
            left -= 1
            if place is None:
                waiting.pop()
                if path:
                    done.add(path.popitem()[0])
            elif place in path:
                message = circle_message([*path, place])
                problems.add(leaves[place].place, message)
                done.update(path)
                break
            elif place not in done:
                path[place] = None
                waiting.append(_targets(str(leaves[place].value), root, tag))
    return problems


def _targets(text: str, root: Tree, tag: str) -> Iterator[Place]:
    """Yield the leaves that a reference needs."""
    tree, place = root, ()
    for step in text.strip().split("."):
        if tree.tag is not None:
            break
        key = step_key(tree, step)
        found = tree.child(key)
        if found is None:
            # Reported when it is used. Parameters and names cannot be part of a circle.
            return
        tree, place = found, (*place, key)
    for inside, _ in _leaves(tree, place, tag):
        yield inside


def _leaves(tree: Tree, place: Place, tag: str) -> Iterator[tuple[Place, Tree]]:
    # The next part is taken from the end, hence reversed: leaves come in the order of the file.
    waiting: list[tuple[Place, Tree]] = [(place, tree)]
    while waiting:
        at, part = waiting.pop()
        if part.tag == tag:
            yield at, part
        elif isinstance(part.value, dict):
            waiting += [((*at, key), each) for key, each in reversed(part.value.items())]
        elif isinstance(part.value, list):
            waiting += [((*at, key), each) for key, each in reversed([*enumerate(part.value)])]


FILE = "spec.yaml"

CASE_FIELDS = tuple(name for name in Case.model_fields if name not in ("id", "input"))
"""Fields of a case that a template may set; the id is the template's name."""

SECTIONS = ("params", "variants", "values", "names", "input", "scenario", "truth", "world")
CHECKING = ("solution", "random")
KEYS = (*CASE_FIELDS, *SECTIONS, *CHECKING)

MAX_CHARACTERS = 16 * 2**20
"""Maximum size of a template, with every use of an alias and every included text counted."""

SELECTED_BY = ("tags", "difficulty", "type")


@dataclass(frozen=True, eq=False)
class Template:
    """One template, under one of its variants or none; `given` are the variant's parameters."""

    name: str
    """The dotted name: its path in the catalog."""
    path: Path
    """The file."""
    root: Path
    """The catalog it belongs to: includes may not leave it."""
    tree: Tree
    files: tuple[Path, ...]
    params: Mapping[str, Param]
    variants: Mapping[str, Mapping[str, Value]]
    content_hash: str
    """SHA-256 of the content with all includes; comments and layout do not count."""
    variant: str | None = None
    given: Mapping[str, Value] = field(default_factory=dict[str, Value])

    @property
    def id(self) -> str:
        """The id of its case: `a.b`, or `a.b@variant`."""
        return self.name if self.variant is None else f"{self.name}@{self.variant}"

    @property
    def folder(self) -> Path:
        """The folder that import paths in the template are relative to."""
        return self.path.parent

    def under(self, variant: str) -> Template:
        """Return the template with the parameters of a variant."""
        if variant not in self.variants:
            known = f"it has {', '.join(self.variants)}" if self.variants else "it has none"
            raise ProctorError(
                f"{self.name} has no variant {variant!r}",
                where=str(self.path),
                hint=did_you_mean(variant, self.variants) or known,
            )
        return replace(self, variant=variant, given=self.variants[variant])

    def every_variant(self) -> list[Template]:
        """Return the template under each of its variants; itself when it has none."""
        return [self.under(variant) for variant in self.variants] or [self]

    # -- fields that select cases ---------------------------------------------------------------

    @property
    def description(self) -> str | None:
        """The description of the scenario."""
        return self._selection.get("description")

    @property
    def tags(self) -> tuple[str, ...]:
        """Tags to select by."""
        found = self._selection.get("tags")
        return tuple(map(str, cast("list[Any]", found))) if isinstance(found, list) else ()

    @property
    def difficulty(self) -> str | None:
        """The difficulty, such as easy, medium or hard."""
        return self._selection.get("difficulty")

    @property
    def type(self) -> str | None:
        """The kind of scenario."""
        return self._selection.get("type")

    @property
    def properties(self) -> dict[str, Any]:
        """Further fields to select by; those that depend on the seed are known once built."""
        return self._selection["properties"]

    @property
    def has_world(self) -> bool:
        """Whether it is a world to act in rather than a question."""
        return self.tree.child("world") is not None

    @property
    def has_solution(self) -> bool:
        """Whether it has a solution, for `proctor scenario check`."""
        return self.tree.child("solution") is not None

    @property
    def threshold(self) -> float | None:
        """The score from which a trial passes; None when it is not known before building."""
        found = self._selection.get("threshold")
        return float(found) if isinstance(found, int | float) else None

    # -- building -------------------------------------------------------------------------------

    def build(
        self,
        seed: int = 0,
        params: Mapping[str, Any] | None = None,
        *,
        out: str | Path | None = None,
        cache: bool = True,
    ) -> Built:
        """Build it; see `proctor.scenarios.build`."""
        # Here, since the builder imports this module.
        from proctor.scenarios.builder import build_template

        return build_template(self, seed, params, out=out, cache=cache)

    def check_params(self, params: Mapping[str, Any]) -> dict[str, Value]:
        """Return parameters as a build uses them; texts are parsed as on the command line.

        Raise `ProctorError` for one that the template does not have or cannot take.
        """
        texts = {name: value for name, value in params.items() if isinstance(value, str)}
        read = params_from_text(self.params, texts)
        return accepted_params(self.params, {**params, **read})

    def is_cached(self, seed: int, params: Mapping[str, Any] | None = None) -> bool:
        """Return whether a build is in the cache."""
        from proctor.scenarios import builder

        key = builder.key_of(self, seed, builder.checked_params(self, seed, params or {}))
        return builder.BuildCache(builder.default_cache_folder()).has(key)

    @property
    def sources(self) -> dict[str, str]:
        """The file and its includes, by their paths in the catalog: enough to build it again."""
        root = self.root.resolve()
        return {
            file.resolve().relative_to(root).as_posix(): content.decode(encoding_of(content))
            for file, content in ((file, file.read_bytes()) for file in self.files)
        }

    @cached_property
    def _selection(self) -> dict[str, Any]:
        resolver = Resolver(self.tree, self.params, self.given, source=None)
        found: dict[str, Any] = {}
        for key in (*SELECTED_BY, "description", "threshold"):
            tree = self.tree.child(key)
            try:
                found[key] = None if tree is None else plain(resolver.resolved(tree, (key,)))
            except SeedNeededError:
                # Description and threshold may depend on the seed; they are known once built.
                if key in SELECTED_BY and tree is not None:
                    message = f"{key} must not depend on the seed: cases are selected by it"
                    raise SpecError([SpecProblem(tree.place, message)]) from None
        tree = self.tree.child("properties")
        members = tree.value if tree is not None and isinstance(tree.value, dict) else {}
        properties: dict[str, Any] = {}
        for name, member in members.items():
            # Those that depend on the seed are known once built.
            with suppress(SeedNeededError, FailedError):
                properties[name] = plain(resolver.resolved(member, ("properties", name)))
        return {**found, "properties": properties}


# -- reading -------------------------------------------------------------------------------------


def read_template(path: Path, root: Path, name: str) -> Template:
    """Read a template; `SpecError` holds every problem with its place."""
    document = read(path, environ={}, dialect=FileDialect(root=root, tags=TAGS, portable=True))
    problems = document.problems
    if document.tree is None:
        raise SpecError(problems)
    tree = renamed(document.tree, {"query": "input"})
    if not isinstance(tree.value, dict):
        problems.add(tree.place, "a template is a mapping", f"keys are {', '.join(KEYS)}")
        raise SpecError(problems)
    params = read_params(tree.child("params"), problems)
    variants = _variants(tree.child("variants"), params, problems)
    problems.extend(_key_problems(tree, tree.value))
    problems.extend(_expression_problems(tree))
    problems.extend(_value_problems(tree.child("values"), params))
    problems.extend(circle_problems(tree, REF))
    if problems:
        raise SpecError(problems)
    content = _Content()
    content.add(tree)
    return Template(
        name=name,
        path=path,
        root=root,
        tree=tree,
        files=document.files,
        params=params,
        variants=variants,
        content_hash=content.hash.hexdigest(),
    )


def _key_problems(tree: Tree, members: Mapping[str, Tree]) -> list[SpecProblem]:
    problems = Problems()
    for key in members:
        if key not in KEYS:
            hint = did_you_mean(key, KEYS)
            if key == "id":
                hint = "the id of a scenario is its name in the catalog"
            problems.add(tree.keys[key], f"unknown key {key!r}", hint)
    if ("input" in members) == ("scenario" in members):
        which = "not both" if "input" in members else "one of them"
        problems.add(
            tree.place, f"`input` is a question, `scenario` what may be seen: write {which}"
        )
    return problems


def _expression_problems(tree: Tree) -> list[SpecProblem]:
    """Return invalid expressions; aliases share one tree, which is checked once."""
    problems = Problems()
    seen: set[int] = set()
    left = [tree]
    while left:
        part = left.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        left.extend(part.children())
        if part.tag == EV:
            try:
                parse(str(part.value), KNOWN)
            except ExpressionError as error:
                message = quoted_message(error, str(part.value))
                problems.add(part.place, message, error.hint)
    return problems


def _value_problems(tree: Tree | None, params: Mapping[str, Param]) -> list[SpecProblem]:
    """Names under `values:` must be names, and no parameter's."""
    if tree is None:
        return []
    if not isinstance(tree.value, dict):
        return [SpecProblem(tree.place, "values is a mapping of names to values")]
    problems = Problems()
    for name in tree.value:
        if not is_name(name):
            problems.add(tree.keys[name], f"{name!r} cannot be named in an expression")
        elif name in params or name == "seed":
            problems.add(tree.keys[name], f"{name!r} is a parameter as well")
    return problems


def _variants(
    tree: Tree | None, params: Mapping[str, Param], problems: Problems
) -> dict[str, dict[str, Value]]:
    if tree is None or tree.value is None:
        return {}
    if not isinstance(tree.value, dict):
        problems.add(tree.place, "variants is a mapping of names to parameters")
        return {}
    found: dict[str, dict[str, Value]] = {}
    for name, member in tree.value.items():
        if "@" in name or "." in name or problem_with_id(name):
            problems.add(tree.keys[name], f"{name!r} cannot be the name of a variant")
        elif not isinstance(member.value, dict) or any(part.tag for part in member.walk()):
            problems.add(member.place, f"variant {name!r} is a mapping of parameters")
        else:
            try:
                found[name] = accepted_params(params, plain(member))
            except ProctorError as error:
                message = f"variant {name!r}: {error.message}"
                problems.add(member.place, message, error.hint)
    return found


class _Content:
    """The digest of a tree: values, keys and tags in their order, without their places."""

    def __init__(self) -> None:
        self.hash = hashlib.sha256()
        self.left = MAX_CHARACTERS

    def add(self, tree: Tree) -> None:
        """Add a tree; raise `SpecError` when it becomes too large."""
        if isinstance(tree.value, dict):
            self.write("{", tree)
            for key, item in tree.value.items():
                self.write(json.dumps(key), tree)
                self.add(item)
            self.write("}", tree)
        elif isinstance(tree.value, list):
            self.write("[", tree)
            for item in tree.value:
                self.add(item)
            self.write("]", tree)
        else:
            if isinstance(tree.value, str):
                self.left -= len(tree.value)
                self.write("", tree)  # checks the size before a long text is encoded
            self.write(f"{tree.tag or ''} {json.dumps(tree.value)}", tree)

    def write(self, text: str, tree: Tree) -> None:
        self.left -= len(text)
        if self.left < 0:
            message = f"the template has more than {MAX_CHARACTERS:,} characters, includes and all"
            raise SpecError([SpecProblem(tree.place, message)])
        # A line for each part, so that neighbours cannot run into each other.
        self.hash.update(f"{text}\n".encode())
