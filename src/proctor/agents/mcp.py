"""MCP servers: tools of chat agents, and servers as the thing under test (`kind: mcp`).

    agent:
      kind: chat
      model: openai:gpt-4o-mini
      mcp_servers:
        shop: {command: [python, shop_server.py]}
        wiki: {url: "https://example.com/mcp"}

Guarantees: each trial has connections of its own, and a server that Proctor started ends with the
trial, including everything it started. A tool's error goes to the model; a server that cannot be
started, or goes away, is infrastructure. Listings and results are recorded in the cassette, so a
replay starts no server. Trade-off: a program is started for every trial.

`lint_tools` finds what makes a model choose or call a tool wrongly, and `probe` how a server takes
wrong calls.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
import re
import secrets
import tempfile
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Self, cast
from urllib.parse import urlsplit

import msgspec
from pydantic import Field, model_validator

from proctor.agents._chat_tools import LoadedTool, ToolConfig, ToolError
from proctor.agents._process import MARK, MAX_STDERR, end_marked, file_beside, need_program
from proctor.agents.base import (
    AGENT_ERROR,
    AgentConfig,
    AgentError,
    AgentReply,
    AgentRequest,
    CommandLine,
    as_reply,
)
from proctor.background import threads
from proctor.formatting import last_line
from proctor.imports import absent_extra
from proctor.llm.cassette import active_cassette, recorded_request
from proctor.llm.chat_model import ToolSpec
from proctor.llm.http_hook import MISS_STATUS, bypass
from proctor.llm.rate_limits import Waits
from proctor.sanitize import printable
from proctor.strict import Strict
from proctor.trace import otel
from proctor.trace.capture import capture
from proctor.trace.model import Observable

if TYPE_CHECKING:
    from proctor.agents.session import AgentSession

MAX_PAGES = 100
"""Pages of a listing that are read; a server with more is in a loop."""

NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""Names of tools that all providers accept."""


class McpServer(Strict):
    """How to reach an MCP server: a program on standard input and output, or an address."""

    command: CommandLine = Field(default_factory=list[str])
    """Program and arguments, started for each trial; `{workspace}` is the trial's folder."""
    env: dict[str, str] = Field(default_factory=dict[str, str])
    """Environment variables; of Proctor's own it gets only PATH, HOME and the like."""
    url: str | None = None
    """Address of a server that speaks streamable HTTP."""
    headers: dict[str, str] = Field(default_factory=dict[str, str])
    """Headers for the address; write keys as `${NAME}` so that they stay in the environment."""
    start_timeout: Annotated[float, Field(gt=0)] = 60.0
    """Seconds until it must have listed its tools."""

    @model_validator(mode="after")
    def _one_transport(self) -> Self:
        if bool(self.command) == (self.url is not None):
            raise ValueError("an MCP server has either a command or a url")
        if self.url is not None and (
            urlsplit(self.url).scheme not in ("http", "https") or not urlsplit(self.url).hostname
        ):
            raise ValueError(f"{self.url!r} is not an http or https address")
        return self

    def check_program(self, base_dir: Path | None) -> None:
        """Raise if the package or the program is missing; nothing is started."""
        _package()
        if self.command:
            need_program(self.command[0], base_dir)


class McpToolServer(McpServer):
    """An MCP server whose tools a chat agent may call."""

    tools: list[str] | None = None
    """The tools to offer; default: all."""
    prefix: str = Field(default="", pattern=r"^[A-Za-z0-9_-]*$")
    """Put before the names of its tools, where two servers have tools of one name."""
    approval: bool = False
    """Whether each call needs the approval of the case's approver (`approvals:`)."""


def _package() -> Any:
    try:
        import mcp
    except ImportError:
        raise absent_extra("an MCP server", "mcp", AgentError) from None
    return mcp


# -- one connection --------------------------------------------------------------------------------


class McpError(AgentError):
    """Raised when an MCP server cannot be started, or has gone away."""


