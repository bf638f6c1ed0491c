"""Users' own code by import path: `package.module:name`.

Promise: a module beside the suite is found without installing anything, two suites may each have
an `agent.py`, and what cannot be found is said with its nearest neighbour. The folder stays on
the import path, because code imports more of itself later; that is the price.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import re
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

from proctor.errors import ProctorError, did_you_mean

IMPORT_PATH = r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*"
"""`package.module:name`, the way entry points write it."""


def needs_extra(package: str, extra: str) -> None:
    """Say in one line what to install when an optional package is not there."""
    if importlib.util.find_spec(package) is None:
        raise ProctorError(
            f"this needs the package {package!r}, which is not installed",
            hint=f'pip install "proctor[{extra}]"',
        )


def absent_extra(what: str, extra: str, kind: type[ProctorError] = ProctorError) -> ProctorError:
    """The same, to be raised by whoever found out by importing."""
    return kind(
        f"{what} needs the extra `{extra}`, which is not installed",
        hint=f'pip install "proctor[{extra}]"',
    )


def load_object(path: str, base_dir: str | Path | None = None) -> Any:
    """What `package.module:name` names, looked for in `base_dir` first."""
    if not re.fullmatch(IMPORT_PATH, path):
        raise ProctorError(
            f"{path!r} is not an import path", hint="write package.module:name, with one colon"
        )
    module_name, _, attribute = path.partition(":")
    value: Any = load_module(module_name, base_dir)
    walked = module_name
    for step in attribute.split("."):
        try:
            value = getattr(value, step)
        except AttributeError:
            known = [name for name in dir(value) if not name.startswith("_")]
            raise ProctorError(
                f"{walked} has no {step!r}", where=path, hint=did_you_mean(step, known)
            ) from None
        walked = f"{walked}.{step}"
    return value


def load_module(name: str, base_dir: str | Path | None = None) -> ModuleType:
    """A module by its dotted name, looked for in `base_dir` first."""
    folder = None if base_dir is None else Path(base_dir).resolve()
    if folder is not None:
        own = _file_of(name, folder)
        _put_on_path(str(folder), first=own is not None)
        if own is not None and not _loaded_from(name, own):
            return _load_file(name, own, folder)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise _import_failed(name, error) from error
        near = did_you_mean(name, _modules_in(folder)) if folder is not None else None
        places = f"{folder} and the Python path" if folder is not None else "the Python path"
        raise ProctorError(
            f"no module {error.name!r} in {places}", where=name, hint=near or _install_hint(folder)
        ) from None
    except (Exception, SystemExit) as error:
        raise _import_failed(name, error) from error


def _put_on_path(folder: str, *, first: bool) -> None:
    """Let modules of a folder be found; before installed ones where it has what is asked for."""
    if folder in sys.path:
        if not first or sys.path[0] == folder:
            return
        sys.path.remove(folder)
    sys.path.insert(0, folder)
    importlib.invalidate_caches()


def _file_of(name: str, folder: Path) -> Path | None:
    """The file of a module below a folder, if it is there."""
    base = folder.joinpath(*name.split("."))
    for candidate in (base.with_suffix(".py"), base / "__init__.py"):
        if candidate.is_file():
            return candidate
    return None


def _loaded_from(name: str, file: Path) -> bool:
    """Whether importing the name would give this file: nothing else took the name before."""
    top = sys.modules.get(name.partition(".")[0])
    if top is None:
        return True
    loaded = sys.modules.get(name)
    if loaded is not None:
        known = getattr(loaded, "__file__", None)
        return known is not None and Path(known).resolve() == file.resolve()
    places = [Path(place).resolve() for place in getattr(top, "__path__", ())]
    return any(file.resolve().is_relative_to(place) for place in places)


def _load_file(name: str, file: Path, folder: Path) -> ModuleType:
    """A module whose name another one has taken, loaded under a name of its own."""
    mark = hashlib.sha256(str(folder).encode()).hexdigest()[:12]
    alias = f"_proctor_{mark}_{name.replace('.', '_')}"
    if alias in sys.modules:
        return sys.modules[alias]
    places = [str(file.parent)] if file.name == "__init__.py" else None
    spec = importlib.util.spec_from_file_location(alias, file, submodule_search_locations=places)
    if spec is None or spec.loader is None:
        raise ProctorError(f"{file} cannot be imported", where=name)
    module = importlib.util.module_from_spec(spec)
    sys.modules[alias] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[alias]
        raise _import_failed(name, error) from error
    return module


def _import_failed(name: str, error: BaseException) -> ProctorError:
    """What went wrong inside the user's module, and on which line of it."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "importlib" not in f.filename]
    ours = Path(__file__).resolve()
    last = next((f for f in reversed(frames) if Path(f.filename).resolve() != ours), None)
    where = f"{last.filename}:{last.lineno}" if last is not None else name
    if isinstance(error, SyntaxError):
        where = f"{error.filename}:{error.lineno}"
    return ProctorError(f"importing {name} failed: {type(error).__name__}: {error}", where=where)


def _modules_in(folder: Path) -> list[str]:
    return [path.stem for path in folder.iterdir() if path.suffix == ".py" or path.is_dir()]


def _install_hint(folder: Path | None) -> str | None:
    return None if folder is None else "put it beside the suite, or install its package"
