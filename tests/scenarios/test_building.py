"""Building: the same bytes for the same content, seed and parameters; nothing shown too much."""

import hashlib
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import proctor
from proctor.errors import ProctorError
from proctor.scenarios import Built, Catalog, build
from proctor.scenarios.builder import default_cache_folder
from proctor.scenarios.scenario import FILES
from proctor.spec import SpecError

DIGESTS = {
    "_ground_truth_.yaml": "30108143499b43e2",
    "_manifest_.yaml": "efc406354d0303d5",
    "_spec_.yaml": "6d0b5239667568f8",
    "_visibility_.yaml": "9d6579fa4f1479c0",
    "scenario.yaml": "91f763e0e01beac8",
}
"""Of the template below under seed 7: the first digits of SHA-256."""

MEADOW = """\
    description: A meadow where one species secretly feeds another
    difficulty: !ref params.level
    tags: [ecology, !ref params.level]
    properties: {level: !ref params.level, drawn: !ev 'randint(1, 6)'}
    params:
      level: {type: choice, of: [easy, hard], default: easy}
      species: {type: int, default: !ev "3 if level == 'easy' else 6", min: 2, max: 12}
      noise: 0.5
    variants:
      easy: {level: easy}
      hard: {level: hard, noise: 2}
    values:
      order: !ev "shuffle(['bee', 'clover', 'field mouse'])"
    names:
      animals: [bee, clover, field mouse]
      site: {count: !ref params.species, style: code, prefix: S}
    scenario:
      brief: |
        Bees visit CLOVER. The field mouse watches. bee_count is given; a beetle is not a bee.
      growth: !ev "{name: round(uniform(0, 1), 3) for name in order}"
      noise: !ev "round(normal(0, noise), 6)"
      sites: !ev "shuffle(ref('names.site'))"
    truth:
      partner: !ev order[0]
    correctness:
      expected_in_answer: [!ref truth.partner]
    """


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_the_folder_holds_what_is_promised(catalog: Catalog, write) -> None:
    """R-S4: five files; what the agent may see is apart from what is so."""
    write(MEADOW)
    built = build("a.b", 7, catalog=catalog)
    assert sorted(contents(built.path)) == sorted(FILES)
    assert built.manifest["seed"] == 7
    assert built.manifest["source"]["file"] == "a/b/spec.yaml"
    done = {each["at"]: each["text"] for each in built.manifest["operations"] if "at" in each}
    assert done["truth.partner"] == "order[0]"
    assert built.params == {"level": "easy", "species": 3, "noise": 0.5}
    assert set(built.names.values()) == {
        "bee",
        "clover",
        "field mouse",
        "site_1",
        "site_2",
        "site_3",
    }
    assert built.names[built.truth["partner"]] in ("bee", "clover", "field mouse")
    for name in FILES:
        assert isinstance(yaml.safe_load((built.path / name).read_text(encoding="utf-8")), dict)


def test_an_agent_sees_opaque_names_only(catalog: Catalog, write, tmp_path: Path) -> None:
    """R-S4: plurals, capitals and keys are renamed; only the visible file is given away."""
    write(MEADOW)
    built = build("a.b", 7, catalog=catalog)
    opaque = {true: new for new, true in built.names.items()}
    brief = built.scenario["brief"]
    assert brief == (
        f"{opaque['bee'].capitalize()}s visit {opaque['clover'].upper()}. "
        f"The {opaque['field mouse']} watches. {opaque['bee']}_count is given; "
        f"a beetle is not a {opaque['bee']}.\n"
    )
    assert list(built.scenario["growth"]) == sorted(
        opaque[t] for t in ("bee", "clover", "field mouse")
    )
    given_away = built.visible_to(tmp_path / "seen")
    assert [path.name for path in given_away.iterdir()] == ["scenario.yaml"]
    seen = (given_away / "scenario.yaml").read_text(encoding="utf-8").casefold()
    assert not any(
        true in seen.replace("beetle", "") for true in ("bee", "clover", "mouse", "site_")
    )
    hidden = [built.path / name for name in FILES if name != "scenario.yaml"]
    assert any("clover" in path.read_text(encoding="utf-8") for path in hidden)


