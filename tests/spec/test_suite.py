"""Suites: what is accepted, what is refused and where, and that YAML and Python build the same."""

import json
import random
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proctor.checks.layers import PathChecks
from proctor.spec import Case, SpecError, Suite, load_suite, restore_suite
from proctor.spec.located import plain
from proctor.spec.yaml_reader import read_text

SUITE = """\
version: 1
agent: my_pkg.agent:answer
judge: openai:gpt-4o-mini
judges:
  strict: {model: anthropic:claude-sonnet-4-5, votes: 3}
defaults:
  trials: 5
  tags: [all]
  path: {max_tool_calls: 8, match_mode: strict}
cases:
  - id: capital
    query: What is the capital of France?
    tags: [geo]
    properties: {region: europe}
    correctness:
      expected_in_answer: [Paris]
      llm_judge: {rule: Is it polite?, judge: strict}
    path: {max_tool_calls: 2, expected_tools: [search]}
    weights: {path: 0.5, expected_in_answer: 2}
    required: [expected_tools]
  - input: {question: And of Spain?}
    cost: {max_cost_usd: 0.01}
"""


@pytest.fixture
def write(tmp_path: Path):
    def write_suite(text: str, name: str = "suite.yaml") -> Path:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write_suite


def problems(path: Path, **options: object) -> list[str]:
    with pytest.raises(SpecError) as caught:
        load_suite(path, **options)  # pyright: ignore[reportArgumentType]
    return [str(p).removeprefix(f"{path.parent}/") for p in caught.value.problems]


def hints(path: Path) -> list[str | None]:
    with pytest.raises(SpecError) as caught:
        load_suite(path)
    return [problem.hint for problem in caught.value.problems]


def test_a_suite_is_read(write) -> None:
    """R-S1 R-S2 R-C1: defaults merged deeply (the case wins, lists replace), spellings, places."""
    suite = load_suite(write(SUITE))
    first, second = suite.cases
    assert first.input == "What is the capital of France?"
    assert (first.trials, first.tags) == (5, ("geo",))
    assert (first.path.max_tool_calls, first.path.match_mode) == (2, "strict")
    assert (second.path.max_tool_calls, second.tags) == (8, ("all",))
    assert second.id == "question-and-of-spain"
    assert first.place is not None
    assert (first.place.line, first.place.column) == (11, 5)
    assert str(suite.agent) == "my_pkg.agent:answer"
    assert suite.judge is not None
    assert suite.judge.model == "openai:gpt-4o-mini"
    assert suite.judges["strict"].settings.votes == 3
    assert "place" not in first.model_dump()


def test_python_builds_the_same_objects(write) -> None:
    """R-S1: `Suite(...)` and YAML meet in equal objects, defaults included."""
    built = Suite(
        agent="my_pkg.agent:answer",  # pyright: ignore[reportArgumentType]
        defaults={"trials": 5, "path": {"max_tool_calls": 8}},
        cases=(
            Case(id="a", input="x", path=PathChecks.model_validate({"expected_tools": ["search"]})),
            Case(input="Only this", trials=2),
        ),
    )
    path = write(
        "agent: my_pkg.agent:answer\ndefaults: {trials: 5, path: {max_tool_calls: 8}}\n"
        "queries:\n- {id: a, input: x, path: {expected_tools: [search]}}\n"
        "- {query: Only this, trials: 2}\n"
    )
    read = load_suite(path)
    assert built.model_dump() == read.model_dump()
    assert built.cases[1].id == "only-this"


def test_python_refuses_what_yaml_refuses() -> None:
    """R-S2: the Python API is held to the same rules."""
    with pytest.raises(ValueError, match="the id 'a' is that of case 1 as well"):
        Suite(cases=(Case(id="a", input="x"), Case(id="a", input="y")))
    with pytest.raises(ValueError, match="is not a check of this case"):
        Case(input="x", required=("expected_tools",))
    with pytest.raises(ValueError, match="the input is empty"):
        Case(input=" ")


