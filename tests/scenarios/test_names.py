"""Opaque names: seeded, steady, and nothing of the true ones left."""

import re

from hypothesis import given
from hypothesis import strategies as st

from proctor.scenarios import Catalog, build
from proctor.scenarios._opaque_names import NameGroup, OpaqueNames, opaque_names
from proctor.scenarios._randomness import RandomSource

WORDS = st.text("abcdefghij", min_size=3, max_size=8)


@given(st.sets(WORDS, min_size=1, max_size=30), WORDS, st.integers(0, 2**32))
def test_adding_a_name_changes_no_other(words: set[str], new: str, seed: int) -> None:
    """R-S4: a name depends on the seed and on what it stands for alone; no two are alike."""
    source = RandomSource("t", seed)
    for style in ("word", "code"):
        before = opaque_names({"g": NameGroup(of=tuple(sorted(words)), style=style)}, source)["g"]
        more = tuple(sorted({*words, new}))
        after = opaque_names({"g": NameGroup(of=more, style=style)}, source)["g"]
        assert {word: after[word] for word in words} == before
        assert len({*after.values()}) == len(after)
        assert not {*after.values()} & {*more}


@given(
    st.dictionaries(WORDS, st.text("klmnop", min_size=3, max_size=6), min_size=1, max_size=5),
    st.lists(WORDS | st.sampled_from([" ", "_", "S", "s", "es", "-", ".", "Z", "9", "\n"])),
)
def test_no_word_stays(names: dict[str, str], parts: list[str]) -> None:
    """R-S4: whatever stands around a name, alone or in the plural, it does not stay."""
    text = "".join(parts)
    renamed = OpaqueNames({"g": names}).in_text(text)
    for true in names:
        assert not re.search(rf"(?<![^\W_]){true}(e?s)?(?![^\W_])", renamed, re.IGNORECASE)


def test_everything_the_agent_meets_is_renamed(catalog: Catalog, write) -> None:
    """R-S4: scenario, world, truth, checks and solution speak one language; people's words stay."""
    write("""\
        description: About the red bee
        tags: [bee]
        properties: {who: bee}
        names: {animals: {of: [bee, red fox], pool: [Alpha, Beta, Gamma]}}
        values: {fox: red fox}
        scenario:
          task: Red  foxes eat no bees.
          bee: {by bee: [bee, beehive], "red fox": !ref values.fox}
        world:
          use: bee.module:Bee
          options: {bee: 1, start: {bee: 2, red fox: 3}, label: bee}
        truth: {who: !ev "'bee'"}
        correctness: {exact_match: BEE}
        path: {expected_tools: [feed_bee]}
        solution: {agent: {kind: scripted, actions: [{feed: bee}]}, min_score: 1}
        """)
    built = build("a.b", 3, catalog=catalog)
    opaque = {true: new for new, true in built.names.items()}
    bee, fox = opaque["bee"], opaque["red fox"]
    assert built.scenario["task"] == f"{fox}es eat no {bee}s."
    assert built.scenario[bee][f"by {bee}"] == [bee, "beehive"]
    assert built.scenario[bee][fox] == fox
    assert built.world_spec == {
        "use": "bee.module:Bee",
        "options": {"bee": 1, "start": {bee: 2, fox: 3}, "label": bee},
    }
    assert list(built.spec["world"]["options"]["start"]) == sorted([bee, fox])
    assert built.truth == {"who": bee}
    case = built.case()
    assert case.correctness.exact_match == bee.upper()
    assert case.path.expected_tools is not None
    assert case.path.expected_tools[0].tool == f"feed_{bee}"
    assert built.solution is not None
    assert built.solution["agent"]["actions"] == [{"feed": bee}]
    assert (case.description, case.tags, case.properties) == (
        "About the red bee",
        ("bee",),
        {"who": "bee"},
    )
    assert "bee" not in (built.path / "scenario.yaml").read_text(encoding="utf-8").replace(
        "beehive", ""
    )


def test_names_differ_by_seed(catalog: Catalog, write) -> None:
    """R-S4: an agent that learned the names of one seed knows nothing of another."""
    write("names: {s: {count: 5}}\nscenario: {all: !ref names.s}")
    seen = [build("a.b", seed, catalog=catalog).scenario["all"] for seed in range(20)]
    assert len({name for names in seen for name in names}) == 100
