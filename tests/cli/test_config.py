"""`proctor config show`: every value with its origin, no key shown."""

import json
import os
import subprocess
from pathlib import Path

from commands import proctor

# Without the settings and keys of the user who runs the tests.
BARE = {k: v for k, v in os.environ.items() if not k.startswith("PROCTOR_") and "KEY" not in k}
KEY = "sk-proj-" + "a1B2c3D4" * 6


def show(folder: Path, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
    given = {**BARE, "XDG_CONFIG_HOME": str(folder / "xdg"), **env}
    return proctor("config", "show", *args, cwd=folder, env=given)


def test_every_value_and_its_origin(tmp_path: Path) -> None:
    """R-S6: file and line, variable, or default."""
    (tmp_path / "proctor.yaml").write_text("agent: m:f\nlimits:\n  trials: 7\n")
    done = show(tmp_path, PROCTOR_RESULTS="elsewhere")
    assert done.returncode == 0
    rows = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines()[1:]}
    assert rows["limits.trials"] == ["7", f"{tmp_path.resolve()}/proctor.yaml:3:11"]
    assert rows["results"] == ["elsewhere", "PROCTOR_RESULTS"]
    assert rows["limits.max_tokens"] == ["-", "default"]


def test_keys_are_masked(tmp_path: Path) -> None:
    """R-S6: by name, by looks, and whatever came from a variable."""
    (tmp_path / "proctor.yaml").write_text(
        "agents:\n  a: {kind: http, api_key: plain-secret, url: 'http://h/${TOKEN}',"
        f" note: 'key {KEY} here', model: m}}\n"
    )
    for args in ([], ["--json"]):
        done = show(tmp_path, *args, TOKEN="held-token-1", OPENAI_API_KEY=KEY)
        assert done.returncode == 0
        for secret in ("plain-secret", "held-token-1", KEY):
            assert secret not in done.stdout + done.stderr
        assert "OPENAI_API_KEY" in done.stdout


def test_for_programs(tmp_path: Path) -> None:
    """R-S6: one JSON document with values, origins, files and which keys are set."""
    (tmp_path / "pyproject.toml").write_text("[tool.proctor]\nresults = 'out'\n")
    document = json.loads(show(tmp_path, "--json", OPENAI_API_KEY=KEY).stdout)
    place = f"{tmp_path.resolve()}/pyproject.toml"
    assert document["files"] == [place]
    assert document["settings"]["results"] == {"value": "out", "from": f"{place}:2:1"}
    assert document["settings"]["limits.trials"] == {"value": 3, "from": "default"}
    assert document["keys"]["OPENAI_API_KEY"] == "set"
    assert document["keys"]["ANTHROPIC_API_KEY"] == "not set"


def test_a_slip_is_told(tmp_path: Path) -> None:
    """R-S6 R-R11: 2, the place and the nearest key."""
    (tmp_path / "proctor.yaml").write_text("limts: {trials: 7}\n")
    done = show(tmp_path)
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        f"error: {tmp_path.resolve()}/proctor.yaml:1:1: unknown key 'limts'",
        "hint: did you mean 'limits'?",
    ]
