"""Curriculum: levels in order, earned one by one."""

import signal
import subprocess
import sys

import commands
import pytest
import yaml
from research_parts import (
    CHANCE,
    INVESTIGATOR,
    SOLUTION,
    experiment,
    outcomes,
    record_of,
    researched,
)

import proctor
from proctor.background import run_sync
from proctor.errors import ProctorError
from proctor.runs.run import Run
from proctor.runs.trial import Trial, TrialStatus
from proctor.trials.resume import arerun, aresume, extend
from proctor.trials.session import FAILED

CURRICULUM = {
    "levels": ["easy", "medium", "hard"],
    "promote": {"pass_rate": 0.75, "last": 4},
    "max_trials": 8,
}
AGENTS = {"chance": CHANCE, "investigator": INVESTIGATOR, "solution": SOLUTION}


def test_each_agent_goes_as_far_as_it_earns(tmp_path):
    """R-Q8: promotion by the last trials, a cap per level; which level was reached and why."""
    run, record = researched(tmp_path, agents=AGENTS, research={"curriculum": CURRICULUM})
    agents = record["found"]["agents"]
    assert agents["solution"]["passed"] == ["easy", "medium", "hard"]
    assert agents["chance"]["reached"] == "easy"
    assert "not promoted from easy: " in agents["chance"]["why"]
    assert "easy" in agents["investigator"]["passed"]
    for agent, told in agents.items():
        trials = sorted(
            (t for t in run.trials() if t.agent == agent), key=lambda t: (t.case, t.axis_seed)
        )
        for level in told["levels"]:
            own = [t for t in trials if t.case.endswith("@" + level["level"])]
            assert [t.axis_seed for t in own] == list(range(level["trials"]))
            last = own[-4:]
            assert level["promoted"] == (sum(t.passed for t in last) >= 3)
            assert level["promoted"] or level["trials"] == 8
        assert len(trials) == sum(level["trials"] for level in told["levels"])
    decided = [line for each in record["rounds"] for line in each["decided"]]
    assert any(line.startswith("solution: promoted from easy to medium: 4 of") for line in decided)
    assert {cell.agent: cell.asked for cell in run.cells if cell.case.endswith("@easy")} == {
        agent: told["levels"][0]["trials"] for agent, told in agents.items()
    }


def test_stopped_at_any_trial_and_resumed_it_is_the_same(tmp_path):
    """R-Q8: rounds follow from the journal alone, so every way of stopping leads to one run."""
    fields = {"agents": AGENTS, "research": {"curriculum": CURRICULUM}}
    whole, record = researched(tmp_path / "whole", **fields)
    run = proctor.run(
        experiment(**fields), results=tmp_path, limits={"max_trials": 5}, concurrency=1
    )
    assert "trial limit reached" in str(run.stopped)
    sittings = 1
    while run.stopped:
        assert record_of(run)["ended"] is False
        run = run_sync(aresume(run.path, max_trials=5, concurrency=3))
        sittings += 1
    assert sittings > 5
    assert outcomes(run) == outcomes(whole)
    assert record_of(run) == record
    assert run.spec["cells"] == whole.spec["cells"]
    assert outcomes(run_sync(arerun(whole.path)).second) == outcomes(whole)


