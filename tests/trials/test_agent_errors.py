"""Whose failure it was: an agent that raises or hangs has failed; trouble around it has not."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import yaml
from commands import proctor
from run_parts import journal, only_run

AGENT = """
import os, time

class Refused(Exception):
    status_code = 401

class TooLong(Exception):
    status_code = 400

def answer(input):
    match input:
        case "raise": raise KeyError("price")
        case "exit": raise SystemExit(1)
        case "hang": time.sleep(600)
        case "down": raise ConnectionError("reset")
        case "key": raise Refused("no such key")
        case "long": raise TooLong("prompt too long")
        case "memory": raise MemoryError()
        case "die": os._exit(3)
    return "fine"
"""

FAULTS = {
    "raise": ("failed", "agent_error"),
    "exit": ("failed", "agent_error"),
    "long": ("failed", "agent_error"),
    "memory": ("failed", "resource_limit"),
    "hang": ("failed", "timeout"),
    "down": ("infra_error", ""),
    "key": ("infra_error", ""),
    "well": ("passed", ""),
}


def suite_of(folder: Path, agent: Any, *inputs: str, **keys: Any) -> Path:
    (folder / "bot.py").write_text(AGENT)
    checks = {"correctness": {"expected_in_answer": ["fine"]}}
    cases = [{"id": each, "input": each, **checks} for each in inputs]
    path = folder / "suite.yaml"
    path.write_text(yaml.safe_dump({"agent": agent, "cases": cases, **keys}))
    return path


def outcomes(path: Path, *options: str, code: int = 1) -> dict[str, tuple[str, str]]:
    """Status and category of each case of a run, whose exit code is this."""
    results = path.parent / "results"
    done = proctor("run", path, "--results", results, "--quiet", "--max-retries", "0", *options)
    assert done.returncode == code, done.stdout + done.stderr
    lines = journal(only_run(results))
    for line in lines:
        assert line.get("score") == {"failed": 0.0, "passed": 1.0}.get(line["status"])
    return {line["case"]: (line["status"], line.get("category", "")) for line in lines}


def test_an_error_of_the_agent_is_a_failed_trial(tmp_path: Path) -> None:
    """R-R1: exceptions, exits, memory and the time limit are the agent's; the types that are
    retried and a refused key are infrastructure."""
    path = suite_of(tmp_path, "bot:answer", *FAULTS)
    assert outcomes(path, "--trials", "1", "--timeout", "1", "--concurrency", "8") == FAULTS


def test_a_run_says_what_the_agent_did(tmp_path: Path) -> None:
    """R-R1, R-R13: an agent error is ranked among the failures, with its message."""
    path = suite_of(tmp_path, "bot:answer", "raise", "well")
    done = proctor("run", path, "--results", tmp_path / "r", "--trials", "3")
    assert done.returncode == 1
    assert "agent_error: 3 of 6 trials (50 %)" in done.stdout
    assert "KeyError: 'price' (at bot.py:12)" in done.stdout
    once = proctor("test", path, cwd=tmp_path)
    assert once.returncode == 1
    assert "the agent raised an error or crashed" in once.stdout
    assert "ERROR KeyError: 'price' (at bot.py:12)" in once.stdout
    assert "needed" not in once.stdout, "no score was compared with a threshold"


@pytest.mark.parametrize("place", ["option", "suite", "settings", "test"])
def test_agent_errors_can_be_called_infrastructure(tmp_path: Path, place: str) -> None:
    """R-R1: `on_agent_error: infra` as option, suite key and setting."""
    keys = {"on_agent_error": "infra"} if place == "suite" else {}
    path = suite_of(tmp_path, "bot:answer", "raise", "well", **keys)
    if place == "settings":
        (tmp_path / "proctor.yaml").write_text("limits: {on_agent_error: infra}\n")
    if place == "test":
        assert proctor("test", path, "--on-agent-error", "infra").returncode == 2
        return
    options = ["--on-agent-error", "infra"] if place == "option" else []
    found = outcomes(path, "--trials", "1", *options, code=2)
    assert found == {"raise": ("infra_error", ""), "well": ("passed", "")}


def test_an_option_wins_over_the_suite(tmp_path: Path) -> None:
    """R-R1: the command line comes before the file."""
    path = suite_of(tmp_path, "bot:answer", "raise", on_agent_error="infra")
    found = outcomes(path, "--trials", "1", "--on-agent-error", "fail")
    assert found == {"raise": ("failed", "agent_error")}


@pytest.mark.slow
def test_a_process_of_its_own_tells_the_same(tmp_path: Path) -> None:
    """R-R1, R-A2: with `isolation: process` a crash and a memory limit are the agent's, too."""
    agent = {"kind": "python", "target": "bot:answer", "isolation": "process"}
    path = suite_of(tmp_path, agent, "raise", "memory", "down", "die", "well")
    assert outcomes(path, "--trials", "1", "--concurrency", "2") == {
        **{name: FAULTS[name] for name in ("raise", "memory", "down", "well")},
        "die": ("failed", "agent_error"),
    }


