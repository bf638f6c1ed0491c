"""From a template, a seed and parameters to a built scenario.

Promise: the same content, seed and parameters give the same bytes, on any machine and in any
order; a value does not change because another one was added. What is built is kept, and kept
builds are looked up by content.
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
from typing import Annotated, Any, cast

from pydantic import Field

from proctor import __version__
from proctor.checks.base import Share
from proctor.errors import ProctorError
from proctor.scenarios._built_folder import (
    FILES,
    FORMAT,
    HIDDEN,
    SCENARIO,
    SPEC,
    TRUTH,
    VISIBILITY,
    VISIBLE,
    digest,
    refuse_taken,
    rendered,
    replace_folder,
    write_aside,
    write_folder,
)
from proctor.scenarios._functions import Value
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
from proctor.scenarios.scenario import Built
from proctor.scenarios.template import CASE_FIELDS, CHECKING, Template
from proctor.spec.located import SpecError, SpecProblem, Tree, plain
from proctor.spec.suite import Agent, Case
from proctor.spec.validation import validated
from proctor.spec.yaml_reader import MAX_DEPTH
from proctor.strict import Strict
from proctor.user_dirs import user_folder

# Built scenarios kept by what they were built from, so that each is built once.
#
# Promise: a look-up gives exactly what a build would, or nothing: each file is held against its
# digest, and an entry that is torn, changed or unreadable is built anew. A cache that cannot be
# written costs time, never correctness.


FOLDER = "folder"
DIGESTS = "digests.json"


class BuildCache:
    """A folder of built scenarios.

    <root>/
      3f/
        3f9a…64 hex digits…/
          folder/          the built scenario: what `Built.path` is
          digests.json     SHA-256 of each file in it
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def get(self, key: str) -> tuple[Path, dict[str, bytes]] | None:
        """The folder of a build and what is in it; None when it is absent or not as it was."""
        entry = self._entry(key)
        try:
            told: Any = json.loads((entry / DIGESTS).read_bytes())
            files = {name: (entry / FOLDER / name).read_bytes() for name in FILES}
        except (OSError, ValueError):
            return None
        if not isinstance(told, dict):
            return None
        wanted = cast("dict[str, Any]", told)
        if any(wanted.get(name) != digest(content) for name, content in files.items()):
            return None
        return entry / FOLDER, files

    def has(self, key: str) -> bool:
        """Whether a build is there, without looking whether it is whole."""
        return (self._entry(key) / DIGESTS).is_file()

    def put(self, key: str, files: Mapping[str, bytes]) -> Path | None:
        """Keep a build; the folder it stands in, or None when it cannot be kept."""
        entry = self._entry(key)
        digests = {name: digest(content) for name, content in files.items()}
        content = {f"{FOLDER}/{name}": data for name, data in files.items()}
        content[DIGESTS] = json.dumps(digests, indent=1).encode()
        try:
            entry.parent.mkdir(parents=True, exist_ok=True)
            # Not forced out: what a crash tears no longer has its digest.
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
        return entry / FOLDER if self.get(key) is not None else None

    def _entry(self, key: str) -> Path:
        return self.root / key[:2] / key


