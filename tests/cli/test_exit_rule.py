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
    once = ("--concurrency", 1, "--max-retries", 0, "--quiet")
    return proctor("run", "suite.yaml", *once, *options, cwd=folder)


def test_one_infrastructure_error_in_forty_is_tolerated(tmp_path):
    """R-R1, R-R11: 39 of 39 judged trials pass, one has no verdict: 2.5 % is below 5 %."""
    write(tmp_path, "down yes")
    done = run(tmp_path, "--trials", 40)
    assert done.returncode == 0, done.stdout
    assert "PASS" in done.stdout
    assert "39/39" in done.stdout
    assert "1 of 40 could not be judged" in done.stdout


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