def test_the_case_speaks_the_agents_names(catalog: Catalog, write) -> None:
    """R-S4: the case asks what may be seen, and its checks expect opaque names."""
    write(MEADOW)
    built = build("a.b@hard", 7, catalog=catalog)
    case = built.case()
    assert case.id == "a.b@hard"
    assert case.input == built.scenario
    assert case.correctness.expected_in_answer == (built.truth["partner"],)
    assert (case.difficulty, case.tags) == ("hard", ("ecology", "hard"))
    assert case.description == "A meadow where one species secretly feeds another"
    assert 1 <= case.properties["drawn"] <= 6
    assert built.params == {"level": "hard", "species": 6, "noise": 2.0}


def test_what_one_is_given_is_nobody_elses(catalog: Catalog, write) -> None:
    """R-S4: an agent that changes its input changes no other trial's."""
    write(MEADOW)
    first = build("a.b", 7, catalog=catalog)
    expected = first.case().model_dump()
    first.case().input["growth"].clear()
    first.scenario["growth"] = "gone"
    first.truth.clear()
    second = build("a.b", 7, catalog=catalog)
    assert second.case().model_dump() == expected
    assert second.truth


def test_bytes_are_the_same_on_any_machine(catalog: Catalog, write) -> None:
    """R-S4: written down once: the digest of a build may not change without a new version."""
    write(MEADOW)
    built = build("a.b", 7, catalog=catalog, cache=False)
    digests = {
        name: hashlib.sha256(data).hexdigest()[:16] for name, data in contents(built.path).items()
    }
    assert digests == DIGESTS


def test_another_process_builds_the_same(catalog: Catalog, write, tmp_path: Path) -> None:
    """R-S4: hash seeds, locale, time zone, working folder and cache do not count."""
    write(MEADOW)
    here = build("a.b", 7, catalog=catalog, cache=False)
    script = (
        "import proctor, sys\n"
        "proctor.scenarios.build('a.b', 7, catalog=sys.argv[1], out=sys.argv[2])"
    )
    for number in ("1", "2"):
        out = tmp_path / f"out{number}"
        environ = {
            **os.environ,
            "PYTHONHASHSEED": number,
            "LC_ALL": "C",
            "TZ": "Asia/Kathmandu",
            "XDG_CACHE_HOME": str(tmp_path / number),
        }
        work = tmp_path / f"work{number}"
        work.mkdir()
        argv = [sys.executable, "-c", script, str(catalog.paths[0]), str(out)]
        subprocess.run(argv, check=True, env=environ, cwd=work)
        assert contents(out) == contents(here.path)


@pytest.mark.parametrize("crlf", [False, True])
def test_layout_and_comments_do_not_count(catalog: Catalog, write, crlf: bool) -> None:
    """R-S4: the content is what is said, not how: a checkout with other line ends is the same."""
    write(MEADOW)
    before = contents(build("a.b", 7, catalog=catalog).path)
    file = catalog.paths[0] / "a/b/spec.yaml"
    text = file.read_text(encoding="utf-8")
    file.write_bytes((text.replace("\n", "\r\n") if crlf else f"# said again\n\n{text}").encode())
    assert contents(build("a.b", 7, catalog=catalog).path) == before


VALUES = {
    "one": "!ev uniform(0, 1)",
    "two": "!ev normal(0, 1)",
    "three": "!ev shuffle([1, 2, 3, 4, 5])",
    "four": "!ev choice(['x', 'y', 'z'])",
    "five": "{deep: !ev 'randint(0, 1000000)'}",
    "six": "!ref scenario.one",
}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)
@given(st.permutations(sorted(VALUES)), st.integers(0, 2**32))
def test_values_do_not_change_because_others_do(
    catalog: Catalog, write, order: list[str], seed: int
) -> None:
    """R-S4: a stream for each place: adding, dropping or moving values changes no other one."""
    write("scenario:\n" + "".join(f"  {name}: {VALUES[name]}\n" for name in sorted(VALUES)))
    whole = build("a.b", seed, catalog=catalog, cache=False).scenario
    kept = {*order[:3], *(["one"] if "six" in order[:3] else [])}
    text = "".join(f"  {name}: {VALUES[name]}\n" for name in order if name in kept)
    write(f"scenario:\n  new: !ev uniform(0, 1)\n{text}")
    part = build("a.b", seed, catalog=catalog, cache=False).scenario
    assert {name: part[name] for name in kept} == {name: whole[name] for name in kept}


