"""Agents whose trial takes hours save their state and are given it back when the run goes on."""

import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
import yaml
from run_parts import Children, journal, only_run, until

import proctor
from proctor.agents.checkpoint import MOST_BYTES, Checkpoint, CheckpointError, MemoryStore
from proctor.runs.checkpoints import FOLDER, Checkpoints
from proctor.runs.trial import Trial, TrialStatus

# Counts to five, a step for every file `go-N` the test puts there, and says where it began.
AGENTS = """
import json, os, pathlib, sys, time
HERE = pathlib.Path(__file__).parent

def wait_for(step):
    while not (HERE / f"go-{step}").exists():
        time.sleep(0.01)

def long(input, checkpoint):
    state = checkpoint.load() or {"began": 0, "step": 0}
    state["began"] += 1
    while state["step"] < 5:
        wait_for(state["step"])
        state["step"] += 1
        checkpoint.save(state)
        (HERE / f"saved-{state['step']}").touch()
    return f"{input} began {state['began']} times"

def raw(input, checkpoint):
    before = checkpoint.load() or b""
    checkpoint.save(before + b"\\x00\\xff")
    if len(before) < 4: raise ConnectionError("try again")
    return f"{input} {len(before)}"

def huge(input, checkpoint):
    checkpoint.save({"small": 1})
    try:
        checkpoint.save(bytes(65 << 20))
    except Exception as error:
        return f"{input}: {error}; kept {checkpoint.load()}"

def dies(input, checkpoint):
    checkpoint.save(1)
    raise RuntimeError("a plain error")
"""

COMMAND = """
import json, pathlib, sys
sys.path.insert(0, str(pathlib.Path(__file__).parent))
import bots
job = json.loads(sys.stdin.readline())
state = job.get("checkpoint") or {"began": 0, "step": 0}
state["began"] += 1
print("not JSON, and kept apart from the answer")
while state["step"] < 5:
    bots.wait_for(state["step"])
    state["step"] += 1
    print(json.dumps({"checkpoint": state}), flush=True)
print(json.dumps({"answer": f"{job['input']} began {state['began']} times"}))
"""

KINDS: dict[str, Any] = {
    "thread": "bots:long",
    "process": {"kind": "python", "target": "bots:long", "isolation": "process"},
    "command": {"kind": "command", "command": [sys.executable, "program.py"]},
    "http": {"kind": "http"},
}


class Steps(BaseHTTPRequestHandler):
    """The same behind HTTP: counts to five, a step for each request, and remembers nothing."""

    folder: ClassVar[Path]

    def do_POST(self) -> None:
        job = json.loads(self.rfile.read(int(self.headers["content-length"])))
        state = job.get("checkpoint") or {"began": 0, "step": 0, "sitting": None}
        sitting = self.client_address[1]  # a client has one connection
        state["began"] += state["sitting"] != sitting
        state["sitting"] = sitting
        reply: dict[str, Any] = {"answer": f"{job['input']} began {state['began']} times"}
        if state["step"] < 5:
            until((self.folder / f"go-{state['step']}").exists, 60)
            reply = {"checkpoint": {**state, "step": state["step"] + 1}}
        content = json.dumps(reply).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture
def service(tmp_path: Path) -> Iterator[str]:
    Steps.folder = tmp_path

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: Any) -> None:
            """Clients that were killed are what the test is about."""

    server = Server(("127.0.0.1", 0), Steps)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}/ask"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def children(tmp_path_factory: pytest.TempPathFactory) -> Children:
    return Children(tmp_path_factory.mktemp("children"))


def suite(folder: Path, agent: object, **case: object) -> Path:
    (folder / "bots.py").write_text(AGENTS)
    (folder / "program.py").write_text(COMMAND)
    one = {"id": "count", "input": "word", "correctness": {"regex_match": "^"}, "trials": 1, **case}
    path = folder / "suite.yaml"
    path.write_text(yaml.safe_dump({"version": 1, "agent": agent, "cases": [one]}))
    return path


def states(run: Path) -> list[Path]:
    return sorted((run / FOLDER).glob("*.state")) if (run / FOLDER).exists() else []


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_state_outlives_the_process(
    tmp_path: Path, children: Children, service: str, kind: str, end: signal.Signals
) -> None:
    """R-R7, R-R9: an agent killed with its run in step 3 goes on from step 2, not from 0."""
    agent = {**KINDS[kind], "url": service} if kind == "http" else KINDS[kind]
    path = suite(tmp_path, agent)
    for step in (0, 1):
        (tmp_path / f"go-{step}").touch()
    pid = children.start("run", path, "--results", tmp_path / "r", "--quiet")
    until(lambda: len(list((tmp_path / "r").glob("*/*/_spec_.yaml"))) == 1)
    run = only_run(tmp_path / "r")
    until(lambda: any(b'"step":2' in each.read_bytes() for each in states(run)), 60)
    (state,) = states(run)
    assert state.stat().st_mode & 0o077 == 0, "nobody else reads it"
    os.kill(pid, end)
    assert children.wait() in (-signal.SIGKILL, 128 + signal.SIGTERM)

    for step in (0, 1):  # if it began afresh it would wait for ever
        (tmp_path / f"go-{step}").unlink()
    for step in (2, 3, 4):
        (tmp_path / f"go-{step}").touch()
    assert children.run("run", "--resume", run, "--timeout", 60) == 0, children.err.read_text()
    assert journal(run)[-1]["answer"] == "word began 2 times"
    assert not (run / FOLDER).exists(), "a finished trial leaves no state"


