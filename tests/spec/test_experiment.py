"""Experiments: what is accepted, what is refused and where; YAML and Python build the same."""

from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from proctor import Experiment
from proctor.errors import ProctorError
from proctor.spec import SpecError, schema_of
from proctor.spec.experiment import read_seeds
from proctor.spec.load import find_experiments, is_experiment, load_experiments
from proctor.spec.yaml_reader import read_text

WHOLE = """\
name: baseline
description: Which agent finds the partner?
cases:
  - mutualism.*
  - difficulty:hard
  - suite: support.yaml
    filter: tag:slow
exclude: ["*@medium"]
filter: "!tag:broken"
agents:
  chance: random
  mine: {kind: python, target: bots:act}
seeds: 3..5
trials: 2
params:
  species: [5, 7]
  noise: {low: 0.1, high: 10, log: true}
sample: {n: 3, seed: 1}
set: {level: hard, case.threshold: 0.5}
output: "{experiment}/x_{date}/{seq}"
judge: openai:gpt-4o-mini
limits: {concurrency: 2, timeout: 5, early_stop: [hard_fail]}
"""


def write(folder: Path, text: str, name: str = "exp.yaml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def problems(path: Path) -> list[str]:
    with pytest.raises(SpecError) as caught:
        load_experiments(path)
    return [str(p).removeprefix(f"{path.parent}/") for p in caught.value.problems]


def test_everything_an_experiment_can_say(tmp_path: Path) -> None:
    """R-S3: selection, agents, seeds, trials, axes, overrides, output: all from one file."""
    (found,) = load_experiments(write(tmp_path, WHOLE))
    assert found.name == "baseline"
    assert [(s.suite, s.filter) for s in found.cases] == [
        (None, "mutualism.*"),
        (None, "difficulty:hard"),
        ("support.yaml", "tag:slow"),
    ]
    assert found.seeds == (3, 4, 5)
    assert {name: str(ref) for name, ref in found.agents.items()} == {
        "chance": "random",
        "mine": "bots:act",
    }
    assert found.params["species"] == (5, 7)
    assert found.set == {"level": "hard", "case.threshold": 0.5}


@pytest.mark.parametrize(
    ("written", "seeds"),
    [
        (3, (0, 1, 2)),
        ("3", (0, 1, 2)),
        ("7..9", (7, 8, 9)),
        ("5..5", (5,)),
        ([9, 1, 5], (1, 5, 9)),
        ("9,1,5", (1, 5, 9)),
        ([0], (0,)),
    ],
)
def test_seeds_are_a_count_a_range_or_a_list(written: Any, seeds: tuple[int, ...]) -> None:
    """R-S3: and the order they are written in does not matter."""
    assert read_seeds(written) == seeds


@pytest.mark.parametrize(
    ("written", "message"),
    [
        (0, "at least one seed"),
        (-3, "at least one seed"),
        ("0", "at least one seed"),
        ([], "at least one seed"),
        ("9..7", "is empty: write 7..9"),
        ([1, 1], "seed 1 is there twice"),
        ([1, -1], "a whole number from 0"),
        ([1.5], "a whole number from 0"),
        (True, "a count such as 10"),
        ("some", "a count such as 10"),
        ("1..999999999", "more than the 1,000,000"),
        ([2**64], "larger than"),
    ],
)
def test_seeds_that_are_none(written: Any, message: str) -> None:
    """R-S3: each slip has its own words."""
    with pytest.raises(ValueError, match=message):
        read_seeds(written)


@given(st.lists(st.integers(0, 2**63 - 1), min_size=1, unique=True))
def test_any_list_of_seeds_reads_back(seeds: list[int]) -> None:
    """R-S3: a list, in any order, is the same seeds as its text."""
    assert read_seeds(seeds) == tuple(sorted(seeds)) == read_seeds([str(seed) for seed in seeds])


BAD = [
    ("cases: x\nseeds: 0", "exp.yaml:2:8: at least one seed is needed, got 0"),
    ("seeds: 2\nexclude: [x]", "exp.yaml:1:1: the key 'cases' is missing"),
    ("cases: []\nseeds: 2\nset: {}", "exp.yaml:1:8: cases must not be empty"),
    ("cases: x\nsedes: 3", "exp.yaml:2:1: unknown key 'sedes'"),
    ("cases: x\ntrials: 0", "exp.yaml:2:9: trials must be at least 1, got 0"),
    ("cases: x\nparams: {a: 3}", "exp.yaml:2:13: an axis is a list of values"),
    ("cases: x\nparams: {a: []}", "exp.yaml:2:13: an axis needs at least one value"),
    ("cases: x\nparams: {a: {low: 1, high: 2}}", "exp.yaml:2:13: 'a' must be drawn from"),
    ("cases: x\nparams: {a: [1]}\nset: {a: 2}", "exp.yaml:3:10: 'a' is an axis under `params`"),
    ("cases: x\nsample: {n: 3}", "exp.yaml:2:9: there are no `params` to draw from"),
    ("cases: x\nagents: [a, a]", "exp.yaml:2:9: the agent 'a' is there twice"),
    ("cases: x\nagents: {a: {kind: pyhton}}", "exp.yaml:2:20: unknown kind of agent 'pyhton'"),
    ("cases: x\noutput: ../{seq}", "exp.yaml:2:9: the output path '../{seq}' leads outside"),
    ("cases: x\noutput: /tmp/x", "exp.yaml:2:9: the output path '/tmp/x' leads outside"),
    ("cases: x\noutput: 'a/../../b'", "exp.yaml:2:9: the output path 'a/../../b' leads outside"),
    ("cases: x\noutput: 'c:\\x'", "exp.yaml:2:9: the output path 'c:\\\\x' leads outside"),
    ("cases: x\noutput: '{datum}'", "exp.yaml:2:9: there is no token {datum}: did you mean 'date'"),
    ("cases: x\noutput: '{seq}/{seq}'", "exp.yaml:2:9: {seq} is more than once"),
    ("cases: x\nexecutor: rya", "exp.yaml:2:11: kind must be one of local, ray, got 'rya'"),
    ("cases: x\nexecutor: {kind: local, workers: 2}", "exp.yaml:2:11: address and workers are for"),
    ("cases: x\nname: a/b", "exp.yaml:2:7: the name 'a/b' must begin"),
]


@pytest.mark.parametrize(("text", "message"), BAD, ids=[message for _, message in BAD])
def test_problems_are_reported_at_their_place(text: str, message: str, tmp_path: Path) -> None:
    """R-S3, R-S6: file, line and column of every slip."""
    (problem, *_) = problems(write(tmp_path, text))
    assert problem.startswith(message)


def test_several_in_a_file_share_what_stands_beside_them(tmp_path: Path) -> None:
    """R-S3: own keys win, mappings are merged, names are made of file and experiment."""
    text = """\
agents: [random]
seeds: 2
experiments:
  first: {cases: a.*}
  second: {cases: [b, c], seeds: 5, agents: [scripted]}
"""
    first, second = load_experiments(write(tmp_path, text, "mut.yaml"))
    assert (first.name, second.name) == ("mut.first", "mut.second")
    assert (len(first.seeds), len(second.seeds)) == (2, 5)
    assert (list(first.agents), list(second.agents)) == (["random"], ["scripted"])


@pytest.mark.parametrize(
    "text",
    [
        "experiments:\n  - {name: a, cases: x}\n  - {name: A, cases: y}\n",
        "experiments:\n  a: {cases: x}\n  a: {cases: y}\n",
    ],
)
def test_a_name_is_one_experiments(text: str, tmp_path: Path) -> None:
    """R-S3: a duplicate is reported with the place of the other, in either form."""
    (problem,) = problems(write(tmp_path, text))
    assert ":3:" in problem
    assert "is there twice" in problem


def test_python_files_give_the_same_object(tmp_path: Path) -> None:
    """R-S3: a value or a function, one or several, equal to what YAML gives."""
    (written,) = load_experiments(write(tmp_path, "cases: [a.*]\nseeds: 3\nparams: {n: [1, 2]}\n"))
    made = "Experiment(cases=['a.*'], seeds=3, params={'n': [1, 2]})"
    head = "from proctor import Experiment\n"
    forms = {
        "value": f"experiment = {made}",
        "function": f"def experiment(): return {made}",
        "mapping": f"experiments = {{'only': {made}}}",
        "plain": "experiments = [{'cases': ['a.*'], 'seeds': 3, 'params': {'n': [1, 2]}}]",
    }
    for name, text in forms.items():
        (found,) = load_experiments(write(tmp_path, head + text, f"{name}_form.py"))
        assert found.changed(name="exp").model_dump() == written.model_dump(), name
    two = f"def experiments():\n    one = {made}\n    return {{'x': one, 'y': one}}"
    assert [e.name for e in load_experiments(write(tmp_path, head + two, "two.py"))] == [
        "two.x",
        "two.y",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1", "the file defines no experiment"),
        ("experiment = 3", "not an experiment"),
        ("def experiment(): return [{'cases': 'x', 'seeds': 0}]", "at least one seed"),
        ("import no_such_module_anywhere", "No module named"),
        ("experiments = [{'cases': 'x', 'name': 'a'}] * 2", "is there twice"),
    ],
)
def test_python_files_that_give_none(text: str, message: str, tmp_path: Path) -> None:
    """R-S3: what a file returns is checked like what a file says."""
    name = f"bad_{abs(hash(text))}.py"
    with pytest.raises(ProctorError, match=message):
        load_experiments(write(tmp_path, text, name))


