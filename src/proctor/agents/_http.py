"""Call an HTTP endpoint: one POST per trial or turn, or one for each step of a long trial.

The body is the input under `input_key` with the trial's metadata next to it (or exactly `body`,
with `{input}`, `{session}` and `{messages}` filled in); a JMESPath expression extracts the answer
from the reply. In a conversation `session` is the same in every turn, and `messages` holds all
turns so far, for services without a memory. A reply of just `{"checkpoint": …}` means that the
trial is unfinished: the state is saved and sent with the next request as `checkpoint` next to the
input, also when a trial is resumed. The header `traceparent` carries the trial's trace: spans that
the service exports to the receiver at `otlp_port` join it.
"""

from __future__ import annotations

import asyncio
import importlib
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from functools import cache
from ssl import SSLContext
from typing import Annotated, Any, Literal, NamedTuple, cast
from urllib.parse import urlsplit

import msgspec
from pydantic import Field, PrivateAttr, field_validator

from proctor.agents.base import (
    AGENT_ERROR,
    TIMEOUT,
    AgentConfig,
    AgentError,
    AgentReply,
    AgentRequest,
    as_reply,
)
from proctor.llm.retry import is_transient_status, parse_retry_after
from proctor.trace import otel

# Key of a state in requests and replies.
CHECKPOINT = "checkpoint"

HTTP_REDIRECT, HTTP_ERROR, HTTP_SERVER_ERROR = 300, 400, 500
MAX_ERROR_TEXT = 300

# Maximum bytes of a reply; a service that sends more is out of control.
MAX_REPLY = 64 * 1024 * 1024

# Common places of an answer in a reply; the first one present wins, even if empty.
ANSWER_PATHS = ("answer", "response", "output", "choices[0].message.content", "text")

# Seconds to wait before the next request when the service returned an unchanged state: it waits
# for something. After a changed state the next request is immediate; `Retry-After` wins over both.
PAUSE = 1.0

# Reply headers that are read.
_READ = ("content-type", "retry-after", "location")


