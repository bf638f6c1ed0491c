"""Put agents into a settings file, and take them out, leaving the rest of the file as it is.

Promise: only the lines of the agent in question change; comments and order stay. The new file is
read back before it replaces the old one, and a file that cannot be edited so is left alone, with
the lines to write by hand.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from proctor.errors import ProctorError, did_you_mean
from proctor.runs.folder import write_atomic
from proctor.trace.redact import Redactor

KEY = "agents"
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
_REFERENCE = re.compile(r"\$\{\w+(:-[^}]*)?\}")
_SCHEMES = frozenset({"", "bearer", "basic", "token"})


def add_agent(path: Path, name: str, options: Mapping[str, Any], *, replace: bool = False) -> None:
    """Write an agent into a settings file, which is made when it is not there."""
    if not NAME.fullmatch(name):
        raise ProctorError(
            f"{name!r} cannot be an agent's name", hint="letters, digits, `-`, `_` and `.`"
        )
    refuse_secrets(options)
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    if name in _agents(text, path):
        if not replace:
            raise ProctorError(
                f"there is an agent {name!r} already", where=str(path), hint="--replace it"
            )
        text = _without(text, name, path)
    _write(path, _with(text, name, options), {**_agents(text, path), name: dict(options)})


def remove_agent(path: Path, name: str) -> None:
    """Take an agent out of a settings file."""
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    agents = _agents(text, path)
    if name not in agents:
        raise ProctorError(
            f"there is no agent {name!r} in it", where=str(path), hint=did_you_mean(name, agents)
        )
    del agents[name]
    _write(path, _without(text, name, path), agents)


def refuse_secrets(options: Mapping[str, Any]) -> None:
    """Raise when a value looks like a key; references such as `${NAME}` are not keys."""
    redactor = Redactor()
    for where, key, value in _texts(options, ""):
        rest = _REFERENCE.sub("", value).strip()
        if rest != value.strip() and rest.lower() in _SCHEMES:
            continue
        if redactor.value({key: value}) != {key: value}:
            raise ProctorError(
                "looks like a key, and keys are not written into files",
                where=where,
                hint="set api_key_env to the NAME of the variable that holds it, "
                "or write ${NAME} where it belongs",
            )


def _texts(value: Any, where: str) -> list[tuple[str, str, str]]:
    """Every text in the options: its dotted place, its key, itself."""
    if isinstance(value, str):
        return [(where, where.rpartition(".")[2], value)]
    if isinstance(value, Mapping):
        items = cast("Mapping[Any, Any]", value).items()
    elif isinstance(value, list):
        items = enumerate(cast("list[Any]", value))
    else:
        return []
    return [
        found
        for key, inner in items
        for found in _texts(inner, f"{where}.{key}" if where else str(key))
    ]


# -- the text ----------------------------------------------------------------------------------


def _loaded(text: str, path: Path) -> dict[str, Any]:
    import yaml

    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        first = str(error).splitlines()[0]
        raise ProctorError(f"cannot be read: {first}", where=str(path)) from None
    if document is not None and not isinstance(document, dict):
        raise ProctorError("settings are a mapping of names to values", where=str(path))
    return cast("dict[str, Any]", document or {})


def _agents(text: str, path: Path) -> dict[str, Any]:
    found = _loaded(text, path).get(KEY)
    if found is not None and not isinstance(found, dict):
        raise ProctorError("`agents` is not a mapping of names to agents", where=str(path))
    return dict(cast("dict[str, Any]", found or {}))


def _with(text: str, name: str, options: Mapping[str, Any]) -> str:
    """The text with an entry more, after the last one."""
    place = _place_of_agents(text)
    lines = text.splitlines(keepends=True)
    if lines and not lines[-1].endswith("\n"):
        lines[-1] += "\n"
    if place is None:
        gap = ["\n"] if lines else []
        return "".join([*lines, *gap, f"{KEY}:\n", _entry(name, options, 2)])
    key, value = place
    if not value.value:  # `agents:` or `agents: {}`
        start, end = key.start_mark.line, max(key.end_mark.line, _last_line(value))
        return "".join([*lines[:start], f"{KEY}:\n", _entry(name, options, 2), *lines[end + 1 :]])
    if value.flow_style:
        import yaml

        start, end = key.start_mark.line, _last_line(value)
        kept = yaml.safe_load(text)[KEY]
        block = "".join(_entry(each, kept[each], 2) for each in kept)
        return "".join(
            [*lines[:start], f"{KEY}:\n", block, _entry(name, options, 2), *lines[end + 1 :]]
        )
    indent = value.value[0][0].start_mark.column
    after = _last_line(value) + 1
    return "".join([*lines[:after], _entry(name, options, indent), *lines[after:]])


def _without(text: str, name: str, path: Path) -> str:
    """The text without an entry."""
    place = _place_of_agents(text)
    assert place is not None
    key, value = place
    lines = text.splitlines(keepends=True)
    if value.flow_style or len(value.value) == 1:
        kept = {k: v for k, v in _agents(text, path).items() if k != name}
        block = "".join(_entry(each, kept[each], 2) for each in kept)
        written = [f"{KEY}:\n", block] if kept else []
        start, end = key.start_mark.line, _last_line(value)
        return "".join([*lines[:start], *written, *lines[end + 1 :]])
    for entry, content in value.value:
        if entry.value == name:
            end = max(entry.end_mark.line, _last_line(content))
            return "".join([*lines[: entry.start_mark.line], *lines[end + 1 :]])
    return text


def _place_of_agents(text: str) -> tuple[Any, Any] | None:
    """The nodes of the key `agents` and of its value."""
    import yaml

    loader: Any = yaml.SafeLoader(text)
    try:
        root: Any = loader.get_single_node()
    finally:
        loader.dispose()
    pairs: list[tuple[Any, Any]] = [] if root is None else root.value
    return next((pair for pair in pairs if pair[0].value == KEY), None)


def _last_line(node: Any) -> int:
    """The last line with content of a node; its own end mark lies beyond comments after it."""
    import yaml

    if isinstance(node, yaml.ScalarNode) or node.flow_style:
        mark = node.end_mark
        return mark.line - 1 if mark.column == 0 and mark.line > node.start_mark.line else mark.line
    inner = [_last_line(part) for item in node.value for part in _parts(item)]
    return max(inner, default=node.start_mark.line)


def _parts(item: Any) -> tuple[Any, ...]:
    return cast("tuple[Any, ...]", item) if isinstance(item, tuple) else (item,)


def _entry(name: str, options: Any, indent: int) -> str:
    import yaml

    block = yaml.safe_dump({name: options}, sort_keys=False, allow_unicode=True, width=100)
    return "".join(f"{' ' * indent}{line}" for line in block.splitlines(keepends=True))


def _write(path: Path, text: str, agents: Mapping[str, Any]) -> None:
    """Replace the file, once its text is known to say what it should."""
    import yaml

    before = _loaded(path.read_text(encoding="utf-8"), path) if path.is_file() else {}
    try:
        after = _loaded(text, path)
    except ProctorError:
        after = None
    wanted = {**before, KEY: dict(agents)}
    if after is None or {**after, KEY: after.get(KEY) or {}} != wanted:
        lines = yaml.safe_dump({KEY: dict(agents)}, sort_keys=False, allow_unicode=True)
        raise ProctorError(
            "this file cannot be edited without changing more of it",
            where=str(path),
            hint=f"write it by hand:\n{lines}",
        )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, text.encode())
    except OSError as error:
        raise ProctorError(f"cannot be written: {error.strerror}", where=str(path)) from None
