"""What makes a case the same in two runs, by hash, and what changed when it is not."""

from typing import Any

import pytest

from proctor.results._comparability import changed_cases, fingerprints

JUDGED = {"id": "j", "input": "x", "correctness": {"llm_judge": ["polite"]}}
NAMED = {"id": "n", "input": "x", "assertions": [{"type": "judge", "judge": "strict"}]}
PLAIN = {"id": "p", "input": "x", "correctness": {"expected": "y"}, "threshold": 0.8}


def spec(*cases, judge: Any = "openai:a", strict="openai:s", **more):
    suite = {"cases": list(cases), "judge": judge, "judges": {"strict": {"model": strict}}}
    return {"suite": suite, **more}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"input": "z"}, "input"),
        ({"threshold": 0.9}, "threshold"),
        ({"correctness": {"expected": "z"}}, "correctness"),
        ({"input": "z", "weights": {"cost": 2}}, "input, weights"),
    ],
)
def test_a_changed_case_names_the_changed_part(change, named):
    """R-Q2: input and judging are compared part by part, with both hashes."""
    found = changed_cases(spec(PLAIN), spec({**PLAIN, **change}))
    assert found["p"].startswith(f"the case changed ({named}): case ")
    old, new = fingerprints(spec(PLAIN))["p"], fingerprints(spec({**PLAIN, **change}))["p"]
    assert f"{old.hashes['case']} → {new.hashes['case']}" in found["p"]


@pytest.mark.parametrize(
    "change",
    [
        {"description": "new words"},
        {"tags": ["smoke"]},
        {"trials": 9},
        {"difficulty": "hard", "type": "t", "properties": {"cluster": "c"}},
    ],
)
def test_descriptions_do_not_change_a_case(change):
    """R-Q2: descriptions, tags and the number of trials do not change a case."""
    assert changed_cases(spec(PLAIN), spec({**PLAIN, **change})) == {}
    reordered = dict(reversed(list(PLAIN.items())))
    assert changed_cases(spec(PLAIN), spec(reordered)) == {}
    written = {key: value for key, value in PLAIN.items() if key != "input"}
    assert changed_cases(spec(PLAIN), spec({**written, "query": "x"})) == {}


def test_a_changed_judge_touches_the_cases_that_ask_it():
    """R-Q2: another judge makes the cases it judges not comparable, and no others."""
    cases = (JUDGED, NAMED, PLAIN)
    default = changed_cases(spec(*cases), spec(*cases, judge="openai:b"))
    assert set(default) == {"j"}
    assert default["j"].startswith("the judge changed: judge ")
    named = changed_cases(spec(*cases), spec(*cases, strict="openai:b"))
    assert set(named) == {"n"}
    assert named["n"].startswith("the judge changed (strict): judge ")
    own = {**PLAIN, "checks": ["mine:check"]}
    assert set(changed_cases(spec(own), spec(own, judge="openai:b"))) == {"p"}


def test_how_a_judge_is_reached_does_not_count():
    """R-Q2: a cache or another key variable leaves the judge the same; a judge of the settings
    is one of the suite."""
    plain = spec(JUDGED, judge={"model": "openai:a"})
    cached = spec(JUDGED, judge={"model": "openai:a", "cache": True, "api_key_env": "K"})
    settings = {**spec(JUDGED, judge=None), "settings": {"judge": "openai:a"}}
    assert changed_cases(plain, cached) == {}
    assert changed_cases(plain, settings) == {}
    voting = spec(JUDGED, judge={"model": "openai:a", "votes": 3})
    assert set(changed_cases(plain, voting)) == {"j"}


def scenario(content, seeds=(1, 2)):
    return {
        "seeds": list(seeds),
        "scenarios": {
            "templates": {"t": {"hash": content, "catalog": "/anywhere"}},
            "cases": {"p": {"template": "t"}},
        },
    }


def test_changed_fixtures_are_seen():
    """R-Q2: files by hash, templates by hash."""
    first = spec(PLAIN, fixtures={"p": {"db.sqlite": "aa"}})
    second = spec(PLAIN, fixtures={"p": {"db.sqlite": "bb"}})
    assert changed_cases(first, second)["p"].startswith("the fixtures changed: fixtures ")
    built = spec(PLAIN, experiment=scenario("aa"))
    moved = spec(PLAIN, experiment=scenario("aa"))
    moved["experiment"]["scenarios"]["templates"]["t"]["catalog"] = "/elsewhere"
    assert changed_cases(built, moved) == {}
    assert "p" in changed_cases(built, spec(PLAIN, experiment=scenario("bb")))


def test_seeds_are_instances_and_no_change_of_the_case():
    """R-Q1: the same template under other seeds is the same case; its instances are paired."""

    def built(seeds, digest="aa"):
        scenarios = {"templates": {"t": {"hash": digest}}, "cases": {"p": {"template": "t"}}}
        return spec(PLAIN, experiment={"seeds": seeds, "scenarios": scenarios})

    assert changed_cases(built([0, 1, 2]), built([0, 1, 7])) == {}
    assert changed_cases(built([0], "aa"), built([0], "bb"))["p"].startswith("the fixtures changed")
