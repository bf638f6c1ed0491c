"""Templates and catalogs: found by name, checked without a seed, selected without building."""

import os
from pathlib import Path

import pytest

from proctor.errors import ProctorError
from proctor.scenarios import Catalog, UnknownTemplateError, build, catalog_for
from proctor.scenarios.catalog import SHIPPED
from proctor.scenarios.params import params_from_text
from proctor.spec import SpecError, load_configuration, select_cases


def problems(catalog: Catalog, name: str = "a.b") -> list[str]:
    with pytest.raises(SpecError) as caught:
        build(name, 1, catalog=catalog)
    root = f"{catalog.paths[0]}{os.sep}"
    found = caught.value.problems
    return [
        str(each).replace(root, "").replace(os.sep, "/") + (f" | {each.hint}" if each.hint else "")
        for each in found
    ]


# -- finding -------------------------------------------------------------------------------------


def test_dotted_names_are_ways_down(catalog: Catalog, write) -> None:
    """R-S4: `a.b` is catalog/a/b/spec.yaml, at any depth; other files are no templates."""
    write("scenario: {n: 1}", "one/spec.yaml")
    write("scenario: {n: 2}", "a/b/spec.yaml")
    write("scenario: {n: 3}", "a/b/c/spec.yaml")
    write("n: 4", "a/common.yaml")
    write("scenario: {n: 5}", ".hidden/spec.yaml")
    assert catalog.names() == ["a.b", "a.b.c", "one"]
    assert [build(name, catalog=catalog).scenario["n"] for name in catalog.names()] == [2, 3, 1]
    assert [entry.id for entry in catalog.scope("a")] == ["a.b", "a.b.c"]
    assert [entry.id for entry in catalog.matching("a/*")] == ["a.b", "a.b.c"]


def test_earlier_catalogs_win(tmp_path: Path) -> None:
    """R-S4: the project's template stands before one of the same name that ships."""
    for place in ("mine", "shipped"):
        for name in ("x", place):
            (tmp_path / place / name).mkdir(parents=True)
            (tmp_path / place / name / "spec.yaml").write_text(f"scenario: {{from: {place}}}\n")
    both = Catalog([tmp_path / "mine", tmp_path / "nowhere", tmp_path / "shipped"])
    assert both.names() == ["mine", "shipped", "x"]
    assert build("x", catalog=both).scenario == {"from": "mine"}
    assert build("shipped", catalog=both).scenario == {"from": "shipped"}


def test_the_project_names_its_catalogs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """R-S4: the setting `catalog`, else the folder of that name; what ships comes last."""
    monkeypatch.chdir(tmp_path)
    assert catalog_for(load_configuration()).paths[-1] == SHIPPED
    (tmp_path / "proctor.yaml").write_text("catalog: [more, most]\n")
    found = catalog_for(load_configuration()).paths
    assert [path.resolve() for path in found] == [tmp_path / "more", tmp_path / "most", SHIPPED]
    (tmp_path / "more" / "q").mkdir(parents=True)
    (tmp_path / "more" / "q" / "spec.yaml").write_text("input: Really?\n")
    assert build("q").case().input == "Really?"


@pytest.mark.parametrize(
    ("name", "message", "hint"),
    [
        ("mutualism.hiden", "there is no scenario 'mutualism.hiden'", "'mutualism.hidden'"),
        ("mutualism", "'mutualism' is a scope", "mutualism.hidden"),
        ("mutualism.hidden@esy", "no variant 'esy'", "did you mean 'easy'?"),
        ("mutualism.hidden@", "no variant ''", "it has easy"),
    ],
)
def test_slips_in_names(catalog: Catalog, write, name: str, message: str, hint: str) -> None:
    """R-S4: an unknown name is told with its nearest neighbour, and never a traceback."""
    write("scenario: {a: 1}\nvariants: {easy: {}}", "mutualism/hidden/spec.yaml")
    with pytest.raises(ProctorError, match=message) as caught:
        build(name, catalog=catalog)
    assert hint in str(caught.value.hint)


def test_an_unknown_scope(catalog: Catalog, write) -> None:
    """R-S4: a scope that holds nothing is an error, not an empty list."""
    write("scenario: {a: 1}")
    with pytest.raises(UnknownTemplateError):
        catalog.scope("b")