class McpConnection:
    """The connection of one trial to one server, with the server's process if it is a program."""

    def __init__(
        self, name: str, server: McpServer, base_dir: Path | None, workdir: Path | None
    ) -> None:
        self.name = name
        self.server = server
        self.tools: list[dict[str, Any]] = []
        """The tools as the server describes them: `name`, `description`, `inputSchema`, …"""
        self._base_dir = base_dir
        self._workdir = workdir
        self._mark = secrets.token_hex(16)
        # The client's tasks see neither the trial's capture, since the package traces messages of
        # its own, nor its cassette, which holds calls of tools and not their transport.
        self._context = contextvars.Context()
        self._context.run(bypass)
        self._client: Any = None
        self._task: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()
        self._errors = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 (until close)
        self._last_line = ""

    async def open(self) -> None:
        """Start the server and read its list of tools."""
        cassette = active_cassette()
        if cassette is None or cassette.mode == "record":
            mcp = await threads.run(_package)
            opened: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            self._task = asyncio.get_running_loop().create_task(
                self._live(mcp, opened), context=self._context
            )
            try:
                async with asyncio.timeout(self.server.start_timeout):
                    # Not the future alone: a task that ended otherwise would never set it.
                    await asyncio.wait({self._task, opened}, return_when="FIRST_COMPLETED")
                    self._client = opened.result()
                    self.tools = await self._exchange("tools/list", {}, self._list)
            except McpError:
                raise
            except BaseException as error:
                await self.close(kill=True)
                if opened.done():
                    opened.exception()  # or else asyncio reports that nothing has read it
                if not isinstance(error, Exception):
                    raise
                late = isinstance(error, TimeoutError)
                why = f"no answer within {self.server.start_timeout:g} s" if late else error
                raise self._gone("cannot be used", why) from None
        else:
            self.tools = await self._exchange("tools/list", {}, self._list)

    async def _live(self, mcp: Any, opened: asyncio.Future[Any]) -> None:
        """Hold the connection open until it is closed: the package's scopes belong to one task."""
        try:
            async with contextlib.AsyncExitStack() as stack:
                transport: Any
                if self.server.url is not None:
                    from mcp.client.streamable_http import streamable_http_client
                    from mcp.shared._httpx_utils import create_mcp_http_client

                    http = create_mcp_http_client(headers=self.server.headers or None)
                    await stack.enter_async_context(http)
                    transport = streamable_http_client(self.server.url, http_client=http)
                else:
                    transport = mcp.stdio_client(self._parameters(mcp), errlog=self._errors)
                client = await stack.enter_async_context(mcp.Client(transport))
                opened.set_result(client)
                await self._closing.wait()
        except BaseException as error:
            if not opened.done():
                opened.set_exception(
                    _first(error) if isinstance(error, Exception) else McpError("it was stopped")
                )
            elif not isinstance(error, Exception):
                raise

    def _parameters(self, mcp: Any) -> Any:
        from proctor.agents._otlp_receiver import shared_receiver

        place = str(self._workdir or self._base_dir or Path.cwd())
        words = [each.replace("{workspace}", place) for each in self.server.command]
        # It runs elsewhere: names of files in the suite's folder become full paths.
        words = [str(file_beside(self._base_dir, each) or each) for each in words]
        own = {key: value.replace("{workspace}", place) for key, value in self.server.env.items()}
        env = {**shared_receiver().environment(), **own, MARK: self._mark}
        return mcp.StdioServerParameters(command=words[0], args=words[1:], env=env, cwd=place)

    async def _list(self) -> Any:
        found: list[Any] = []
        cursor: str | None = None
        for _ in range(MAX_PAGES):
            page = await self._client.list_tools(cursor=cursor)
            found += page.tools
            cursor = page.next_cursor
            if cursor is None:
                break
        return [each.model_dump(mode="json", by_alias=True, exclude_none=True) for each in found]

    async def call(self, tool: str, arguments: Any) -> Any:
        """Return the result of a tool; `ToolError` if the server says it failed."""
        parent = otel.traceparent()
        meta = {"traceparent": parent} if parent else None

        async def send() -> Any:
            result = await self._client.call_tool(tool, arguments, meta=meta)
            return result.model_dump(mode="json", by_alias=True, exclude_none=True)

        params = {"name": tool, "arguments": arguments}
        result = await self._exchange("tools/call", params, send)
        content = _content(result)
        if result.get("isError"):
            raise ToolError(content if isinstance(content, str) else str(content))
        return content

    async def _exchange(self, method: str, params: Any, send: Any) -> Any:
        """Return the recorded result of a request, or send it and record the result.

        An error of the server is a result as well: `{"isError": true, "content": […]}`.
        """
        cassette = active_cassette()
        request, recorded = None, None
        if cassette is not None:
            body = msgspec.json.encode(params, enc_hook=str)
            where = f"mcp://{self.name}/{method}"
            request = recorded_request("MCP", where, body, cassette.redactor)
            if cassette.mode == "replay":
                recorded = cassette.play(request)
                if recorded.status == MISS_STATUS:
                    raise self._gone("has no recorded answer", method)
                return recorded.json
        from mcp.shared.exceptions import MCPError
        from mcp_types import CONNECTION_CLOSED

        loop = asyncio.get_running_loop()
        try:
            result = await loop.create_task(send(), context=self._context)
        except MCPError as error:
            if error.error.code == CONNECTION_CLOSED:
                raise self._gone("has gone away", error) from None
            if method == "tools/list":
                raise self._gone("cannot list its tools", error) from None
            text = f"{error.error.message} ({error.error.code})"
            result = {"isError": True, "content": [{"type": "text", "text": text}]}
        except Exception as error:  # noqa: BLE001 (transports and validators raise anything)
            raise self._gone("has gone away", _first(error)) from None
        if cassette is not None and request is not None:
            cassette.listener(request)(200, "application/json", msgspec.json.encode(result))
        return result

    def _gone(self, what: str, why: object) -> McpError:
        """Return the error, with the last line that the server wrote to standard error."""
        parts = [str(why) or type(why).__name__, self._last_line or self._read_last_line()]
        text = printable("; ".join(filter(None, parts)))
        # Not the agent's: its tools are missing.
        return McpError(f"the MCP server {self.name!r} {what}: {text}", category="")

    def _read_last_line(self) -> str:
        if self._errors.closed:
            return ""
        end = self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, end - MAX_STDERR))
        return last_line(self._errors.read())

    async def close(self, *, kill: bool = False) -> None:
        """Close the connection and end the server's processes, at once if `kill`."""
        self._closing.set()
        try:
            if kill and self.server.command:
                await threads.run(end_marked, self._mark)
            if self._task is not None:
                if kill and self._client is None:
                    self._task.cancel()  # it waits for a server that does not answer
                await asyncio.wait({self._task})
        finally:
            # Also what the server left behind, in sessions of its own.
            if self.server.command and self._task is not None:
                await threads.run(end_marked, self._mark)
            self._last_line = self._read_last_line()
            self._errors.close()