def test_killed_by_a_signal_it_goes_on(tmp_path):
    """R-Q8: a real interruption in the middle of a round costs nothing but time."""
    (tmp_path / "slow.py").write_text(
        "import asyncio\n"
        "from proctor.worlds.ecosystem_agents import Investigator\n"
        "class Slow(Investigator):\n"
        "    async def __call__(self, request):\n"
        "        print('step', flush=True)\n"
        "        await asyncio.sleep(0.01)\n"
        "        return Investigator.__call__(self, request)\n"
    )
    fields = {
        "name": "study",
        "cases": ["mutualism.hidden_dependency@*"],
        "agents": {"slow": {"kind": "python", "target": "slow:Slow"}},
        "research": {"curriculum": CURRICULUM},
    }
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(fields))
    command = [sys.executable, "-m", "proctor", "run", "study.yaml", "--results"]
    with subprocess.Popen(
        [*command, "cut", "--json", "--concurrency", "2"],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        finished = 0
        assert process.stderr is not None
        for line in process.stderr:
            finished += '"finished"' in line
            if finished == 6:
                break
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode == 130
    (cut,) = (tmp_path / "cut").glob("study/*")
    first = Run(cut)
    assert any(t.status == TrialStatus.CANCELLED for t in first.trials())
    assert record_of(first)["ended"] is False
    done = commands.proctor("run", "--resume", cut, cwd=tmp_path)
    assert "curriculum: " in done.stdout
    commands.proctor("run", "study.yaml", "--results", "whole", cwd=tmp_path)
    (whole,) = (tmp_path / "whole").glob("study/*")
    assert outcomes(Run(cut)) == outcomes(Run(whole))
    assert record_of(Run(cut)) == record_of(Run(whole))


def test_results_that_later_rounds_stand_on_are_not_run_again(tmp_path):
    """R-Q8: --retry-failed would change what was decided on; foreign results are refused."""
    run, _ = researched(tmp_path, agents={"a": SOLUTION}, research={"curriculum": CURRICULUM})
    with pytest.raises(ProctorError, match="later rounds were decided on these results"):
        run_sync(aresume(run.path, rerun=FAILED))
    before = run.folder.spec_path.read_bytes()
    with pytest.raises(ProctorError, match="curriculum selected the trials of this run"):
        extend(run.path, 1)
    assert run.folder.spec_path.read_bytes() == before
    stranger = Trial(
        case="mutualism.hidden_dependency@hard", agent="a", index=7, seed=1,
        status=TrialStatus.PASSED,
    )  # fmt: skip
    with run.folder.lock():
        journal = run.folder.journal()
        journal.append(stranger)
        journal.close()
    with pytest.raises(ProctorError, match="do not lead to the trial"):
        run_sync(aresume(run.path))


def test_trials_that_could_not_be_judged_promote_nobody(tmp_path):
    """R-Q8: an infrastructure error is no observation, yet a level still ends."""
    broken = {"kind": "scripted", "cases": {"another": "?"}}
    _, record = researched(tmp_path, agents={"a": broken}, research={"curriculum": CURRICULUM})
    found = record["found"]["agents"]["a"]
    assert found["reached"] == "easy"
    assert found["levels"][0]["judged"] == 0
    assert "8 could not be judged" in found["why"]


def test_slips_are_told_where_they_stand(tmp_path):
    """R-Q8: a level without cases, options that do not go with research."""

    def tried(curriculum, **fields):
        researched(tmp_path, agents={"a": CHANCE}, research={"curriculum": curriculum}, **fields)

    with pytest.raises(ProctorError, match="no case of the experiment is of the level 'hrd'") as e:
        tried({"levels": ["easy", "hrd"]})
    assert "hard" in str(e.value.hint)
    with pytest.raises(ValueError, match="`params` are for a sweep"):
        tried({"levels": ["easy", "hard"]}, params={"noise": [0, 1]})
    with pytest.raises(ValueError, match=r"promote.last \(5\) is more than max_trials"):
        tried({"levels": ["easy", "hard"], "max_trials": 3})
    path = tmp_path / "exp.yaml"
    path.write_text(
        "cases: mutualism\nagents: [random]\nresearch:\n  curriculum:\n    levels: [easy, hrd]\n"
    )
    with pytest.raises(ProctorError) as error:
        proctor.run(path, results=tmp_path / "results")
    assert str(error.value.where).endswith("exp.yaml:5:5")
    with pytest.raises(ProctorError, match="so `early_stop` cannot be set"):
        proctor.run(
            experiment(agents={"a": CHANCE}, research={"curriculum": CURRICULUM}),
            results=tmp_path / "results",
            early_stop=("hard_fail",),
        )
    with pytest.raises(ProctorError, match="so `trials` cannot be set"):
        proctor.run(
            experiment(agents={"a": CHANCE}, research={"curriculum": CURRICULUM}),
            results=tmp_path / "results",
            trials=3,
        )
    assert not (tmp_path / "results").exists()
