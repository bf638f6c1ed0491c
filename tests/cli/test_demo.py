"""`proctor demo`: the first thing a newcomer types."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from commands import proctor
from run_parts import journal, only_run

from proctor.data import example_trace
from proctor.runs.run import Run
from proctor.runs.summary import Verdict
from proctor.trace.load import load_traces

# Fails the moment anything opens a connection.
OFFLINE = """
import sys
def refuse(event, args):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.bind"):
        raise RuntimeError(f"network: {event}")
sys.addaudithook(refuse)
from proctor.cli.main import main
main(["demo", "--results", "kept"])
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demo")


@pytest.fixture(scope="module")
def output(place: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", OFFLINE], capture_output=True, text=True, check=False, cwd=place
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_demo_separates_two_agents_offline(output: str, place: Path) -> None:
    """R-R1: verdicts, ranked failures, cost and the folder, without network or key, exit code 0."""
    run = Run(only_run(place / "kept"))
    assert {cell.agent: {c.verdict for c in run.cells if c.agent == cell.agent}
            for cell in run.cells} == {
        "careful": {Verdict.PASS},
        "hasty": {Verdict.PASS, Verdict.HARD_FAIL},
    }  # fmt: skip
    assert run.totals.trials == 6 * 2 * 5
    assert "forbidden_tools: " in output
    assert "cost: n/a (no model calls recorded)" in output
    assert f"stored in kept/demo/{run.path.name}" in output
    assert "tool cancel_order" in output, "what the agent did where it went wrong"


def test_the_same_seeds_make_the_same_mistakes(output: str, place: Path) -> None:
    """R-R5: a second demo gives the same answers trial by trial."""
    first = only_run(place / "kept")
    done = subprocess.run(
        [sys.executable, "-m", "proctor", "demo", "--results", "again"],
        capture_output=True,
        check=False,
        cwd=place,
    )
    assert done.returncode == 0
    answers = [
        {(t["case"], t["agent"], t["index"]): (t["status"], t["answer"]) for t in journal(run)}
        for run in (first, only_run(place / "again"))
    ]
    assert answers[0] == answers[1]


def test_every_command_the_demo_prints_works(output: str, place: Path) -> None:
    """R-R6: what is printed can be typed, and ends with a code that means what it says."""
    printed = [line.strip() for line in output.splitlines() if line.startswith("  proctor ")]
    assert len(printed) == 6
    for command in printed:
        # There is no browser to open here.
        name, *args = shlex.split(command.replace(" --open", " --html"))
        assert name == "proctor"
        done = proctor(*args, cwd=place)
        # A run of these agents fails its gate, and must say so.
        assert done.returncode == (1 if args[0] == "run" else 0), (command, done.stderr)


def test_a_local_model_that_is_not_there_is_said_in_one_line(place: Path) -> None:
    """R-R11: a missing extra is a setup error that says what to install, before any trial."""
    code = "import sys; sys.modules['xllamacpp'] = None; from proctor.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "demo", "--model", "local", "--results", "none"],
        capture_output=True,
        text=True,
        check=False,
        cwd=place,
    )
    assert done.returncode == 2
    error, hint = done.stderr.splitlines()
    assert "extra `local-llm`" in error
    assert "pip install" in hint
    assert not (place / "none").exists()


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
