"""Build a scenario from a template, a seed and parameters.

Guarantees: the same content, seed and parameters give the same bytes, on any machine and in any
order; a value does not change because another one was added. Builds are cached by content.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from proctor import __version__
from proctor.checks.base import Share
from proctor.errors import ProctorError
from proctor.scenarios._interpreter import Value
from proctor.scenarios._opaque_names import (
    Group,
    NameGroup,
    OpaqueNames,
    name_problems,
    opaque_names,
    with_numbers,
)
from proctor.scenarios._randomness import RandomSource
from proctor.scenarios._resolve import REF, Resolver, dotted
from proctor.scenarios.catalog import Catalog, catalog_for, template_at
from proctor.scenarios.params import accepted_params
from proctor.scenarios.scenario import (
    FILES,
    FORMAT,
    HIDDEN,
    SCENARIO,
    SPEC,
    TRUTH,
    VISIBILITY,
    VISIBLE,
    Built,
    digest,
    refuse_taken,
    rendered,
    replace_folder,
    write_aside,
    write_folder,
)
from proctor.scenarios.template import CASE_FIELDS, CHECKING, Template
from proctor.spec.located import SpecError, Tree, plain
from proctor.spec.suite import Agent, Case
from proctor.spec.validation import validated
from proctor.spec.yaml_reader import MAX_DEPTH
from proctor.strict import Strict
from proctor.user_dirs import user_folder

FOLDER = "folder"
DIGESTS = "digests.json"


class BuildCache:
    """A folder of built scenarios, by what they were built from.

    <root>/
      3f/
        3f9a…64 hex digits…/
          folder/          the built scenario: `Built.path`
          digests.json     SHA-256 of each file in it

    A look-up returns exactly what a build would, or nothing: each file is compared with its digest,
    and an entry that is torn, changed or unreadable is built again. A cache that cannot be written
    costs time, never correctness.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def get(self, key: str) -> tuple[Path, dict[str, bytes]] | None:
        """Return the folder of a build and its files; None when it is absent or was changed."""
        entry = self._entry(key)
        try:
            digests: Any = json.loads((entry / DIGESTS).read_bytes())
            files = {name: (entry / FOLDER / name).read_bytes() for name in FILES}
        except (OSError, ValueError):
            return None
        intact = digests == {name: digest(content) for name, content in files.items()}
        return (entry / FOLDER, files) if intact else None

    def has(self, key: str) -> bool:
        """Return whether a build exists, without checking its files."""
        return (self._entry(key) / DIGESTS).is_file()

    def put(self, key: str, files: Mapping[str, bytes]) -> Path | None:
        """Store a build and return its folder; None when it cannot be written."""
        entry = self._entry(key)
        digests = {name: digest(content) for name, content in files.items()}
        content = {f"{FOLDER}/{name}": data for name, data in files.items()}
        content[DIGESTS] = json.dumps(digests, indent=1).encode()
        try:
            entry.parent.mkdir(parents=True, exist_ok=True)
            # Not fsynced: an entry torn by a crash no longer matches its digests.
            aside = write_aside(entry.parent, content, sync=False)
        except OSError:
            return None
        try:
            if entry.exists() and self.get(key) is None:
                replace_folder(aside, entry)
            else:
                with contextlib.suppress(OSError):  # another process was first: the same bytes
                    aside.rename(entry)
        except OSError:
            return None
        finally:
            shutil.rmtree(aside, ignore_errors=True)
        # Checked again: the entry may be that of another process.
        return entry / FOLDER if self.get(key) is not None else None

    def _entry(self, key: str) -> Path:
        return self.root / key[:2] / key


@lru_cache(maxsize=1)
def _code_digest() -> str:
    """Return the digest of this package, since a build depends on the code too."""
    code = hashlib.sha256(__version__.encode())
    for source in sorted(Path(__file__).parent.glob("*.py")):
        code.update(source.read_bytes())
    return code.hexdigest()


def default_cache_folder(environ: Mapping[str, str] | None = None) -> Path:
    """Return the folder of cached builds, in the user's cache folder."""
    return user_folder("cache", "scenarios", environ=environ)


MAX_SEED = 2**63 - 1
"""Maximum seed: the largest whole number that every results store can hold."""

_CHECKS = ("correctness", "path", "cost", "checks", "assertions", "weights", "required")