def test_retries_begin_afresh(tmp_path: Path) -> None:
    """R-R3: a try after a transient failure does not see the state of the one before."""
    run = proctor.run(suite(tmp_path, "bots:raw"), results=tmp_path / "r", max_retries=1)
    (trial,) = run.trials()
    assert trial.status == TrialStatus.INFRA_ERROR
    assert trial.retries == 1
    assert not (run.path / FOLDER).exists()


def test_retries_go_on_when_asked(tmp_path: Path, children: Children) -> None:
    """R-R3, R-R7: --retry-from-checkpoint keeps the state for tries and for --retry-infra."""
    path = suite(tmp_path, "bots:raw")
    command = ("--results", tmp_path / "r", "--max-retries", 0, "--retry-from-checkpoint")
    assert children.run("run", path, *command) == 2
    run = only_run(tmp_path / "r")
    (state,) = states(run)
    assert state.read_bytes() == b"b\x00\xff"
    assert children.run("run", "--retry-infra", run) == 2
    assert children.run("run", "--retry-infra", run) == 0
    assert journal(run)[-1]["answer"] == "word 4"
    assert not (run / FOLDER).exists()


def test_a_failed_trial_run_again_is_fresh(tmp_path: Path) -> None:
    """R-R7: what a finished trial had saved is gone, however it ended."""
    run = proctor.run(suite(tmp_path, "bots:dies"), results=tmp_path / "r")
    assert run.totals.failed == 1
    assert not (run.path / FOLDER).exists()


def test_other_trials_never_see_a_state(tmp_path: Path) -> None:
    """R-A3: states belong to one trial; two cases with alike names do not meet."""
    kept = Checkpoints(tmp_path)
    kept.save("a\0b\0\0None\0" + "1", b"j1")
    assert Checkpoints(tmp_path).load("a\0b\0\0None\0" + "1") == b"j1"
    assert Checkpoints(tmp_path).load("a\0b\0\0None\0" + "2") is None
    assert Checkpoints(tmp_path).load("a\0b\0\0" + "1\0None") is None


def test_a_state_left_by_a_crash_is_taken_away(tmp_path: Path) -> None:
    """R-R9: killed after the journal's line and before the state went: the next sitting sees it."""
    kept = Checkpoints(tmp_path)
    of = {
        status: Trial(case="c", agent="a", index=i, seed=0, status=status)
        for i, status in enumerate(TrialStatus)
    }
    for trial in of.values():
        kept.save(trial.key, b"j1")
    (tmp_path / FOLDER / ".x.part").write_bytes(b"torn")
    again = Checkpoints(tmp_path)
    again.written(of.values())
    stays = [s for s, trial in of.items() if again.load(trial.key)]
    assert stays == [TrialStatus.CANCELLED]
    assert len(states(tmp_path)) == 1


def test_a_state_has_a_limit(tmp_path: Path) -> None:
    """R-A3: a state too large is refused and told of, the one before stays."""
    run = proctor.run(suite(tmp_path, "bots:huge"), results=tmp_path / "r")
    (trial,) = run.trials()
    assert trial.answer is not None
    assert f"more than the limit of {MOST_BYTES:,}" in trial.answer
    assert trial.answer.endswith("kept {'small': 1}")


@pytest.mark.parametrize("state", [b"", b"\x00\xff", {"a": [1, None]}, "text", 7, []])
def test_what_is_saved_comes_back(state: object) -> None:
    """R-A2: bytes come back as bytes, JSON as JSON."""
    checkpoint = Checkpoint(MemoryStore(), "k")
    assert checkpoint.load() is None
    checkpoint.save(state)
    assert checkpoint.load() == state


def test_what_is_not_json_is_refused() -> None:
    """R-A2: a state that could not be given back is an error when it is saved."""
    with pytest.raises(CheckpointError, match="neither bytes nor JSON"):
        Checkpoint(MemoryStore(), "k").save(object())


def test_the_command_line_protocol_keeps_answers_apart(tmp_path: Path) -> None:
    """R-A2: an answer with the word in it is an answer; many states are no flood."""
    path = suite(tmp_path, {"kind": "command", "command": [sys.executable, "answers.py"]}, trials=1)
    (tmp_path / "answers.py").write_text(
        "import json\n"
        "for n in range(5): print(json.dumps({'checkpoint': 'x' * 14_000_000}))\n"
        "print(json.dumps({'answer': 'yes', 'checkpoint': 'no'}))\n"
    )
    run = proctor.run(path, results=tmp_path / "r", timeout=250)  # a busy disk takes its time
    (trial,) = run.trials()
    assert trial.answer == "yes", json.dumps(str(trial.error))