def _first(error: BaseException) -> BaseException:
    """Return the reason within the groups of errors that task groups raise."""
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    return error


def _content(result: Mapping[str, Any]) -> Any:
    """Return a result as text; what is no text is named, and structure is for want of text."""
    parts: list[str] = []
    for block in result.get("content") or ():
        inner = block.get("resource") or block
        if isinstance(inner.get("text"), str):
            parts.append(inner["text"])
        elif "uri" in inner and "blob" not in inner:
            parts.append(f"[{inner.get('name') or 'resource'}: {inner['uri']}]")
        else:
            data = inner.get("data") or inner.get("blob") or ""
            kind = inner.get("mimeType") or block.get("type") or "data"
            parts.append(f"[{kind}, {len(data) * 3 // 4:,} bytes]")
    if not parts and result.get("structuredContent") is not None:
        return result["structuredContent"]
    return "\n".join(parts)


@contextlib.asynccontextmanager
async def connections(
    servers: Mapping[str, McpServer], base_dir: Path | None, request: AgentRequest
) -> AsyncGenerator[list[McpConnection]]:
    """Yield open connections to servers; starting and stopping them is not the agent's time."""
    waits = request.startup or Waits()
    made = [
        McpConnection(name, server, base_dir, request.workspace or request.workdir)
        for name, server in servers.items()
    ]
    kill = True
    try:
        with waits:
            for each in made:
                await each.open()
        yield made
        kill = False
    finally:
        with waits:
            # Together: if this is cancelled, every one of them still ends its processes.
            await asyncio.gather(*(each.close(kill=kill) for each in made))


# -- tools of chat agents --------------------------------------------------------------------------