class WorldSpec(Strict):
    """A world to act in."""

    use: Annotated[str, Field(min_length=1)]
    """`package.module:Class`, or `gym:NAME`."""
    options: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Arguments of the world."""
    max_steps: Annotated[int, Field(ge=1)] | None = None
    """Maximum steps of an episode."""
    scoring: dict[str, Any] | str | None = None
    """A scoring rule instead of the world's own."""


class SolutionSpec(Strict):
    """The agent that solves the scenario, and its minimum score in `proctor scenario check`."""

    agent: Agent
    min_score: Share


class RandomSpec(Strict):
    """The maximum score of random actions."""

    max_score: Share


class _Parts(Strict):
    """The evaluated sections of a template besides its case."""

    world: WorldSpec | None = None
    solution: SolutionSpec | None = None
    random: RandomSpec | None = None
    names: dict[str, Group] = Field(default_factory=dict[str, NameGroup])


def build(
    path: str | Path | Template,
    seed: int = 0,
    *,
    out: str | Path | None = None,
    catalog: Catalog | str | Path | Sequence[str | Path] | None = None,
    cache: bool = True,
    **params: Any,
) -> Built:
    """Build a scenario from a template, by name (`a.b`, `a.b@variant`) or by file.

    The folder is in the cache, or at `out` when that is given. With `cache=False` it is always
    built, and without `out` its folder is removed when the process ends.
    """
    template = find_template(path, catalog)
    return build_template(template, seed, params, out=out, cache=cache)


def find_template(
    path: str | Path | Template, catalog: Catalog | str | Path | Sequence[str | Path] | None = None
) -> Template:
    """Return the template with a name or path; the default catalog is the project's."""
    if isinstance(path, Template):
        return path
    if isinstance(catalog, str | Path):
        catalog = Catalog([catalog])
    elif catalog is None:
        from proctor.spec.config import load_configuration

        catalog = catalog_for(load_configuration())
    elif not isinstance(catalog, Catalog):
        catalog = Catalog(catalog)
    # `a/b` is a name too, since a catalog takes slashes for dots: a file must look like one.
    if (
        isinstance(path, Path)
        or path.endswith((".yaml", ".yml"))
        or path.startswith(("/", "./", "../"))
    ):
        return template_at(Path(path), catalog)
    return catalog.get(path)


def build_template(
    template: Template,
    seed: int = 0,
    params: Mapping[str, Any] | None = None,
    *,
    out: str | Path | None = None,
    cache: bool | BuildCache = True,
) -> Built:
    """Build a template; see `build`."""
    given = checked_params(template, seed, params or {})
    if out is not None:  # before the work, not after it
        refuse_taken(Path(out))
    builds = BuildCache(default_cache_folder()) if cache is True else cache or None
    key = key_of(template, seed, given)
    found = builds.get(key) if builds is not None else None
    if found is not None:
        place, files = found
    else:
        files = built_files(template, seed, given)
        place = builds.put(key, files) if builds is not None else None
    if out is not None:
        place = Path(out)
        write_folder(place, files)
    return Built(place, template=template, files=files)


def checked_params(template: Template, seed: int, params: Mapping[str, Any]) -> dict[str, Value]:
    """Return the checked parameters of a build: the variant's, overridden by those given."""
    if isinstance(seed, bool) or not isinstance(seed, int):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ProctorError(f"a seed is a whole number, not {seed!r}")
    if not 0 <= seed <= MAX_SEED:
        raise ProctorError(f"a seed lies between 0 and {MAX_SEED}, got {seed}")
    return accepted_params(template.params, {**template.given, **params})


def key_of(template: Template, seed: int, given: Mapping[str, Value]) -> str:
    """Return the cache key of a build: SHA-256 over everything it depends on."""
    parts = [FORMAT, _code_digest(), template.id, template.content_hash, seed]
    encoded = json.dumps([*parts, sorted(given.items())], separators=(",", ":"))
    return hashlib.sha256(encoded.encode()).hexdigest()


# -- building ------------------------------------------------------------------------------------


