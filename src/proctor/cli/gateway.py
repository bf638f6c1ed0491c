"""`proctor gateway` and `proctor mock-llm`: model servers for any program, until interrupted."""

from __future__ import annotations

import contextlib
import hashlib
import json
from contextvars import copy_context
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from proctor import api
from proctor.cli._command import Command
from proctor.cli._options import FILE, PORT, key_values, option
from proctor.cli._output import appending
from proctor.errors import ProctorError
from proctor.formatting import dollars, plural
from proctor.sanitize import printable
from proctor.strict import read_strict

if TYPE_CHECKING:
    from proctor.llm.mock import ScriptRequest


@click.command(name="gateway", cls=Command)
@option(
    "--upstream",
    "Base URL of a provider: openai=URL, anthropic=URL, gemini=URL, or any NAME=URL; repeatable.",
    multiple=True,
    callback=key_values,
)
@option("--port", "The port on 127.0.0.1; 0 picks a free one.", type=PORT, default=0)
@option(
    "--traces", "Append each model call to this file when it ends (OTLP JSON lines).", type=FILE
)
@option("--record", "Record every response in this cassette.", type=FILE)
@option("--replay", "Answer from this cassette and send nothing.", type=FILE)
@option("--max-cost-usd", "Dollars of each key or session.", type=click.FloatRange(0))
@option("--max-tokens", "Tokens of each key or session.", type=click.IntRange(0))
@option("--max-calls", "Model calls of each key or session.", type=click.IntRange(0))
@option("--retries", "How often a failed call is sent again.", type=click.IntRange(0, 10))
@option(
    "--fault",
    "Share of calls that fail: rate_limit, server_error, timeout, malformed, slow; repeatable.",
    multiple=True,
    callback=key_values,
)
@option("--seed", "Seed of the faults.", type=int, default=0)
def gateway(  # noqa: PLR0917 (the options of the command)
    upstream: dict[str, str],
    port: int,
    traces: Path | None,
    record: Path | None,
    replay: Path | None,
    fault: dict[str, str],
    seed: int,
    **limits: Any,
) -> None:
    """Trace, limit, record and replay model calls of any program.

    Prints the environment variables to export and stops at Ctrl-C. Requests whose key begins with
    `proctor` get the gateway's own key of the provider; others pass on theirs. Each key is one
    trace with limits of its own, and so is each NAME in http://127.0.0.1:PORT/NAME/openai.

    Examples:
      # trace every call of a program
      proctor gateway --upstream openai=https://api.openai.com/v1 --traces calls.jsonl
      # a server that fails now and then
      proctor gateway --upstream openai=http://127.0.0.1:8000/v1 --fault rate_limit=0.1 --seed 7
    """
    from proctor.cli._signals import until_signal
    from proctor.gateway.calls import GatewaySession, SpanSink
    from proctor.gateway.options import GatewayOptions
    from proctor.gateway.server import KEY_PREFIX, PROVIDERS, Gateway
    from proctor.llm.cassette import Cassette
    from proctor.llm.rate_limits import rates_in_force
    from proctor.trace.export import GENAI, encode_json_spans
    from proctor.trace.model import Span, Trace
    from proctor.trace.redact import default_redactor

    if record is not None and replay is not None:
        raise ProctorError("--record and --replay exclude each other")
    given = {name: value for name, value in limits.items() if value is not None}
    try:
        shares = {name: float(value) for name, value in fault.items()}
    except ValueError as error:
        raise ProctorError(f"--fault: {error}", hint="a share, as in rate_limit=0.1") from None
    document = {"upstream": upstream, **given, **({"faults": shares} if shares else {})}
    options = read_strict(GatewayOptions, document, "gateway")
    settings = api.settings().settings
    prices = settings.price_table()
    spans: list[Span] = []
    with contextlib.ExitStack() as stack:
        wait = stack.enter_context(until_signal())
        append = None if traces is None else stack.enter_context(appending(traces))
        path, mode = (record, "record") if replay is None else (replay, "replay")
        if path is not None:
            cassette = Cassette(path, mode, append=True)
            stack.enter_context(cassette)
        stack.enter_context(rates_in_force(settings.limits.rates))

        def ended(span: Span) -> None:
            spans.append(span)
            if append is not None:
                trace = Trace(trace_id=span.trace_id, spans=[default_redactor().span(span)])
                append(b'{"resourceSpans":[%s]}' % encode_json_spans(trace, GENAI))

        def session(token: str) -> GatewaySession:
            trace_id = hashlib.sha256(f"{seed}{token}{server.port}".encode()).hexdigest()[:32]
            sink = SpanSink(trace_id, None, lambda _span: None, ended)
            return GatewaySession(sink, options, seed, prices, token=token)

        # Sessions are made in the gateway's thread; the rate limits are those of this one.
        here = copy_context()
        unknown = partial(here.run, session)
        server = Gateway(port=port, unknown=unknown, providers=upstream)
        with server:
            # All at once: a script that reads them from a pipe may act on the first.
            lines = [f"# gateway at {server.url}; Ctrl-C stops"]
            for provider, (urls, keys, _) in PROVIDERS.items():
                lines.append(f"export {urls[0]}={server.url}/{provider}")
                lines.append(f"export {keys[0]}={KEY_PREFIX}")
            click.echo("\n".join(lines))
            wait()
    known = [span.cost_usd for span in spans if span.cost_usd is not None]
    cost = dollars(sum(known)) if len(known) == len(spans) else "unknown cost"
    click.echo(f"# {plural(len(spans), 'model call')}, {cost}", err=True)


@click.command(name="mock-llm", cls=Command)
@click.argument("script", type=FILE)
@option("--port", "The port on 127.0.0.1; 0 picks a free one.", type=PORT, default=0)
@option(
    "--record",
    "Append requests to this file, one JSON object per line, without API keys.",
    type=FILE,
)
def mock_llm(script: Path, port: int, record: Path | None) -> None:
    """Serve a scripted model (OpenAI, Anthropic and Gemini protocols).

    Prints the environment variables to export, answers from the script, and stops at Ctrl-C.

    Examples:
      # serve a script on a free port
      proctor mock-llm script.yaml
      # on a fixed port, recording requests
      proctor mock-llm script.yaml --port 8080 --record requests.jsonl
    """
    from proctor.cli._signals import until_signal
    from proctor.llm.mock import MockLLM, load_script

    # Before the port opens, so that the server can be stopped as soon as its address is printed.
    with contextlib.ExitStack() as stack:
        wait = stack.enter_context(until_signal())
        # Both may fail, and must do so before the port is open.
        loaded = load_script(script)
        append = None if record is None else stack.enter_context(appending(record))

        def write(request: ScriptRequest) -> None:
            if append is not None:
                names = ("protocol", "path", "model", "stream", "reply", "body")
                # ASCII, so that lone surrogates from a client are preserved.
                append(json.dumps({name: getattr(request, name) for name in names}).encode())

        with MockLLM(loaded, port=port, on_request=write) as server:
            # A comment and `export` lines, so that a shell can evaluate the output; all at once,
            # since a script that reads them from a pipe may act on the first.
            head = f"# serving at {server.url} from {printable(str(script))}; Ctrl-C stops"
            exports = [f"export {name}={value}" for name, value in server.environment.items()]
            click.echo("\n".join([head, *exports]))
            wait()
        unanswered = len(server.unmatched)
        click.echo(
            f"# {plural(len(server.requests), 'request')}, {unanswered} without a reply", err=True
        )