class McpTool(LoadedTool):
    """A tool of a server, as a chat agent calls it. The server judges the arguments."""

    def __init__(self, connection: McpConnection, tool: Mapping[str, Any]) -> None:
        server = cast("McpToolServer", connection.server)
        # Providers accept fewer names than MCP does, which allows dots and slashes.
        name = re.sub(r"[^A-Za-z0-9_-]", "_", server.prefix + tool["name"])[:64]
        schema: dict[str, Any] = {"properties": {}, **tool["inputSchema"]}
        config = ToolConfig.model_construct(name=name, approval=server.approval)
        spec = ToolSpec(name, tool.get("description") or "", schema)
        super().__init__(spec, config, connection)
        self._tool = str(tool["name"])

    def accept(self, arguments: Any) -> dict[str, Any]:
        """Return the arguments if they are an object."""
        if not isinstance(arguments := {} if arguments is None else arguments, dict):
            raise ToolError("the arguments are not a JSON object")
        return cast("dict[str, Any]", arguments)

    async def _call_function(self, arguments: dict[str, Any], session: AgentSession | None) -> Any:
        return await cast("McpConnection", self.function).call(self._tool, arguments)


def with_mcp_tools(own: Sequence[LoadedTool], opened: Sequence[McpConnection]) -> list[LoadedTool]:
    """Return an agent's tools with those of its servers; an own tool of a name replaces theirs.

    A mock without description and parameters takes those of the tool it replaces.
    """
    by_name = {tool.spec.name: tool for tool in own}
    origin: dict[str, str] = {}
    for connection in opened:
        wanted = cast("McpToolServer", connection.server).tools
        names = [tool["name"] for tool in connection.tools]
        if missing := [name for name in wanted or () if name not in names]:
            raise AgentError(
                f"the MCP server {connection.name!r} has no tool {missing[0]!r}",
                category="",
                hint=f"it has {', '.join(names) or 'none'}",
            )
        for tool in connection.tools:
            if wanted is not None and tool["name"] not in wanted:
                continue
            made = McpTool(connection, tool)
            name = made.spec.name
            if name in origin:
                raise AgentError(
                    f"the MCP servers {origin[name]!r} and {connection.name!r} both have a tool "
                    f"{name!r}",
                    category="",
                    hint="give one of them a `prefix`, or list the `tools` to offer",
                )
            origin[name] = connection.name
            mock = by_name.get(name)
            if mock is None:
                by_name[name] = made
            elif mock.function is None:
                spec = ToolSpec(
                    name,
                    mock.spec.description or made.spec.description,
                    mock.config.parameters or made.spec.schema,
                )
                by_name[name] = LoadedTool(spec, mock.config, None)
    return list(by_name.values())


# -- servers under test ----------------------------------------------------------------------------


class McpCall(Strict):
    """One call of a tool: the input of a case for an agent of kind mcp."""

    tool: str = Field(min_length=1)
    arguments: dict[str, Any] = Field(default_factory=dict[str, Any])


class McpAgentConfig(McpServer, AgentConfig):
    """An MCP server under test: a case calls its tools, or lints their descriptions.

    The input is `{tool, arguments}`, a list of such calls in one connection, or `lint`. The answer
    is the last result as text, `error: …` for one that failed; for `lint` the findings, one per
    line, so that a server without any has an empty answer.
    """

    kind: Literal["mcp"] = "mcp"  # pyright: ignore[reportIncompatibleVariableOverride]
    base_dir: Path | None = Field(default=None, exclude=True)
    """Base folder of relative program paths: the suite's folder."""

    @property
    def observes(self) -> tuple[Observable, ...]:
        """Return the calls of tools, which are ours."""
        return ("tool_calls", "arguments")

    def version(self) -> dict[str, Any]:
        """Return the command line or the address."""
        return {"command": self.command} if self.command else {"url": self.url}

    def check(self) -> None:
        """Raise if the package or the program is missing; nothing is started."""
        self.check_program(self.base_dir)

    async def run(self, request: AgentRequest) -> AgentReply:
        """Start the server, make the calls and return the last result."""
        given = request.input
        calls: list[McpCall] = []
        if given != "lint":
            from proctor.strict import read_strict

            several = cast("list[Any]", given if isinstance(given, list) else [given])
            calls = [
                read_strict(McpCall, each, "the input of an agent of kind mcp") for each in several
            ]
        async with connections({"server": self}, self.base_dir, request) as (connection,):
            if given == "lint":
                found = lint_tools(connection.tools)
                lines = [str(each) for each in found]
                return AgentReply("\n".join(lines), output=[each._asdict() for each in found])
            answer: Any = ""
            failed = 0
            for number, call in enumerate(calls):
                try:
                    with capture.tool_call(call.tool, call.arguments, call_id=str(number)) as step:
                        step.tool_output = answer = await connection.call(call.tool, call.arguments)
                except ToolError as error:
                    answer, failed = f"error: {error}", failed + 1
                except McpError as error:
                    # It was there, and what it did with a call is what is tested.
                    raise AgentError(error.message, category=AGENT_ERROR) from error
        reply = as_reply(answer)
        reply.metadata = {"failed_calls": failed}
        return reply


