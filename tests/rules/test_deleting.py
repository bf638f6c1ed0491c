"""Deleting what agents leave behind deletes nothing else."""

from pathlib import Path

from commands import proctor as command

from proctor.files import remove_tree


def precious(place: Path) -> Path:
    """A folder that no trial owns."""
    (place / "inner").mkdir(parents=True)
    (place / "inner" / "file").write_text("content")
    place.chmod(0o755)
    return place


def unharmed(place: Path) -> bool:
    kept = (place / "inner" / "file").read_text() == "content"
    return kept and place.stat().st_mode & 0o777 == 0o755


def test_a_link_is_deleted_and_not_what_it_points_to(tmp_path: Path) -> None:
    """R-R6: at the top, where the simple way of deleting refuses a link, and inside."""
    mine, other = tmp_path / "mine", precious(tmp_path / "other")
    mine.symlink_to(other)
    remove_tree(mine)
    assert not mine.is_symlink()
    mine.mkdir()
    (mine / "link").symlink_to(other)
    remove_tree(mine)
    assert not mine.exists()
    assert unharmed(other)


def test_an_agent_that_leaves_a_link_for_its_folder_harms_nobody(tmp_path: Path) -> None:
    """R-R6, R-N6: an agent replaces its working folder by a link: the link goes, no more."""
    other = precious(tmp_path / "other")
    (tmp_path / "bots.py").write_text(
        "import os\n\ndef bot(input, workdir):\n"
        f"    os.rmdir(workdir)\n    os.symlink({str(other)!r}, workdir)\n    return 'x'\n"
    )
    (tmp_path / "suite.yaml").write_text(
        "agent: bots:bot\ncases: [{id: a, input: a, correctness: {expected_in_answer: [x]}}]\n"
    )
    done = command("run", "suite.yaml", "--quiet", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert unharmed(other)