REFUSED = [
    (
        "agent: {kind: pyton, target: m:f}\ncases: [{input: x}]",
        "1:15: unknown kind of agent 'pyton'",
    ),
    (
        "agent: {kind: python, target: m:f, facory: true}\ncases: [{input: x}]",
        "1:36: unknown key 'facory'",
    ),
    ("agent: {kind: python}\ncases: [{input: x}]", "1:8: the key 'target' is missing"),
    ("cases: [{input: x}]", "1:1: no agent: say what is under test"),
    ("agent: m:f", "1:1: the key 'cases' is missing"),
    ("agent: m:f\ncases: []", "2:8: cases must not be empty"),
    ("agent: m:f\ncases:", "2:7: cases: expected a list, got nothing"),
    ("agent: m:f\ncases: [{input: ''}]", "2:17: the input is empty: write the agent's task"),
    ("agent: m:f\ncases: [{}]", "2:9: the key 'input' is missing"),
    (
        "agent: m:f\ncases: [{input: x, threshold: 1.5}]",
        "2:31: threshold must be at most 1, got 1.5",
    ),
    (
        "agent: m:f\ncases: [{input: x, threshold: -1}]",
        "2:31: threshold must be at least 0, got -1",
    ),
    ("agent: m:f\ncases: [{input: x, trials: 0}]", "2:28: trials must be at least 1, got 0"),
    (
        "agent: a:b\ncases: [{input: x, correctness: {expected_output: {value: 1,tolerance: -1}}}]",
        "2:72: tolerance must be at least 0, got -1",
    ),
    (
        "agent: m:f\ncases: [{input: x, trials: 1.5}]",
        "2:28: trials: expected a whole number, got the number 1.5",
    ),
    (
        "agent: m:f\ncases: [{input: x, cost: {max_cost_usd: -1}}]",
        "2:41: max_cost_usd must be at least 0, got -1",
    ),
    (
        "agent: m:f\ncases: [{input: x, path: {max_tool_calls: -1}}]",
        "2:43: max_tool_calls must be at least 0, got -1",
    ),
    (
        "agent: m:f\ncases: [{input: x, path: {match_mode: stric}}]",
        (
            "2:39: match_mode must be one of strict, unordered, superset, subset, in_order, "
            "got 'stric'"
        ),
    ),
    (
        "agent: m:f\ncases:\n- {id: a, input: x}\n- {id: A, input: y}",
        "4:8: the id 'A' is that of case 1 as well",
    ),
    ("agent: m:f\ncases:\n- {input: x}\n- {input: X}", "4:3: the id 'x' is that of case 1 as well"),
    (
        "agent: m:f\ncases: [{id: a/b, input: x}]",
        (
            "2:14: the id 'a/b' must begin with a letter or digit and hold only letters, digits "
            "and . _ - @ + = ~ ( ) [ ], such as 'a-b'"
        ),
    ),
    (
        "agent: m:f\ncases: [{id: nul, input: x}]",
        "2:14: the id 'nul' cannot be the name of a file on Windows",
    ),
    ("agent: m:f\nversion: 2\ncases: [{input: x}]", "2:10: version must be 1, got 2"),
    (
        "agent: m:f\nagents: {a: m:g}\ncases: [{input: x}]",
        "2:9: write `agent` or `agents`, not both",
    ),
    (
        "agent: {kind: python, target: m}\ncases: [{input: x}]",
        "1:31: 'm' is not an import path such as package.module:name",
    ),
    ("agent: m:f\ndefaults: {id: x}\ncases: [{input: x}]", "2:16: 'id' belongs to one case"),
    ("agent: m:f\ncases: [{input: x, query: y}]", "2:20: write `input` or `query`, not both"),
    (
        "agent: m:f\nqueries: [{input: x}]\ncases: [{input: x}]",
        "2:1: write `cases` or `queries`, not both",
    ),
    (
        "agent: m:f\ncases: [{input: x, checks: ['no such']}]",
        (
            "2:29: 'no such' is not an import path such as package.module:name, nor the name of an "
            "installed check"
        ),
    ),
    (
        "agent: m:f\ncases: [{input: x, correctness: {llm_judge: [{rule: r, judge: j}]}}]",
        "2:63: there is no judge 'j'",
    ),
    ("- a", "1:1: expected a mapping, got a list"),
    ("", "1:1: the file is empty"),
]


@pytest.mark.parametrize(("text", "expected"), REFUSED)
def test_refused_at_its_place(text: str, expected: str, write) -> None:
    """R-S2: each mistake is one message, at file, line and column."""
    assert problems(write(text)) == [f"suite.yaml:{expected}"]


def test_an_agent_is_not_needed_for_recorded_traces(write) -> None:
    """R-S2: who brings traces needs no agent."""
    assert load_suite(write("cases: [{input: x}]"), need_agent=False).all_agents == {}


