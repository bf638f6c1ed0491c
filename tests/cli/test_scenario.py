"""`proctor scenario build`, `store` and `fetch`: the command line over scenarios."""

from pathlib import Path
from typing import NamedTuple

import pytest

from proctor.cli.main import run

TEMPLATE = """\
params:
  species: {type: int, default: 3, min: 2, max: 12}
  word: some
variants: {many: {species: 9}}
scenario: {species: !ref params.species, word: !ref params.word, x: !ev "uniform(0, 1)"}
truth: {secret: !ev "randint(1, species)"}
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("CACHE", "DATA", "CONFIG"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    folder = tmp_path / "project"
    (folder / "catalog" / "pond" / "frogs").mkdir(parents=True)
    (folder / "catalog" / "pond" / "frogs" / "spec.yaml").write_text(TEMPLATE, encoding="utf-8")
    return folder


class Done(NamedTuple):
    """The result of a command line."""

    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def proctor(project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """The command, in the project."""
    monkeypatch.chdir(project)

    def called(*args: str) -> Done:
        code = run(args)
        said = capsys.readouterr()
        return Done(code, said.out, said.err)

    return called


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_scenario_is_built_stored_and_fetched(project: Path, proctor) -> None:
    """R-S4: build writes the folder and names it; store and fetch bring the same bytes back."""
    done = proctor(
        "scenario", "build", "pond.frogs", "--seed", "7", "--set", "species=9", "-o", "out"
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "out\n", "")
    assert "species: 9\n" in (project / "out" / "scenario.yaml").read_text(encoding="utf-8")
    assert sorted(contents(project / "out")) == sorted(
        "_ground_truth_.yaml _manifest_.yaml _spec_.yaml _visibility_.yaml scenario.yaml".split()
    )
    assert proctor("scenario", "store", "frogs-7", "out").returncode == 0
    assert proctor("scenario", "fetch", "frogs-7").stdout == "frogs-7\n"
    assert proctor("scenario", "fetch", "frogs-7", "-o", "more/again").stdout.strip() == str(
        Path("more/again")
    )
    for name in ("frogs-7", "more/again"):
        assert contents(project / name) == contents(project / "out")


def test_without_out_the_cache_is_named(project: Path, proctor) -> None:
    """R-S4: the printed folder is where the build is; the second time it is the same one."""
    first = proctor("scenario", "build", "pond.frogs@many", "--seed", "1").stdout
    assert proctor("scenario", "build", "pond/frogs@many", "--seed", "1").stdout == first
    built = Path(first.strip())
    assert built.is_dir()
    assert "species: 9\n" in (built / "scenario.yaml").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["scenario", "build", "pond.frog"], "did you mean 'pond.frogs'"),
        (["scenario", "build", "pond"], "is a scope"),
        (["scenario", "build", "pond.frogs@may"], "did you mean 'many'?"),
        (["scenario", "build", "pond.frogs", "--set", "specis=3"], "did you mean 'species'?"),
        (["scenario", "build", "pond.frogs", "--set", "species=99"], "at most 12"),
        (["scenario", "build", "pond.frogs", "--set", "species=many"], "expected a whole number"),
        (["scenario", "build", "pond.frogs", "--set", "species"], "is not NAME=VALUE"),
        (["scenario", "build", "pond.frogs", "--set", "word=a", "--set", "word=b"], "twice"),
        (["scenario", "build", "pond.frogs", "--seed", "-1"], "--seed"),
        (["scenario", "build", "pond.frogs", "--seed", "99999999999999999999"], "seed"),
        (["scenario", "build", "pond.frogs", "-o", "catalog"], "something already"),
        (["scenario", "build", "pond.frogs", "--no-cache"], "-o DIR"),
        (["scenario", "build", "nowhere/spec.yaml"], "no such template"),
        (["scenario", "store", "x", "catalog"], "not a built scenario"),
        (["scenario", "store", "../x", "catalog"], "must begin with a letter"),
        (["scenario", "fetch", "nothing"], "nothing is stored"),
    ],
)
def test_mistakes_end_with_2_and_change_nothing(
    project: Path, proctor, args: list[str], said: str
) -> None:
    """R-S4: what cannot be done is said in words, with exit code 2 and nothing written."""
    before = sorted(path for path in project.parent.rglob("*"))
    done = proctor(*args)
    assert done.returncode == 2
    assert done.stdout == ""
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert sorted(path for path in project.parent.rglob("*")) == before


def test_a_cache_that_cannot_be_written(
    project: Path, proctor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R-S4: no folder is named that would be gone; with -o nothing is amiss."""
    (project.parent / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(project.parent / "file"))
    done = proctor("scenario", "build", "pond.frogs")
    assert (done.returncode, done.stdout) == (2, "")
    assert "add -o DIR" in done.stderr
    assert proctor("scenario", "build", "pond.frogs", "-o", "out").returncode == 0


def test_a_mistake_in_a_template_is_shown_with_its_place(project: Path, proctor) -> None:
    """R-S4: file, line and column on the terminal."""
    file = project / "catalog" / "pond" / "frogs" / "spec.yaml"
    file.write_text("scenario:\n  x: !ev ().__class__\n", encoding="utf-8")
    done = proctor("scenario", "build", "pond.frogs")
    assert done.returncode == 2
    place = Path("catalog", "pond", "frogs", "spec.yaml")
    assert f"{place}:2:6: attribute access is not part of the language" in done.stderr


def test_text_parameters_stay_text(project: Path, proctor) -> None:
    """R-S4: `--set word=007` is three characters, and `=` may be part of a value."""
    proctor("scenario", "build", "pond.frogs", "--set", "word=007", "-o", "one")
    assert 'word: "007"' in (project / "one" / "scenario.yaml").read_text(encoding="utf-8")
    proctor("scenario", "build", "pond.frogs", "--set", "word=a=b", "-o", "two")
    assert 'word: "a=b"' in (project / "two" / "scenario.yaml").read_text(encoding="utf-8")
