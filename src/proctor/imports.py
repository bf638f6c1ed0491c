"""Load users' code by import path: `package.module:name`.

Guarantees: a module next to the suite is found without installing anything, two suites may each
have an `agent.py`, and the error for an unknown name suggests a similar one. Trade-off: the folder
stays on the import path, because the code may import more of its modules later.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import importlib
import importlib.machinery
import importlib.util
import re
import sys
import traceback
from collections.abc import Generator, Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from proctor.errors import ProctorError, did_you_mean

IMPORT_PATH = r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*"
"""`package.module:name`, as in entry points."""


def needs_extra(package: str, extra: str) -> None:
    """Raise an error that names the extra to install if an optional package is missing."""
    if importlib.util.find_spec(package) is None:
        raise ProctorError(
            f"this needs the extra `{extra}` (package {package!r}), which is not installed",
            hint=f'pip install "proctor[{extra}]"',
        )


def absent_extra(what: str, extra: str, kind: type[ProctorError] = ProctorError) -> ProctorError:
    """Return the error for an import that failed because an extra is not installed."""
    return kind(
        f"{what} needs the extra `{extra}`, which is not installed",
        hint=f'pip install "proctor[{extra}]"',
    )


executes_user_code = True
"""Whether this process may import code of users; the driver of a command may not."""


@contextlib.contextmanager
def user_code_left_to_workers() -> Generator[None]:
    """Inside the block, this process imports no code of users: `load_object` is an error."""
    global executes_user_code  # noqa: PLW0603 (it is a property of the process)
    executes_user_code = False
    try:
        yield
    finally:
        executes_user_code = True


def load_object(path: str, base_dir: str | Path | None = None) -> Any:
    """Return the object at `package.module:name`; modules in `base_dir` come first."""
    if not executes_user_code:
        raise RuntimeError(f"{path} would be imported by the driver: only workers import user code")
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


def find_object(path: str, base_dir: str | Path | None = None) -> Path | None:
    """Return the source file of an object, or raise as `load_object` would; no user code runs.

    Names that only running code can know (a star import, `__getattr__`, a compiled module, an
    attribute of an object) are accepted.
    """
    if not re.fullmatch(IMPORT_PATH, path):
        raise ProctorError(
            f"{path!r} is not an import path", hint="write package.module:name, with one colon"
        )
    module_name, _, attribute = path.partition(":")
    top = module_name.partition(".")[0]
    # Absolute: Python caches the finder of "." with the folder in which it was first used.
    own = [] if base_dir is None else [str(Path(base_dir).resolve())]
    importlib.invalidate_caches()
    if (
        top in sys.stdlib_module_names
        and importlib.machinery.PathFinder.find_spec(top, own) is None
    ):
        load_object(path)  # no user code; `os.path` and built-in modules have no file to look at
        return None
    places: Sequence[str] | None = [*own, *sys.path]
    spec = None
    parts = module_name.split(".")
    for depth in range(1, len(parts) + 1):
        # `importlib.util.find_spec` would import the parent packages.
        # A module that is no package has no modules in it.
        if depth == 1 or places is not None:
            spec = importlib.machinery.PathFinder.find_spec(".".join(parts[:depth]), places)
        if spec is None or (depth > 1 and places is None):
            raise ProctorError(
                f"no module {'.'.join(parts[:depth])!r}",
                where=path,
                hint=_near_module(module_name, Path(base_dir or ".")),
            )
        places = spec.submodule_search_locations
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return None
    source = Path(spec.origin)
    try:
        names = _defined(ast.parse(source.read_bytes()).body)
    except SyntaxError as error:
        version = ".".join(map(str, sys.version_info[:2]))
        raise ProctorError(
            f"{source.name}, line {error.lineno}, is not Python {version}: {error.msg}",
            where=path,
        ) from None
    walked = module_name
    for step in attribute.split("."):
        if "*" in names or "__getattr__" in names:
            return source
        if step not in names:
            hint = did_you_mean(step, [name for name in names if not name.startswith("_")])
            raise ProctorError(f"{walked} has no {step!r}", where=path, hint=hint)
        found, walked = names[step], f"{walked}.{step}"
        # Bases and decorators may define more, and so may objects.
        if isinstance(found, ast.ClassDef) and not (found.bases or found.decorator_list):
            names = _defined(found.body)
        else:
            return source
    return source


def _defined(body: Iterable[ast.stmt]) -> dict[str, ast.stmt | None]:
    """Return the names that statements bind, with the statement of a function or class."""
    names: dict[str, ast.stmt | None] = {}
    for statement in body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names[statement.name] = statement
            continue
        # Blocks (if, try, with, for) bind names for the module as well.
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names[node.id] = None
            elif isinstance(node, ast.Import | ast.ImportFrom):
                names |= dict.fromkeys((a.asname or a.name).partition(".")[0] for a in node.names)
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                names.setdefault(node.name, node)
    return names


def _near_module(name: str, folder: Path) -> str | None:
    """Return a hint with the module of a folder that is probably meant."""
    if name.endswith(".py"):
        return f"write {name.removesuffix('.py')!r}: modules are named without .py"
    with contextlib.suppress(OSError):
        there = [path.stem for path in folder.iterdir() if path.suffix == ".py" or path.is_dir()]
        return did_you_mean(name.partition(".")[0], there)
    return None


def load_module(name: str, base_dir: str | Path | None = None) -> ModuleType:
    """Return a module by its dotted name; modules in `base_dir` come first."""
    folder = None if base_dir is None else Path(base_dir).resolve()
    if folder is not None:
        base = folder.joinpath(*name.split("."))
        files = (base.with_suffix(".py"), base / "__init__.py")
        own = next((file for file in files if file.is_file()), None)
        # A folder already on the path moves to the front only for a module that it has.
        entry = str(folder)
        if entry not in sys.path or (own is not None and sys.path[0] != entry):
            with contextlib.suppress(ValueError):
                sys.path.remove(entry)
            sys.path.insert(0, entry)
            importlib.invalidate_caches()
        if own is not None and not _loaded_from(name, own):
            return _load_file(name, own, folder)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise _import_failed(name, error) from error
        places, hint = "the Python path", None
        if folder is not None:
            places = f"{folder} and the Python path"
            hint = _near_module(name, folder) or "put it beside the suite, or install its package"
        raise ProctorError(f"no module {error.name!r} in {places}", where=name, hint=hint) from None
    except (Exception, SystemExit) as error:
        raise _import_failed(name, error) from error


def _loaded_from(name: str, file: Path) -> bool:
    """Return whether importing the name gives this file, and not another module of that name."""
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
    """Load a module under an alias, because another module has its name."""
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
    """Return the error for a failure inside the user's module, with its line."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "importlib" not in f.filename]
    ours = Path(__file__).resolve()
    last = next((f for f in reversed(frames) if Path(f.filename).resolve() != ours), None)
    where = f"{last.filename}:{last.lineno}" if last is not None else name
    if isinstance(error, SyntaxError):
        where = f"{error.filename}:{error.lineno}"
    return ProctorError(f"importing {name} failed: {type(error).__name__}: {error}", where=where)