def test_unknown_keys_suggest_the_nearest(write) -> None:
    """R-S1: at every level, against the keys that really are there."""
    path = write(
        "agnt: m:f\nagent: m:f\njudge: {model: m, vots: 3}\ncases:\n"
        "- input: x\n  trails: 3\n  path: {max_tool_call: 3}\n"
        "  correctness: {llm_judge: [{rule: r, treshold: 1}]}\n"
        "  assertions: [{type: tool_called, tol: x, tool: y}]\n"
        "  checks: [{check: m:f, parms: {}}]\n"
    )
    assert problems(path) == [
        "suite.yaml:1:1: unknown key 'agnt'",
        "suite.yaml:3:19: unknown key 'vots'",
        "suite.yaml:6:3: unknown key 'trails'",
        "suite.yaml:7:10: unknown key 'max_tool_call'",
        "suite.yaml:8:39: unknown key 'treshold'",
        "suite.yaml:9:36: unknown key 'tol'",
        "suite.yaml:10:25: unknown key 'parms'",
    ]
    nearest = ["agent", "votes", "trials", "max_tool_calls", "threshold", "tool", "params"]
    for hint, word in zip(hints(path), nearest, strict=True):
        assert hint is not None
        assert f"did you mean '{word}'" in hint


def test_a_key_of_a_layer_is_sent_to_its_layer(write) -> None:
    """R-S1: checks written beside the layers instead of in them say where they belong."""
    path = write("agent: m:f\ncases: [{input: x, expected_in_answer: y, max_cost_usd: 1}]\n")
    assert hints(path) == ["write it below `correctness:`", "write it below `cost:`"]


def test_names_of_checks_are_checked(write) -> None:
    """R-C1: `weights` and `required` name checks the case has, or it is a slip."""
    path = write(
        "agent: m:f\ncases:\n- input: x\n  correctness: {expected_in_answer: y}\n"
        "  weights: {expected_in_anser: 2, path: 1}\n  required: [expected_tools]\n"
    )
    assert problems(path) == [
        "suite.yaml:5:32: 'expected_in_anser' is not a check of this case",
        "suite.yaml:6:14: 'expected_tools' is not a check of this case",
    ]
    assert hints(path)[0] == "did you mean 'expected_in_answer'?"


def test_a_mistake_in_defaults_is_told_once(write) -> None:
    """R-S1: at the place in `defaults`, however many cases share it."""
    path = write("agent: m:f\ndefaults: {trials: no}\ncases: [{input: a}, {input: b}]\n")
    assert problems(path) == ["suite.yaml:2:20: trials: expected a whole number, got text"]


def test_mistakes_in_an_included_file(write, tmp_path: Path) -> None:
    """R-S1: cases of other files are cases, and their problems are reported there."""
    write("- input: a\n- input: b\n  trails: 2\n", "more.yaml")
    path = write("agent: m:f\ncases:\n- input: c\n- !include more.yaml\n")
    assert problems(path) == ["more.yaml:3:3: unknown key 'trails'"]
    write("- input: a\n- input: b\n", "more.yaml")
    suite = load_suite(path)
    assert [case.id for case in suite.cases] == ["c", "a", "b"]
    place = suite.cases[2].place
    assert place is not None
    assert (Path(place.file).name, place.line) == ("more.yaml", 2)


def test_every_problem_at_once_in_order(write) -> None:
    """R-S1: syntax aside, one reading tells all there is to mend, in the order of the file."""
    path = write(
        "cases:\n- {input: '', trials: 0}\n- {id: a, input: x, foo: 1}\n"
        "- {id: a, input: ${NOPE_A}, id: b}\n- {input: !bar x}\n".replace(
            "${NOPE_A}", "'${NOPE_A}'"
        )
    )
    lines = problems(path)
    places = [tuple(map(int, line.split(":")[1:3])) for line in lines]
    assert places == sorted(places)
    assert len(lines) == 8


# -- secrets -------------------------------------------------------------------------------------

HELD = "s3cr3t-value-42"


def test_what_variables_hold_is_never_shown(write) -> None:
    """R-S1: not in an error, whichever check refused the value, nor in the resolved suite."""
    path = write(
        "agent: 'a ${KEY}'\n"
        "judge: {model: m, votes: '${KEY}'}\n"
        "version: '${KEY}'\n"
        "cases:\n"
        "- {id: '/${KEY}', input: x, trials: '${KEY}', tags: '${KEY}'}\n"
        "- {id: b, input: y, path: {match_mode: '${KEY}', spans: [{any: {'x': '${KEY}'}}]},"
        " correctness: {regex_match: '(${KEY}', jmespath: {path: '[[${KEY}'}}}\n"
        "- {id: c, input: z, assertions: [{type: '${KEY}'},"
        " {type: span, query: {has_status: '${KEY}'}}]}\n"
        "- {id: d, input: w, checks: ['${KEY} x'], required: ['${KEY}'], quality: '${KEY}'}\n"
        "- {id: d, input: w, required: ['${KEY}'], weights: {path: '${KEY}'}}\n"
    )
    with pytest.raises(SpecError) as caught:
        load_suite(path, environ={"KEY": HELD})
    assert len(caught.value.problems) >= 12
    for problem in caught.value.problems:
        assert HELD not in f"{problem} {problem.hint}"
    assert HELD not in str(caught.value)


