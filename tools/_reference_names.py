"""The page of Python names: signatures and first paragraphs, read from the sources.

Nothing is imported, so the page does not depend on what is installed or on the Python that runs
this; the price is that names are followed by their imports alone.
"""

import ast
import inspect
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

Function = ast.FunctionDef | ast.AsyncFunctionDef
Definition = Function | ast.ClassDef

MODULES = {
    "proctor": "The verbs, and what they work on. Everything is imported when it is first used.",
    "proctor.api": "The functions behind the commands, with the keywords of `run`.",
    "proctor.results": "Runs asked together; see also [its page](results-python.md).",
    "proctor.trace": "Spans, trees and queries; see [span queries](span-queries.md).",
    "proctor.spec": "What users write, as objects; see [suites](suite.md).",
    "proctor.agents": "For [kinds of your own](../how-to/agents.md#a-kind-of-your-own).",
    "proctor.scenarios": "Templates and what is built from them; see [templates](templates.md).",
    "proctor.worlds": "Worlds to act in; see [worlds](worlds.md).",
    "proctor.llm": "Models, prices and the [mock server](../how-to/mock-llm.md).",
}
"""The modules that users import from, in the order of the page."""

HEAD = """# Python names

<!-- written by tools/reference.py -->

Public names with their signatures and the first paragraph of what they say of themselves;
`help(name)` says the rest. What is not here, or begins with `_`, may change without notice. Figures
are in [statistics](statistics.md) and [metrics](metrics.md), whose pages name their functions.
"""


class Found(NamedTuple):
    """Where a name is defined."""

    module: str
    node: ast.stmt
    after: ast.stmt | None = None
    """The statement after it, which may be its docstring."""


def names_page(sources: Path) -> str:
    """The whole page."""
    parts, home = [HEAD], {}
    for module, what in MODULES.items():
        parts.append(f"## `{module}`\n\n{what}\n")
        for name in sorted(_public(sources, module), key=str.casefold):
            found = _find(sources, module, name)
            if found is None:
                continue
            where = (found.module, name)
            if where in home:
                parts.append(f"### `{module}.{name}`\n\nThe same as `{home[where]}`.\n")
                continue
            home[where] = f"{module}.{name}"
            parts += _entry(sources, f"{module}.{name}", found)
    return "\n".join(parts).rstrip("\n") + "\n"


# --- finding names ---------------------------------------------------------------------------


