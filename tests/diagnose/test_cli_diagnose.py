"""`proctor diagnose`."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from proctor.cli.diagnose import diagnose


def test_console_and_json(shared: Path) -> None:
    """R-G3: the command shows every finding with its place and quote, and the same as JSON."""
    path = next(iter(sorted((shared / "trail" / "data" / "GAIA").glob("*.json"))))
    told = CliRunner().invoke(diagnose, [str(path), "--method", "rules"])
    assert told.exit_code == 0
    written = CliRunner().invoke(diagnose, [str(path), "--method", "rules", "--format", "json"])
    found = json.loads(written.output)
    assert found["errors"]
    for error in found["errors"]:
        assert f"{error['category']} at {error['location']}" in told.output


def test_a_file_without_traces(tmp_path: Path) -> None:
    """R-G3: a file that gives nothing is named, and the exit code says it could not be judged."""
    (tmp_path / "no.json").write_text("{}")
    told = CliRunner().invoke(diagnose, [str(tmp_path / "no.json")])
    assert told.exit_code == 2
    assert "no.json" in told.output


def test_a_project_without_runs_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """R-G3: `--failed` is not blamed where there is no run yet, as `proctor mcp` asks for it."""
    monkeypatch.chdir(tmp_path)
    told = CliRunner().invoke(diagnose, ["latest", "--failed"])
    assert "there are no runs" in str(told.exception)


def test_of_several_files_each_trace_says_its_own(shared: Path, tmp_path: Path) -> None:
    """R-G3: every format shows which file a trace is from."""
    path = shared / "traces" / "produced" / "pydantic_ai_v5.otlp.json"
    for name in ("one.json", "two.json"):
        (tmp_path / name).write_bytes(path.read_bytes())
    one, two = str(tmp_path / "one.json"), str(tmp_path / "two.json")
    told = CliRunner().invoke(diagnose, [str(tmp_path), "--details"]).output
    heads = [line.split(" trace ")[0] for line in told.splitlines() if " trace " in line]
    assert heads == [one, one, two, two]
    assert one not in CliRunner().invoke(diagnose, [one]).output
    written = CliRunner().invoke(diagnose, [one, two, "--format", "json"]).output
    assert [json.loads(line)["file"] for line in written.splitlines()] == [one, one, two, two]
    shown = CliRunner().invoke(diagnose, [one, two, "--details", "--format", "markdown"]).output
    heads = {line for line in shown.splitlines() if line.startswith("## ") and "trace " in line}
    assert len([head for head in heads if ".json" in head]) == 4


def test_a_budget_that_is_none() -> None:
    """R-G4: a budget of nothing, or of less, is a mistake and not a silent fall-back."""
    told = CliRunner().invoke(diagnose, ["x.json", "--max-cost", "-1"])
    assert told.exit_code == 2
    assert "-1" in told.output