def test_a_change_is_seen_at_once(catalog: Catalog, write) -> None:
    """R-S4: templates are kept by content: an edit within the same clock tick counts, too."""
    file = write("scenario: {a: !include ../x.yaml}")
    include = write("1", "a/x.yaml")
    stamp = include.stat()
    for number in (1, 2, 3):
        include.write_text(f"{number}\n")
        os.utime(include, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
        assert build("a.b", catalog=catalog).scenario == {"a": number}
    file.unlink()
    with pytest.raises(UnknownTemplateError):
        catalog.get("a.b")


# -- selecting -----------------------------------------------------------------------------------


def test_variants_are_cases_of_their_own(catalog: Catalog, write) -> None:
    """R-S4: each variant has an id, and what it is selected by follows its parameters."""
    write("""\
        difficulty: !ref params.level
        type: world
        tags: [t, !ev "'tag-' + level"]
        threshold: 0.9
        properties: {species: !ref params.n, luck: !ev "randint(1, 6)", fixed: 1}
        params:
          level: {type: choice, of: [easy, hard], default: easy}
          n: {type: int, default: !ev "2 if level == 'easy' else 9"}
        variants: {easy: {level: easy}, hard: {level: hard}}
        scenario: {n: !ref params.n}
        """)
    entries = catalog.entries()
    assert [(e.id, e.difficulty, e.tags) for e in entries] == [
        ("a.b@easy", "easy", ("t", "tag-easy")),
        ("a.b@hard", "hard", ("t", "tag-hard")),
    ]
    assert [e.properties for e in entries] == [
        {"species": 2, "fixed": 1},
        {"species": 9, "fixed": 1},
    ]
    assert [e.id for e in select_cases(entries, filter="difficulty:hard")] == ["a.b@hard"]
    assert [e.id for e in select_cases(entries, filter="species:9")] == ["a.b@hard"]
    assert catalog.get("a.b").difficulty == "easy"
    assert (entries[0].type, entries[0].threshold) == ("world", 0.9)
    assert catalog.get("a.b@hard").build(3).scenario == {"n": 9}


def test_selection_cannot_be_a_matter_of_luck(catalog: Catalog, write) -> None:
    """R-S4: a plan is made before anything is built, so tags and difficulty need no seed."""
    write("difficulty: !ev choice(['easy', 'hard'])\nscenario: {a: 1}")
    with pytest.raises(SpecError, match="difficulty must not depend on the seed"):
        _ = catalog.get("a.b").difficulty


def test_a_parameter_without_default_must_be_given(catalog: Catalog, write) -> None:
    """R-S4: what cannot be known is asked for, at the place it is declared."""
    write("params:\n  n: {type: int}\nscenario: {n: !ref params.n}\ndifficulty: !ev str(n)\n")
    assert catalog.get("a.b").difficulty is None
    assert problems(catalog) == [
        "a/b/spec.yaml:2:3: the parameter 'n' is not given and has no default"
    ]
    assert build("a.b", catalog=catalog, n=3).scenario == {"n": 3}


# -- mistakes ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("scenaro: {a: 1}", "1:1: unknown key 'scenaro' | did you mean 'scenario'?"),
        ("id: x\nscenario: {a: 1}", "1:1: unknown key 'id' | the id of a scenario is its name"),
        ("scenario: {a: 1}\ninput: b", "1:1: `input` is a question, `scenario` what may be seen"),
        ("description: x", "1:1: `input` is a question, `scenario` what may be seen"),
        ("[1]", "1:1: a template is a mapping"),
        ("scenario: [1]", "1:11: scenario is a mapping"),
        ("input: ''", "1:8: the input is empty"),
        ("scenario: {a: 1}\nthreshold: 2", "2:12: threshold must be at most 1, got 2"),
        ("scenario: {a: 1}\nthreshold: !ev 1 + 1", "2:12: threshold must be at most 1, got 2"),
        (
            "scenario: {a: 1}\ncorrectness: {exact_mtch: x}",
            "2:15: unknown key 'exact_mtch' | did you mean",
        ),
        ("scenario: {a: 1}\nworld: {use: x, opts: {}}", "2:17: unknown key 'opts' | did you mean"),
        ("scenario: {a: 1}\nworld: {options: {}}", "2:8: the key 'use' is missing"),
        ("scenario: {a: 1}\nworld: {use: x, max_steps: 0}", "2:28: max_steps must be at least 1"),
        ("scenario: {a: 1}\nsolution: {agent: x}", "2:11: the key 'min_score' is missing"),
        ("scenario: {a: 1}\nrandom: {max_score: 3}", "2:21: max_score must be at most 1"),
        ("scenario: {a: 1}\nparams: [a]", "2:9: params is a mapping"),
        (
            "scenario: {a: 1}\nparams: {a: {type: itn}}",
            "2:20: there is no type 'itn' | did you mean",
        ),
        (
            "scenario: {a: 1}\nparams: {a: {typ: int}}",
            "2:14: unknown key 'typ' | did you mean 'type'?",
        ),
        ("scenario: {a: 1}\nparams: {a: {default: 1}}", "2:13: the type is missing"),
        ("scenario: {a: 1}\nparams: {a: {type: choice}}", "2:13: a choice, and nothing else"),
        ("scenario: {a: 1}\nparams: {a: {type: int, of: [1]}}", "2:13: a choice, and nothing else"),
        (
            "scenario: {a: 1}\nparams: {a: {type: str, min: 1}}",
            "2:30: min is a number, for numbers",
        ),
        (
            "scenario: {a: 1}\nparams: {a: {type: int, min: !ev 1}}",
            "2:30: min must be a plain value",
        ),
        (
            "scenario: {a: 1}\nparams: {a: {type: int, default: x}}",
            "2:34: the default expected a whole",
        ),
        ("scenario: {a: 1}\nparams: {a: !ev 1}", "2:13: the type of 'a' is unknown"),
        ("scenario: {a: 1}\nparams: {seed: 1}", "2:10: 'seed' cannot be the name"),
        ("scenario: {a: 1}\nparams: {my-x: 1}", "2:10: 'my-x' cannot be the name"),
        ("scenario: {a: 1}\nparams: {if: 1}", "2:10: 'if' cannot be the name"),
        (
            "scenario: {a: 1}\nvariants: {v: {x: 1}}",
            "2:15: variant 'v': the template has no parameter",
        ),
        ("scenario: {a: 1}\nvariants: {v@w: {}}", "2:12: 'v@w' cannot be the name of a variant"),
        ("scenario: {a: 1}\nvariants: {con: {}}", "2:12: 'con' cannot be the name of a variant"),
        (
            "scenario: {a: 1}\nparams: {p: 1}\nvariants: {v: {p: x}}",
            "3:15: variant 'v': parameter 'p'",
        ),
        ("scenario: {a: 1}\nvalues: {'a b': 1}", "2:10: 'a b' cannot be named"),
        ("scenario: {a: 1}\nparams: {p: 1}\nvalues: {p: 1}", "3:10: 'p' is a parameter as well"),
        ("scenario: {a: 1}\nnames: {n: [a]}", "2:8: names: 'a' must be two letters"),
        ("scenario: {a: 1}\nnames: {n: [ab, AB]}", "2:8: names: 'AB' is there twice"),
        (
            "scenario: {a: 1}\nnames: {n: {of: [ab], pool: []}}",
            "2:8: names: the pool of 'n' is too",
        ),
        ("scenario: {a: 1}\nnames: {n: {of: [ab], pool: [ab]}}", "holds the true name 'ab'"),
        ("scenario: {a: 1}\nnames: {n: {style: word}}", "names `of` its own, or a `count`"),
        ("scenario: {a: !ref names.x}\nnames: {n: [ab]}", "1:15: there are no names 'x'"),
        (
            "scenario: {a: !ref names.n}\nnames: {n: {count: 0}}",
            "the count of 'n' must be 1 to 1,000",
        ),
        ("scenario: {a: !ref params.x}", "1:15: there is no parameter 'params.x'"),
        ("scenario: {a: !ref scenario.b.c, b: [1]}", "1:15: there is no 'scenario.b.c'"),
        ("scenario: {a: !ev [1, 2][0}", "1:"),
        (
            "scenario: {a: !ev max(1, 2)}",
            "1:15: a comma or a closing `)` is missing | in {…} and […]",
        ),
    ],
)
def test_mistakes_are_reported_with_their_place(
    catalog: Catalog, write, text: str, told: str
) -> None:
    """R-S4: file, line and column of every mistake, and what was probably meant."""
    write(text)
    found = problems(catalog)
    assert any(told in each for each in found), found
    assert all(each.startswith("a/b/spec.yaml:") for each in found), found


