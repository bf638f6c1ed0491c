"""`proctor report` and `proctor runs share` as a user types them."""

import contextlib
import io
import os
import stat
import sys
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import commands
import pytest
from report_runs import make_run

from proctor.cli.main import run as run_command
from proctor.runs.annotations import annotate, tag


class Told(NamedTuple):
    """The exit code and output of a command."""

    returncode: int
    stdout: str
    stderr: str


def proctor(*arguments: Any, cwd: Path | None = None) -> Told:
    """The command in this process: a child would spend its time on imports."""
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.chdir(cwd or Path.cwd()),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        code = run_command([str(part) for part in arguments])
    return Told(code, out.getvalue(), err.getvalue())


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Two runs of one experiment, in the folder that commands look in."""
    make_run(tmp_path / "results" / "made" / "2026-05-28_001", pass_rates=(0.95, 0.95))
    make_run(tmp_path / "results" / "made" / "2026-05-29_001", pass_rates=(0.95, 0.2), cases=5)
    return tmp_path / "results"


def test_a_report_is_printed_where_it_is_asked_for(results: Path) -> None:
    """R-Q5: the summary with the leaderboard, and nothing written."""
    before = sorted(results.rglob("*"))
    result = proctor("report", "results/made/2026-05-29_001", cwd=results.parent)
    assert result.returncode == 0, result.stderr
    assert "rank" in result.stdout.splitlines()[0]
    assert "What broke, the most harmful first" in result.stdout
    assert sorted(results.rglob("*")) == before


def test_one_html_file_is_written_where_it_is_wanted(results: Path) -> None:
    """R-Q5: into the run folder, or to a file; replaced as a whole."""
    run = results / "made" / "2026-05-28_001"
    result = proctor("report", run, "--html", cwd=results.parent)
    assert result.returncode == 0, result.stderr
    assert (run / "report.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    result = proctor("report", run, "--html", "page.html", cwd=results.parent)
    assert (results.parent / "page.html").read_bytes() == (run / "report.html").read_bytes()
    assert "page.html" in result.stderr
    assert result.stdout == ""


def test_markdown_goes_to_standard_output_alone(results: Path) -> None:
    """R-Q5: ready to be redirected into a file or a comment."""
    result = proctor(
        "report", results / "made" / "2026-05-28_001", "--markdown", cwd=results.parent
    )
    assert result.returncode == 0
    assert result.stdout.startswith("## ")
    assert result.stderr == ""


def test_charts_are_written_in_both_formats(results: Path) -> None:
    """R-Q4: PNG and SVG into a folder."""
    pytest.importorskip("vl_convert", reason="the extra charts is not installed")
    folder = results.parent / "charts"
    run = results / "made" / "2026-05-28_001"
    result = proctor(
        "report", run, "--charts", folder, "--chart-format", "png", "--chart-format", "svg"
    )
    assert result.returncode == 0, result.stderr
    kinds = {path.suffix for path in folder.iterdir()}
    assert kinds == {".png", ".svg"}
    assert len(list(folder.iterdir())) == 16


def test_tables_are_written_in_both_formats(results: Path) -> None:
    """R-Q4: the figures behind the charts, whole, for a spreadsheet and for a paper."""
    folder = results.parent / "tables"
    run = results / "made" / "2026-05-28_001"
    forms = ("--table-format", "csv", "--table-format", "latex")
    result = proctor("report", run, "--tables", folder, *forms)
    assert result.returncode == 0, result.stderr
    names = {path.name for path in folder.iterdir()}
    assert names == {
        f"{n}.{s}" for n in ("arms", "cells", "levels", "trials") for s in ("csv", "tex")
    }
    head, *rows = (folder / "cells.csv").read_text(encoding="utf-8").splitlines()
    assert head.startswith("case,arm,passed,judged,rate,low,high,score,verdict")
    assert len(rows) == 8
    assert (folder / "cells.tex").read_text(encoding="utf-8").count("\\\\") == 9
    assert proctor("report", run, "--table-format", "csv").returncode == 2


def test_the_run_tagged_baseline_is_compared_with(results: Path) -> None:
    """R-Q3 R-D5: a tag is enough; a name may also be given, and another run."""
    old, new = results / "made" / "2026-05-28_001", results / "made" / "2026-05-29_001"
    assert "Since" not in proctor("report", new, cwd=results.parent).stdout
    tag(old, "baseline")
    result = proctor("report", new, cwd=results.parent).stdout
    assert "Since made/2026-05-28_001" in result
    named = proctor("report", new, "--against", "baseline", cwd=results.parent).stdout
    assert named == result
    assert "Since" not in proctor("report", old, cwd=results.parent).stdout  # not with itself
    wrong = proctor("report", new, "--against", "baselin", cwd=results.parent)
    assert wrong.returncode == 2
    assert "did you mean 'baseline'" in wrong.stderr


def test_annotations_are_told(results: Path) -> None:
    """R-D5: notes about a run are in its report."""
    run = results / "made" / "2026-05-28_001"
    annotate(run, "the search index was <b>down</b>")
    assert "the search index was" in proctor("report", run, cwd=results.parent).stdout
    proctor("report", run, "--html", cwd=results.parent)
    page = (run / "report.html").read_text(encoding="utf-8")
    assert "the search index was &lt;b&gt;down&lt;/b&gt;" in page


@pytest.mark.skipif(sys.platform == "win32", reason="a browser is a shell script here")
def test_open_starts_a_browser_with_the_page(results: Path) -> None:
    """R-Q5: --open alone writes the page into the run folder first."""
    run = results / "made" / "2026-05-28_001"
    place = results.parent / "bin"
    place.mkdir()
    browser = place / "xdg-open"
    browser.write_text(f'#!/bin/sh\necho "$@" > {results.parent}/opened\n')
    browser.chmod(browser.stat().st_mode | stat.S_IXUSR)
    environment = {**os.environ, "PATH": f"{place}:{os.environ['PATH']}", "DISPLAY": ":0"}
    result = commands.proctor("report", run, "--open", cwd=results.parent, env=environment)
    assert result.returncode == 0, result.stderr
    assert (results.parent / "opened").read_text().strip().endswith("report.html")


def test_mistakes_are_said_in_a_line(results: Path) -> None:
    """R-Q5: a run that is not there, a format without charts, an ending that is not known."""
    for arguments, words in (
        (("report", "results/made/nothing"), "no run and no tag is called"),
        (("report", "latest", "--chart-format", "svg"), "--chart-format needs --charts DIR"),
        (("runs", "share", "latest", "-o", "out.pdf"), "cannot share as .pdf"),
        (("report", "latest", "--html", "/dev/null/x.html"), "cannot write"),
    ):
        result = proctor(*arguments, cwd=results.parent)
        assert result.returncode == 2, arguments
        assert words in result.stderr
        assert "Traceback" not in result.stderr


def test_share_knows_the_secrets_of_the_project(results: Path) -> None:
    """R-D5 R-T9: patterns of the settings count, also when they are younger than the run."""
    run = results / "made" / "2026-05-28_001"
    annotate(run, "ask about CUST-4711")
    settings = "redaction: {patterns: {customer: 'CUST-[0-9]+'}}"
    (results.parent / "proctor.yaml").write_text(settings)
    result = proctor("runs", "share", run, "-o", "out.html", cwd=results.parent)
    assert result.returncode == 0, result.stderr
    page = (results.parent / "out.html").read_text(encoding="utf-8")
    assert "CUST-4711" not in page
    assert "ask about [redacted:customer]" in page
    assert "redacted again: 1 secret removed" in result.stdout
    assert "share" in proctor("runs", "audit", cwd=results.parent).stdout


def test_share_lists_what_is_inside(results: Path) -> None:
    """R-D5: the sender sees what the file contains."""
    result = proctor("runs", "share", "latest", "-o", "out.zip", cwd=results.parent)
    assert result.returncode == 0, result.stderr
    with zipfile.ZipFile(results.parent / "out.zip") as archive:
        for name in archive.namelist():
            assert name in result.stdout
    assert "redacted again: " in result.stdout


def test_share_names_the_file_after_the_run(results: Path) -> None:
    """R-D5: without a file name, everything in a zip here."""
    result = proctor("runs", "share", "latest", cwd=results.parent)
    assert result.returncode == 0, result.stderr
    with zipfile.ZipFile(results.parent / "made-2026-05-29_001.zip") as file:
        assert "CONTENTS.md" in file.namelist()
