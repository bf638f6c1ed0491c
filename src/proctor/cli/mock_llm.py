"""`proctor mock-llm`: serve a scripted model until interrupted."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from proctor.cli._command import Command
from proctor.cli._options import FILE, PORT
from proctor.errors import ProctorError
from proctor.formatting import plural
from proctor.sanitize import printable
from proctor.user_dirs import with_folder

if TYPE_CHECKING:
    from proctor.llm.mock import ScriptRequest


@click.command(name="mock-llm", cls=Command)
@click.argument("script", type=FILE)
@click.option("--port", type=PORT, default=0, help="The port on 127.0.0.1; 0 picks a free one.")
@click.option(
    "--record",
    type=FILE,
    help="Append requests to this file, one JSON object per line, without API keys.",
)
def mock_llm(script: Path, port: int, record: Path | None) -> None:
    """Serve a scripted model (OpenAI and Anthropic protocols).

    Prints the environment variables to export, answers from the script, and stops at Ctrl-C.

    Examples:
      # serve a script on a free port
      proctor mock-llm script.yaml
      # on a fixed port, recording requests
      proctor mock-llm script.yaml --port 8080 --record requests.jsonl
    """
    from proctor.cli._signals import handle_signals

    stop = threading.Event()
    # Before the port opens, so that the server can be stopped as soon as its address is printed.
    with handle_signals(lambda _number, _frame: stop.set()):
        _serve(script, port, record, stop)


def _serve(script: Path, port: int, record: Path | None, stop: threading.Event) -> None:
    from proctor.llm.mock import MockLLM, load_script

    # Both may fail, and must do so before the port is open.
    loaded = load_script(script)
    recorder = None if record is None else _Recorder(record)
    try:
        with MockLLM(loaded, port=port, on_request=recorder) as server:
            # A comment and `export` lines, so that a shell can evaluate the output.
            click.echo(f"# serving at {server.url} from {printable(str(script))}; Ctrl-C stops")
            for name, value in server.environment.items():
                click.echo(f"export {name}={value}")
            sys.stdout.flush()  # a script that reads the address from a pipe waits for it
            while not stop.wait(1):  # polls: a signal may arrive as it goes to sleep
                pass
        unanswered = len(server.unmatched)
        click.echo(
            f"# {plural(len(server.requests), 'request')}, {unanswered} without a reply", err=True
        )
    finally:
        if recorder is not None:
            recorder.close()


class _Recorder:
    """Appends requests as JSON lines; each line is whole and flushed."""

    def __init__(self, path: Path) -> None:
        try:
            self._file = with_folder(path).open("a", encoding="utf-8")
        except OSError as error:
            raise ProctorError(f"cannot write: {error.strerror}", where=str(path)) from error

    def __call__(self, request: ScriptRequest) -> None:
        import json

        line: dict[str, Any] = {
            "protocol": request.protocol,
            "path": request.path,
            "model": request.model,
            "stream": request.stream,
            "reply": request.reply,
            "body": request.body,
        }
        # ASCII, so that lone surrogates from a client are preserved.
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()
