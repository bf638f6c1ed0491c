"""Whatever a template holds, it is built or refused in words: never a traceback."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from proctor.errors import ProctorError
from proctor.scenarios import Built, Catalog
from proctor.scenarios.scenario import dump
from proctor.scenarios.template import KEYS
from proctor.spec import SpecError

SHARED = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)

EXPRESSIONS = st.sampled_from(
    "1|n|n + 1|uniform(0, 1)|shuffle(ref('names.g'))|[x for x in range(n)]|{'a': n}|ref('truth.b')"
    "|ref('scenario')|ref('values.v')|v|seed|1 / 0|'a' * 10 ** 9|word|f'{n} {word}'|n.x|null|true"
    "|choice(['easy', 'hard'])|1e999|ref('params.n')|ref('world.options')|''|missing".split("|")
)
REFERENCES = st.sampled_from(
    "params.n|params|names.g|names|names.g.0|scenario.a|truth|truth.b|values.v|world|variants.w"
    "|tags.0|scenario.a.b.c.0||.|..|params.n.x|solution.agent|input".split("|")
)


class Tagged(str):
    """A value with a tag, as `dump` does not know it: put in afterwards."""

    __slots__ = ()


TAGGED = st.builds(lambda e: Tagged(f"!ev {dump(e).strip()}"), EXPRESSIONS) | st.builds(
    lambda r: Tagged(f"!ref {dump(r).strip()}"), REFERENCES
)
KEYS_INSIDE = st.sampled_from(
    "a b g n v w of count pool style type default min max use options max_steps agent min_score "
    "max_score kind exact_match expected_in_answer easy".split()
)
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-3, 40)
    | st.floats()
    | st.sampled_from(["", "int", "choice", "easy", "bee", "bees eat", "random", "a.b:c", "word"])
    | TAGGED
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS_INSIDE, inner, max_size=4),
    max_leaves=8,
)
TEMPLATES = st.dictionaries(st.sampled_from([*KEYS, "query", "nonsense"]), VALUES, max_size=8)

GOOD: dict[str, Any] = {
    "params": {"n": 3, "word": "some"},
    "values": {"v": 1},
    "names": {"g": ["bee", "clover"]},
    "scenario": {"a": 1},
    "truth": {"b": 2},
}


def flow(value: Any) -> str:
    """A value as YAML in flow style, its tags in place."""
    if isinstance(value, Tagged):
        return str(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(flow, value)) + "]"
    return dump(value).strip() if not isinstance(value, float) else repr(value)


def outcome(catalog: Catalog, text: str | bytes) -> Built | ProctorError:
    file: Path = catalog.paths[0] / "a" / "b" / "spec.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass"))
    try:
        for template in catalog.entries():
            _ = (template.tags, template.difficulty, template.properties, template.threshold)
            template.build(3)
        return catalog.get("a.b").build(3)
    except ProctorError as error:
        return error


def assert_sound(catalog: Catalog, found: Built | ProctorError) -> None:
    if isinstance(found, SpecError):
        assert found.problems
        assert all(problem.line and problem.column for problem in found.problems)
    elif isinstance(found, Built):
        again = Built.open(found.path)
        assert again.case().input == found.case().input
        assert catalog.get("a.b").build(3, cache=False).same_as(found)


@SHARED
@given(TEMPLATES)
def test_any_keys_and_values(catalog: Catalog, template: dict[str, Any]) -> None:
    """R-S4: a file of any known keys with any values builds, or is told with line and column."""
    text = "".join(f"{key}: {flow(value)}\n" for key, value in {**GOOD, **template}.items())
    assert_sound(catalog, outcome(catalog, text))


@SHARED
@given(st.data())
def test_any_damage(catalog: Catalog, root: Path, data: st.DataObject) -> None:
    """R-S4: a template with bytes changed, cut or doubled builds, or is refused."""
    source = root / "src/proctor/catalog/mutualism/competition/spec.yaml"
    good = source.read_bytes().replace(b"!include ../levels.yaml", b"{easy: {species: 3}}")
    at = data.draw(st.integers(0, len(good) - 1))
    length = data.draw(st.integers(0, 40))
    new = data.draw(
        st.binary(max_size=6) | st.sampled_from([b"!ev ", b"!ref ", b"{", b"&a ", b"*a"])
    )
    assert_sound(catalog, outcome(catalog, good[:at] + new + good[at + length :]))


def test_the_good_one_is_good(catalog: Catalog) -> None:
    """R-S4: the ground that the files above are made from builds by itself."""
    found = outcome(catalog, "".join(f"{key}: {flow(value)}\n" for key, value in GOOD.items()))
    if isinstance(found, ProctorError):
        pytest.fail(str(found))
