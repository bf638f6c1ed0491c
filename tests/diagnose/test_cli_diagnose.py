"""`proctor diagnose`."""

import json
from pathlib import Path

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
