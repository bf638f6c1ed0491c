"""`proctor gate`: verdicts as exit codes, and a gate that really runs more trials."""

import json
import re
import subprocess

import pytest
from commands import proctor
from outcome_parts import made_run, suite
from run_parts import journal

from proctor.cli.main import run as command
from proctor.runs import annotations, audit
from proctor.runs.run import Run

AGENTS = """
import random
async def steady(input, seed): return input if random.Random(seed).random() < 0.85 else "no"
async def shaky(input, seed): return input if random.Random(seed).random() < 0.45 else "no"
"""

SUITE = """
version: 1
agent: bots:{agent}
defaults: {{trials: 4}}
cases:
  - {{id: one, input: alpha, correctness: {{expected_in_answer: [alpha]}}}}
  - {{id: two, input: beta, correctness: {{expected_in_answer: [beta]}}}}
  - {{id: three, input: gamma, correctness: {{expected_in_answer: [gamma]}}, trials: 6}}
"""


@pytest.fixture
def work(tmp_path):
    """A folder with an agent, a suite of it, and a baseline run tagged so."""
    (tmp_path / "bots.py").write_text(AGENTS)
    for agent in ("steady", "shaky"):
        (tmp_path / f"{agent}.yaml").write_text(SUITE.format(agent=agent))
    return tmp_path


def ran(work, agent, name, *more):
    done = proctor(
        *("run", f"{agent}.yaml", "--name", name, "--quiet", "--results", "kept", *more), cwd=work
    )
    assert done.returncode in (0, 1), done.stderr
    (run,) = (work / "kept" / name).iterdir()
    return run


@pytest.mark.parametrize(
    ("candidate", "more", "code", "verdict"),
    [
        ([(2, 20)] * 4, (), 1, "REGRESSION"),
        ([(19, 20)] * 4, ("--margin", "0.3"), 0, "NO REGRESSION"),
        ([(18, 20)] * 4, (), 0, "INCONCLUSIVE"),
        ([(18, 20)] * 4, ("--inconclusive", "fail"), 1, "INCONCLUSIVE"),
        ([(18, 20, 9)] * 4, (), 2, "INCONCLUSIVE"),
        (
            [(18, 20, 9)] * 4,
            ("--max-not-judged", "0.5", "--inconclusive", "fail"),
            1,
            "INCONCLUSIVE",
        ),
        ([(18, 20)] * 4, ("--must-pass", "case-0*"), 1, "REGRESSION"),
    ],
)
def test_the_verdict_is_the_exit_code(tmp_path, capsys, candidate, more, code, verdict):
    """R-Q2, R-R11: 0 passed, 1 the gate failed, 2 could not be judged; JSON says the same."""
    baseline = made_run(tmp_path, {"x": suite([(19, 20)] * 4)}, name="old")
    run = made_run(tmp_path, {"x": suite(candidate)}, name="new")
    args = ["gate", str(run), "--against", str(baseline), "--results", str(tmp_path), *more]
    assert command([*args, "--json"]) == code
    told = json.loads(capsys.readouterr().out)
    assert (told["verdict"], told["exit_code"]) == (verdict, code)
    assert command(args) == code
    shown = capsys.readouterr().out
    assert shown.startswith(verdict)
    by_default = "INCONCLUSIVE passes by default (exit code 0): --inconclusive fail or extend"
    assert (by_default in shown) == ((verdict, code) == ("INCONCLUSIVE", 0))
    assert "error rate: alpha 0.05, one-sided: one test, one look" in shown
    assert "smallest drop these runs would find" in shown
    last = list(audit.entries(tmp_path))[-1]
    assert (last.command, last.exit_code, last.run) == ("gate", code, str(run))
    assert (last.outcome or "").startswith(verdict)


def test_the_same_numbers_on_the_console_and_in_json(tmp_path, capsys):
    """R-Q2: drop, bound and p-value as people read them are those of the document."""
    baseline = made_run(tmp_path, {"x": suite([(19, 20)] * 4)}, name="old")
    run = made_run(tmp_path, {"x": suite([(16, 20), (19, 20), (19, 20), (12, 20)])}, name="new")
    args = ["gate", str(run), "--against", str(baseline), "--results", str(tmp_path)]
    command([*args, "--json"])
    gate = json.loads(capsys.readouterr().out)["arms"][0]["gate"]
    command(args)
    shown = capsys.readouterr().out
    assert f"drop {100 * gate['drop']:.1f} points" in shown
    assert f"at most {100 * gate['drop_at_most']:.1f} points" in shown
    assert f"{100 * gate['detectable']['effect']:.3g} points with power 0.8" in shown
    assert gate["moves"][0]["case"] == "case-03"
    assert re.search(r"case-03 +19/20 +12/20 +−35 points", shown)


