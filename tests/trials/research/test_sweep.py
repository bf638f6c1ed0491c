"""Sweeps: which parameters serve best."""

import sys

import commands
import pytest
import yaml
from research_parts import INVESTIGATOR, experiment, outcomes, record_of, researched

import proctor
from proctor.background import run_sync
from proctor.errors import ProctorError
from proctor.runs.trial import params_key
from proctor.trials.resume import arerun, aresume

MEDIUM = {"cases": ["mutualism.hidden_dependency@medium"], "agents": {"a": INVESTIGATOR}}
SPACE = {"noise": {"low": 0.0, "high": 1.0}, "species": [4, 6, 8]}


def means(run) -> dict[str, float]:
    found: dict[str, list[float]] = {}
    for trial in run.trials():
        found.setdefault(params_key(trial.params), []).append(trial.score)
    return {key: sum(scores) / len(scores) for key, scores in found.items()}


def test_a_grid_is_ranked_by_its_scores(tmp_path):
    """R-Q8: every combination on the same seeds, best first, with an interval."""
    run, record = researched(
        tmp_path,
        **MEDIUM,
        seeds=4,
        params={"noise": [0.0, 0.5], "species": [4, 8]},
        research={"sweep": {}},
    )
    told = record["found"]["agents"]["a"]
    expected = means(run)
    assert len(expected) == 4
    assert {params_key(t["params"]): t["value"] for t in told["tried"]} == pytest.approx(expected)
    assert [t["value"] for t in told["tried"]] == sorted(expected.values(), reverse=True)
    assert told["best"]["params"]["noise"] == 0.0
    worst = told["tried"][-1]
    assert worst["low"] is None or worst["low"] <= worst["value"] <= worst["high"]


def test_a_random_sweep_draws_by_its_seed(tmp_path):
    """R-Q8: the same draws for the same seed, others for another; the hardest when minimising."""

    def drawn(seed, folder):
        run, record = researched(
            tmp_path / folder,
            **MEDIUM,
            params=SPACE,
            research={"sweep": {"sampler": "random", "n": 4, "seed": seed,
                                "objective": "pass_rate", "direction": "minimize"}},
        )  # fmt: skip
        values = [t["value"] for t in record["found"]["agents"]["a"]["tried"]]
        assert values == sorted(values)
        assert set(values) <= {0.0, 1.0}
        return set(means(run))

    first = drawn(1, "first")
    assert len(first) == 4
    assert drawn(1, "again") == first
    assert drawn(2, "other") != first


def test_an_optimiser_learns_and_resumes(tmp_path):
    """R-Q8: Optuna is told scores and asked for more; interrupted or repeated, it asks the same."""
    pytest.importorskip("optuna")
    fields = {
        **MEDIUM,
        "seeds": 2,
        "params": SPACE,
        "research": {"sweep": {"sampler": "tpe", "n": 14, "batch": 2, "seed": 3}},
    }
    whole, record = researched(tmp_path / "whole", **fields)
    tried = record["found"]["agents"]["a"]["tried"]
    assert len(record["rounds"]) == 7
    assert {params_key(t["params"]): t["value"] for t in tried} == pytest.approx(means(whole))
    assert record["rounds"][-1]["decided"][0].startswith("a: best of 12 so far is noise=")
    run = proctor.run(experiment(**fields), results=tmp_path, limits={"max_trials": 9})
    while run.stopped:
        run = run_sync(aresume(run.path, max_trials=9))
    assert outcomes(run) == outcomes(whole)
    assert record_of(run) == record
    assert run_sync(arerun(whole.path)).sameness.identical


def test_without_optuna_one_line_says_so(tmp_path, monkeypatch):
    """R-Q8: the extra is named, nothing is created; other samplers need none of it."""
    monkeypatch.setitem(sys.modules, "optuna", None)
    tpe = {"sampler": "tpe", "n": 3}
    with pytest.raises(ProctorError, match="needs Optuna") as error:
        researched(tmp_path, **MEDIUM, params=SPACE, research={"sweep": tpe})
    assert "proctor[sweep]" in str(error.value.hint)
    assert not list(tmp_path.iterdir())


def test_the_command_tells_what_was_found(tmp_path):
    """R-Q8: `proctor run` prints the ranking; --dry-run says that more rounds follow."""
    fields = {
        "cases": "mutualism.hidden_dependency@easy",
        "agents": {"a": INVESTIGATOR},
        "params": {"noise": [0.0, 0.1]},
        "research": {"sweep": {"sampler": "grid"}},
    }
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(fields))

    def told(*more):
        done = commands.proctor("run", "study.yaml", "--results", "out", *more, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "first round of sweep" in told("--dry-run")
    assert "sweep: 1 round\n  a: 2 combinations, the best of them by score:" in told()


def test_what_makes_no_sense_is_told():
    """R-Q8: no axes, a draw without a number, two ways of sampling."""
    for fields, message in (
        ({"research": {"sweep": {}}}, "a sweep needs `params`"),
        (
            {"params": {"x": [1]}, "research": {"sweep": {"sampler": "tpe"}}},
            "is for random and tpe",
        ),
        ({"params": {"x": [1]}, "research": {"sweep": {"n": 3}}}, "is for random and tpe"),
        (
            {"params": {"x": [1]}, "sample": {"n": 1}, "research": {"sweep": {}}},
            "has its own sampler",
        ),
        ({"params": SPACE, "research": {"sweep": {}}}, "must be drawn from"),
        ({"research": {}}, "give one of curriculum, adaptive, ablation, sweep"),
    ):
        with pytest.raises(ValueError, match=message):
            experiment(**fields)