class McpFinding(NamedTuple):
    """A problem of a server: an error breaks calls, a warning makes wrong ones likely."""

    level: Literal["error", "warning"]
    tool: str
    message: str

    def __str__(self) -> str:
        place = f"{self.tool}: " if self.tool else ""
        return f"{self.level}: {printable(place + self.message)}"


MAX_TOOLS = 128
"""Tools that OpenAI accepts in one request."""

MAX_DESCRIPTION = 1024
"""Characters of a description that OpenAI accepts."""

# Invisible characters hide instructions from people who review a description.
_HIDDEN = re.compile(r"[\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufeff\U000e0000-\U000e007f]")

_SHAPES = ("type", "enum", "const", "anyOf", "oneOf", "allOf", "$ref", "not", "if")


def lint_tools(tools: Sequence[Mapping[str, Any]]) -> list[McpFinding]:
    """Return what is wrong with the descriptions and schemas of a server's tools."""
    found: list[McpFinding] = []
    names: dict[str, str] = {}
    texts: dict[str, str] = {}
    if len(tools) > MAX_TOOLS:
        found.append(
            McpFinding("error", "", f"{len(tools)} tools; OpenAI accepts {MAX_TOOLS} at most")
        )
    for tool in tools:
        name, text = str(tool.get("name", "")), str(tool.get("description") or "").strip()

        def add(level: Literal["error", "warning"], message: str, name: str = name) -> None:
            found.append(McpFinding(level, name, message))

        if not NAME.fullmatch(name):
            add("error", "providers accept names of 1 to 64 letters, digits, _ and - only")
        plain = re.sub(r"[^a-z0-9]", "", name.lower())
        if (other := names.get(plain)) is not None:
            same = other == name
            add(
                "error" if same else "warning",
                "another tool has this name" if same else f"only its spelling differs from {other}",
            )
        names.setdefault(plain, name)
        if not text:
            add("error", "no description")
        elif re.sub(r"[^a-z0-9]", "", text.lower()) == plain or len(text.split()) < 3:
            add("warning", f"the description says no more than the name: {text!r}")
        elif (other := texts.setdefault(" ".join(text.lower().split()), name)) != name:
            add("warning", f"same description as {other}: a model cannot choose between them")
        if len(text) > MAX_DESCRIPTION:
            add(
                "warning",
                f"a description of {len(text):,} characters; OpenAI accepts {MAX_DESCRIPTION:,}",
            )
        if _HIDDEN.search(text):
            add("error", "invisible characters in the description")
        hints: dict[str, Any] = tool.get("annotations") or {}
        if hints.get("readOnlyHint") and hints.get("destructiveHint"):
            add("warning", "annotated as read-only and as destructive")
        for message in _schema_errors(tool.get("inputSchema")):
            add("error", f"inputSchema: {message}")
        if tool.get("outputSchema") is not None:
            for message in _schema_errors(tool["outputSchema"]):
                add("error", f"outputSchema: {message}")
        for level, message in _parameter_problems(tool.get("inputSchema")):
            add(level, message)
    return found


def _schema_errors(schema: Any) -> Iterator[str]:
    """Yield why a schema cannot be used."""
    from jsonschema import Draft202012Validator, SchemaError

    if not isinstance(schema, Mapping):
        yield "missing"
        return
    given = cast("Mapping[str, Any]", schema)
    try:
        Draft202012Validator.check_schema(given)
    except SchemaError as error:
        at = ".".join(str(step) for step in error.absolute_path)
        yield f"not a JSON Schema: {at + ': ' if at else ''}{error.message}"
        return
    if given.get("type") != "object":
        yield f"its type is {given.get('type')!r}, not 'object'"
    for ref in _references(given):
        target: Any = given
        steps = ref.removeprefix("#/").split("/") if ref.startswith("#/") else []
        for step in steps:
            key = step.replace("~1", "/").replace("~0", "~")
            target = (
                cast("Mapping[str, Any]", target).get(key) if isinstance(target, Mapping) else None
            )
        if ref != "#" and (not steps or target is None):
            yield f"$ref {ref!r} leads nowhere"


