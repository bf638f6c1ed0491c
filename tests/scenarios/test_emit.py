"""YAML as it is written for built scenarios: read back by anyone as what it was."""

from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from proctor.scenarios.scenario import dump
from proctor.spec.located import plain
from proctor.spec.yaml_reader import FileDialect, read_text

# Separated by a sign that none of them holds.
ODD = (
    "yes§No§null§~§§ §1§1e5§0x1F§12:30§2024-01-02§- a§# b§a: b§a\nb§a\n§\na§a\n\nb\n§a \nb§  a\nb"
    "§a\r\nb§<<§=§!x§&a§*a§%a§\u2028§\x85§\ufeff§\x00§\x7f§é\n ü§tab\there§\U0001f41d§a #b§${HOME}"
)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40) | st.sampled_from(
    ODD.split("§")
)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=15,
)


def read_back(text: str) -> Any:
    document = read_text(text, "t.yaml", dialect=FileDialect(portable=True))
    assert document.problems == []
    assert document.tree is not None
    return plain(document.tree)


@given(VALUES)
@example({"a": [[1, [2, {}]], {"b": []}]})
@example([["a\nb", "c"], {"k": "x\ny\n"}])
@example(1e22)
@example(5e-324)
@example({"<<": 1})
def test_every_reader_gives_it_back(value: Any) -> None:
    """R-S4: our reader (YAML 1.2) and PyYAML's (1.1), compiled or not, read what was meant."""
    text = dump(value)
    assert same(read_back(text), value)
    for loader in (yaml.SafeLoader, yaml.CSafeLoader):
        assert same(yaml.load(text, Loader=loader), value)


def same(found: Any, value: Any) -> bool:
    """Equal in type too: 1 is not 1.0, nor true."""
    if isinstance(value, dict):
        return (
            isinstance(found, dict)
            and list(found) == list(value)
            and all(same(found[key], value[key]) for key in value)
        )
    if isinstance(value, list):
        return isinstance(found, list) and len(found) == len(value) and all(map(same, found, value))
    return type(found) is type(value) and repr(found) == repr(value)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"a": 1, "b": [1.0, True, None]}, "a: 1\nb:\n  - 1.0\n  - true\n  - null\n"),
        ({"t": "one\ntwo\n"}, "t: |\n  one\n  two\n"),
        ({"t": "one\n\ntwo"}, "t: |-\n  one\n\n  two\n"),
        ({"t": "yes", "no": "plain words"}, 't: "yes"\n"no": plain words\n'),
        ([{"a": 1, "b": {}}, []], "- a: 1\n  b: {}\n- []\n"),
        ({"k" * 150: "v" * 201}, f'{"k" * 150}: "{"v" * 201}"\n'),
        (
            {"bee \U0001f41d": 'a"\\\t\x00\x85\xa0'},
            '"bee \U0001f41d": "a\\"\\\\\\t\\x00\\x85\xa0"\n',
        ),
        ({"a": "...\n"}, "a: |\n  ...\n"),
        ([["x", ["z"]], {"a b": "c: d"}], '- - x\n  - - z\n- a b: "c: d"\n'),
        (1e-05, "1.0e-05\n"),
        (1e22, "1.0e+22\n"),
    ],
)
def test_it_reads_well(value: Any, text: str) -> None:
    """R-S4: the form is fixed, and one that people would write."""
    assert dump(value) == text
