"""One rule for the exit codes of `test`, `run` and `gate`, through the command line."""

import json
from pathlib import Path

import pytest
import yaml
from commands import proctor
from run_parts import only_run

BOTS = """
calls = 0

def bot(input):
    # The words of the input say what each call does; the last one goes on for ever.
    global calls
    words = input.split()
    word = words[min(calls, len(words) - 1)]
    calls += 1
    if word == "down":
        raise ConnectionError("no route to the model")
    return word
"""


def write(folder: Path, *inputs: str, blocking: bool = False, **settings: object) -> Path:
    """A suite of one case for each input: the answer has to be `yes`."""
    (folder / "bots.py").write_text(BOTS)
    correctness = {"expected_in_answer": ["yes"]}
    required = {"required": ["expected_in_answer"]} if blocking else {}
    cases = [
        {"id": f"case-{number}", "input": text, "correctness": correctness, **required}
        for number, text in enumerate(inputs)
    ]
    suite = {"version": 1, "agent": "bots:bot", "cases": cases}
    (folder / "suite.yaml").write_text(yaml.safe_dump(suite))
    if settings:
        (folder / "proctor.yaml").write_text(yaml.safe_dump(settings))
    return folder / "suite.yaml"


def run(folder: Path, *options: object):
    once = ("--concurrency", 1, "--max-retries", 0)
    return proctor("run", "suite.yaml", *once, *options, cwd=folder)


def test_one_infrastructure_error_in_forty_is_tolerated(tmp_path):
    """R-R1, R-R11: 39 of 39 judged trials pass, one has no verdict: 2.5 % is below 5 %."""
    write(tmp_path, "down yes")
    done = run(tmp_path, "--trials", 40)
    assert done.returncode == 0, done.stdout
    assert "PASS" in done.stdout
    assert "39/39" in done.stdout
    assert "1 of 40 could not be judged" in done.stdout
    quiet = run(tmp_path, "--trials", 40, "--quiet").stdout
    assert "39 of 39 judged trials; 1 could not be judged" in quiet


def test_more_than_the_tolerated_share_is_not_judged(tmp_path):
    """R-R1, R-R11: 3 of 40 are 7.5 %; an option and a setting change what is tolerated."""
    write(tmp_path, "down down down yes")
    assert run(tmp_path, "--trials", 40).returncode == 2
    assert run(tmp_path, "--trials", 40, "--max-not-judged", 0.1).returncode == 0
    write(tmp_path, "down down down yes", limits={"max_not_judged": 0.1})
    assert run(tmp_path, "--trials", 40).returncode == 0
    assert run(tmp_path, "--trials", 40, "--max-not-judged", 0).returncode == 2


def test_a_hard_fail_counts_before_what_was_not_judged(tmp_path):
    """R-R1, R-R11: failures and an infrastructure error in one cell give 1, and both are said."""
    write(tmp_path, "down no", blocking=True)
    done = run(tmp_path, "--trials", 5)
    assert done.returncode == 1, done.stdout
    assert "HARD FAIL" in done.stdout
    assert "0/4" in done.stdout
    assert "1 of 5 could not be judged" in done.stdout


def test_an_agent_that_always_fails_is_never_better_off(tmp_path):
    """R-R11: the worse agent exits with 1 in `run` and in `test`."""
    write(tmp_path, "no")
    assert run(tmp_path, "--trials", 40).returncode == 1
    assert proctor("test", "suite.yaml", cwd=tmp_path).returncode == 1


def test_the_tolerance_of_test_is_that_of_run(tmp_path):
    """R-R11: `test` has the same option and the same setting."""
    write(tmp_path, "down", "yes", "yes", limits={"max_not_judged": 0.5})
    (tmp_path / "bots.py").write_text(BOTS.replace("words[min(calls, len(words) - 1)]", "input"))
    suite = ("test", "suite.yaml", "--format", "json")
    done = proctor(*suite, cwd=tmp_path)
    assert json.loads(done.stdout)["totals"]["infra_error"] == 1
    assert done.returncode == 0
    assert proctor(*suite, "--max-not-judged", 0.1, cwd=tmp_path).returncode == 2


@pytest.mark.parametrize("option", ["--max-errors", "--allow-infra"])
def test_the_former_options_are_gone(option):
    """R-R11: one name for the tolerated share, in every command."""
    for command in (("gate", "latest", "--against", "main"), ("run", "suite.yaml")):
        done = proctor(*command, option)
        assert done.returncode == 2
        assert "No such option" in done.stderr


def test_the_gate_reads_the_same_setting(tmp_path):
    """R-R11: 10 % without a verdict is too much for the gate as for the run."""
    write(tmp_path, "yes")
    run(tmp_path, "--trials", 40, "--name", "before")
    down = BOTS.replace("input.split()", "'down down down down yes'.split()")
    (tmp_path / "bots.py").write_text(down)
    run(tmp_path, "--trials", 40, "--name", "after")
    names = [f"{name}/{only_run_of(tmp_path, name)}" for name in ("after", "before")]
    gate = ("gate", names[0], "--against", names[1], "--json")
    assert proctor(*gate, cwd=tmp_path).returncode == 2
    (tmp_path / "proctor.yaml").write_text("limits: {max_not_judged: 0.2}\n")
    assert proctor(*gate, cwd=tmp_path).returncode == 0
    assert proctor(*gate, "--max-not-judged", 0.05, cwd=tmp_path).returncode == 2


