"""Templates by dotted name: `a.b` is `a/b/spec.yaml` in the first catalog that has it.

Promise: a name never leads out of a catalog, whatever links it holds; a template is read again
only when a file of it changed, which is told by content, not by clocks.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from proctor.errors import ProctorError, did_you_mean
from proctor.scenarios.template import FILE, Template, read_template
from proctor.spec.suite import LONGEST_ID, problem_with_id

if TYPE_CHECKING:
    from proctor.spec.config import Configuration

SHIPPED = Path(__file__).resolve().parent.parent / "catalog"
"""The templates that come with Proctor."""

MAX_LEVELS = 12
"""Folders below each other in a catalog; names stay readable, and a scan ends."""

_STEP = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


class UnknownTemplateError(ProctorError):
    """A name that no catalog has."""


class Catalog:
    """Folders of templates; those named first win.

    <path>/
      mutualism/
        hidden_dependency/
          spec.yaml          the template `mutualism.hidden_dependency`
    """

    def __init__(self, paths: Sequence[Path | str]) -> None:
        self.paths = tuple(Path(path) for path in paths)

    def get(self, name: str) -> Template:
        """The template of a name: `a.b`, or `a.b@variant`."""
        dotted, at, variant = name.replace("/", ".").partition("@")
        for root in self.paths:
            path = self._file(root, dotted)
            if path is not None:
                template = _read(path, root, dotted)
                return template.under(variant) if at else template
        raise self._unknown(name, dotted)

    def all(self) -> list[Template]:
        """Every template there is, sorted by name."""
        return [self.get(name) for name in self.names()]

    def names(self) -> list[str]:
        """The name of every template, without reading any."""
        return sorted({name for root in self.paths for name in _scan(root)})

    def entries(self) -> list[Template]:
        """Every case there is: each template under each of its variants."""
        return [entry for template in self.all() for entry in template.every_variant()]

    def scope(self, name: str) -> list[Template]:
        """Every case under a name: of all templates below it, or of the template itself.

        `UnknownTemplateError` when there is none; a name with `@` is that one variant.
        """
        if "@" in name:
            return [self.get(name)]
        dotted = name.replace("/", ".")
        names = [n for n in self.names() if not dotted or f"{n}.".startswith(f"{dotted}.")]
        if not names:
            raise self._unknown(name, dotted)
        return [entry for n in names for entry in self.get(n).every_variant()]

    def matching(self, pattern: str) -> list[Template]:
        """Every case whose id a glob matches; `/` may stand for the dots."""
        wanted = pattern.replace("/", ".").casefold()
        return [entry for entry in self.entries() if fnmatchcase(entry.id.casefold(), wanted)]

    def _file(self, root: Path, dotted: str) -> Path | None:
        steps = dotted.split(".")
        if len(steps) > MAX_LEVELS or not all(_STEP.fullmatch(step) for step in steps):
            return None
        path = root.joinpath(*steps, FILE)
        # Some file systems find `A/B` for `a/b`: a build there would have another name elsewhere.
        return path if path.is_file() and _spelled(root, steps) else None

    def _unknown(self, name: str, dotted: str) -> UnknownTemplateError:
        names = self.names()
        scopes = {n.rpartition(".")[0] for n in names} - {""}
        if dotted in scopes:
            return UnknownTemplateError(
                f"{name!r} is a scope, not a scenario",
                hint=f"it holds {', '.join(n for n in names if n.startswith(f'{dotted}.'))}",
            )
        where = ", ".join(str(path) for path in self.paths) or "no catalog"
        return UnknownTemplateError(
            f"there is no scenario {name!r}",
            hint=did_you_mean(dotted, [*names, *scopes]) or f"looked in {where}",
        )


def catalog_for(configuration: Configuration) -> Catalog:
    """The catalogs in force: the project's first, then the one that comes with Proctor."""
    return Catalog([*configuration.catalogs, SHIPPED])


def template_at(path: Path, catalog: Catalog) -> Template:
    """The template of a file, or of the folder it is in."""
    file = path / FILE if path.is_dir() else path
    if not file.is_file():
        raise ProctorError("there is no such template", where=str(file))
    for root in catalog.paths:
        if file.resolve().is_relative_to(root.resolve()):
            steps = file.resolve().parent.relative_to(root.resolve()).parts
            if file.name == FILE and steps and all(_STEP.fullmatch(step) for step in steps):
                return catalog.get(".".join(steps))
    name = file.resolve().parent.name if file.name == FILE else file.stem
    if problem := problem_with_id(name):
        raise ProctorError(problem, where=str(file), hint="rename the folder of the template")
    return _read(file, file.parent, name)


# -- reading once --------------------------------------------------------------------------------


class _CachedTemplate(NamedTuple):
    """A template and the content of the files it was read from."""

    template: Template
    digests: tuple[bytes, ...]


_kept: dict[tuple[Path, Path, str], _CachedTemplate] = {}

_MOST_KEPT = 4_096
"""Templates in memory; beyond it all are forgotten, which costs reading them again."""


def _read(path: Path, root: Path, name: str) -> Template:
    if len(name) > LONGEST_ID:
        raise ProctorError(f"the name has more than {LONGEST_ID} characters", where=str(path))
    key = (path.absolute(), root.absolute(), name)
    kept = _kept.get(key)
    if kept is not None and _digests(kept.template.files) == kept.digests:
        return kept.template
    if not path.resolve().is_relative_to(root.resolve()):
        raise ProctorError(
            f"the template lies outside its catalog {str(root)!r}",
            where=str(path),
            hint="copy it there; links that lead outside are not followed",
        )
    template = read_template(path, root, name)
    if len(_kept) >= _MOST_KEPT:
        _kept.clear()
    _kept[key] = _CachedTemplate(template, _digests(template.files))
    return template


def _digests(files: Iterable[Path]) -> tuple[bytes, ...]:
    found: list[bytes] = []
    for file in files:
        try:
            found.append(hashlib.sha256(file.read_bytes()).digest())
        except OSError:
            found.append(b"")
    return tuple(found)


def _scan(root: Path) -> Iterator[str]:
    """The names of the templates in a folder; links and hidden folders are passed by."""
    if not root.is_dir():
        return
    for folder, inner, files in os.walk(root):
        steps = Path(folder).relative_to(root).parts
        inner[:] = [name for name in inner if _STEP.fullmatch(name)]
        if len(steps) >= MAX_LEVELS:
            inner.clear()
        if steps and FILE in files:
            yield ".".join(steps)


def _spelled(root: Path, steps: Sequence[str]) -> bool:
    """Whether the folders are called exactly so."""
    folder = root
    for step in steps:
        try:
            if step not in os.listdir(folder):  # noqa: PTH208 (names only; one call a level)
                return False
        except OSError:
            return False
        folder = folder / step
    return True
