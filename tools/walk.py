# ruff: noqa: S310, SLF001, T201  a tool: it prints, and opens addresses of this machine only
"""Print the files and functions of Proctor that one job executes.

    python tools/walk.py JOB [--json] [--totals]

JOB is `trial`, `span`, `diagnosis` or `comparison`:

- trial: `proctor run` of a suite with one case, one trial of a Python function, which runs in the
  process of the command here, as `proctor.run` does it.
- span: an OTLP request with one span, sent to `proctor serve`, to the page of its trace.
- diagnosis: `proctor diagnose` of one trace with five spans.
- comparison: `proctor compare` of two runs with two cases.

Every job runs twice in this process and the second time is traced, so that imports and caches
that are filled once do not count. Code of `proctor/cli/` is left out, and so are comprehensions,
lambdas and templates. tests/test_walks.py holds the figures; use this to find what to merge.
"""

import argparse
import contextlib
import io
import json
import os
import signal
import socket
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

SOURCE = Path(__file__).resolve().parent.parent / "src" / "proctor"
ANONYMOUS = ("<listcomp>", "<genexpr>", "<lambda>", "<dictcomp>", "<setcomp>")

AGENT = """\
import os

def answer(question):
    return "Lyon" if os.environ.get("WALK_WORSE") and "France" in question else "Paris"
"""
ONE_CASE = """\
version: 1
agent: agent:answer
cases:
  - input: What is the capital of France?
    correctness: {expected_in_answer: [Paris]}
"""
TWO_CASES = (
    f"{ONE_CASE}  - input: Which city has the Louvre?\n    correctness: {{regex_match: Paris}}\n"
)


class Walk:
    """The functions that are executed while it is active, in every thread."""

    def __init__(self) -> None:
        self.active = False
        self.seen: set[CodeType] = set()

    def install(self) -> None:
        """Trace this thread and those that start from now on."""
        threading.setprofile(self._event)
        sys.setprofile(self._event)

    def start(self) -> None:
        """Count the calls from here on."""
        self.active = True

    def add_other_threads(self) -> None:
        """Count the functions running in other threads, such as a server loop."""
        mine = threading.get_ident()
        for thread, top in sys._current_frames().items():
            frame: FrameType | None = None if thread == mine else top
            while frame is not None:
                self.seen.add(frame.f_code)
                frame = frame.f_back

    def stop(self) -> None:
        """Count no further."""
        self.active = False

    def _event(self, frame: FrameType, event: str, _arg: object) -> None:
        if self.active and event == "call":
            self.seen.add(frame.f_code)

    def functions(self) -> dict[str, list[str]]:
        """Functions by file, in the order of the source; files relative to the package."""
        found: dict[str, list[tuple[int, str]]] = {}
        for code in self.seen:
            file = Path(code.co_filename)
            if file.suffix != ".py" or not file.is_relative_to(SOURCE):
                continue
            name = code.co_qualname
            if name == "<module>" or name.endswith(ANONYMOUS):
                continue
            relative = file.relative_to(SOURCE).as_posix()
            if not relative.startswith("cli/"):
                found.setdefault(relative, []).append((code.co_firstlineno, name))
        return {file: [name for _, name in sorted(found[file])] for file in sorted(found)}


def proctor(*args: str) -> None:
    """Run the command in this process; its output is dropped."""
    # Not `main`, which leaves trials to a worker: the profiler is in this process.
    from proctor.cli.main import cli

    sys.argv = ["proctor", *args]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
        cli.main(list(args), "proctor")


def twice(walk: Walk, command: Callable[[], None]) -> None:
    """Run something untraced, then traced."""
    command()
    walk.install()
    walk.start()
    command()
    walk.stop()


def trial(walk: Walk, folder: Path) -> None:
    """Walk one trial."""
    twice(walk, lambda: proctor("run", "suite.yaml", "--trials", "1", "--quiet"))
    journals = list(folder.glob("results/*/*/trials.jsonl"))
    assert len(journals) == 2, "both runs must have been kept"


def comparison(walk: Walk, folder: Path) -> None:
    """Walk a comparison of a run with that of a worse agent."""
    (folder / "suite.yaml").write_text(TWO_CASES, encoding="utf-8")
    proctor("run", "suite.yaml", "--trials", "3", "--quiet")
    os.environ["WALK_WORSE"] = "1"
    proctor("run", "suite.yaml", "--trials", "3", "--quiet")
    first, second = sorted(str(path.parent) for path in folder.glob("results/*/*/trials.jsonl"))
    twice(walk, lambda: proctor("compare", first, second))


def diagnosis(walk: Walk, folder: Path) -> None:
    """Walk a diagnosis of a trace with a tool that fails and is called again."""
    search = {"openinference.span.kind": "TOOL", "tool.name": "search"}
    asked = {**search, "input.value": '{"query": "weather in Paris"}'}
    spans = [
        span(1, "agent", {"openinference.span.kind": "AGENT", "input.value": "How warm is Paris?"}),
        span(2, "plan", llm("I will search.", "How warm is Paris?"), parent=1),
        span(
            3, "search", {**asked, "output.value": "Error 503: unavailable"}, parent=1, failed=True
        ),
        span(
            4, "search", {**asked, "output.value": "Error 503: unavailable"}, parent=1, failed=True
        ),
        span(5, "answer", llm("It is 21 degrees in Paris.", "Error 503: unavailable"), parent=1),
    ]
    (folder / "trace.json").write_bytes(otlp_request(spans))
    twice(walk, lambda: proctor("diagnose", "trace.json"))


