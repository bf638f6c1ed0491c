"""`proctor runs note`, `proctor runs tag` and `proctor runs audit`."""

import json

import pytest
from outcome_parts import made_run

from proctor.cli.main import run as command
from proctor.runs import audit


@pytest.fixture
def run(tmp_path):
    return made_run(tmp_path, {"x": {"a": (1, 2)}})


def said(capsys, *args, code=0):
    assert command([*map(str, args)]) == code
    captured = capsys.readouterr()
    return captured.out if code == 0 else captured.err


def test_annotations_are_added_and_listed(run, tmp_path, capsys):
    """R-D5: of a run and of a trial; listed with who and when, safe for a terminal."""
    results = ("--results", tmp_path)
    assert "no notes" in said(capsys, "runs", "note", run, *results)
    said(capsys, "runs", "note", run, "the \x1b[31mjudge was down", *results)
    shown = said(capsys, "runs", "note", "latest", "a/x/0/1", "look here", *results)
    first, second = shown.splitlines()
    assert first.endswith(": the \\x1b[31mjudge was down")
    assert second.endswith(" a/x/0/1: look here")
    document = json.loads(said(capsys, "runs", "note", run, *results, "--json"))
    assert [note["text"] for note in document["annotations"]][1] == "look here"
    assert "has no trial 'a/x/0/7'" in said(
        capsys, "runs", "note", run, "a/x/0/7", "text", *results, code=2
    )
    assert "put the text in quotes" in said(
        capsys, "runs", "note", run, "a", "b", "c", *results, code=2
    )


def test_tags_are_put_on_listed_and_taken_away(run, tmp_path, capsys):
    """R-D5: a tag is stored with the results and names its run."""
    results = ("--results", tmp_path)
    assert "no tagged runs" in said(capsys, "runs", "tag", *results)
    assert said(capsys, "runs", "tag", run, "baseline", *results) == "baseline\n"
    assert str(run) in said(capsys, "runs", "tag", *results)
    assert said(capsys, "runs", "tag", "baseline", *results) == "baseline\n"
    assert (
        json.loads(said(capsys, "runs", "tag", *results, "--json"))["tags"][0]["tag"] == "baseline"
    )
    assert said(capsys, "runs", "tag", run, "baseline", "--remove", *results) == "no tags\n"
    assert "no tag 'baseline'" in said(
        capsys, "runs", "tag", run, "baseline", "--remove", *results, code=2
    )
    assert "--remove needs a run and a tag" in said(
        capsys, "runs", "tag", run, "--remove", *results, code=2
    )


def test_the_log_shows_what_was_done(run, tmp_path, capsys):
    """R-D5: who, when, what, on which host; by command, by run, the last ones."""
    results = ("--results", tmp_path)
    assert "no entries" in said(capsys, "runs", "audit", *results)
    said(capsys, "runs", "tag", run, "baseline", *results)
    said(capsys, "runs", "note", run, "text", *results)
    said(capsys, "runs", "tag", run, "other", *results)
    shown = said(capsys, "runs", "audit", *results).splitlines()
    assert len(shown) == 3
    entry = next(audit.entries(tmp_path))
    assert shown[0].startswith(f"{entry.at} {entry.who}@{entry.host}")
    assert "(baseline)" in shown[0]
    tags = json.loads(
        said(capsys, "runs", "audit", "--command", "tag", "--last", 1, *results, "--json")
    )
    assert [each["outcome"] for each in tags["entries"]] == ["other"]
    assert "no entries" in said(capsys, "runs", "audit", "--run", "elsewhere", *results)
    assert "for the command 'tga'" in said(capsys, "runs", "audit", "--command", "tga", *results)
    assert command(["runs", "audit", "--command", "tga", "--results", str(tmp_path)]) == 0
    assert "did you mean 'tag'?" in capsys.readouterr().err
    (tmp_path / audit.FILE).open("ab").write(b"torn")
    assert command(["runs", "audit", "--results", str(tmp_path)]) == 0
    captured = capsys.readouterr()
    assert f"{audit.FILE}:4" in captured.err
    assert len(captured.out.splitlines()) == 3