def test_dotted_names(tmp_path: Path) -> None:
    """R-S3: the path from the project's folder, then the name inside the file."""
    (tmp_path / "experiments").mkdir()
    write(tmp_path / "experiments", "experiments: {a: {cases: x}, b: {cases: y}}", "mut.yaml")
    write(
        tmp_path / "experiments",
        "from proctor import Experiment as E\nexperiment = E(cases='z')",
        "py_one.py",
    )

    def names(dotted: str) -> list[str] | None:
        found = find_experiments(dotted, tmp_path)
        return None if found is None else [each.name for each in found]

    assert names("experiments.mut") == ["mut.a", "mut.b"]
    assert names("experiments.mut.b") == ["mut.b"]
    assert names("experiments.py_one") == ["py_one"]
    assert names("experiments.nothing") is None
    assert names("../experiments.mut") is None
    with pytest.raises(ProctorError, match="no experiment 'c' here"):
        names("experiments.mut.c")


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("cases: [{input: x}]", False),
        ("cases: [{id: a, query: x}]\nagents: {a: m:f}", False),
        ("queries: [{query: x}]", False),
        ("cases: [{correctness: {}}]", False),
        ("agent: m:f\ncases: []", False),
        ("cases: x", True),
        ("cases: [x, y]", True),
        ("cases: [{suite: s.yaml}]", True),
        ("cases: [{suite: s.yaml, fliter: x}, y]", True),
        ("experiments: {}", True),
        ("seeds: 3\noutput: x", True),
    ],
)
def test_a_file_is_told_from_a_suite_by_its_cases(text: str, is_one: bool) -> None:
    """R-S3: so that both can be given to the same commands."""
    tree = read_text(text, "f.yaml").tree
    assert tree is not None
    assert is_experiment(tree) is is_one


