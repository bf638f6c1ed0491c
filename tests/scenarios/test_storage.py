"""Stored scenarios: what comes back is what was kept, to the byte."""

from pathlib import Path

import pytest

import proctor
from proctor.errors import ProctorError
from proctor.scenarios import Built, Catalog, build
from proctor.scenarios.scenario import FILES, default_store_folder, stored_names


@pytest.fixture
def built(catalog: Catalog, write) -> Built:
    write("scenario: {a: !ev 'uniform(0, 1)'}\ntruth: {b: 1}\n")
    return build("a.b", 7, catalog=catalog)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_folder_comes_back_as_it_was(built: Built, tmp_path: Path) -> None:
    """R-S4: store keeps a built folder, fetch brings it back, by path or by object."""
    kept = proctor.scenarios.store("mine", built.path)
    assert kept.is_relative_to(default_store_folder())
    assert proctor.scenarios.fetch("mine") == kept
    out = proctor.scenarios.fetch("mine", tmp_path / "again")
    assert contents(out) == contents(built.path)
    assert Built.open(out).same_as(built)
    assert proctor.scenarios.store("other", built) != kept
    assert stored_names() == ["mine", "other"]


def test_names_that_some_systems_cannot_tell_apart_are_one(built: Built) -> None:
    """R-S4: a store carried to another file system keeps its meaning."""
    assert proctor.scenarios.store("Mine", built) == proctor.scenarios.store("mine", built)


def test_another_scenario_is_not_replaced_silently(
    built: Built, catalog: Catalog, tmp_path: Path
) -> None:
    """R-S4: the same again is fine, another one is refused unless asked for, then whole."""
    proctor.scenarios.store("mine", built)
    proctor.scenarios.store("mine", built)
    other = build("a.b", 8, catalog=catalog)
    with pytest.raises(ProctorError, match="another scenario under the name") as caught:
        proctor.scenarios.store("mine", other)
    assert "--force" in str(caught.value.hint)
    assert contents(proctor.scenarios.fetch("mine")) == contents(built.path)
    proctor.scenarios.store("mine", other, replace=True)
    assert contents(proctor.scenarios.fetch("mine")) == contents(other.path)
    assert stored_names() == ["mine"]
    assert [path.name for path in default_store_folder().iterdir()] == ["mine"], "nothing left over"


@pytest.mark.parametrize("harm", FILES)
def test_damage_is_seen(built: Built, harm: str) -> None:
    """R-S4: a stored file that changed is not handed out; it can be replaced."""
    kept = proctor.scenarios.store("mine", built)
    (kept / harm).write_bytes(b"format: 1\nfiles: {}\n")
    with pytest.raises(ProctorError, match="not as it was built"):
        proctor.scenarios.fetch("mine")
    proctor.scenarios.store("mine", built, replace=True)
    assert contents(proctor.scenarios.fetch("mine")) == contents(built.path)


@pytest.mark.parametrize(
    "name", ["", "..", "a/b", "a\\b", "con", "x.", " x", "é" * 200, "\x1b[31m"]
)
def test_a_name_is_no_path(built: Built, name: str) -> None:
    """R-S4: names are safe as folders on every system."""
    for use in (
        lambda: proctor.scenarios.store(name, built),
        lambda: proctor.scenarios.fetch(name),
    ):
        with pytest.raises(ProctorError):
            use()
    assert not default_store_folder().exists()


def test_only_built_folders_are_stored(built: Built, tmp_path: Path) -> None:
    """R-S4: a folder with less, more or other than a build has is refused, and why."""
    with pytest.raises(ProctorError, match="no such folder"):
        proctor.scenarios.store("mine", tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ProctorError, match="not a built scenario"):
        proctor.scenarios.store("mine", tmp_path / "empty")
    carried = built.copy_to(tmp_path / "carried").path
    (carried / "notes.txt").touch()
    with pytest.raises(ProctorError, match=r"'notes.txt' is no part"):
        proctor.scenarios.store("mine", carried)
    (carried / "notes.txt").unlink()
    (carried / "scenario.yaml").unlink()
    (carried / "scenario.yaml").symlink_to(built.path / "scenario.yaml")
    with pytest.raises(ProctorError, match="link has no place"):
        proctor.scenarios.store("mine", carried)
    assert stored_names() == []


def test_a_newer_format_is_refused(built: Built, tmp_path: Path) -> None:
    """R-S4: a folder of a later version says so instead of being misread."""
    carried = built.copy_to(tmp_path / "carried").path
    manifest = (carried / "_manifest_.yaml").read_text(encoding="utf-8")
    (carried / "_manifest_.yaml").write_text(manifest.replace("format: 1", "format: 99"))
    with pytest.raises(ProctorError, match="format 99"):
        proctor.scenarios.store("mine", carried)


def test_a_slip_in_a_name(built: Built) -> None:
    """R-S4: an unknown name is told with its nearest neighbour."""
    proctor.scenarios.store("meadow-7", built)
    with pytest.raises(ProctorError, match="nothing is stored") as caught:
        proctor.scenarios.fetch("medow-7")
    assert caught.value.hint == "did you mean 'meadow-7'?"