def test_an_include_has_its_own_places(catalog: Catalog, write) -> None:
    """R-S4: what is wrong in an included file is told there; its values draw where they stand."""
    write("scenario:\n  one: !include ../part.yaml\n  two: !include ../part.yaml\n")
    write("x: !ev uniform(0, 1)\n", "a/part.yaml")
    drawn = build("a.b", 1, catalog=catalog).scenario
    assert drawn["one"]["x"] != drawn["two"]["x"]
    write("\nx: !ev 1 / 0\n", "a/part.yaml")
    assert problems(catalog)[0] == "a/part.yaml:2:4: division by zero, in `1 / 0`"


def test_aliases_draw_where_they_stand(catalog: Catalog, write) -> None:
    """R-S4: an alias repeats what is written, a !ref what was drawn."""
    write("""\
        scenario:
          first: &draw !ev uniform(0, 1)
          again: *draw
          same: !ref scenario.first
          inside: !ref values.list.1
        values:
          list: !ev "[10, 20]"
        """)
    found = build("a.b", 1, catalog=catalog).scenario
    assert found["first"] != found["again"]
    assert found["first"] == found["same"]
    assert found["inside"] == 20


# -- parameters as texts -------------------------------------------------------------------------


def test_texts_are_read_as_the_type_says(catalog: Catalog, write) -> None:
    """R-S4: `--set` takes texts: each is read by the type of its parameter, never guessed."""
    write("""\
        params:
          i: 1
          f: 1.5
          b: true
          s: text
          c: {type: choice, of: [1, two, true], default: two}
          l: [1]
        scenario: {a: 1}
        """)
    params = catalog.get("a.b").params
    texts = {"i": "7", "f": "2", "b": "false", "s": "007", "c": "1", "l": "[1, x]"}
    found = params_from_text(params, texts)
    assert found == {"i": 7, "f": 2.0, "b": False, "s": "007", "c": 1, "l": [1, "x"]}
    assert [type(found[name]) for name in "ifbs"] == [int, float, bool, str]
    assert params_from_text(params, {"c": "true"}) == {"c": True}
    for name, text in {"i": "seven", "b": "yes", "c": "three", "l": "1", "f": ".inf"}.items():
        with pytest.raises(ProctorError, match=f"parameter '{name}'"):
            params_from_text(params, {name: text})
    assert catalog.get("a.b").check_params({"i": "7", "l": [2]}) == {"i": 7, "l": [2]}


