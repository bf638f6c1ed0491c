"""Unexpected errors: one line and a local report; with --debug, the traceback."""

import os
import subprocess
import sys
from pathlib import Path

SECRET = "sk-test-4242424242424242"

# A command with a bug in it, as a later module would bring it.
PROGRAM = """
import sys, types
import click
import proctor.cli.main as program
from proctor.cli._command import Entry

@click.command()
@click.argument("what")
def broken(what):
    "For tests."
    import httpx
    try:
        httpx.get("http://127.0.0.1:9/", headers={"Authorization": "Bearer " + what})
    except httpx.HTTPError:
        pass
    raise KeyError(f"oops {what}")

sys.modules["a_module"] = types.SimpleNamespace(broken=broken)
program.cli.table["broken"] = Entry("a_module", "For tests.")
program.main()
"""


def run(home: Path, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, *args],
        cwd=home,
        env={**os.environ, "OPENAI_API_KEY": SECRET, "XDG_STATE_HOME": str(home / "state"), **env},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_bug_leaves_a_report(tmp_path: Path) -> None:
    """R-R11 R-T9: one line and a file with the traceback, the versions, the command; no secret."""
    done = run(tmp_path, "broken", SECRET)
    assert done.returncode == 2
    first, second = done.stderr.splitlines()
    assert SECRET not in done.stderr
    assert first.startswith("error: unexpected KeyError")
    (report,) = (tmp_path / "state/proctor/errors").iterdir()
    assert str(report) in second
    text = report.read_text(encoding="utf-8")
    assert "Traceback" in text
    assert 'raise KeyError(f"oops' in text or "in broken" in text
    assert "proctor broken" in text
    assert "Python" in text
    assert SECRET not in text


def test_reports_do_not_pile_up(tmp_path: Path) -> None:
    """R-R11: a job that fails every night fills no disk."""
    folder = tmp_path / "state/proctor/errors"
    folder.mkdir(parents=True)
    for number in range(30):
        (folder / f"2020-01-01_0000{number:02}_1.txt").write_text("old")
    run(tmp_path, "broken", "x")
    kept = sorted(path.name for path in folder.iterdir())
    assert len(kept) == 20
    assert kept[0] == "2020-01-01_000011_1.txt"


def test_where_no_report_can_be_written(tmp_path: Path) -> None:
    """R-R11: then the hint says how to see it."""
    (tmp_path / "state").write_text("a file")
    done = run(tmp_path, "broken", "x")
    assert done.returncode == 2
    assert "proctor --debug" in done.stderr.splitlines()[1]


def test_debug_shows_everything_but_secrets(tmp_path: Path) -> None:
    """R-R11 R-T9: the log, the traceback and no report; headers and keys stay out of it."""
    done = run(tmp_path, "--debug", "broken", SECRET)
    assert done.returncode == 2
    assert "proctor: Proctor " in done.stderr
    assert "Traceback" in done.stderr
    assert not (tmp_path / "state").exists()
    assert SECRET not in done.stderr
    log = [line for line in done.stderr.splitlines() if line.startswith("debug:")]
    assert log
    assert "Authorization" not in "".join(log)


def test_debug_stands_before_the_command(tmp_path: Path) -> None:
    """R-R11: written after it, the hint says where it goes."""
    done = run(tmp_path, "broken", "--debug", "x")
    assert done.returncode == 2
    assert "put `--debug` before the command" in done.stderr
