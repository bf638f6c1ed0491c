"""Settings: which source wins, and that every value knows where it came from."""

import itertools
from pathlib import Path
from typing import Any

import pytest

from proctor.spec import SpecError, load_configuration
from proctor.spec.config import Configuration


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "xdg" / "proctor").mkdir(parents=True)
    (tmp_path / "project" / "deep" / "down").mkdir(parents=True)
    return tmp_path


def load(home: Path, flags: dict[str, Any] | None = None, **environ: str) -> Configuration:
    environ["XDG_CONFIG_HOME"] = str(home / "xdg")
    return load_configuration(home / "project" / "deep" / "down", flags=flags, environ=environ)


def user(home: Path, text: str) -> None:
    (home / "xdg" / "proctor" / "config.yaml").write_text(text)


def project(home: Path, text: str, name: str = "proctor.yaml") -> None:
    (home / "project" / name).write_text(text)


def origin(configuration: Configuration, key: str) -> str:
    return next(str(v.origin) for v in configuration.values() if v.key == key)


def problems(home: Path, **environ: str) -> list[tuple[str, str | None]]:
    with pytest.raises(SpecError) as caught:
        load(home, None, **environ)
    return sorted((str(p).replace(f"{home}/", ""), p.hint) for p in caught.value.problems)


SOURCES = ["flag", "variable", "project", "user"]


@pytest.mark.parametrize(
    "present", [c for n in range(5) for c in itertools.combinations(SOURCES, n)]
)
def test_who_wins(present: tuple[str, ...], home: Path) -> None:
    """R-S6: flags over environment over project over user over default, in every combination."""
    if "user" in present:
        user(home, "limits:\n  trials: 11\n")
    if "project" in present:
        project(home, "limits:\n  trials: 12\n")
    environ = {"PROCTOR_LIMITS_TRIALS": "13"} if "variable" in present else {}
    flags = {"limits.trials": 14 if "flag" in present else None}
    configuration = load(home, flags, **environ)
    expected = {
        "flag": (14, "--trials"),
        "variable": (13, "PROCTOR_LIMITS_TRIALS"),
        "project": (12, f"{home}/project/proctor.yaml:2:11"),
        "user": (11, f"{home}/xdg/proctor/config.yaml:2:11"),
    }
    value, place = expected[present[0]] if present else (3, "default")
    assert configuration.settings.limits.trials == value
    assert origin(configuration, "limits.trials") == place


def test_sources_are_merged_key_by_key(home: Path) -> None:
    """R-S6: one source's judge and another's votes make one judge; short and long forms meet."""
    user(home, "judge: openai:a\nlimits: {concurrency: 2}\n")
    project(home, "judge: {votes: 3}\nlimits: {timeout: 9}\n")
    found = load(home, PROCTOR_JUDGE_TEMPERATURE="0.5")
    assert found.settings.judge is not None
    assert found.settings.judge.model == "openai:a"
    assert (found.settings.judge.votes, found.settings.judge.temperature) == (3, 0.5)
    assert (found.settings.limits.concurrency, found.settings.limits.timeout) == (2, 9)
    assert origin(found, "judge.seed") == "default"


def test_pyproject(home: Path) -> None:
    """R-S6: `[tool.proctor]` says the same, with its lines."""
    project(
        home,
        '[project]\nname = "x"\n\n[tool.proctor]\nresults = "out"\nprices = { m = "openai:m" }\n'
        '[tool.proctor.limits]\n  max_cost_usd = 2.5\n[tool.other]\nresults = "no"\n',
        "pyproject.toml",
    )
    found = load(home)
    assert found.settings.limits.max_cost_usd == 2.5
    assert origin(found, "limits.max_cost_usd") == f"{home}/project/pyproject.toml:8:3"
    assert origin(found, "results") == f"{home}/project/pyproject.toml:5:1"
    assert origin(found, "prices.m") == f"{home}/project/pyproject.toml:6:1"
    assert found.results == home / "project" / "out"