def test_seeds_and_parameters_make_variants(catalog: Catalog, write) -> None:
    """R-S4: another seed is another scenario; another parameter keeps what does not use it."""
    write(MEADOW)
    base = build("a.b", 7, catalog=catalog)
    assert build("a.b", 8, catalog=catalog).scenario["growth"] != base.scenario["growth"]
    other = build("a.b", 7, catalog=catalog, noise=3)
    assert other.scenario["growth"] == base.scenario["growth"]
    assert other.scenario["noise"] == pytest.approx(6 * base.scenario["noise"], abs=1e-5)
    assert build("a.b@hard", 7, catalog=catalog, level="easy").params["level"] == "easy"


def test_a_second_build_is_looked_up(catalog: Catalog, write) -> None:
    """R-S4: building is cached per content, seed and parameters; each of them is another entry."""
    file = write(MEADOW)
    first = build("a.b", 7, catalog=catalog)
    stamp = (first.path / "scenario.yaml").stat().st_mtime_ns
    again = build("a.b", 7, catalog=catalog)
    assert again.path == first.path
    assert (again.path / "scenario.yaml").stat().st_mtime_ns == stamp
    assert first.path.is_relative_to(default_cache_folder())
    template = catalog.get("a.b")
    assert template.is_cached(7)
    assert not template.is_cached(8)
    assert not template.is_cached(7, {"noise": 3})
    file.write_text(file.read_text(encoding="utf-8").replace("watches", "sleeps"), encoding="utf-8")
    changed = build("a.b", 7, catalog=catalog)
    assert changed.path != first.path
    assert "sleeps" in changed.scenario["brief"]


@pytest.mark.parametrize("harm", ["cut", "gone", "changed", "digests", "file"])
def test_a_corrupt_entry_is_built_anew(catalog: Catalog, write, harm: str) -> None:
    """R-S4: what a crash or a hand left in the cache is never used."""
    write(MEADOW)
    first = build("a.b", 7, catalog=catalog)
    good = contents(first.path)
    scenario = first.path / "scenario.yaml"
    if harm == "cut":
        scenario.write_bytes(good["scenario.yaml"][:20])
    elif harm == "gone":
        scenario.unlink()
    elif harm == "changed":
        (first.path / "_ground_truth_.yaml").write_text("partner: me\n", encoding="utf-8")
    elif harm == "digests":
        (first.path.parent / "digests.json").write_text("[", encoding="utf-8")
    else:
        for path in first.path.iterdir():
            path.unlink()
        first.path.rmdir()
        first.path.write_text("not a folder", encoding="utf-8")
    again = build("a.b", 7, catalog=catalog)
    assert contents(again.path) == good
    assert again.path == first.path


def test_many_at_once_build_one(catalog: Catalog, write) -> None:
    """R-S4: threads that build the same get the same folder, whole."""
    write(MEADOW)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: build("a.b", 7, catalog=catalog), range(32)))
    assert len({built.path for built in found}) == 1
    assert all(built.same_as(found[0]) for built in found)
    entries = list(default_cache_folder().glob("*/*"))
    assert len(entries) == 1, "nothing half-written is left behind"