SCHEMA_TAKES = [
    WHOLE,
    "cases: x",
    "cases: [x]\nseeds: '1..3'\nagents: [a]",
    "cases: x\nagents: a,b",
    "cases: x\nexecutor: ray",
    "cases: x\nexecutor: {kind: ray, address: auto, workers: 4}",
]
SCHEMA_TAKES += [
    "experiments: {a: {cases: x}, b: {}}\ncases: y",
    "experiments: [{name: a, cases: x}]",
]
SCHEMA_REFUSES = ["cases: x\nsedes: 1", "cases: x\nseeds: 0", "seeds: 3", "experiments: {}"]
SCHEMA_REFUSES += ["cases: x\nseeds: some", "cases: []", "experiments: [{cases: x}]"]
SCHEMA_REFUSES += ["cases: x\ntrials: 0", "cases: x\nparams: {a: 3}", "cases: [{fliter: x}]"]
SCHEMA_REFUSES += ["cases: x\nexecutor: dask", "cases: x\nexecutor: {kind: ray, workers: 0}"]


@pytest.mark.parametrize("text", SCHEMA_TAKES)
def test_the_schema_takes_what_the_loader_takes(text: str, tmp_path: Path) -> None:
    """R-S3: an editor marks nothing that works."""
    assert load_experiments(write(tmp_path, text))
    jsonschema.Draft202012Validator(schema_of("experiment")).validate(yaml.safe_load(text))


@pytest.mark.parametrize("text", SCHEMA_REFUSES)
def test_the_schema_refuses_what_the_loader_refuses(text: str, tmp_path: Path) -> None:
    """R-S3: and marks what does not."""
    assert problems(write(tmp_path, text))
    schema = schema_of("experiment")
    jsonschema.Draft202012Validator.check_schema(schema)
    assert list(jsonschema.Draft202012Validator(schema).iter_errors(yaml.safe_load(text)))


def test_in_python_the_same_rules_hold() -> None:
    """R-S3: an experiment built in Python is checked like one that was read."""
    made = Experiment(cases="a.*", agents=["x", "y"], seeds="1..3")  # type: ignore[arg-type]
    assert (list(made.agents), made.seeds) == (["x", "y"], (1, 2, 3))
    for wrong in ({"seeds": 0}, {"output": "../x"}, {"agents": ["x", "x"]}, {"sample": {"n": 1}}):
        with pytest.raises(ValidationError):
            Experiment(cases="a", **wrong)  # type: ignore[arg-type]
    changed = made.changed(seeds=2)
    assert (changed.seeds, changed.agents) == ((0, 1), made.agents)