def built_files(template: Template, seed: int, given: Mapping[str, Value]) -> dict[str, bytes]:
    """Return the files of a built scenario; raise `SpecError` with every problem."""
    source = RandomSource(template.name, seed)
    resolver = Resolver(template.tree, template.params, given, source)
    params = resolver.every_param()
    sections = {
        key: found
        for key in (*CASE_FIELDS, "input", "scenario", "truth", "world", "names", *CHECKING)
        if (found := resolver.section(key)) is not None
    }
    problems = resolver.problems
    for key, tree in sections.items():
        if key in ("scenario", "truth") and not tree.broken and not isinstance(tree.value, dict):
            problems.add(tree.place, f"{key} is a mapping")
        # Files of the build add levels of their own around a section.
        if tree.depth > MAX_DEPTH - 4:
            problems.add(tree.place, f"{key} is nested too deep to be read back")
    chosen = {key: sections[key] for key in _Parts.model_fields if key in sections}
    keys = {key: template.tree.keys[key] for key in chosen}
    parts = validated(replace(template.tree, value=chosen, keys=keys), _Parts, problems)
    if problems or parts is None:
        raise SpecError(problems)
    groups = with_numbers(parts.names)
    problems.extend(
        name_problems(groups, sections["names"].place if groups else template.tree.place)
    )
    if problems:
        raise SpecError(problems)
    names = OpaqueNames(opaque_names(groups, source))
    sections = _in_opaque_names(sections, names)
    case = _case(template, sections)
    validated(case, Case, problems)
    if problems:
        raise SpecError(problems)
    values = {key: plain(tree) for key, tree in sections.items()}
    # The input is what the agent gets as its request, and is in the case no second time.
    written: dict[str, Any] = plain(case)
    del written["input"]
    # Sorted by the opaque names: the order of the template would give the true ones away.
    by_opaque = {
        group: dict(sorted((new, true) for true, new in members.items()))
        for group, members in names.groups.items()
    }
    asked = "input" if "input" in values else "scenario"
    return rendered(
        {
            SCENARIO: {"input": values["input"]} if asked == "input" else values["scenario"],
            TRUTH: values.get("truth", {}),
            VISIBILITY: {"visible": list(VISIBLE), "hidden": list(HIDDEN), "names": by_opaque},
            SPEC: {
                "asks": asked,
                "case": written,
                "params": dict(params),
                **{key: values[key] for key in ("world", *CHECKING) if key in values},
            },
        },
        _manifest(template, seed, params, resolver, names),
    )


def _in_opaque_names(sections: Mapping[str, Tree], names: OpaqueNames) -> dict[str, Tree]:
    """Rename what the agent meets; fields that people select and read by stay as they are."""
    found = dict(sections)
    for key in ("input", "scenario", "truth"):
        if key in found:
            found[key] = names.in_tree(found[key], keep_keys=0)
    # Checks compare with what the agent saw, so they are renamed too. Their keys are names of
    # fields, unless one is exactly a true name.
    for key in (*_CHECKS, "solution"):
        if key in found:
            found[key] = names.in_tree(found[key], key_words=False)
    world = found.get("world")
    options = world.child("options") if world is not None else None
    if world is not None and options is not None and isinstance(world.value, dict):
        # The first level holds names of the world's own parameters.
        inner = names.in_tree(options, keep_keys=1)
        found["world"] = replace(world, value={**world.value, "options": inner})
    return found


def _case(template: Template, sections: Mapping[str, Tree]) -> Tree:
    root = template.tree
    fields = {key: sections[key] for key in CASE_FIELDS if key in sections}
    request = sections.get("input") or sections["scenario"]
    members = {"id": Tree(root.place, template.id), **fields, "input": request}
    return Tree(root.place, members, {key: root.keys.get(key, root.place) for key in members})


def _manifest(
    template: Template,
    seed: int,
    params: Mapping[str, Value],
    resolver: Resolver,
    names: OpaqueNames,
) -> dict[str, Any]:
    root = template.root.resolve()
    files = [file.resolve().relative_to(root).as_posix() for file in template.files]
    # Sorted: the order of evaluation must not show in the bytes of a build.
    done: list[dict[str, Any]] = [{"do": "include", "file": file} for file in sorted({*files[1:]})]
    operations = sorted(resolver.operations.values(), key=lambda each: dotted(each.place))
    done += [
        {"do": "ref" if each.tag == REF else "ev", "at": dotted(each.place), "text": each.text}
        for each in operations
    ]
    done += [
        {"do": "rename", "names": group, "count": len(members)}
        for group, members in names.groups.items()
    ]
    return {
        "name": template.id,
        "seed": seed,
        "params": dict(params),
        "variant": template.variant,
        "source": {"template": template.name, "file": files[0], "content": template.content_hash},
        "operations": done,
    }