def test_a_gate_on_failures_is_as_red_as_the_run(tmp_path):
    """R-R1, R-R11: an agent that always fails is a regression though 20 % have no verdict."""
    write(tmp_path, "yes")
    assert run(tmp_path, "--trials", 40, "--name", "before").returncode == 0
    flaky = BOTS.replace("words[min(calls, len(words) - 1)]", "'no' if calls % 5 else 'down'")
    (tmp_path / "bots.py").write_text(flaky)
    assert run(tmp_path, "--trials", 40, "--name", "after").returncode == 1
    names = [f"{name}/{only_run_of(tmp_path, name)}" for name in ("after", "before")]
    done = proctor("gate", names[0], "--against", names[1], cwd=tmp_path)
    assert done.returncode == 1, done.stdout
    assert done.stdout.startswith("REGRESSION")
    assert "8 of 40 trials of the candidate ended without a verdict" in done.stdout


@pytest.mark.parametrize(("share", "code"), [("0", 2), ("1", 0)])
def test_all_three_commands_take_none_and_all(tmp_path, share, code):
    """R-R11: no trial without a verdict, or any number of them, may be tolerated everywhere."""
    write(tmp_path, "yes")
    run(tmp_path, "--trials", 40, "--name", "before")
    (tmp_path / "bots.py").write_text(BOTS.replace("input.split()", "'down yes'.split()"))
    option = ("--max-not-judged", share)
    assert run(tmp_path, "--trials", 40, "--name", "after", *option).returncode == code
    names = [f"{name}/{only_run_of(tmp_path, name)}" for name in ("after", "before")]
    done = proctor("gate", names[0], "--against", names[1], *option, cwd=tmp_path)
    assert done.returncode == code, done.stdout
    write(tmp_path, "down", "yes")
    (tmp_path / "bots.py").write_text(BOTS.replace("words[min(calls, len(words) - 1)]", "input"))
    done = proctor("test", "suite.yaml", *option, cwd=tmp_path)
    assert done.returncode == code, done.stderr
    assert "could not be judged" in done.stdout


def only_run_of(folder: Path, name: str) -> str:
    (found,) = (folder / "results" / name).iterdir()
    return found.name


def test_a_cell_stopped_by_a_limit_is_no_pass(tmp_path):
    """R-R1, R-R4: 5 passed trials of 20 planned are INCOMPLETE, with exit code 2."""
    write(tmp_path, "yes")
    done = run(tmp_path, "--trials", 20, "--max-trials", 5)
    assert done.returncode == 2
    assert "INCOMPLETE" in done.stdout
    assert "PASS" not in done.stdout
    assert "0 of 1 cell passed" in done.stdout
    found = json.loads((only_run(tmp_path / "results") / "results.json").read_text())
    assert found["cells"][0]["verdict"] == "INCOMPLETE"


ENDINGS = """
import asyncio, os, sys

HALF = "a\\ud800b"

def cancels(input):
    raise asyncio.CancelledError

def interrupts(input):
    raise KeyboardInterrupt

def answers(input):
    return "yes"

def says(input):
    raise ValueError(HALF)

def lost(input):
    raise ExceptionGroup("tasks", [ConnectionError("one"), TimeoutError("two")])

def mixed(input):
    raise ExceptionGroup("tasks", [ConnectionError("one"), ValueError("two")])

def interrupting_check(context):
    raise KeyboardInterrupt

async def cancelling_check(context):
    raise asyncio.CancelledError

def wordy_check(context):
    return False, HALF
"""


def endings(folder: Path, agent: str, *checks: str) -> list[dict[str, object]]:
    """Run one trial twice, with and without a time limit; return what the journals hold."""
    (folder / "ends.py").write_text(ENDINGS)
    case = {"id": "c", "input": "x", "correctness": {"expected_in_answer": ["yes"]}}
    case["checks"] = [f"ends:{check}" for check in checks]
    suite = {"version": 1, "agent": f"ends:{agent}", "cases": [case]}
    (folder / "suite.yaml").write_text(yaml.safe_dump(suite))
    found = []
    for name, option in (("plain", ()), ("timed", ("--timeout", 60))):
        done = run(folder, "--trials", 1, "--name", name, *option)
        line = (folder / "results" / name / only_run_of(folder, name) / "trials.jsonl").read_text()
        found.append({"exit": done.returncode, **json.loads(line)})
    return found


@pytest.mark.parametrize("agent", ["cancels", "interrupts", "mixed"])
def test_an_agent_cannot_pass_its_error_off_as_ours(tmp_path, agent):
    """R-R1: raising as a cancelled task or Ctrl-C do is the agent's error, not a stopped run."""
    for found in endings(tmp_path, agent):
        assert (found["exit"], found["status"], found["category"]) == (1, "failed", "agent_error")


def test_a_group_of_lost_connections_is_infrastructure(tmp_path):
    """R-R1, R-R3: a task group that only lost connections is transient, as each of them is."""
    for found in endings(tmp_path, "lost"):
        assert (found["exit"], found["status"]) == (2, "infra_error")


@pytest.mark.parametrize("check", ["interrupting_check", "cancelling_check"])
def test_a_check_cannot_stop_the_run(tmp_path, check):
    """R-R1: such a check is broken: unscored, not a cancelled trial."""
    for found in endings(tmp_path, "answers", check):
        assert (found["exit"], found["status"]) == (2, "infra_error")
        assert "the check itself failed" in found["error"]["message"]


@pytest.mark.parametrize(("agent", "check"), [("says", ()), ("answers", ("wordy_check",))])
def test_half_a_character_in_a_reason_does_not_end_the_run(tmp_path, agent, check):
    """R-D1: a lone surrogate in an exception or a check's reason is stored as U+FFFD."""
    for found in endings(tmp_path, agent, *check):
        assert found["exit"] == 1
        assert "a\ufffdb" in json.dumps(found, ensure_ascii=False)