def test_a_command_that_fails_is_the_agent_and_one_that_is_missing_is_not(tmp_path: Path) -> None:
    """R-R1, R-A2: a program that exits with an error or hangs has failed."""
    (tmp_path / "bot.sh").write_text(
        "read q\ncase $q in raise) exit 3;; hang) sleep 600;; esac\necho fine\n"
    )
    agent = {"kind": "command", "command": ["sh", "bot.sh"], "protocol": "text"}
    path = suite_of(tmp_path, agent, "raise", "hang", "well")
    assert outcomes(path, "--trials", "1", "--timeout", "2") == {
        name: FAULTS[name] for name in ("raise", "hang", "well")
    }
    (tmp_path / "b").mkdir()
    missing = {"kind": "command", "command": ["no-such-program"], "protocol": "text"}
    path = suite_of(tmp_path / "b", missing, "well")
    assert outcomes(path, "--trials", "1", code=2) == {"well": ("infra_error", "")}


@contextmanager
def service() -> Iterator[str]:
    """A service that answers each input in its own way."""

    class Service(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["content-length"])))["input"]
            status = {"bad": 422, "busy": 503, "never": 501}.get(asked, 200)
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.end_headers()
            self.wfile.write(b'{"answer": "fine"}' if asked == "well" else b"{not json")

        def log_message(self, format: str, *args: Any) -> None: ...  # noqa: A002 (its name there)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Service)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def test_a_service_out_of_reach_is_infrastructure_and_one_that_refuses_is_not(
    tmp_path: Path,
) -> None:
    """R-R1, R-A2: server errors and lost connections are infrastructure; a refusal and a reply
    that cannot be read are the agent's."""
    with service() as url:
        path = suite_of(
            tmp_path, {"kind": "http", "url": url}, *("bad", "busy", "never"), "x", "well"
        )
        assert outcomes(path, "--trials", "1") == {
            "bad": ("failed", "agent_error"),
            "busy": ("infra_error", ""),
            "never": ("infra_error", ""),
            "x": ("failed", "agent_error"),
            "well": ("passed", ""),
        }
    (tmp_path / "b").mkdir()
    path = suite_of(tmp_path / "b", {"kind": "http", "url": url}, "well")
    assert outcomes(path, "--trials", "1", code=2) == {"well": ("infra_error", "")}


def test_an_agent_that_hangs_on_half_its_cases_is_not_at_100_percent(tmp_path: Path) -> None:
    """R-R1, R-Q3: the leaderboard counts a hang as a failure."""
    path = suite_of(tmp_path, "bot:answer", "hang", "well")
    outcomes(path, "--trials", "2", "--timeout", "0.3")
    board = proctor("leaderboard", only_run(tmp_path / "results"), "--json")
    (row,) = json.loads(board.stdout)["rows"]
    assert (row["value"]["value"], row["value"]["n"]) == (0.5, 4)


def test_a_killed_command_did_not_reach_a_memory_limit(tmp_path: Path) -> None:
    """R-R1: SIGKILL can come from anywhere; only an exhausted limit is `resource_limit`."""
    for name, body in {
        "killed": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
        "limit": "import resource as r; r.setrlimit(r.RLIMIT_AS, (2**28, 2**28)); ' ' * 2**31",
    }.items():
        agent = {"kind": "command", "command": [sys.executable, "-c", body]}
        (tmp_path / name).mkdir()
        suite = suite_of(tmp_path / name, agent, "q")
        results = tmp_path / name / "r"
        proctor("run", suite, "--trials", "1", "--quiet", "--results", results)
        (trial,) = journal(only_run(results))
        wanted = "resource_limit" if name == "limit" else "agent_error"
        assert (trial["status"], trial["category"]) == ("failed", wanted), trial["error"]


def test_a_crash_counts_as_zero_and_the_threshold_decides(tmp_path: Path) -> None:
    """R-R1: a crash is a failed trial, not a blocking failure: one of ten leaves a mean of 0.9."""
    (tmp_path / "rare.py").write_text(
        "def answer(request):\n"
        "    if request.index == 3:\n        raise KeyError('price')\n"
        "    return 'fine'\n"
    )
    for threshold, verdict, code in ((0.8, "PASS", 0), (1.0, "PARTIAL", 1)):
        suite = suite_of(tmp_path, "rare:answer", "q", defaults={"threshold": threshold})
        results = tmp_path / f"r{code}"
        done = proctor("run", suite, "--trials", "10", "--quiet", "--results", results)
        (cell,) = json.loads((only_run(results) / "results.json").read_text())["cells"]
        assert (done.returncode, cell["verdict"], cell["failed"]) == (code, verdict, 1)
