"""What belongs to one conversation of an agent: its memory, the data of its tools, approvals.

A session belongs to one trial: it is created before the first turn and closed after the last, so
nothing in it reaches another trial. Single questions have none, unless their tools have a state.
"""

from __future__ import annotations

import contextlib
import copy
import sqlite3
import threading
from collections.abc import Awaitable, Callable, Generator, Mapping
from dataclasses import is_dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, cast

import msgspec
from pydantic import Field, model_validator

from proctor.errors import ProctorError
from proctor.imports import load_module, load_object
from proctor.sanitize import json_value
from proctor.strict import Strict
from proctor.trace import SpanKind
from proctor.trace.capture import span

APPROVAL_TOOL, APPROVED = "proctor.approval.tool", "proctor.approved"
"""Attributes of the span of a request for approval: the tool, and the answer."""

DATABASES = (".sqlite", ".sqlite3", ".db", ".sql")


# -- the data that tools read and write ----------------------------------------------------------


class GoldCall(Strict):
    """One call of a tool in the sequence that solves a task."""

    tool: str = Field(min_length=1)
    arguments: dict[str, Any] = Field(default_factory=dict[str, Any])


class StateConfig(Strict):
    """The data that the tools of a trial share, created for each trial.

    One of `document`, `file`, `sql` and `python` says what it is.
    """

    document: Any = None
    """A JSON document: tools get it as the mutable `state`."""
    file: str | None = Field(default=None, min_length=1)
    """A file beside the suite: JSON for a document; .sqlite, .db or .sql for a database."""
    sql: str | None = Field(default=None, min_length=1)
    """Statements that create a SQLite database: tools get a connection as `state`."""
    python: str | None = Field(default=None, min_length=1)
    """`module:factory`: called for each trial, tools get what it returns."""
    tools: str | None = Field(default=None, min_length=1)
    """Module with the functions of `gold`, one per tool: `tool(state, **arguments)`."""

    @model_validator(mode="after")
    def _one_source(self) -> StateConfig:
        kinds = ("document", "file", "sql", "python")
        given = [kind for kind in kinds if getattr(self, kind) is not None]
        if len(given) > 1:
            raise ValueError(f"a state has one source, not both {' and '.join(given)}")
        return self

    def create(self, folder: Path | None) -> ToolState:
        """Return a new state; `folder` is the base of its file and import path."""
        if self.python is not None:
            made = load_object(self.python, folder)
            return ToolState(made() if callable(made) else copy.deepcopy(made))
        if self.file is None:
            if self.sql is not None:
                return ToolState(_database(script=self.sql))
            return ToolState({} if self.document is None else copy.deepcopy(self.document))
        path = (folder or Path()) / self.file
        try:
            if path.suffix == ".sql":
                return ToolState(_database(script=path.read_text(encoding="utf-8")))
            if path.suffix in DATABASES:
                return ToolState(_database(source=path))
            return ToolState(msgspec.json.decode(path.read_bytes()))
        except (OSError, ValueError, RecursionError) as error:
            raise ProctorError(f"the state cannot be read: {error}", where=str(path)) from None

    def play(self, calls: tuple[GoldCall, ...], folder: Path | None) -> Any:
        """Return the final state, as JSON, after these calls on a new one."""
        if self.tools is None:
            raise ProctorError(
                "`gold` needs the functions of the tools", hint="add `tools: MODULE` to the state"
            )
        module = load_module(self.tools, folder)
        state = self.create(folder)
        for call in calls:
            function = getattr(module, call.tool, None)
            if not callable(function):
                raise ProctorError(f"{self.tools} has no tool {call.tool!r}")
            with state.opened() as value:
                function(state=value, **call.arguments)
        return state.snapshot()


def _database(*, script: str = "", source: Path | None = None) -> sqlite3.Connection:
    """Return a database in memory: nothing is left behind, and no trial sees another's."""
    # Tools run in threads, one at a time (see `ToolState.opened`).
    made = sqlite3.connect(":memory:", check_same_thread=False)
    try:
        if source is None:
            made.executescript(script)
        else:
            if not source.is_file():
                raise ProctorError("there is no such file", where=str(source))
            with contextlib.closing(
                sqlite3.connect(f"{source.resolve().as_uri()}?mode=ro", uri=True)
            ) as given:
                given.backup(made)
    except sqlite3.Error as error:
        made.close()
        raise ProctorError(
            f"the database cannot be read: {error}", where=None if source is None else str(source)
        ) from None
    return made


class ToolState:
    """The data of one trial's tools."""

    def __init__(self, value: Any) -> None:
        self.value = value
        """A JSON document, a `sqlite3.Connection`, or an object of the user."""
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def opened(self) -> Generator[Any]:
        """Yield the value to one call at a time; what a database call leaves open is committed."""
        with self._lock:
            if not isinstance(self.value, sqlite3.Connection):
                yield self.value
                return
            try:
                yield self.value
            except BaseException:
                self.value.rollback()
                raise
            self.value.commit()

    def snapshot(self) -> Any:
        """Return the state as JSON; of a database, every row by table and primary key."""
        if isinstance(self.value, sqlite3.Connection):
            with self._lock:
                return _rows(self.value)
        # A copy: the document goes on changing.
        return msgspec.json.decode(msgspec.json.encode(json_value(_fields(self.value))))

    def schema(self) -> list[str]:
        """Return the statements that create the tables and views of a database, without rows."""
        if not isinstance(self.value, sqlite3.Connection):
            return []
        listed = "select sql from sqlite_master where type in ('table', 'view')"
        real = "name not like 'sqlite_%' and sql not like 'create virtual%'"
        with self._lock:
            return [row[0] for row in self.value.execute(f"{listed} and {real} order by type")]

    def close(self) -> None:
        """Release a database."""
        if isinstance(self.value, sqlite3.Connection):
            self.value.close()