class HttpAgentConfig(AgentConfig):
    """A service that answers a POST."""

    kind: Literal["http"] = "http"
    url: str
    """URL of the endpoint; http or https."""
    headers: dict[str, str] = Field(default_factory=dict)
    """Additional headers; write keys as `${NAME}` so that they stay in the environment."""
    input_key: str = "input"
    """Key of the input in the body."""
    body: dict[str, Any] | None = None
    """Custom body; the texts `{input}`, `{session}` and `{messages}` in it are replaced."""
    answer: str | None = None
    """JMESPath of the answer in a JSON reply; default: the common places."""
    request_timeout: Annotated[float, Field(gt=0)] = 120.0
    """Timeout of one request in seconds."""
    otlp_port: int | None = None
    """Loopback port that receives the service's spans."""

    _sleep: Callable[[float], Awaitable[None]] = PrivateAttr(
        # A factory, since pydantic would bind a function given as the default.
        default_factory=lambda: asyncio.sleep
    )

    @field_validator("url")
    @classmethod
    def _check_url(cls, value: str) -> str:
        if urlsplit(value).scheme not in ("http", "https") or not urlsplit(value).hostname:
            raise ValueError(f"{value!r} is not an http or https address")
        return value

    @field_validator("answer")
    @classmethod
    def _check_expression(cls, value: str | None) -> str | None:
        if value is None:
            return None
        import jmespath
        from jmespath.exceptions import JMESPathError

        try:
            jmespath.compile(value)
        except JMESPathError as error:
            # First line only; the others draw an arrow below the expression.
            reason = str(error).partition(", for expression")[0].splitlines()[0]
            raise ValueError(f"not a JMESPath expression: {reason}") from None
        return value

    @property
    def unsupported(self) -> tuple[str, ...]:
        """Return what only agents in this process can use."""
        return ("state", "approvals")

    def check(self) -> None:
        """Load what the first request needs."""
        importlib.import_module("jmespath")
        _tls()

    def version(self) -> dict[str, Any]:
        """Return the host only: the full URL may contain a key."""
        return {"host": urlsplit(self.url).hostname}

    async def run(self, request: AgentRequest) -> AgentReply:
        """Post the input and return the answer; states saved on the way survive a crash."""
        import httpx

        steps = self.body is None  # a custom body has no place for a state
        state = await asyncio.to_thread(request.checkpoint.load) if steps else None
        if self.otlp_port is not None:
            from proctor.agents._otlp_receiver import shared_receiver

            shared_receiver(self.otlp_port)
        # The W3C header, which instrumented services continue.
        parent = otel.traceparent()
        headers = {**self.headers, **({"traceparent": parent} if parent else {})}
        # A client of its own, so that cookies are not shared between trials.
        async with httpx.AsyncClient(timeout=self.request_timeout, verify=_tls()) as client:
            while True:
                reply = await self._request(client, self._body(request, state), headers)
                if not isinstance(reply, _Unfinished):
                    return reply
                await asyncio.to_thread(request.checkpoint.save, reply.state)
                # An unchanged state means that the service waits for something.
                waits = PAUSE if reply.state == state else 0.0
                await self._sleep(waits if reply.pause is None else reply.pause)
                state = reply.state

    async def _request(
        self, client: Any, body: Any, headers: dict[str, str]
    ) -> AgentReply | _Unfinished:
        """Return the service's reply to one request."""
        import httpx

        try:
            response = await self._post(client, body, headers)
        except httpx.HTTPError as error:
            place = urlsplit(self.url).netloc.rpartition("@")[2]
            # A service that took the request and does not answer hangs; one that cannot be
            # reached says nothing about the agent.
            raise AgentError(
                f"no answer from {place}: {type(error).__name__} {error}",
                transient=isinstance(error, httpx.TransportError),
                category=TIMEOUT if isinstance(error, httpx.ReadTimeout) else None,
            ) from None
        status = response.status_code
        if status >= HTTP_ERROR:
            refused = status < HTTP_SERVER_ERROR and not is_transient_status(status)
            raise AgentError(
                f"HTTP {status}: {response.text[:MAX_ERROR_TEXT]}",
                status_code=status,
                category=AGENT_ERROR if refused else "",
                retry_after=parse_retry_after(response.headers.get("retry-after")),
            )
        if status >= HTTP_REDIRECT:
            leads = response.headers.get("location", "nowhere")
            # Not followed: a redirected POST would become a GET, and headers may hold keys.
            raise AgentError(
                f"HTTP {status}: the address leads to {leads}",
                category="",
                hint="set `url` to the address that answers",
            )
        return self._reply(response)

    async def _post(self, client: Any, question: Any, headers: dict[str, str]) -> Any:
        """Return the reply with its body, read up to the size limit."""
        import httpx

        content = msgspec.json.encode(question, enc_hook=str)
        headers = {"content-type": "application/json", **headers}
        url, body = self.url, bytearray()
        async with (
            client.stream("POST", url, content=content, headers=headers) as response,
            aclosing(response.aiter_bytes()) as chunks,
        ):
            async for chunk in chunks:
                body += chunk
                if len(body) > MAX_REPLY:
                    raise AgentError(f"the service wrote more than {MAX_REPLY // 2**20} MB")
        headers_read = {name: response.headers[name] for name in _READ if name in response.headers}
        return httpx.Response(response.status_code, headers=headers_read, content=bytes(body))

    def _body(self, request: AgentRequest, state: Any) -> Any:
        if self.body is not None:
            return _fill(self.body, _placeholders(request))
        session = request.session
        return {
            self.input_key: request.input,
            "case": request.case,
            "seed": request.seed,
            **({} if session is None else {"session": session.id, "messages": _messages(request)}),
            **({"params": request.params} if request.params else {}),
            **({CHECKPOINT: state} if state is not None else {}),
        }

    def _reply(self, response: Any) -> AgentReply | _Unfinished:
        path = self.answer
        declared = response.headers.get("content-type", "")
        declared_json = "json" in declared
        # Small servers declare nothing, whatever they send.
        if path is None and not declared_json and (declared or not _is_object(response.content)):
            return as_reply(response.text)
        try:
            document = response.json()
        except ValueError:
            why = f"is not JSON, so there is nothing at {path!r} in it"
            raise AgentError(
                "the reply has a JSON content type but is not valid JSON"
                if declared_json
                else f"the reply {why}",
                transient=False,
            ) from None
        # Only a reply that is nothing but a state: next to an answer a state has no use.
        fields = cast("dict[str, Any]", document) if isinstance(document, dict) else {}
        state = fields[CHECKPOINT] if fields.keys() == {CHECKPOINT} else None
        if self.body is None and path != CHECKPOINT and state is not None:
            return _Unfinished(state, parse_retry_after(response.headers.get("retry-after")))
        reply = as_reply(_first_value(document, ANSWER_PATHS if path is None else (path,)))
        reply.output = document
        return reply


@cache
def _tls() -> SSLContext:
    """Return the TLS settings of all clients: reading the certificates takes milliseconds."""
    import httpx

    return httpx.create_ssl_context()


class _Unfinished(NamedTuple):
    """Reply that holds a state instead of an answer."""

    state: Any
    pause: float | None


def _is_object(body: bytes) -> bool:
    try:
        return isinstance(msgspec.json.decode(body), dict)
    except (msgspec.DecodeError, RecursionError):
        return False


def _first_value(document: Any, paths: Sequence[str]) -> Any:
    """Return the value at the first of these paths that exists, even if empty."""
    import jmespath

    if isinstance(document, str):
        return document
    for path in paths:
        if (value := jmespath.search(path, document)) is not None:
            return value
    raise AgentError(
        f"no answer at {' or '.join(map(repr, paths))} in the reply",
        hint="set `answer` to the JMESPath of the answer",
    )


def _messages(request: AgentRequest) -> list[Mapping[str, Any]]:
    """Return the conversation up to and with this input."""
    return [*request.history, {"role": "user", "content": request.input}]


def _placeholders(request: AgentRequest) -> dict[str, Any]:
    session = request.trace_id if request.session is None else request.session.id
    return {"{input}": request.input, "{session}": session, "{messages}": _messages(request)}


def _fill(template: Any, values: Mapping[str, Any]) -> Any:
    """Return the template with its placeholders replaced; one alone keeps the value's type."""
    if isinstance(template, dict):
        entries = cast("dict[str, Any]", template)
        return {key: _fill(item, values) for key, item in entries.items()}
    if isinstance(template, list):
        return [_fill(item, values) for item in cast("list[Any]", template)]
    if not isinstance(template, str):
        return template
    if template in values:
        return values[template]
    # In one pass: the input may contain the text of another placeholder.
    found = re.split("(" + "|".join(map(re.escape, values)) + ")", template)
    return "".join(as_reply(values[part]).answer if part in values else part for part in found)