def test_a_cache_that_cannot_be_written_costs_nothing_else(
    catalog: Catalog, write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R-S4: without a cache the build is made in a folder of its own."""
    write(MEADOW)
    (tmp_path / "in-the-way").write_text("a file", encoding="utf-8")
    expected = contents(build("a.b", 7, catalog=catalog).path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "in-the-way"))
    built = build("a.b", 7, catalog=catalog)
    assert contents(built.path) == expected
    assert not built.is_kept


def test_out_is_written_wholly_or_not_at_all(catalog: Catalog, write, tmp_path: Path) -> None:
    """R-S4: a folder that holds something is left alone; one that is empty is taken."""
    write(MEADOW)
    (tmp_path / "empty").mkdir()
    built = build("a.b", 7, catalog=catalog, out=tmp_path / "empty")
    assert sorted(contents(built.path)) == sorted(FILES)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").touch()
    with pytest.raises(ProctorError, match="something already"):
        build("a.b", 7, catalog=catalog, out=tmp_path / "full")
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["mine"]
    with pytest.raises(ProctorError, match="something already"):
        build("a.b", 7, catalog=catalog, out=tmp_path / "full" / "mine")


def test_nothing_is_written_when_a_build_fails(catalog: Catalog, write, tmp_path: Path) -> None:
    """R-S4: a template that cannot be built leaves no folder behind."""
    write("scenario: {x: !ev 1 / 0}")
    with pytest.raises(SpecError):
        build("a.b", 7, catalog=catalog, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert not default_cache_folder().exists()


@pytest.mark.parametrize("seed", [-1, 2**63, True, 1.5, "7"])
def test_a_seed_is_a_whole_number(catalog: Catalog, write, seed) -> None:
    """R-S4: what is no seed is refused before anything is built."""
    write(MEADOW)
    with pytest.raises(ProctorError, match="seed"):
        build("a.b", seed, catalog=catalog)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"specis": 3}, "no parameter 'specis'"),
        ({"species": 99}, "at most 12"),
        ({"species": "many"}, "expected a whole number"),
        ({"species": 2.5}, "expected a whole number"),
        ({"species": True}, "expected a whole number"),
        ({"level": "esay"}, "must be one of easy, hard"),
        ({"noise": float("nan")}, "finite"),
        ({"noise": object()}, "no value of a template"),
    ],
)
def test_parameters_are_typed(catalog: Catalog, write, params, message: str) -> None:
    """R-S4: unknown parameters and values of another type are told before anything is built."""
    write(MEADOW)
    with pytest.raises(ProctorError, match=message):
        build("a.b", 7, catalog=catalog, **params)


def test_equal_parameters_are_one_build(catalog: Catalog, write) -> None:
    """R-S4: 3 and 3.0 are the same number; a default said aloud builds the same bytes."""
    write(MEADOW)
    assert (
        build("a.b", 7, catalog=catalog, noise=3).path
        == build("a.b", 7, catalog=catalog, noise=3.0).path
    )
    silent = build("a.b", 7, catalog=catalog)
    assert build("a.b", 7, catalog=catalog, noise=0.5).same_as(silent)


def test_a_question_is_a_scenario_too(catalog: Catalog, write) -> None:
    """R-S4: `input` asks in words; an agent's answer is judged by the checks of the case."""
    write("""\
        params: {a: !!int 3}
        input: !ev "f'What is {a} times {a}?'"
        correctness: {expected_in_answer: [!ev "str(a * a)"]}
        threshold: 1
        """)
    built = build("a.b", 1, catalog=catalog, a=7)
    assert built.case().input == "What is 7 times 7?"
    assert built.scenario == {"input": "What is 7 times 7?"}
    assert built.score() is None
    assert built.world() is None
    assert built.run(agent=lambda question: f"49, as you said: {question}").score == 1.0
    assert built.score() == 1.0
    assert built.run(agent=lambda question: "48").score == 0.0
    assert built.run(agent=lambda question: "48").ended == "answered"


def test_a_world_is_played(catalog: Catalog, write) -> None:
    """R-S4: a world beside its template is found, made from the options, played and scored."""
    write(
        """\
        class Guess:
            def __init__(self, low, high, secret):
                self.low, self.high, self.secret = low, high, secret
            def reset(self, *, seed=None): self.hit = False; return {"low": self.low}, {}
            def actions(self): return list(range(self.low, self.high + 1))
            def step(self, action):
                self.hit = action == self.secret
                return {"right": self.hit}, float(self.hit), self.hit, False, {}
            def score(self, truth): return float(self.hit and truth["secret"] == self.secret)
        def solve(turn): return 3
        """,
        "a/b/guessing.py",
    )
    write("""\
        params: {high: 5}
        scenario: {task: Guess the number., high: !ref params.high}
        truth: {secret: 3}
        world:
          use: guessing:Guess
          max_steps: 4
          options: {low: 1, high: !ref params.high, secret: !ref truth.secret}
        solution: {agent: "guessing:solve", min_score: 1}
        random: {max_score: 1}
        """)
    built = build("a.b", 5, catalog=catalog)
    assert built.run(agent="solution").score == 1.0
    outcome = built.run(agent=lambda turn: 1, steps=2)
    assert (outcome.score, outcome.steps, built.score()) == (0.0, 2, 0.0)
    assert built.run(agent=lambda turn: 1).steps == 4
    assert built.run().trajectory.actions == built.run().trajectory.actions, "random is seeded"
    assert built.solution == {"agent": "guessing:solve", "min_score": 1}
    assert built.random == {"max_score": 1}


def test_a_built_folder_stands_alone(catalog: Catalog, write, tmp_path: Path) -> None:
    """R-S4: a folder carried elsewhere says the same, and notices what was changed in it."""
    write(MEADOW)
    built = build("a.b", 7, catalog=catalog).copy_to(tmp_path / "carried")
    opened = Built.open(tmp_path / "carried")
    assert opened.same_as(built)
    assert opened.case().model_dump() == built.case().model_dump()
    assert (opened.name, opened.seed, opened.truth) == ("a.b", 7, built.truth)
    (tmp_path / "carried" / "_ground_truth_.yaml").write_text("partner: me\n", encoding="utf-8")
    with pytest.raises(ProctorError, match="not as it was built"):
        Built.open(tmp_path / "carried")
    with pytest.raises(ProctorError, match="not a built scenario"):
        Built.open(tmp_path)


def test_sources_build_the_same_elsewhere(catalog: Catalog, write, tmp_path: Path) -> None:
    """R-S4: what a template names as its sources is all that it needs."""
    write("rate: !ev uniform(0, 1)\n", "a/common.yaml")
    write("scenario:\n  common: !include ../common.yaml\n  words: !include words.txt\n")
    write("some words\n", "a/b/words.txt")
    sources = catalog.get("a.b").sources
    assert sorted(sources) == ["a/b/spec.yaml", "a/b/words.txt", "a/common.yaml"]
    for name, text in sources.items():
        (tmp_path / "again" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "again" / name).write_text(text, encoding="utf-8")
    again = build("a.b", 3, catalog=tmp_path / "again", cache=False)
    assert again.same_as(build("a.b", 3, catalog=catalog))
    includes = [each["file"] for each in again.manifest["operations"] if each["do"] == "include"]
    assert includes == ["a/b/words.txt", "a/common.yaml"]


def test_environment_variables_do_not_get_in(catalog: Catalog, write, monkeypatch) -> None:
    """R-S4: a template says the same on every machine: ${HOME} is seven characters."""
    monkeypatch.setenv("SECRET_KEY", "hunter2")
    write("scenario: {text: 'cost ${SECRET_KEY} and $${x}'}")
    assert build("a.b", catalog=catalog).case().input == {"text": "cost ${SECRET_KEY} and $${x}"}


def test_the_public_names(catalog: Catalog, write) -> None:
    """R-S4: `proctor.scenarios.build` takes a name, a folder or a file."""
    file = write(MEADOW)
    built = proctor.scenarios.build("a.b", 7, catalog=catalog)
    for path in (file, str(file), file.parent, "a/b"):
        assert proctor.scenarios.build(path, 7, catalog=catalog).same_as(built)
    assert json.dumps(built.scenario)