def test_not_comparable_says_what_changed(tmp_path, capsys):
    """R-Q2: 2, with the part of the case and both hashes."""
    baseline = made_run(tmp_path, {"x": {"a": (5, 5)}}, name="old")
    run = made_run(tmp_path, {"x": {"a": (0, 5)}}, name="new", written={"a": {"input": "other"}})
    args = ["gate", str(run), "--against", str(baseline), "--results", str(tmp_path)]
    assert command(args) == 2
    shown = capsys.readouterr().out
    assert shown.startswith("NOT COMPARABLE")
    assert re.search(r"a: the case changed \(input\): case [0-9a-f]{8} → [0-9a-f]{8}", shown)


def test_a_baseline_by_its_tag(tmp_path, capsys):
    """R-Q2, R-D5: a tag names the baseline; an unknown one is an error with what was meant."""
    baseline = made_run(tmp_path, {"x": suite([(19, 20)] * 4)}, name="old")
    made_run(tmp_path, {"x": suite([(2, 20)] * 4)}, name="new")
    annotations.tag(baseline, "baseline")
    assert command(["gate", "latest", "--against", "baseline", "--results", str(tmp_path)]) == 1
    assert str(baseline) in capsys.readouterr().out
    assert command(["gate", "latest", "--against", "basline", "--results", str(tmp_path)]) == 2
    assert "did you mean 'baseline'" in capsys.readouterr().err


def test_extending_runs_the_trials_and_judges_again(work):
    """R-Q2: an inconclusive gate adds trials to the candidate, in its folder, and the second look
    settles it at half of alpha; what was run before is kept as it was."""
    baseline = ran(work, "steady", "old", "--trials", 40)
    run = ran(work, "shaky", "new")
    before = journal(run)
    done = proctor(
        *("gate", run, "--against", baseline, "--inconclusive", "extend", "--extend-by", 30),
        *("--alpha", "0.001", "--margin", "0.2", "--results", "kept", "--quiet", "--json"),
        cwd=work,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    told = json.loads(done.stdout)
    assert [look["verdict"] for look in told["history"]] == ["INCONCLUSIVE", "REGRESSION"]
    assert told["alpha_each"] == pytest.approx(0.0005)
    assert told["error_rate"].startswith("alpha 0.001 in all, one-sided: 2 looks")
    after = journal(run)
    assert after[: len(before)] == before
    counts = {cell.case: cell.trials for cell in Run(run).cells}
    assert counts == {"one": 34, "two": 34, "three": 36}
    assert len({(t["case"], t["seed"]) for t in after}) == len(after) == 104
    assert len(journal(baseline)) == 120
    (extension,) = Run(run).spec["extensions"]
    assert (extension["trials"], extension["looks"]) == (30, 2)
    # Nothing is left: the larger plan is done, and a gate without `extend` still splits alpha.
    assert proctor("run", "--resume", run, "--quiet", cwd=work).returncode == 1
    assert len(journal(run)) == 104
    again = proctor("gate", run, "--against", baseline, "--results", "kept", "--json", cwd=work)
    assert json.loads(again.stdout)["alpha_each"] == pytest.approx(0.025)


def test_a_population_is_not_extended_by_trials(work):
    """R-Q2: about cases like these, more trials of these few settle nothing: none is run, and the
    gate says what would settle it."""
    baseline = ran(work, "steady", "old")
    run = ran(work, "steady", "new", "--seed", 5)
    done = proctor(
        *("gate", run, "--against", baseline, "--inconclusive", "extend", "--results", "kept"),
        *("--estimand", "population"),
        cwd=work,
    )
    assert done.returncode == 2, done.stdout + done.stderr
    assert len(journal(run)) == 14
    assert "not extended: more trials of the same cases say little" in done.stdout
    assert "more cases in both runs would settle it" in done.stdout
    assert "extensions" not in Run(run).spec


def test_extending_ends_where_it_was_fixed_to_end(work):
    """R-Q2: a gate that stays open is 2, and asking once more runs nothing."""
    baseline = ran(work, "steady", "old")
    run = ran(work, "steady", "new", "--seed", 5)
    args = (
        *("gate", run, "--against", baseline, "--inconclusive", "extend", "--extend-by", 1),
        *("--extend-rounds", 2, "--results", "kept", "--quiet", "--json"),
    )
    done = proctor(*args, cwd=work)
    assert done.returncode == 2, done.stderr
    told = json.loads(done.stdout)
    assert len(told["history"]) == 3
    assert len(journal(run)) == 14 + 2 * 3
    again = json.loads(proctor(*args, cwd=work).stdout)
    assert len(journal(run)) == 14 + 2 * 3
    assert any("extended 2 times already" in note for note in again["notes"])
    assert again["alpha_each"] == told["alpha_each"] == pytest.approx(0.05 / 3)


def test_a_run_made_by_other_code_is_not_extended(work):
    """R-Q2: more trials of changed code would measure another agent; the baseline of this very
    commit is extended too."""
    git = ["git", "-C", str(work), "-c", "user.name=a", "-c", "user.email=a@b"]
    (work / ".gitignore").write_text("kept\n__pycache__\n")
    for args in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "one"]):
        subprocess.run([*git, *args], check=True)
    baseline = ran(work, "steady", "old")
    run = ran(work, "steady", "new", "--seed", 5)
    args = (
        *("gate", run, "--against", baseline, "--inconclusive", "extend", "--extend-by", 2),
        *("--results", "kept", "--quiet", "--json"),
    )
    proctor(*args, cwd=work)
    assert len(journal(run)) == len(journal(baseline)) == 14 + 6
    (work / "bots.py").write_text(AGENTS + "# changed\n")
    subprocess.run([*git, "commit", "-q", "-a", "-m", "two"], check=True)
    other = ran(work, "steady", "newer", "--seed", 6)
    (work / "bots.py").write_text(AGENTS + "# changed again\n")
    subprocess.run([*git, "commit", "-q", "-a", "-m", "three"], check=True)
    told = json.loads(proctor(*args[:1], other, *args[2:], cwd=work).stdout)
    assert len(journal(other)) == 14
    assert any("the candidate was not extended: it was made by commit" in n for n in told["notes"])


