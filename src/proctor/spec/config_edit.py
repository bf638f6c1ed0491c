"""Add agents to a settings file and remove them, keeping the user's comments and order.

Only the lines of one entry change: YAML's own parser says where they are. The new text is parsed
before it replaces the file, so a file that cannot be edited this way (an anchor that another key
uses, two documents) stays as it was, and the error shows the lines to write by hand.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from proctor.errors import ProctorError, did_you_mean
from proctor.files import load_yaml, write_atomic
from proctor.trace.redact import Redactor

KEY = "agents"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
_REFERENCE = re.compile(r"\$\{\w+(:-[^}]*)?\}")
_SCHEMES = frozenset({"", "bearer", "basic", "token"})


def add_agent(path: Path, name: str, options: Mapping[str, Any], *, replace: bool = False) -> None:
    """Write an agent into a settings file, which is created if it does not exist."""
    if not _NAME.fullmatch(name):
        raise ProctorError(
            f"{name!r} cannot be an agent's name", hint="letters, digits, `-`, `_` and `.`"
        )
    # Settings files are committed: a key must not get into one.
    refuse_secrets(options)
    text = _read(path)
    if name in _agents(text, path) and not replace:
        raise ProctorError(
            f"there is an agent {name!r} already", where=str(path), hint="--replace it"
        )
    _edit(path, text, name, dict(options))


def remove_agent(path: Path, name: str) -> None:
    """Remove an agent from a settings file."""
    text = _read(path)
    agents = _agents(text, path)
    if name not in agents:
        raise ProctorError(
            f"there is no agent {name!r} in it", where=str(path), hint=did_you_mean(name, agents)
        )
    _edit(path, text, name, None)


def refuse_secrets(options: Mapping[str, Any]) -> None:
    """Raise when a value looks like a key; references such as `${NAME}` are not keys."""
    redactor = Redactor()
    for where, key, value in _texts(options, ""):
        # `Bearer ${NAME}` holds no secret: what is left is the scheme.
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


def _texts(value: Any, where: str) -> Iterator[tuple[str, str, str]]:
    """Yield every text in the options: its dotted path, its key, the text."""
    if isinstance(value, str):
        yield where, where.rpartition(".")[2], value
    elif isinstance(value, Mapping):
        for key, inner in cast("Mapping[Any, Any]", value).items():
            yield from _texts(inner, f"{where}.{key}" if where else str(key))
    elif isinstance(value, list):
        for position, inner in enumerate(cast("list[Any]", value)):
            yield from _texts(inner, f"{where}.{position}")


def _read(path: Path) -> str:
    # Bytes, because read_text would convert Windows line endings.
    return path.read_bytes().decode("utf-8") if path.is_file() else ""


def _settings(text: str, path: Path) -> dict[str, Any]:
    import yaml

    try:
        document: Any = load_yaml(text)
    except yaml.YAMLError as error:
        first = str(error).splitlines()[0]
        raise ProctorError(f"cannot be read: {first}", where=str(path)) from None
    if document is not None and not isinstance(document, dict):
        raise ProctorError("settings are a mapping of names to values", where=str(path))
    return cast("dict[str, Any]", document or {})


def _agents(text: str, path: Path) -> dict[str, Any]:
    found = _settings(text, path).get(KEY)
    if found is not None and not isinstance(found, dict):
        raise ProctorError("`agents` is not a mapping of names to agents", where=str(path))
    return dict(cast("dict[str, Any]", found or {}))


def _edit(path: Path, text: str, name: str, options: dict[str, Any] | None) -> None:
    """Write or (without options) remove one agent, once the new text says exactly that."""
    import yaml

    agents = {key: value for key, value in _agents(text, path).items() if key != name}
    if options is not None:
        agents[name] = options
    edited = _edited_text(text, name, options, agents)
    try:
        found = _settings(edited, path)
    except ProctorError:
        found = {}
    # Parsed and compared before anything is written: the edit must change this entry only.
    if {**found, KEY: found.get(KEY) or {}} != {**_settings(text, path), KEY: agents}:
        lines = yaml.safe_dump({KEY: agents}, sort_keys=False, allow_unicode=True)
        raise ProctorError(
            "this file cannot be edited without changing more of it",
            where=str(path),
            hint=f"write it by hand:\n{lines}",
        )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, edited.encode())
    except OSError as error:
        raise ProctorError(f"cannot be written: {error.strerror}", where=str(path)) from None


def _edited_text(
    text: str, name: str, options: dict[str, Any] | None, agents: Mapping[str, Any]
) -> str:
    import yaml

    # Entries are inserted as whole lines.
    if text and not text.endswith("\n"):
        text += "\n"
    root = cast("Any", yaml).compose(text, Loader=yaml.SafeLoader)
    pairs: list[tuple[Any, Any]] = [] if root is None else root.value
    place = next((pair for pair in pairs if pair[0].value == KEY), None)
    if place is None:
        return f"{text}\n{_block(agents)}" if text else _block(agents)
    key, value = place
    start, end = _line_start(text, key), max(_end(text, key), _end(text, value))
    if not agents or not isinstance(value, yaml.MappingNode) or value.flow_style or not value.value:
        # Empty, `agents: {}` or all on one line: the whole key is rewritten.
        return text[:start] + (_block(agents) if agents else "") + text[end:]
    entry = "" if options is None else _block({name: options}, value.value[0][0].start_mark.column)
    for entry_key, content in value.value:
        if entry_key.value == name:
            start = _line_start(text, entry_key)
            return text[:start] + entry + text[max(_end(text, entry_key), _end(text, content)) :]
    return text[:end] + entry + text[end:]


def _block(agents: Mapping[str, Any], indent: int = 0) -> str:
    import yaml

    document = dict(agents) if indent else {KEY: dict(agents)}
    block = yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=100)
    return "".join(f"{' ' * indent}{line}" for line in block.splitlines(keepends=True))


def _line_start(text: str, node: Any) -> int:
    return text.rfind("\n", 0, node.start_mark.index) + 1


def _end(text: str, node: Any) -> int:
    """Return where the last line with content of a node ends.

    The end mark of a block lies beyond the comments that follow it, which belong to what is next.
    """
    import yaml

    if not isinstance(node, yaml.ScalarNode) and not node.flow_style and node.value:
        pairs = node.value if isinstance(node, yaml.MappingNode) else [node.value]
        return max(_end(text, part) for pair in pairs for part in pair)
    index = node.end_mark.index
    if node.end_mark.column == 0 and index > node.start_mark.index:
        return index  # a text of several lines ends with its last line break
    line_end = text.find("\n", index)
    return len(text) if line_end < 0 else line_end + 1
