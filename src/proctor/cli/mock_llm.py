"""`proctor mock-llm`: serve a scripted model until interrupted."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from proctor.cli._command import Command
from proctor.cli._options import FILE, PORT, option
from proctor.errors import ProctorError
from proctor.formatting import plural
from proctor.sanitize import printable
from proctor.user_dirs import with_folder

if TYPE_CHECKING:
    from proctor.llm.mock import ScriptRequest


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
    from proctor.cli._signals import handle_signals
    from proctor.llm.mock import MockLLM, load_script

    stop = threading.Event()
    # Before the port opens, so that the server can be stopped as soon as its address is printed.
    with contextlib.ExitStack() as stack:
        stack.enter_context(handle_signals(lambda _number, _frame: stop.set()))
        # Both may fail, and must do so before the port is open.
        loaded = load_script(script)
        recorder = None if record is None else stack.enter_context(_appending(record))
        with MockLLM(loaded, port=port, on_request=recorder) as server:
            # A comment and `export` lines, so that a shell can evaluate the output; all at once,
            # since a script that reads them from a pipe may act on the first.
            head = f"# serving at {server.url} from {printable(str(script))}; Ctrl-C stops"
            exports = [f"export {name}={value}" for name, value in server.environment.items()]
            click.echo("\n".join([head, *exports]))
            while not stop.wait(1):  # polls: a signal may arrive as it goes to sleep
                pass
        unanswered = len(server.unmatched)
        click.echo(
            f"# {plural(len(server.requests), 'request')}, {unanswered} without a reply", err=True
        )


@contextlib.contextmanager
def _appending(path: Path) -> Generator[Callable[[ScriptRequest], None]]:
    """Yield a function that appends a request as a JSON line, whole and flushed."""
    try:
        file = with_folder(path).open("a", encoding="utf-8")
    except OSError as error:
        raise ProctorError(f"cannot write: {error.strerror}", where=str(path)) from error

    def append(request: ScriptRequest) -> None:
        names = ("protocol", "path", "model", "stream", "reply", "body")
        # ASCII, so that lone surrogates from a client are preserved.
        file.write(json.dumps({name: getattr(request, name) for name in names}) + "\n")
        file.flush()

    with file:
        yield append