def build_key(name: str, content: str, seed: int, params: Mapping[str, Any]) -> str:
    """SHA-256 over everything a build depends on."""
    asked = [FORMAT, _code(), name, content, seed, sorted(params.items())]
    encoded = json.dumps(asked, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(encoded.encode()).hexdigest()


@lru_cache(maxsize=1)
def _code() -> str:
    """What builds is part of what a build depends on: this package, by its content."""
    sources = sorted(Path(__file__).parent.glob("*.py"))
    mark = hashlib.sha256(__version__.encode())
    for source in sources:
        mark.update(source.read_bytes())
    return mark.hexdigest()


def default_cache_folder(environ: Mapping[str, str] | None = None) -> Path:
    """Where builds are kept: the user's cache folder."""
    return user_folder("cache", "scenarios", environ=environ)


MAX_SEED = 2**63 - 1
"""What every store of results holds as a whole number."""

_CHECKS = ("correctness", "path", "cost", "checks", "assertions", "weights", "required")


class WorldSpec(Strict):
    """A world to act in."""

    use: Annotated[str, Field(min_length=1)]
    """`package.module:Class`, or `gym:NAME`."""
    options: dict[str, Any] = Field(default_factory=dict[str, Any])
    """What it is made with."""
    max_steps: Annotated[int, Field(ge=1)] | None = None
    """How long an episode may last."""
    scoring: dict[str, Any] | str | None = None
    """The rule of the score, where the world's own is not meant."""


class SolutionSpec(Strict):
    """Who solves it, and how well: what `proctor scenario check` holds it to."""

    agent: Agent
    min_score: Share


class RandomSpec(Strict):
    """What chance reaches at most."""

    max_score: Share


class _Parts(Strict):
    """What a template says beside its case, once worked out."""

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
    """Build a scenario: a template by name (`a.b`, `a.b@variant`), or by its file.

    It stands in the cache, or in `out` when that is given. With `cache=False` it is built anew,
    and without `out` its folder goes when the process does.
    """
    template = find_template(path, catalog)
    return build_template(template, seed, params, out=out, cache=cache)


def find_template(
    path: str | Path | Template,
    catalog: Catalog | str | Path | Sequence[str | Path] | None = None,
) -> Template:
    """The template that a name or a path means; without a catalog, that of the project."""
    if isinstance(path, Template):
        return path
    if isinstance(catalog, str | Path):
        catalog = Catalog([catalog])
    elif catalog is None:
        from proctor.spec.config import load_configuration

        catalog = catalog_for(load_configuration())
    elif not isinstance(catalog, Catalog):
        catalog = Catalog(catalog)
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
    """Build a template that was found already; see `build`."""
    given = checked_params(template, seed, params or {})
    if out is not None:
        refuse_taken(Path(out))
    kept = BuildCache(default_cache_folder()) if cache is True else cache
    key = key_of(template, seed, given)
    found = kept.get(key) if isinstance(kept, BuildCache) else None
    if found is not None:
        place, files = found
    else:
        files = built_files(template, seed, given)
        place = kept.put(key, files) if isinstance(kept, BuildCache) else None
    if out is not None:
        place = Path(out)
        write_folder(place, files)
    return Built(place, template=template, files=files)


def checked_params(template: Template, seed: int, params: Mapping[str, Any]) -> dict[str, Value]:
    """The parameters of a build: the variant's, and what is given over them."""
    if isinstance(seed, bool) or not isinstance(seed, int):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ProctorError(f"a seed is a whole number, not {seed!r}")
    if not 0 <= seed <= MAX_SEED:
        raise ProctorError(f"a seed lies between 0 and {MAX_SEED}, got {seed}")
    return accepted_params(template.params, {**template.given, **params})


def key_of(template: Template, seed: int, given: Mapping[str, Value]) -> str:
    """What the cache knows a build by."""
    return build_key(template.id, template.content_hash, seed, given)


# -- building ------------------------------------------------------------------------------------


def built_files(template: Template, seed: int, given: Mapping[str, Value]) -> dict[str, bytes]:
    """The files of a built scenario; `SpecError` holds every problem with its place."""
    source = RandomSource(template.name, seed)
    resolver = Resolver(template.tree, template.params, given, source)
    params = resolver.every_param()
    sections = {
        key: found
        for key in (*CASE_FIELDS, "input", "scenario", "truth", "world", "names", *CHECKING)
        if (found := resolver.section(key)) is not None
    }
    problems = resolver.problems
    _checked_shapes(sections, problems)
    parts = validated(_only(template.tree, sections, _Parts.model_fields), _Parts, problems)
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
    return rendered(
        {
            SCENARIO: _visible(sections),
            TRUTH: _plain(sections, "truth", {}),
            VISIBILITY: _visibility(names),
            SPEC: _spec(template, sections, case, params),
        },
        _manifest(template, seed, params, resolver, names),
    )


def _checked_shapes(sections: Mapping[str, Tree], problems: list[SpecProblem]) -> None:
    for key, tree in sections.items():
        if key in ("scenario", "truth") and not tree.broken and not isinstance(tree.value, dict):
            problems.append(SpecProblem(tree.place, f"{key} is a mapping"))
        if tree.depth > MAX_DEPTH - 4:
            problems.append(SpecProblem(tree.place, f"{key} is nested too deep to be read back"))


def _only(root: Tree, sections: Mapping[str, Tree], keys: Any) -> Tree:
    chosen = {key: sections[key] for key in keys if key in sections}
    return replace(root, value=chosen, keys={key: root.keys[key] for key in chosen})


def _in_opaque_names(sections: Mapping[str, Tree], names: OpaqueNames) -> dict[str, Tree]:
    """What the agent meets, in opaque names; what people select and read by stays as it is."""
    found = dict(sections)
    for key in ("input", "scenario", "truth"):
        if key in found:
            found[key] = names.in_tree(found[key], keep_keys=0)
    for key in (*_CHECKS, "solution"):
        if key in found:
            found[key] = names.in_tree(found[key], key_words=False)
    world = found.get("world")
    options = world.child("options") if world is not None else None
    if world is not None and options is not None and isinstance(world.value, dict):
        inner = names.in_tree(options, keep_keys=1)
        found["world"] = replace(world, value={**world.value, "options": inner})
    return found


def _case(template: Template, sections: Mapping[str, Tree]) -> Tree:
    root = template.tree
    fields = {key: sections[key] for key in CASE_FIELDS if key in sections}
    asked = sections.get("input") or sections["scenario"]
    members = {"id": Tree(root.place, template.id), **fields, "input": asked}
    return Tree(root.place, members, {key: root.keys.get(key, root.place) for key in members})


def _plain(sections: Mapping[str, Tree], key: str, otherwise: Any = None) -> Any:
    return plain(sections[key]) if key in sections else otherwise


def _visible(sections: Mapping[str, Tree]) -> dict[str, Any]:
    if "input" in sections:
        return {"input": plain(sections["input"])}
    return plain(sections["scenario"])


def _visibility(names: OpaqueNames) -> dict[str, Any]:
    by_opaque = {
        group: dict(sorted((new, true) for true, new in members.items()))
        for group, members in names.groups.items()
    }
    return {"visible": list(VISIBLE), "hidden": list(HIDDEN), "names": by_opaque}


def _spec(
    template: Template, sections: Mapping[str, Tree], case: Tree, params: Mapping[str, Value]
) -> dict[str, Any]:
    written: dict[str, Any] = plain(case)
    written.pop("input")
    found: dict[str, Any] = {
        "asks": "input" if "input" in sections else "scenario",
        "case": written,
        "params": dict(params),
    }
    for key in ("world", *CHECKING):
        if key in sections:
            found[key] = plain(sections[key])
    return found


def _manifest(
    template: Template,
    seed: int,
    params: Mapping[str, Value],
    resolver: Resolver,
    names: OpaqueNames,
) -> dict[str, Any]:
    root = template.root.resolve()
    files = [file.resolve().relative_to(root).as_posix() for file in template.files]
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
        "source": {
            "template": template.name,
            "file": files[0],
            "content": template.content_hash,
        },
        "operations": done,
    }