def test_a_pyproject_of_others_is_passed_by(home: Path) -> None:
    """R-S6: the nearest file that speaks of Proctor counts, not the nearest file."""
    project(home, "results: mine\n")
    (home / "project" / "deep" / "pyproject.toml").write_text("[tool.ruff]\n# tool.proctor\n")
    assert load(home).settings.results == "mine"


def test_two_project_files_are_refused(home: Path) -> None:
    """R-S6: which one counts is not left to guess."""
    project(home, "results: a\n")
    project(home, '[tool.proctor]\nresults = "b"\n', "pyproject.toml")
    ((message, hint),) = problems(home)
    assert message.startswith("project/proctor.yaml:1:1: both this file and [tool.proctor]")
    assert hint == "keep one of them"


def test_unknown_keys(home: Path) -> None:
    """R-S6: at their place, in every kind of source, with the nearest known key."""
    user(home, "agent: m:f\nlimts: {}\n")
    project(home, "[tool.proctor.limits]\ntrails = 3\n", "pyproject.toml")
    found = dict(problems(home, PROCTOR_LIMITS_TRAILS="3"))
    hint = found.pop("PROCTOR_LIMITS_TRAILS: no setting has this variable")
    assert hint is not None
    assert hint.startswith("did you mean PROCTOR_LIMITS_TRIALS")
    assert found == {
        "project/pyproject.toml:2:1: unknown key 'trails'": (
            "did you mean 'trials' or 'max_trials'?"
        ),
        "xdg/proctor/config.yaml:2:1: unknown key 'limts'": "did you mean 'limits'?",
    }


def test_variables_of_others_are_left_alone(home: Path) -> None:
    """R-S6: a variable that resembles no setting may belong to the agent under test."""
    assert load(home, PROCTOR_SHOE_SIZE="43").settings.limits.trials == 3


def test_bad_values_are_told_where_they_stand(home: Path) -> None:
    """R-S6: the file, the line, or the variable."""
    user(home, "redaction: {patterns: {x: '('}}\nprices: {m: {input: -1, output: 1}}\n")
    project(home, "[tool.proctor\n", "pyproject.toml")
    found = [message for message, _ in problems(home, PROCTOR_LIMITS_TRIALS="many")]
    assert found == [
        "PROCTOR_LIMITS_TRIALS: trials: expected a whole number, got text",
        "project/pyproject.toml:1:14: not TOML: Expected ']' at the end of a table declaration",
        (
            "xdg/proctor/config.yaml:1:23: redaction pattern 'x': not a regular expression: "
            "missing ), unterminated subpattern at position 0"
        ),
        "xdg/proctor/config.yaml:2:21: input must be at least 0, got -1",
    ]


def test_folders_start_where_their_writer_stands(home: Path, monkeypatch) -> None:
    """R-S6: a file's folders at the project, those of flags and variables here."""
    user(home, "results: from-user\nbaselines: ~/b\n")
    project(home, "agent: m:f\n")
    monkeypatch.setenv("HOME", str(home))
    assert load(home).results == home / "project" / "from-user"
    assert load(home).baselines == home / "b"
    assert load(home, PROCTOR_RESULTS="from-env").results == Path("from-env")
    assert load(home, {"results": "from-flag"}).results == Path("from-flag")


def test_references_to_variables(home: Path) -> None:
    """R-S6 R-S1: marked where written, and known as what must not be shown."""
    project(home, "agents: {a: {kind: http, token: '${SECRET}'}}\n")
    found = load(home, SECRET="held")
    (value,) = [v for v in found.values() if v.key == "agents.a.token"]
    assert (value.value, value.secret) == ("held", True)


def test_no_home_no_user_file(tmp_path: Path) -> None:
    """R-S6: a machine without a home has no user file, and that is no error."""
    assert load_configuration(tmp_path, environ={"XDG_CONFIG_HOME": "relative"}).files == ()