@cache
def _tree(sources: Path, module: str) -> ast.Module:
    path = sources.joinpath(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(file.read_text(encoding="utf-8"))


def _public(sources: Path, module: str) -> tuple[str, ...]:
    for node in _tree(sources, module).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return tuple(name for name in ast.literal_eval(node.value) if name[0] != "_")
    raise LookupError(f"{module} has no __all__")


def _find(sources: Path, module: str, name: str) -> Found | None:
    """Where a name is defined, by following imports; None for a module."""
    tree = _tree(sources, module)
    for node, after in zip(tree.body, [*tree.body[1:], None], strict=True):
        if _names(node, name) and not _is_overload(node):
            return _class_of(sources, module, node) or Found(module, node, after)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    home = _absolute(sources, module, node)
                    elsewhere = home == module or home.partition(".")[0] != "proctor"
                    return None if elsewhere else _find(sources, home, alias.name)
    return None


def _class_of(sources: Path, module: str, node: ast.stmt) -> Found | None:
    """Return the class of a name that is an instance: `capture = Capture()`."""
    made = node.value if isinstance(node, ast.Assign) else None
    if isinstance(made, ast.Call) and isinstance(made.func, ast.Name) and not made.args:
        found = _find(sources, module, made.func.id)
        return found if found and isinstance(found.node, ast.ClassDef) else None
    return None


def _absolute(sources: Path, module: str, node: ast.ImportFrom) -> str:
    """The module that an import means; ours are relative by one level at most."""
    if not node.level:
        return node.module or ""
    package = module if sources.joinpath(*module.split(".")).is_dir() else module.rpartition(".")[0]
    return f"{package}.{node.module}"


def _names(node: ast.stmt, name: str) -> bool:
    if isinstance(node, Definition):
        return node.name == name
    if isinstance(node, ast.Assign):
        return ast.unparse(node.targets[0]) == name
    return isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == name


def _is_overload(node: ast.stmt) -> bool:
    decorators = node.decorator_list if isinstance(node, Definition) else []
    return any(ast.unparse(each) == "overload" for each in decorators)


# --- telling of them -------------------------------------------------------------------------


def _entry(sources: Path, name: str, found: Found) -> Iterator[str]:
    yield f"### `{name}`\n"
    node = found.node
    if isinstance(node, ast.ClassDef):
        yield _first_paragraph(node)
        rows = [*_members(node)]
        if rows:
            yield "\n".join(["| | |", "|---|---|", *rows]) + "\n"
    elif isinstance(node, Function):
        yield f"```text\n{_signature(node, name.rpartition('.')[2])}\n```\n"
        yield _first_paragraph(node)
        yield from _keywords(sources, found)
    else:
        yield f"```text\n{ast.unparse(node)}\n```\n"
        after = found.after
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            yield _prose(str(after.value.value)) + "\n"


def _signature(node: Function, name: str) -> str:
    """The call, on one line where it fits, else an argument a line."""
    given = _arguments(node.args)
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    head = ("async " if isinstance(node, ast.AsyncFunctionDef) else "") + name
    line = f"{head}({', '.join(given)}){returns}"
    if len(line) <= 92:
        return line
    return "\n".join([f"{head}(", *(f"    {each}," for each in given), f"){returns}"])


def _arguments(spec: ast.arguments) -> list[str]:
    """Each argument as written, marks between them included; without self and cls."""
    plain = [*spec.posonlyargs, *spec.args]
    defaults = [None] * (len(plain) - len(spec.defaults)) + list(spec.defaults)
    told = [_argument(each, default) for each, default in zip(plain, defaults, strict=True)]
    if spec.posonlyargs:
        told.insert(len(spec.posonlyargs), "/")
    if told and told[0] in ("self", "cls"):
        del told[0]
    if spec.vararg:
        told.append(f"*{_argument(spec.vararg, None)}")
    elif spec.kwonlyargs:
        told.append("*")
    told += [
        _argument(each, default)
        for each, default in zip(spec.kwonlyargs, spec.kw_defaults, strict=True)
    ]
    if spec.kwarg:
        told.append(f"**{_argument(spec.kwarg, None)}")
    return told


def _argument(node: ast.arg, default: ast.expr | None) -> str:
    kind = f": {ast.unparse(node.annotation)}" if node.annotation else ""
    return f"{node.arg}{kind}" + (f" = {ast.unparse(default)}" if default else "")


def _keywords(sources: Path, found: Found) -> Iterator[str]:
    """The keys behind `**options: Unpack[Options]`."""
    spec = found.node.args.kwarg if isinstance(found.node, Function) else None
    kind = ast.unparse(spec.annotation) if spec and spec.annotation else ""
    match = re.fullmatch(r"Unpack\[(\w+)\]", kind)
    keys = _find(sources, found.module, match[1]) if match else None
    if keys and isinstance(keys.node, ast.ClassDef):
        bases = [_find(sources, keys.module, ast.unparse(base)) for base in keys.node.bases]
        above = [base.node for base in bases if base and isinstance(base.node, ast.ClassDef)]
        rows = [row for node in (*above, keys.node) for row in _members(node)]
        if rows and spec:
            yield "\n".join([f"| `**{spec.arg}` | |", "|---|---|", *rows]) + "\n"


def _members(node: ast.ClassDef) -> Iterator[str]:
    """A row for each public field, property and method of a class."""
    body = node.body
    for each, after in zip(body, [*body[1:], None], strict=True):
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
            name, kind = each.target.id, _kind(each.annotation)
            if not name.startswith("_"):
                yield f"| `{name}: {_cell(kind)}` | {_cell(_field(each, after))} |"
        elif isinstance(each, Function):
            if (each.name.startswith("_") and each.name != "__call__") or _is_overload(each):
                continue
            marks = {ast.unparse(mark) for mark in each.decorator_list}
            plain = {"property", "cached_property", "functools.cached_property"} & marks
            call = each.name if plain else _short(each)
            yield f"| `{_cell(call)}` | {_cell(_prose(ast.get_docstring(each) or ''))} |"


def _kind(annotation: ast.expr) -> str:
    """Return a type without its pydantic annotations."""
    return ast.unparse(_Bare().visit(ast.parse(ast.unparse(annotation), mode="eval")))


class _Bare(ast.NodeTransformer):
    """`Annotated[str, …]` is `str` to a reader."""

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        if ast.unparse(node.value) == "Annotated" and isinstance(node.slice, ast.Tuple):
            return self.visit(node.slice.elts[0])
        return self.generic_visit(node)


def _short(node: Function) -> str:
    """Return a method with its argument names; types are in `help()`."""
    names = [re.split(r"[:=]", each)[0].strip() for each in _arguments(node.args)]
    head = "await " if isinstance(node, ast.AsyncFunctionDef) else ""
    return f"{head}{node.name}({', '.join(names)})"


def _field(node: ast.AnnAssign, after: ast.stmt | None) -> str:
    """Return the description of a field: the docstring below it, or pydantic `description=`."""
    if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
        return _prose(str(after.value.value))
    for word in node.value.keywords if isinstance(node.value, ast.Call) else []:
        if word.arg == "description" and isinstance(word.value, ast.Constant):
            return _prose(str(word.value.value))
    return ""


def _first_paragraph(node: Definition) -> str:
    return _prose(ast.get_docstring(node) or "") + "\n"


def _prose(text: str) -> str:
    """The first paragraph, on one line."""
    paragraph = inspect.cleandoc(text).partition("\n\n")[0]
    return " ".join(paragraph.split())


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
