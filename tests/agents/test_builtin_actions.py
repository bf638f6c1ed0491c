"""Valid actions: read from what agents say, drawn at random, shown to people."""

import json
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proctor.agents.actions import BadAction, call_of, sample, shown, understand

SPECIES = ["s1", "s2", "s3"]
CALLS = [
    {"call": "measure", "arguments": {}},
    {
        "call": "add",
        "arguments": {
            "species": SPECIES,
            "percent": {"type": "integer", "low": 10, "high": 100, "default": 50},
        },
    },
    "surrender",
]
ADD = {"call": "add", "arguments": {"species": "s2", "percent": 40}}


@pytest.mark.parametrize(
    "said",
    [
        ADD,
        json.dumps(ADD),
        '{"action": "add", "species": "s2", "percent": 40}',
        '{"tool": "add", "arguments": {"species": "s2", "percent": 40}}',
        '{"name": "add", "arguments": "{\\"species\\": \\"s2\\", \\"percent\\": 40}"}',
        '{"add": {"species": "s2", "percent": 40.0}}',
        "add s2 40",
        "add(s2, 40)",
        'add(species="s2", percent=40)',
        "add(percent: 40, species: 'S2')",
        "I think s2 matters.\n\nAction: add s2 40",
        f"Let me try:\n```json\n{json.dumps(ADD)}\n```\nThat should tell.",
        f"My choice is {json.dumps(ADD)} because of s2.",
    ],
)
def test_what_models_write_is_understood(said):
    """R-S5: text or structure, in any of the documented ways, means the same action."""
    assert understand(said, CALLS) == ADD


def test_defaults_words_and_numbers():
    """R-S5: a default fills in, words ignore case, numbers may come as text."""
    assert understand("add s1", CALLS)["arguments"] == {"species": "s1", "percent": 50}
    assert understand(" Surrender ", CALLS) == "surrender"
    assert understand("measure", CALLS) == {"call": "measure", "arguments": {}}
    assert understand("2", [0, 1, 2]) == 2
    assert understand(1.0, [0, 1]) == 1
    assert understand("0.5", {"type": "number", "low": 0, "high": 1}) == 0.5


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (
            "",
            "is not one of measure(), add(species: s1|s2|s3, percent: integer 10..100), surrender",
        ),
        ("dance", "dance is not one of"),
        ("add s9 40", "add: species: s9 is not one of s1, s2, s3"),
        ("add s1 200", "add: percent: 200 lies outside 10..100"),
        ("add s1 40.5", "not a whole number"),
        ("add", "the argument 'species' is missing"),
        ("add(specie=s1)", "unknown argument 'specie'; it takes species, percent"),
        ("add s1 40 3", "takes 2 arguments"),
        ({"call": "add", "arguments": [1]}, "arguments are an object"),
        ('{"call": "add", "arguments": "{"}', "is missing"),
        (None, "is not one of"),
        (True, "is not one of"),
        ("[" * 90_000, "is not one of"),
        ("```" + "\n" * 90_000, "is not one of"),
        ('add "' * 20_000, "add"),
        ("#" * 10_000_000, "is not one of"),
    ],
)
def test_what_is_wrong_is_said(said, message):
    """R-S5: the error of an invalid action names the deepest valid place."""
    with pytest.raises(BadAction) as raised:
        understand(said, CALLS)
    assert message in str(raised.value)


def test_true_is_not_one():
    """R-S5: JSON's true is no number and no discrete action."""
    with pytest.raises(BadAction):
        understand("true", [0, 1])
    assert understand("true", [False, True]) is True


leaves = st.one_of(
    st.lists(st.one_of(st.integers(), st.text(min_size=1), st.booleans()), min_size=1, max_size=4),
    st.tuples(st.integers(-9, 9), st.integers(0, 9)).map(
        lambda b: {"type": "integer", "low": b[0], "high": b[0] + b[1]}
    ),
    st.floats(-1e6, 1e6).map(lambda low: {"type": "number", "low": low, "high": low + 1.0}),
    st.sampled_from([{"type": "number"}, {"type": "number", "low": 3}, {"type": "integer"}]),
    st.integers(0, 5).map(lambda n: {"type": "text", "min_length": n, "max_length": n + 3}),
)
offers = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.builds(
            lambda i, n: {"type": "array", "items": i, "length": n}, inner, st.integers(0, 3)
        ),
        st.lists(inner, max_size=3).map(lambda each: {"type": "array", "each": each}),
        st.dictionaries(st.text("abc", min_size=1), inner, max_size=3).map(
            lambda p: {"type": "object", "properties": p}
        ),
        st.dictionaries(st.sampled_from("xyz"), inner, max_size=3).map(
            lambda a: [{"call": "go", "arguments": a}]
        ),
    ),
    max_leaves=6,
)


@given(offered=offers, seed=st.integers())
def test_what_is_drawn_is_valid(offered, seed):
    """R-A2: whatever is offered, a random action is accepted, the same for the same seed."""
    drawn = sample(offered, Random(seed))
    assert understand(drawn, offered) == drawn
    assert sample(json.loads(json.dumps(offered)), Random(seed)) == drawn
    assert shown(offered)
    assert call_of(drawn).name


@given(said=st.one_of(st.text(), st.recursive(st.none() | st.floats(), st.lists)), offered=offers)
def test_nothing_an_agent_says_breaks_anything(said, offered):
    """R-S5: hostile answers are refused or understood within what was offered, never a crash."""
    try:
        meant = understand(said, offered)
    except BadAction as problem:
        message = str(problem)
    else:
        message = ""
        assert understand(meant, offered) == meant
    assert len(message) < 3000
