"""An agent behind an HTTP endpoint: one POST per trial.

The body is the input under `input_key` with the trial's facts beside it (or exactly `body`, with
`{input}` filled in); the answer is taken from the reply by a JMESPath expression. The header
`traceparent` carries the trial's trace: a service that exports its spans to the receiver at
`otlp_port` has them in the trial's trace.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, cast
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from proctor.agents.base import Agent, AgentConfig, AgentError, AgentReply, AgentRequest, as_reply
from proctor.agents.receiver import shared_receiver
from proctor.trace import otel

HTTP_ERROR = 400
MAX_ERROR_TEXT = 300

ANSWER_PATHS = "answer || response || output || choices[0].message.content || text"
"""Where answers stand in the replies people build; the first that exists is taken."""


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
    answer: str = ANSWER_PATHS
    """JMESPath of the answer in a JSON reply."""
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
    def _expression(cls, value: str) -> str:
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


class HttpAgent:
    """Asks the service once."""

    def __init__(self, config: HttpAgentConfig) -> None:
        self._config = config

    async def run(self, request: AgentRequest) -> AgentReply:
        """Post the question and read the answer."""
        import httpx

        config = self._config
        if config.otlp_port is not None:
            await shared_receiver(config.otlp_port)
        parent = otel.traceparent()
        headers = {**config.headers, **({"traceparent": parent} if parent else {})}
        async with httpx.AsyncClient(timeout=config.request_timeout) as client:
            try:
                response = await client.post(config.url, json=self._body(request), headers=headers)
            except httpx.HTTPError as error:
                raise AgentError(
                    f"no answer from {urlsplit(config.url).netloc}: {type(error).__name__} {error}",
                    transient=isinstance(error, httpx.TransportError),
                ) from None
        if response.status_code >= HTTP_ERROR:
            raise AgentError(
                f"HTTP {response.status_code}: {response.text[:MAX_ERROR_TEXT]}",
                status_code=response.status_code,
                retry_after=_seconds(response.headers.get("retry-after")),
            )
        return self._reply(response)

    def _body(self, request: AgentRequest) -> Any:
        if self._config.body is not None:
            return _filled(self._config.body, request.input)
        return {
            self._config.input_key: request.input,
            "case": request.case,
            "seed": request.seed,
            **({"params": request.params} if request.params else {}),
        }

    def _reply(self, response: Any) -> AgentReply:
        import jmespath

        said = "json" in response.headers.get("content-type", "")
        if not said and "answer" not in self._config.model_fields_set:
            return AgentReply(answer=response.text)
        try:
            document = response.json()
        except ValueError:
            why = f"is not JSON, so there is nothing at {self._config.answer!r} in it"
            raise AgentError(
                "the reply says it is JSON and is not" if said else f"the reply {why}",
                transient=False,
            ) from None
        found = (
            document
            if isinstance(document, str)
            else jmespath.search(self._config.answer, document)
        )
        if found is None:
            raise AgentError(
                f"no answer at {self._config.answer!r} in the reply",
                hint="set `answer` to the JMESPath of the answer",
            )
        reply = as_reply(found)
        reply.output = document
        return reply


def _filled(template: Any, value: Any) -> Any:
    if isinstance(template, dict):
        entries = cast("dict[str, Any]", template)
        return {key: _filled(item, value) for key, item in entries.items()}
    if isinstance(template, list):
        return [_filled(item, value) for item in cast("list[Any]", template)]
    if template == "{input}":
        return value
    if isinstance(template, str) and "{input}" in template:
        return template.replace("{input}", value if isinstance(value, str) else str(value))
    return template


def _seconds(value: str | None) -> float | None:
    from proctor.agents.failures import parse_retry_after

    return parse_retry_after(value)