def live_span(walk: Walk, folder: Path) -> None:
    """Walk one span from the request to the page; the first trace and page only warm up."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    errors: list[BaseException] = []

    def client() -> None:
        try:
            wait_for(f"{url}/healthz")
            for number in (1, 2):
                if number == 2:
                    walk.add_other_threads()
                    walk.start()
                send_and_view(url, number)
                walk.stop()
        except BaseException as error:  # noqa: BLE001  raised again in the main thread
            errors.append(error)
        finally:
            os.kill(os.getpid(), signal.SIGINT)

    walk.install()
    threading.setprofile(None)  # what the client does is no part of the walk
    thread = threading.Thread(target=client, daemon=True)
    thread.start()
    walk.install()
    # One process: what another one decodes could not be seen from here.
    proctor("serve", "--port", str(port), "--store", f"sqlite:///{folder}/t.db", "--readers", "0")
    thread.join(30)
    if errors:
        raise errors[0]


def wait_for(url: str) -> None:
    """Return when a server answers."""
    for _ in range(600):
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=10):
            return
        time.sleep(0.1)
    raise TimeoutError(f"{url} does not answer")


def send_and_view(url: str, number: int) -> None:
    """Send a trace with one span, then load its page as a browser does."""
    trace_id = f"{number:032x}"
    body = otlp_request([span(number, "chat", llm("Paris.", "Capital of France?"), trace=trace_id)])
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(f"{url}/v1/traces", body, headers)
    for address in (request, f"{url}/traces/{trace_id}", f"{url}/traces/{trace_id}/outline"):
        with urllib.request.urlopen(address, timeout=60) as reply:
            reply.read()


def llm(answer: str, question: str) -> dict[str, str | int]:
    """Attributes of a model call."""
    return {
        "openinference.span.kind": "LLM",
        "llm.model_name": "gpt-4o-mini",
        "llm.input_messages.0.message.role": "user",
        "llm.input_messages.0.message.content": question,
        "llm.output_messages.0.message.role": "assistant",
        "llm.output_messages.0.message.content": answer,
        "llm.token_count.prompt": 100,
        "llm.token_count.completion": 20,
    }


def span(
    number: int,
    name: str,
    attributes: dict[str, str | int],
    *,
    parent: int = 0,
    failed: bool = False,
    trace: str = "ab" * 16,
) -> dict[str, Any]:
    """One span of an OTLP request."""
    start = 1_700_000_000_000_000_000 + number * 1_000_000_000
    return {
        "traceId": trace,
        "spanId": f"{number:016x}",
        "parentSpanId": f"{parent:016x}" if parent else "",
        "name": name,
        "startTimeUnixNano": str(start),
        "endTimeUnixNano": str(start + 500_000_000),
        "status": {"code": 2, "message": "Error 503: unavailable"} if failed else {},
        "attributes": [
            {"key": key, "value": {"intValue" if isinstance(value, int) else "stringValue": value}}
            for key, value in attributes.items()
        ],
    }


def otlp_request(spans: list[dict[str, Any]]) -> bytes:
    """An OTLP export request as JSON."""
    return json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}).encode()


JOBS: dict[str, Callable[[Walk, Path], None]] = {
    "trial": trial,
    "span": live_span,
    "diagnosis": diagnosis,
    "comparison": comparison,
}


@contextlib.contextmanager
def empty_project() -> Iterator[Path]:
    """A folder with a suite and an agent, as working and home folder."""
    with tempfile.TemporaryDirectory(prefix="walk-") as name:
        folder = Path(name)
        (folder / "agent.py").write_text(AGENT, encoding="utf-8")
        (folder / "suite.yaml").write_text(ONE_CASE, encoding="utf-8")
        os.environ["HOME"] = name
        for variable in [key for key in os.environ if key.startswith(("PROCTOR_", "XDG_"))]:
            del os.environ[variable]
        os.chdir(folder)
        sys.path.insert(0, name)
        yield folder
        os.chdir("/")


def walked(job: str) -> dict[str, list[str]]:
    """The functions that a job executes, by file."""
    walk = Walk()
    with empty_project() as folder:
        JOBS[job](walk, folder)
    sys.setprofile(None)
    threading.setprofile(None)
    return walk.functions()


def main() -> None:
    """Print the files and functions that a job executes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("job", choices=JOBS)
    parser.add_argument("--json", action="store_true", help="one document: file → functions")
    parser.add_argument("--totals", action="store_true", help="the two totals alone")
    options = parser.parse_args()
    found = walked(options.job)
    if options.json:
        print(json.dumps(found, indent=1))
        return
    total = sum(map(len, found.values()))
    print(f"{options.job}: {len(found)} files, {total} functions (without cli/)")
    if not options.totals:
        for file, names in found.items():
            print(f"\n{file} ({len(names)})")
            print("".join(f"  {name}\n" for name in names), end="")


if __name__ == "__main__":
    main()
