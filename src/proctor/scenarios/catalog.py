"""Templates by dotted name: `a.b` is `a/b/spec.yaml` in the first catalog that has it.

Guarantees: a name never leads out of a catalog, whatever links it contains; a template is read
again only when one of its files changed, by content and not by modification time.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

from proctor.errors import ProctorError, did_you_mean
from proctor.scenarios.template import FILE, Template, read_template
from proctor.spec.suite import LONGEST_ID, problem_with_id

if TYPE_CHECKING:
    from proctor.spec.config import Configuration

SHIPPED = Path(__file__).resolve().parent.parent / "catalog"
"""The templates shipped with Proctor."""

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
        """Return the template with this name: `a.b`, or `a.b@variant`."""
        dotted, at, variant = name.replace("/", ".").partition("@")
        for root in self.paths:
            path = self._file(root, dotted)
            if path is not None:
                template = _read(path, root, dotted)
                return template.under(variant) if at else template
        raise self._unknown(name, dotted)

    def all(self) -> list[Template]:
        """Return all templates, sorted by name."""
        return [self.get(name) for name in self.names()]

    def names(self) -> list[str]:
        """Return the names of all templates, without reading them."""
        return sorted({name for root in self.paths for name in _scan(root)})

    def entries(self) -> list[Template]:
        """Return all cases: each template under each of its variants."""
        return [entry for template in self.all() for entry in template.every_variant()]

    def scope(self, name: str) -> list[Template]:
        """Return the cases of all templates below a name, or of the template itself.

        Raise `UnknownTemplateError` when there is none; a name with `@` is one variant.
        """
        if "@" in name:
            return [self.get(name)]
        dotted = name.replace("/", ".")
        names = [n for n in self.names() if not dotted or f"{n}.".startswith(f"{dotted}.")]
        if not names:
            raise self._unknown(name, dotted)
        return [entry for n in names for entry in self.get(n).every_variant()]

    def matching(self, pattern: str) -> list[Template]:
        """Return all cases whose id matches a glob; `/` may replace the dots."""
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
    """Return the catalogs to search: the project's first, then the one shipped with Proctor."""
    return Catalog([*configuration.catalogs, SHIPPED])


def template_at(path: Path, catalog: Catalog) -> Template:
    """Return the template of a file, or of the folder it is in."""
    file = path / FILE if path.is_dir() else path
    if not file.is_file():
        raise ProctorError("there is no such template", where=str(file))
    # A file of a catalog keeps its dotted name, so that results are the same as by name.
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


_cache: dict[tuple[Path, Path, str], tuple[Template, tuple[bytes, ...]]] = {}
"""Templates, each with the digests of the files it was read from."""

_MAX_CACHED = 4_096
"""Maximum templates in memory; beyond it the cache is cleared, which costs reading them again."""


def _read(path: Path, root: Path, name: str) -> Template:
    if len(name) > LONGEST_ID:
        raise ProctorError(f"the name has more than {LONGEST_ID} characters", where=str(path))
    key = (path.absolute(), root.absolute(), name)
    template, digests = _cache.get(key, (None, ()))
    if template is not None and _digests(template.files) == digests:
        return template
    if not path.resolve().is_relative_to(root.resolve()):
        raise ProctorError(
            f"the template lies outside its catalog {str(root)!r}",
            where=str(path),
            hint="copy it there; links that lead outside are not followed",
        )
    template = read_template(path, root, name)
    if len(_cache) >= _MAX_CACHED:
        _cache.clear()
    _cache[key] = (template, _digests(template.files))
    return template


def _digests(files: Iterable[Path]) -> tuple[bytes, ...]:
    found: list[bytes] = []
    for file in files:
        try:
            found.append(hashlib.sha256(file.read_bytes()).digest())
        except OSError:
            found.append(b"")  # gone: unequal to any digest, so it is read again
    return tuple(found)


def _scan(root: Path) -> Iterator[str]:
    """Yield the names of the templates in a folder; links and hidden folders are skipped."""
    if not root.is_dir():
        return
    for folder, inner, files in os.walk(root):
        steps = Path(folder).relative_to(root).parts
        # `os.walk` descends only into the folders left in this list.
        inner[:] = [name for name in inner if _STEP.fullmatch(name)]
        if len(steps) >= MAX_LEVELS:
            inner.clear()
        if steps and FILE in files:
            yield ".".join(steps)


def _spelled(root: Path, steps: Sequence[str]) -> bool:
    """Return whether the folders have exactly these names."""
    folder = root
    for step in steps:
        try:
            if step not in os.listdir(folder):  # noqa: PTH208 (names only; one call a level)
                return False
        except OSError:
            return False
        folder = folder / step
    return True
