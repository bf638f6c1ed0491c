"""A human baseline: people's runs under a name, compared like any agent."""

import json

import commands
import pytest
import yaml
from research_parts import CHANCE, experiment

import proctor
from proctor.agents._builtin import SavedMoves
from proctor.agents.actions import ActionTurn
from proctor.agents.base import AgentRequest
from proctor.runs.run import Run
from proctor.scenarios import build

CASE = "mutualism.hidden_dependency@easy"


@pytest.fixture
def at(tmp_path, monkeypatch):
    """Runs the command in a folder of its own, with what a person types."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "proctor.yaml").write_text("{}\n")

    def command(*arguments, typed=""):
        # No terminal: what is typed comes from standard input.
        return commands.proctor(*arguments, cwd=tmp_path, input=typed, session=True)

    return command


def solved(seed: int) -> str:
    cause = build(CASE, seed).truth["cause"]
    return f"protect {cause}\ndeclare {cause}\n"


def test_people_are_compared_with_agents_in_one_run(at, tmp_path):
    """R-Q8: who it was is on record with the run and in the traces, in reports a name."""
    fields = {
        "name": "baseline",
        "cases": CASE,
        "agents": {"people": {"kind": "human", "participant": "P07"}, "chance": CHANCE},
        "seeds": 3,
        "limits": {"concurrency": 1},
    }
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(fields))
    done = at("run", "study.yaml", "--quiet", typed="".join(solved(seed) for seed in range(3)))
    (path,) = tmp_path.glob("results/baseline/*")
    run = Run(path)
    assert {cell.agent: cell.passed for cell in run.cells} == {"people": 3, "chance": 0}, (
        done.stderr
    )
    assert run.spec["agents"]["people"]["version"] == {"participant": "P07"}
    for trial in run.trials():
        who = run.trace(trial).metadata.get("participant")
        assert who == ("P07" if trial.agent == "people" else None)
    compared = at("compare", str(path), "--agents", "chance,people", "--json")
    assert compared.returncode in (0, 1), compared.stderr
    text = compared.stdout
    assert "people" in text
    assert json.loads(text)


def test_results_of_people_from_elsewhere_are_compared_too(at, tmp_path):
    """R-Q8: a sheet of what people scored becomes a run; a leaderboard holds both."""
    run = proctor.run(
        experiment(name="agents", cases=[CASE], agents={"chance": CHANCE}, seeds=4),
        results=tmp_path / "results",
    )
    rows = "".join(f"{CASE},people,{seed},{score}\n" for seed, score in enumerate((1, 1, 0.5, 1)))
    (tmp_path / "sheet.csv").write_text("case,agent,seed,score\n" + rows)
    taken = at("runs", "import", "sheet.csv", "--name", "people", "--threshold", "0.9")
    assert taken.returncode == 0, taken.stderr
    (people,) = tmp_path.glob("results/people/*")
    assert {cell.agent: (cell.passed, cell.trials) for cell in Run(people).cells} == {
        "people": (3, 4)
    }
    board = at("leaderboard", str(run.path), str(people), "--json")
    assert board.returncode == 0, board.stderr
    assert '"people"' in board.stdout
    assert '"chance"' in board.stdout


def test_nobody_goes_on_with_anothers_moves(tmp_path):
    """R-Q8: two people on one machine have two unfinished episodes."""
    turn = ActionTurn(
        AgentRequest("task", case="c", trial="t", seed=1),
        observation={}, actions=["left"], step=0, max_steps=3,
    )  # fmt: skip
    SavedMoves(tmp_path, turn, "P01").add(turn, "left")
    assert len(SavedMoves(tmp_path, turn, "P01").moves) == 1
    assert SavedMoves(tmp_path, turn, "P02").moves == []
    assert SavedMoves(tmp_path, turn).moves == []
