"""An agent behind an HTTP endpoint: one POST per trial, or one for each step of a long one.

The body is the input under `input_key` with the trial's facts beside it (or exactly `body`, with
`{input}` filled in); the answer is taken from the reply by a JMESPath expression. A reply that is
`{"checkpoint": …}` and no more says that the trial goes on: the state is saved and the service
asked again, with it as `checkpoint` beside the input, and so is a trial that is resumed. The header
`traceparent` carries the trial's trace: a service that exports its spans to the receiver at
`otlp_port` has them in the trial's trace.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Annotated, Any, Literal, NamedTuple, cast
from urllib.parse import urlsplit

import msgspec
from pydantic import Field, field_validator

from proctor.agents.base import Agent, AgentConfig, AgentError, AgentReply, AgentRequest, as_reply
from proctor.llm.retry import parse_retry_after
from proctor.trace import otel

CHECKPOINT = "checkpoint"
"""The key of a state, in requests and replies."""

HTTP_REDIRECT, HTTP_ERROR = 300, 400
MAX_ERROR_TEXT = 300

MAX_REPLY = 64 * 1024 * 1024
"""Bytes of a reply that are read: beyond it a service is flooding, not answering."""

ANSWER_PATHS = ("answer", "response", "output", "choices[0].message.content", "text")
"""Where answers stand in the replies people build; the first that is there is taken, if empty."""

PAUSE = 1.0
"""Seconds before a service is asked again that gave back the state it was given: it waits for
something. One that made a step is asked at once; `Retry-After` wins over both."""

_READ = ("content-type", "retry-after", "location")
"""Headers of a reply that are looked at."""


class HttpAgentConfig(AgentConfig):
    """A service that answers a POST."""

    kind: Literal["http"] = "http"
    url: str
    """Where to post; http or https."""
    headers: dict[str, str] = Field(default_factory=dict)
    """Headers beside ours; write keys as `${NAME}` so that they stay in the environment."""
    input_key: str = "input"
    """The key of the input in the body."""
    body: dict[str, Any] | None = None
    """A body of your own; the text `{input}` in it is replaced by the input."""
    answer: str | None = None
    """JMESPath of the answer in a JSON reply; where people usually put it when absent."""
    request_timeout: Annotated[float, Field(gt=0)] = 120.0
    """Seconds for one request."""
    otlp_port: int | None = None
    """Port on loopback where the service sends its spans."""

    @field_validator("url")
    @classmethod
    def _web(cls, value: str) -> str:
        if urlsplit(value).scheme not in ("http", "https") or not urlsplit(value).hostname:
            raise ValueError(f"{value!r} is not an http or https address")
        return value

    @field_validator("answer")
    @classmethod
    def _expression(cls, value: str | None) -> str | None:
        if value is None:
            return None
        import jmespath
        from jmespath.exceptions import JMESPathError

        try:
            jmespath.compile(value)
        except JMESPathError as error:
            # Its first line; the others draw an arrow below the expression.
            said = str(error).partition(", for expression")[0].splitlines()[0]
            raise ValueError(f"not a JMESPath expression: {said}") from None
        return value

    def create(self) -> Agent:
        """A client of its own, so that no cookie passes from trial to trial."""
        return HttpAgent(self)

    def version(self) -> dict[str, Any]:
        """The host asked; the whole address may hold a key."""
        return {"host": urlsplit(self.url).hostname}


class _NotYet(NamedTuple):
    """A reply that is no answer but a state to go on from."""

    state: Any
    pause: float | None


class HttpAgent:
    """Asks the service, until it has an answer."""

    def __init__(
        self, config: HttpAgentConfig, *, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> None:
        self._config = config
        self._sleep = sleep

    async def run(self, request: AgentRequest) -> AgentReply:
        """Post the question and read the answer; what is saved on the way outlives a crash."""
        import httpx

        config = self._config
        steps = config.body is None  # a body of the user's own has no place for a state
        state = await asyncio.to_thread(request.checkpoint.load) if steps else None
        if config.otlp_port is not None:
            from proctor.agents.otlp_receiver import shared_receiver

            shared_receiver(config.otlp_port)
        parent = otel.traceparent()
        headers = {**config.headers, **({"traceparent": parent} if parent else {})}
        async with httpx.AsyncClient(timeout=config.request_timeout) as client:
            while True:
                reply = await self._asked(client, self._body(request, state), headers)
                if not isinstance(reply, _NotYet):
                    return reply
                await asyncio.to_thread(request.checkpoint.save, reply.state)
                waits = PAUSE if reply.state == state else 0.0
                await self._sleep(waits if reply.pause is None else reply.pause)
                state = reply.state

    async def _asked(self, client: Any, body: Any, headers: dict[str, str]) -> AgentReply | _NotYet:
        """What the service says to one request."""
        import httpx

        try:
            response = await self._post(client, body, headers)
        except httpx.HTTPError as error:
            place = urlsplit(self._config.url).netloc
            raise AgentError(
                f"no answer from {place}: {type(error).__name__} {error}",
                transient=isinstance(error, httpx.TransportError),
            ) from None
        if response.status_code >= HTTP_ERROR:
            raise AgentError(
                f"HTTP {response.status_code}: {response.text[:MAX_ERROR_TEXT]}",
                status_code=response.status_code,
                retry_after=parse_retry_after(response.headers.get("retry-after")),
            )
        if response.status_code >= HTTP_REDIRECT:
            leads = response.headers.get("location", "nowhere")
            raise AgentError(
                f"HTTP {response.status_code}: the address leads to {leads}",
                hint="set `url` to the address that answers",
            )
        return self._reply(response)

    async def _post(self, client: Any, question: Any, headers: dict[str, str]) -> Any:
        """The reply with its body read, within bounds."""
        import httpx

        content = msgspec.json.encode(question, enc_hook=str)
        headers = {"content-type": "application/json", **headers}
        url, body = self._config.url, bytearray()
        async with (
            client.stream("POST", url, content=content, headers=headers) as response,
            aclosing(response.aiter_bytes()) as chunks,
        ):
            async for chunk in chunks:
                body += chunk
                if len(body) > MAX_REPLY:
                    raise AgentError(f"the service wrote more than {MAX_REPLY // 2**20} MB")
        kept = {name: response.headers[name] for name in _READ if name in response.headers}
        return httpx.Response(response.status_code, headers=kept, content=bytes(body))

    def _body(self, request: AgentRequest, state: Any) -> Any:
        if self._config.body is not None:
            return _filled(self._config.body, request.input)
        return {
            self._config.input_key: request.input,
            "case": request.case,
            "seed": request.seed,
            **({"params": request.params} if request.params else {}),
            **({CHECKPOINT: state} if state is not None else {}),
        }

    def _reply(self, response: Any) -> AgentReply | _NotYet:
        asked = self._config.answer
        said = "json" in response.headers.get("content-type", "")
        if not said and asked is None:
            return as_reply(response.text)
        try:
            document = response.json()
        except ValueError:
            why = f"is not JSON, so there is nothing at {asked!r} in it"
            raise AgentError(
                "the reply says it is JSON and is not" if said else f"the reply {why}",
                transient=False,
            ) from None
        if self._config.body is None and asked != CHECKPOINT and _is_state(document):
            return _NotYet(
                document[CHECKPOINT], parse_retry_after(response.headers.get("retry-after"))
            )
        reply = as_reply(_found(document, ANSWER_PATHS if asked is None else (asked,)))
        reply.output = document
        return reply


def _is_state(document: Any) -> bool:
    """Whether a reply is a state and nothing else: beside an answer it would be of no use."""
    if not isinstance(document, dict):
        return False
    entries = cast("dict[str, Any]", document)
    return entries.keys() == {CHECKPOINT} and entries[CHECKPOINT] is not None


def _found(document: Any, paths: Sequence[str]) -> Any:
    """What stands at the first of these places that has something, be it empty."""
    import jmespath

    if isinstance(document, str):
        return document
    for path in paths:
        if (found := jmespath.search(path, document)) is not None:
            return found
    raise AgentError(
        f"no answer at {' or '.join(map(repr, paths))} in the reply",
        hint="set `answer` to the JMESPath of the answer",
    )


def _filled(template: Any, value: Any) -> Any:
    if isinstance(template, dict):
        entries = cast("dict[str, Any]", template)
        return {key: _filled(item, value) for key, item in entries.items()}
    if isinstance(template, list):
        return [_filled(item, value) for item in cast("list[Any]", template)]
    if template == "{input}":
        return value
    if isinstance(template, str) and "{input}" in template:
        return template.replace("{input}", as_reply(value).answer)
    return template
