"""`proctor config schema`: a valid schema that agrees with the loader."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from commands import proctor

from proctor.spec import SpecError, load_suite, schema_of
from proctor.spec.load import load_experiments
from proctor.trials.resolve_experiment import resolve_experiment


def errors(value: Any) -> list[str]:
    schema = schema_of("suite")
    return [e.message for e in jsonschema.Draft202012Validator(schema).iter_errors(value)]


@pytest.mark.parametrize("kind", ["suite", "experiment", "config"])
def test_printed_and_written(kind: str, tmp_path: Path) -> None:
    """R-S1 R-S6: valid by the metaschema, the same on stdout and in a file."""
    printed = proctor("config", "schema", kind).stdout
    jsonschema.Draft202012Validator.check_schema(json.loads(printed))
    target = tmp_path / "new" / "schema.json"
    assert proctor("config", "schema", kind, "-o", target).returncode == 0
    assert target.read_text(encoding="utf-8") == printed


ACCEPTED = [
    "agent: m:f\ncases: [{input: x}]",
    "agent: m:f\nqueries: [{query: x}]",
    "agents: {a: m:f, b: {kind: python, target: m:g, factory: true}}\ncases: [{input: {q: 1}}]",
    "agent: m:f\njudge: openai:m\njudges: {j: {model: m, votes: 3}}\ncases: [{input: x}]",
    "agent: m:f\ndefaults: {trials: 2, path: {max_loops: 1}}\ncases: [{input: x}]",
    "agent: m:f\ncases: [{input: x, checks: [m:f, {check: m:g, params: {a: 1}}]}]",
    "agent: m:f\ncases: [{input: x, correctness: {expected_in_answer: y, llm_judge: r}}]",
    "agent: m:f\ncases: [{input: x, correctness: {expected_in_answer: [y], safety_check: true}}]",
    "agent: m:f\ncases: [{input: x, assertions: [{type: tool_called, tool: t}]}]",
    "agent: m:f\ncases: [{input: x, path: {expected_tools: [a, {tool: b}]}}]",
    "agent: m:f\ncases: [{input: x, path: {quality: {efficiency: 0.5, overall: '>= 0.8'}}}]",
    "agent: m:f\ncases: [{input: x, trials: '${N:-2}', threshold: '${T:-0.5}'}]",
]

REFUSED = [
    "cases: []",
    "agent: m:f",
    "agent: m:f\ncases: [{}]",
    "agent: m:f\ncases: [{input: x, query: y}]",
    "agent: m:f\ncases: [{input: x, trails: 1}]",
    "agent: m:f\ncases: [{input: x, threshold: 2}]",
    "agent: m:f\ncases: [{input: x, cost: {max_cost_usd: -1}}]",
    "agent: m:f\ncases: [{input: x, path: {match_mode: stric}}]",
    "agent: m:f\ndefaults: {input: x}\ncases: [{input: x}]",
    "agent: m:f\ndefaults: {trails: 1}\ncases: [{input: x}]",
    "agent: m:f\ncases: [{input: x, assertions: [{type: tool_caled}]}]",
]


@pytest.mark.parametrize("text", ACCEPTED)
def test_what_the_loader_takes_the_schema_takes(text: str, tmp_path: Path) -> None:
    """R-S1: an editor marks nothing that works, other spellings and short forms included."""
    path = tmp_path / "s.yaml"
    path.write_text(text)
    assert load_suite(path, environ={}).cases
    assert errors(yaml.safe_load(text)) == []


@pytest.mark.parametrize("text", REFUSED)
def test_what_the_schema_refuses_the_loader_refuses(text: str, tmp_path: Path) -> None:
    """R-S1: and marks what does not."""
    path = tmp_path / "s.yaml"
    path.write_text(text)
    with pytest.raises(SpecError):
        load_suite(path, environ={})
    assert errors(yaml.safe_load(text))


def test_keys_are_explained() -> None:
    """R-S1: an editor can say what each key of a case is for."""
    case = schema_of("suite")["$defs"]["Case"]["properties"]
    assert [name for name, member in case.items() if "description" not in member] == []


def suites(root: Path) -> list[Path]:
    """Every suite the project ships."""
    places = [*root.glob("examples/**/*.yaml"), root / "src/proctor/data/templates/suite.yaml"]
    shipped = [path for path in places if path.parent.name != "experiments"]
    return [path for path in shipped if "cases:" in path.read_text(encoding="utf-8")]


def test_shipped_suites(root: Path) -> None:
    """R-S1: the suites that come with Proctor validate, by loader and by schema."""
    found = suites(root)
    assert found
    for path in found:
        assert load_suite(path).cases
        assert errors(yaml.safe_load(path.read_text(encoding="utf-8"))) == []


def test_shipped_experiments(root: Path) -> None:
    """R-S3: the experiments that come with Proctor validate, and all they name exists."""
    found = [*root.glob("examples/**/experiments/*.yaml")]
    assert found
    validator = jsonschema.Draft202012Validator(schema_of("experiment"))
    for path in found:
        validator.validate(yaml.safe_load(path.read_text(encoding="utf-8")))
        (experiment,) = load_experiments(path)
        resolved = resolve_experiment(experiment)
        assert resolved.suite.cases
        assert resolved.agents