def _fields(value: Any, above: tuple[int, ...] = ()) -> Any:
    """Return an object of the user as its fields, and so the objects in it.

    Their texts may hold addresses of memory, which differ in every trial.
    """
    if id(value) in above:
        return None  # a child that knows its parent
    above = (*above, id(value))
    if isinstance(value, Mapping):
        items = cast("Mapping[Any, Any]", value).items()
        return {key: _fields(each, above) for key, each in items}
    if isinstance(value, list | tuple):
        return [_fields(each, above) for each in cast("list[Any]", value)]
    own_text = type(value).__repr__ is not object.__repr__
    if isinstance(value, type) or (own_text and above[1:] and not is_dataclass(value)):
        return value
    return _fields(vars(value), above) if hasattr(value, "__dict__") else value


def _rows(database: sqlite3.Connection) -> dict[str, dict[str, dict[str, Any]]]:
    tables: dict[str, dict[str, dict[str, Any]]] = {}
    listed = "select name from sqlite_master where type='table' and name not like 'sqlite_%'"
    for (table,) in database.execute(f"{listed} order by name").fetchall():
        about = database.execute(f"pragma table_info({quoted(table)})").fetchall()
        keys = [column[1] for column in sorted(about, key=lambda c: c[5]) if column[5]]
        found = database.execute(f"select * from {quoted(table)}")  # noqa: S608 (a quoted name)
        names = [column[0] for column in found.description]
        rows: dict[str, dict[str, Any]] = {}
        for values in found:
            row = {name: json_value(value) for name, value in zip(names, values, strict=True)}
            # Without a primary key rows have no order: their values tell them apart.
            key = each = "/".join(str(row[name]) for name in keys or names)
            number = 1
            while each in rows:
                number += 1
                each = f"{key} #{number}"
            rows[each] = row
        tables[table] = rows
    return tables


def quoted(name: str) -> str:
    """Return a name as SQL writes it."""
    return '"' + name.replace('"', '""') + '"'


def writes(before: Any, after: Any, path: str = "") -> dict[str, Any]:
    """Return what changed between two states: the new value by dotted path, None if removed."""
    if before == after:
        return {}
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        old, new = cast("Mapping[str, Any]", before), cast("Mapping[str, Any]", after)
        found: dict[str, Any] = {}
        for key in {**old, **new}:
            here = f"{path}.{key}" if path else str(key)
            found |= (
                {here: new.get(key)}
                if key not in old or key not in new
                else writes(old[key], new[key], here)
            )
        return found
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):  # pyright: ignore[reportUnknownArgumentType]
        pairs = zip(cast("list[Any]", before), cast("list[Any]", after), strict=True)
        return {
            key: value
            for index, (old, new) in enumerate(pairs)
            for key, value in writes(old, new, f"{path}.{index}" if path else str(index)).items()
        }
    return {path: after}


# -- approvals -----------------------------------------------------------------------------------


class ApprovalRule(Strict):
    """One answer of the approver."""

    tool: str = Field(default="*", min_length=1)
    """The tool; `*` matches any characters."""
    arguments: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Arguments that must be equal; a call may have others."""
    approve: bool
    reason: str = ""
    """What the agent reads besides yes or no."""


Approver = Callable[[str, Any], Awaitable[tuple[bool, str]]]


class AgentSession:
    """One conversation of an agent."""

    def __init__(
        self, key: str, state: ToolState | None = None, approver: Approver | None = None
    ) -> None:
        self.id = key
        """Unique to the trial: what services and graphs take as the session or thread id."""
        self.state = state
        self.history: list[dict[str, str]] = []
        """The messages so far, without the current one: `role` and `content`."""
        self.memory: dict[str, Any] = {}
        """Where a kind of agent keeps what its next turn needs."""
        self._approver = approver
        self._closers: list[Callable[[], Awaitable[None]]] = []

    async def approve(self, tool: str, arguments: Any) -> tuple[bool, str]:
        """Ask for the approval of a tool call; return the answer and its reason."""
        with span(
            f"approval of {tool}",
            kind=SpanKind.GUARDRAIL,
            input=arguments,
            attributes={APPROVAL_TOOL: tool},
        ) as step:
            if self._approver is None:
                answer = (False, "the case has no approver")
            else:
                answer = await self._approver(tool, arguments)
            step.attributes = {**step.attributes, APPROVED: answer[0]}
            step.output = {"approved": answer[0], "reason": answer[1]}
        return answer

    def on_close(self, closer: Callable[[], Awaitable[None]]) -> None:
        """Call this at the end of the conversation."""
        self._closers.append(closer)

    async def close(self) -> None:
        """End the conversation."""
        for closer in reversed(self._closers):
            # The conversation is over: what fails here must not change its outcome.
            with contextlib.suppress(Exception):
                await closer()
        if self.state is not None:
            self.state.close()


def by_rules(rules: tuple[ApprovalRule, ...], otherwise: Approver | None = None) -> Approver:
    """Return an approver that answers by the first rule that fits; then `otherwise`, else no."""

    async def answer(tool: str, arguments: Any) -> tuple[bool, str]:
        given: Mapping[str, Any] = {}
        if isinstance(arguments, Mapping):
            given = cast("Mapping[str, Any]", arguments)
        for rule in rules:
            if fnmatchcase(tool, rule.tool) and all(
                name in given and given[name] == value for name, value in rule.arguments.items()
            ):
                return rule.approve, rule.reason
        return (False, "no rule approves it") if otherwise is None else await otherwise(tool, given)

    return answer
