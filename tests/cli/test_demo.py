"""`proctor demo`: the first thing a newcomer types."""

import shlex
import subprocess
import sys

from proctor.data import example_trace
from proctor.trace.load import load_traces

# Fails the moment anything opens a connection.
OFFLINE = """
import sys
def refuse(event, args):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.bind"):
        raise RuntimeError(f"network: {event}")
sys.addaudithook(refuse)
from proctor.cli.main import main
main(["demo"])
"""


def demo() -> str:
    done = subprocess.run(
        [sys.executable, "-c", OFFLINE], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_the_demo_shows_and_queries_offline() -> None:
    """R-T7: the example is imported, shown and queried without network or configuration."""
    out = demo()
    assert "query    Where is my order A-4711" in out
    assert out.count("✗ tool execute_tool track_parcel") == 3
    assert "holds: " in out
    assert "What next?" in out


def test_every_command_the_demo_prints_works() -> None:
    """R-T7: what stands behind a $ can be typed, and gives what was shown."""
    out = demo()
    commands = [line[2:] for line in out.splitlines() if line.startswith("$ ")]
    assert len(commands) == 4
    for command in commands:
        name, *args = shlex.split(command)
        assert name == "proctor"
        done = subprocess.run(
            [sys.executable, "-m", "proctor", *args], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, command
        assert done.stdout.strip() in out


def test_the_example_is_what_it_says() -> None:
    """R-T3: planning, two model calls, a failing tool that is retried, documents, money."""
    (of,) = load_traces(example_trace().read_bytes())
    assert [span.kind for span in of.index.spans] == (
        ["agent", "planning", "llm", "tool", "tool", "tool", "retrieval", "llm"]
    )
    assert of.tool_sequence == ["get_order", "track_parcel", "track_parcel"]
    assert [span.failed for span in of.of_kind("tool")] == [False, True, False]
    assert (of.usage.input_tokens, of.usage.output_tokens) == (1143, 122)
    assert of.usage.unpriced == 0
    (retrieval,) = of.of_kind("retrieval")
    assert [document.score for document in retrieval.documents] == [0.91, 0.78, 0.41]
    assert of.problems == []
