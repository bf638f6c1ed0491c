"""In Python what the commands do: compare, rank, gate and plan in a line each."""

import json

import pytest
from outcome_parts import made_run, suite

import proctor
from proctor.cli.main import run as command
from proctor.runs import notes
from proctor.runs.run import Run


def test_python_says_what_the_commands_say(tmp_path, capsys):
    """R-Q3: runs by path, tag, latest or as objects; the same figures either way."""
    old = made_run(tmp_path, {"x": suite([(9, 10)] * 4)}, name="old")
    new = made_run(tmp_path, {"x": suite([(5, 10)] * 4)}, name="new")
    notes.tag(old, "baseline")

    def told(*args):
        command([*args, "--results", str(tmp_path), "--json"])
        return json.loads(capsys.readouterr().out)

    found = proctor.compare("baseline", "latest", root=tmp_path)
    p = told("compare", "baseline", "latest")["pairs"][0]["metrics"][0]["suite"]["p_value"]
    assert found.pairs[0].overall.suite.p_value == p
    gate = proctor.results.gate(Run(new), old, root=tmp_path)
    assert gate.verdict == told("gate", "latest", "--baseline", "baseline")["verdict"]
    board = proctor.results.rank(root=tmp_path)
    low = told("leaderboard")["rows"][0]["pass_rate"]["low"]
    assert board.rows[0].pass_rate.low == pytest.approx(low)
    plan = proctor.results.plan(0.1, run="latest", root=tmp_path)
    within = told("plan", "--effect", "0.1", "--from", "latest")["within"]["value"]
    assert plan.within.value == pytest.approx(within)
