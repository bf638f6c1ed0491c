"""Built scenarios kept under a name, and brought back.

Promise: what is fetched is to the byte what was stored; a name never leads out of the store; a
stored folder is whole or absent, and never replaced by another unless that is asked for.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from proctor.errors import ProctorError, did_you_mean
from proctor.places import user_folder
from proctor.scenarios.built import Built
from proctor.scenarios.folder import FILES, BuiltFolder, replace_folder, write_aside, write_folder
from proctor.spec.ids import problem_with_id, same_id


def store(
    name: str, folder: str | Path | Built, *, replace: bool = False, root: Path | None = None
) -> Path:
    """Keep a built scenario under a name; the folder it is kept in.

    Storing the same again is nothing; another one under the name needs `replace`.
    """
    target = _place(name, root)
    source = Path(folder.path if isinstance(folder, Built) else folder)
    if not source.is_dir():
        raise ProctorError("there is no such folder", where=str(source))
    built = BuiltFolder.open(source)
    others = sorted(path.name for path in source.iterdir() if path.name not in FILES)
    if others:
        raise ProctorError(
            f"{others[0]!r} is no part of a built scenario",
            where=str(source),
            hint="store the folder as it was built",
        )
    files = built.contents()
    if not target.exists():
        write_folder(target, files)
    elif _held(target) != files:
        if not replace:
            raise ProctorError(
                f"there is another scenario under the name {name!r}",
                where=str(target),
                hint="choose another name, or replace it with --force",
            )
        _replaced(target, files)
    return target


def fetch(name: str, out: str | Path | None = None, *, root: Path | None = None) -> Path:
    """The folder of a stored scenario, verified; copied to `out` when that is given."""
    stored = _place(name, root)
    if not stored.is_dir():
        known = stored_names(root)
        hint = did_you_mean(name, known) or (
            f"there are {', '.join(known[:12])}" if known else "`proctor store NAME DIR` keeps one"
        )
        raise ProctorError(f"nothing is stored under the name {name!r}", hint=hint)
    folder = BuiltFolder.open(stored)
    if out is None:
        return stored
    write_folder(Path(out), folder.contents())
    return Path(out)


def stored_names(root: Path | None = None) -> list[str]:
    """What is stored, by name."""
    place = root or default_store_folder()
    if not place.is_dir():
        return []
    return sorted(path.name for path in place.iterdir() if not path.name.startswith("."))


def default_store_folder(environ: Mapping[str, str] | None = None) -> Path:
    """Where scenarios are kept: the user's data folder."""
    return user_folder("data", "scenarios", environ=environ)


def _place(name: str, root: Path | None) -> Path:
    if problem := problem_with_id(name):
        raise ProctorError(problem.replace("an id", "a name").replace("the id", "the name"))
    # Two names that some file system cannot tell apart are one.
    return (root or default_store_folder()) / same_id(name)


def _held(stored: Path) -> dict[str, bytes] | None:
    try:
        return BuiltFolder.open(stored).contents()
    except ProctorError:
        return None


def _replaced(target: Path, files: Mapping[str, bytes]) -> None:
    try:
        aside = write_aside(target.parent, files, sync=True)
        try:
            replace_folder(aside, target)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    except OSError as error:
        raise ProctorError(
            f"cannot replace the folder: {error.strerror or error}", where=str(target)
        ) from None