def test_the_resolved_suite_keeps_references(write) -> None:
    """R-S1: defaults merged, variables as written; redaction knows their values."""
    path = write("agent: m:f\ndefaults: {trials: 2}\ncases: [{id: a, input: 'ask ${KEY}'}]\n")
    suite = load_suite(path, environ={"KEY": HELD})
    assert suite.cases[0].input == f"ask {HELD}"
    assert HELD not in json.dumps(suite.resolved())
    assert suite.resolved()["cases"] == [{"trials": 2, "id": "a", "input": "ask ${KEY}"}]
    assert suite.secrets == {HELD}


def test_an_id_is_not_made_from_what_a_variable_held(write) -> None:
    """R-S1: ids become file names and are printed everywhere."""
    path = write("agent: m:f\ncases: [{input: 'ask ${KEY}'}]\n")
    (case,) = load_suite(path, environ={"KEY": HELD}).cases
    assert case.id == "ask-key"


# -- any file ------------------------------------------------------------------------------------


@settings(max_examples=150)
@given(st.integers(0, 2**32), st.sampled_from(["delete", "swap", "insert", "twice", "cut"]))
def test_mutated_suites_never_crash(seed: int, how: str) -> None:
    """R-S1: a good suite with anything changed is read, or refused with places inside it."""
    chance = random.Random(seed)
    text = SUITE
    for _ in range(chance.randint(1, 3)):
        text = mutated(text, how, chance)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "s.yaml"
        path.write_text(text, encoding="utf-8")
        try:
            found = load_suite(path, environ={}).cases
        except SpecError as error:
            found = error.problems
            for problem in error.problems:
                inside = 1 <= (problem.line or 0) <= len(text.splitlines()) + 1
                if not (problem.file == str(path) and inside and problem.message):
                    pytest.fail(f"{problem} is not a place in the file")
        assert found


RICH = """
agent: {kind: python, target: m:f, factory: true}
judge: {model: m, votes: 3}
judges: {j: {model: m}}
defaults: {trials: 2, path: {max_loops: 1}}
cases:
- id: a
  input: {q: [1, x]}
  description: d
  tags: [t]
  difficulty: hard
  type: x
  properties: {p: 1}
  trials: 3
  threshold: 0.5
  correctness:
    expected_in_answer: [a]
    any_expected_in_answer: [a]
    not_in_answer: [b]
    exact_match: x
    regex_match: ['a+']
    json_schema: {type: object, properties: {a: {type: integer}}}
    jmespath: [{path: 'length(tool_calls)', lte: 3}]
    llm_judge:
    - {rule: r, judge: j, votes: 3, anchors: {1: bad}}
    - {rule: r, examples: [{answer: a, score: 5, rationale: r}]}
    safety_check: {policy: p}
    hallucination_check: {method: grounding, sources: [s]}
  path:
    expected_tools: [a, {tool: b, arguments: {x: 1}}]
    match_mode: superset
    arguments: {b: subset, a: [x.y]}
    forbidden_tools: ['rm*']
    max_tool_calls: 3
    min_tool_recall: 0.5
    expected_handoff: [h]
    spans: [{any: {name_equals: x}}, {count: {where: {kind: tool}, min: 1}}]
    quality: {efficiency: '>= 0.8'}
  cost: {max_cost_usd: 1, max_total_tokens: 10, max_cost_multiplier: 2}
  checks: [m:f, {check: m:g, params: {a: 1}, weight: 2, required: true, id: c}]
  assertions:
  - {type: tool_called, tool: a, arguments: {x: 1}, match: exact}
  - {type: tool_call_count, tool: a, min: 1, max: 2}
  - {type: tool_sequence, tools: [a, {tool: b}], mode: exact}
  - {type: arg_equals, tool: a, arg: x.y, value: 1}
  - {type: output_contains, value: [x]}
  - {type: jmespath, path: response, regex: x}
  - {type: cost_under, usd: 1}
  - {type: handoff_target, agent: b}
  - {type: judge, criteria: [{rule: r, weight: 2}], votes: 3}
  - {type: span, query: {some_child_has: {has_status: error}}}
  weights: {path: 1, exact_match: 2}
  required: [expected_tools]
"""