# -- what ships ----------------------------------------------------------------------------------


def test_what_ships_builds() -> None:
    """R-S4: every scenario that comes with Proctor builds, and hides what it asks for."""
    entries = Catalog([SHIPPED]).entries()
    assert {"mutualism.hidden_dependency@easy", "mutualism.competition@hard"} <= {
        e.id for e in entries
    }
    for entry in entries:
        for seed in range(3):
            built = entry.build(seed, cache=False)
            assert built.case().id == entry.id
            assert built.case().difficulty == entry.difficulty
            assert not {*built.names.values()} & {*str(built.scenario).split("'")}


def test_expressions_are_checked_before_anything_is_built(catalog: Catalog, write) -> None:
    """R-S4: a slip in a value that no build has asked for yet is told when the template is read."""
    write("scenario: {a: 1}\nvalues:\n  unused: !ev unifrom(0, 1)\n")
    with pytest.raises(SpecError, match="there is no function 'unifrom'"):
        catalog.get("a.b")


def test_what_many_refer_to_is_worked_out_once(catalog: Catalog, write) -> None:
    """R-S4: forty values that each use the next one twice are forty values, not a billion."""
    links = "".join(f"  v{n}: !ev v{n + 1} + v{n + 1}\n" for n in range(25))
    more = "".join(f"  s{n}: !ev ref('scenario.s{n - 1}') * 2\n" for n in range(1, 40))
    write(f"scenario:\n  a: !ref values.v0\n  s0: 1\n{more}values:\n{links}  v25: 1\n")
    found = build("a.b", catalog=catalog).scenario
    assert (found["a"], found["s39"]) == (2**25, 2**39)