def _references(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        inner = cast("Mapping[str, Any]", value)
        if isinstance(inner.get("$ref"), str):
            yield inner["$ref"]
        for each in inner.values():
            yield from _references(each)
    elif isinstance(value, list):
        for each in cast("list[Any]", value):
            yield from _references(each)


def _parameter_problems(schema: Any) -> Iterator[tuple[Literal["error", "warning"], str]]:
    """Yield what is missing or ambiguous in the parameters of a tool."""
    from jsonschema import Draft202012Validator, SchemaError

    if not isinstance(schema, Mapping):
        return
    given = cast("Mapping[str, Any]", schema)
    properties = given.get("properties")
    if not isinstance(properties, Mapping):
        properties = {}
    parameters = cast("Mapping[str, Any]", properties)
    required = given.get("required")
    needed: list[Any] = cast("list[Any]", required) if isinstance(required, list) else []
    for name in needed:
        if name not in parameters:
            yield "error", f"requires {name!r}, which is not among its parameters"
    spelled: dict[str, str] = {}
    for name, described in parameters.items():
        if not isinstance(described, Mapping):
            continue
        about = cast("Mapping[str, Any]", described)
        other = spelled.setdefault(re.sub(r"[^a-z0-9]", "", name.lower()), name)
        if other != name:
            yield "warning", f"only the spelling of {name!r} and {other!r} differs"
        if not str(about.get("description") or "").strip() and "$ref" not in about:
            yield "warning", f"parameter {name!r} has no description"
        if not any(key in about for key in _SHAPES):
            yield "warning", f"parameter {name!r} has no type"
        if about.get("type") == "object" and not any(
            key in about for key in ("properties", "additionalProperties", "patternProperties")
        ):
            yield "warning", f"parameter {name!r} is an object without properties"
        if about.get("type") == "array" and not any(
            key in about for key in ("items", "prefixItems")
        ):
            yield "warning", f"parameter {name!r} is a list of anything"
        if name in needed and "default" in about:
            yield "warning", f"parameter {name!r} is required and has a default"
        if any(_references(about)):
            continue
        samples = [("default", about["default"])] if "default" in about else []
        if isinstance(about.get("enum"), list):
            samples += [("enum value", each) for each in about["enum"]]
        for what, value in samples:
            with contextlib.suppress(SchemaError):
                if not cast("Any", Draft202012Validator(about)).is_valid(value):
                    yield "error", f"{what} {value!r} of {name!r} is not valid by its own schema"


# A value that no schema of the type accepts.
_WRONG: dict[str, Any] = {
    "string": {"wrong": 1},
    "integer": "wrong",
    "number": "wrong",
    "boolean": "wrong",
    "array": "wrong",
    "object": "wrong",
}


async def probe(connection: McpConnection) -> list[McpFinding]:
    """Return how a server takes wrong calls: each must be an error that says what is wrong.

    Only invalid calls are made, which a server that checks its arguments does not carry out.
    """
    found: list[McpFinding] = []
    absent = "proctor_no_such_tool"
    attempts: list[tuple[str, str, str, dict[str, Any]]] = [
        (absent, absent, "a tool that does not exist", {})
    ]
    for tool in connection.tools:
        schema = cast("dict[str, Any]", tool.get("inputSchema") or {})
        name = str(tool["name"])
        if required := schema.get("required"):
            attempts.append((name, required[0], f"no {required[0]!r}", {}))
        for parameter, about in cast("dict[str, Any]", schema.get("properties") or {}).items():
            kind = cast("dict[str, Any]", about).get("type") if isinstance(about, dict) else None
            if (wrong := _WRONG.get(str(kind))) is not None:
                what = f"{wrong!r} for {parameter!r}"
                attempts.append((name, parameter, what, {parameter: wrong}))
                break
    for name, culprit, what, arguments in attempts:
        label = "" if name == absent else name
        try:
            await connection.call(name, arguments)
        except ToolError as error:
            said = str(error)
            if not said.strip():
                found.append(McpFinding("warning", label, f"the error for {what} has no text"))
            elif culprit not in said:
                text = f"the error for {what} does not name it: {said[:200]}"
                found.append(McpFinding("warning", label, text))
        except McpError as error:
            found.append(McpFinding("error", label, f"does not survive {what}: {error.message}"))
            break
        else:
            found.append(McpFinding("error", label, f"accepts {what}"))
    return found