STRANGE = st.recursive(
    st.none()
    | st.booleans()
    | st.sampled_from([0, -1, 2**70, 1.5, -0.5, 1e308, float("inf"), float("nan")])
    | st.sampled_from(
        ["", " ", "x", "(", "[[", "${X", "*", "\x1b[0m", "a:b", "é" * 200, "1", "true"]
    ),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["a", "type", "rule", "id", "", "tool"]), inner, max_size=3
        )
    ),
    max_leaves=5,
)


def test_the_rich_suite_is_good(write) -> None:
    """R-C1 R-C10: every layer and the flat form together."""
    (case,) = load_suite(write(RICH)).cases
    assert len(case.assertions) == 10


@settings(max_examples=300)
@given(st.integers(0, 2**32), STRANGE)
def test_any_value_in_any_place(seed: int, strange: object) -> None:
    """R-S1: a value of the wrong type is refused at its place or accepted."""
    value = plain(read_text(RICH, "r", environ={}).tree)  # pyright: ignore[reportArgumentType]
    replace_somewhere(value, strange, random.Random(seed))
    text = json.dumps(value, ensure_ascii=False)
    text = text.replace("Infinity", ".inf").replace("NaN", ".nan")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "s.yaml"
        path.write_text(text, encoding="utf-8")
        try:
            found = load_suite(path, environ={}).cases
        except SpecError as error:
            found = error.problems
            if not all(p.line is not None and p.column and p.message for p in found):
                pytest.fail(f"{found} lacks a place")
        assert found


def replace_somewhere(value: Any, strange: object, chance: random.Random) -> None:
    """Put something strange in the place of one value inside another, at any depth."""
    places: list[tuple[Any, Any]] = []

    def collect(inner: Any) -> None:
        if isinstance(inner, dict | list):
            for key in list(inner) if isinstance(inner, dict) else range(len(inner)):
                places.append((inner, key))
                collect(inner[key])

    collect(value)
    inner, key = chance.choice(places)
    inner[key] = strange


def mutated(text: str, how: str, chance: random.Random) -> str:
    lines = text.splitlines(keepends=True)
    at = chance.randrange(len(text))
    line = chance.randrange(len(lines))
    if how == "delete":
        return text[:at] + text[at + chance.randint(1, 4) :]
    if how == "insert":
        return (
            text[:at] + chance.choice([*"{}[]:-,'\"&*!?|>%@`#~\t\n", "null", "1e999"]) + text[at:]
        )
    if how == "swap":
        other = chance.randrange(len(lines))
        lines[line], lines[other] = lines[other], lines[line]
    elif how == "twice":
        lines.insert(line, lines[line])
    else:
        del lines[line]
    return "".join(lines)


# -- records -------------------------------------------------------------------------------------


def test_a_resolved_suite_can_be_restored(write, tmp_path: Path) -> None:
    """R-D1 R-S1: a run folder stores the suite that ran; variables are read again."""
    (tmp_path / "prompt.txt").write_text("literal ${KEY}")
    text = (
        SUITE + "  - {id: c, input: 'ask ${KEY} for $${x}', properties: {p: !include prompt.txt}}\n"
    )
    suite = load_suite(write(text), environ={"KEY": HELD})
    record = json.loads(json.dumps(suite.resolved()))
    assert HELD not in json.dumps(record)
    again = restore_suite(record, folder=tmp_path, name="_spec_.yaml", environ={"KEY": "other"})
    assert again.cases[2].input == "ask other for ${x}"
    assert again.cases[2].properties == {"p": "literal ${KEY}"}
    same = restore_suite(record, folder=tmp_path, name="_spec_.yaml", environ={"KEY": HELD})
    assert same.model_dump() == suite.model_dump()
    assert same.resolved() == suite.resolved()
    assert same.folder == suite.folder


def test_a_python_suite_can_be_restored(tmp_path: Path) -> None:
    """R-S1: texts that look like references mean themselves when they come from Python."""
    built = Suite(cases=(Case(input="what is ${HOME}?", trials=2),))
    again = restore_suite(built.resolved(), folder=tmp_path, name="r", environ={})
    assert again.model_dump() == built.model_dump()


def test_a_record_lacking_a_variable_says_so(write, tmp_path: Path) -> None:
    """R-S1: resuming needs the variables the suite named."""
    suite = load_suite(write("agent: m:f\ncases: [{input: '${KEY}'}]"), environ={"KEY": HELD})
    with pytest.raises(SpecError) as caught:
        restore_suite(suite.resolved(), folder=tmp_path, name="_spec_.yaml", environ={})
    assert [str(p) for p in caught.value.problems] == [
        "_spec_.yaml: the environment variable KEY is not set"
    ]