def test_what_cannot_be_extended_is_said(tmp_path, capsys):
    """R-Q2: a run without its agent (an imported one) keeps its verdict, with the reason."""
    baseline = made_run(tmp_path, {"x": suite([(19, 20)] * 4)}, name="old")
    run = made_run(tmp_path, {"x": suite([(18, 20)] * 4)}, name="new")
    args = ["gate", str(run), "--against", str(baseline), "--results", str(tmp_path)]
    assert command([*args, "--inconclusive", "extend", "--json"]) == 2
    told = json.loads(capsys.readouterr().out)
    assert told["verdict"] == "INCONCLUSIVE"
    assert any("the candidate could not be extended" in note for note in told["notes"])
    assert len(told["history"]) == 1


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--margin", "0"], "--margin"),
        (["--alpha", "0.5"], "--alpha"),
        (["--extend-by", "3"], "--extend-by would have no effect without --inconclusive extend"),
        (["--inconclusive", "maybe"], "--inconclusive"),
        (["--must-pass", "nothing*"], "no case of the run matches"),
    ],
)
def test_impossible_wishes_are_usage_errors(tmp_path, capsys, args, said):
    """R-R11: 2, and the option is named."""
    run = str(made_run(tmp_path, {"x": {"a": (5, 5)}}))
    assert command(["gate", run, "--against", run, "--results", str(tmp_path), *args]) == 2
    assert said in capsys.readouterr().err


def test_a_run_that_is_its_own_baseline_is_told(tmp_path, capsys):
    """R-Q2: tagging the candidate before it is judged would make a gate that never fails: it is
    refused, also where the run is large enough for NO REGRESSION."""
    run = made_run(tmp_path, {"x": suite([(18, 20)] * 40)}, name="only")
    assert command(["gate", str(run), "--against", str(run)]) == 2
    assert "candidate and reference are the same run" in capsys.readouterr().err


def test_runs_of_one_commit_with_different_changes_differ(work):
    """R-Q2: the gate names the uncommitted changes of each run, not only their commit."""
    git = ["git", "-C", str(work), "-c", "user.name=x", "-c", "user.email=x@example.org"]
    for args in (("init", "-q"), ("add", "."), ("commit", "-qm", "first")):
        subprocess.run([*git, *args], check=True)
    runs = []
    for name in ("before", "after"):
        (work / "bots.py").write_text(AGENTS + f"# {name}\n")
        runs.append(ran(work, "steady", name))
    done = proctor("gate", runs[1], "--against", runs[0], cwd=work)
    changes = re.findall(
        r"commit [0-9a-f]{10} with uncommitted changes \(([0-9a-f]{8})\)", done.stdout
    )
    assert len(set(changes)) == 2, done.stdout + done.stderr
