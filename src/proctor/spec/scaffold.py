"""Write the files of a new suite, next to existing files of a project.

    DIR/
      suite.yaml                      the suite, commented
      example_agent.py                an example agent
      .proctor/suite.schema.json      for editors; the suite's first line names it
    ROOT/.github/workflows/proctor.yml    ROOT is the repository's, where GitHub looks

Nothing is overwritten and there are no prompts: the repository, the Python version and the install
command are derived from existing files.
"""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple, cast

from proctor.errors import ProctorError
from proctor.spec._json_schema import schema_of

DEFAULT_PYTHON = "3.12"
"""Default Python version: supported for years, and every agent library runs on it."""


class ScaffoldFile(NamedTuple):
    """One file of a new suite; `written` is False when it existed before."""

    path: Path
    what: str
    written: bool


def scaffold(directory: Path) -> list[ScaffoldFile]:
    """Write the missing files of a new suite."""
    here = directory.resolve()
    # GitHub reads workflows only at the root of a repository.
    root = next((each for each in (here, *here.parents) if (each / ".git").exists()), directory)
    suite = directory / "suite.yaml"
    shown = suite.resolve().relative_to(root.resolve()).as_posix()
    project = _project(root)
    # The oldest Python that both the project and Proctor support.
    floor = re.search(r">=?\s*3\.(\d+)", str(project.get("requires-python", "")))
    requirements = "-r requirements.txt " if (root / "requirements.txt").is_file() else ""
    workflow = (
        _template("workflow.yml")
        .replace("@PYTHON@", f"3.{max(11, int(floor[1]))}" if floor else DEFAULT_PYTHON)
        .replace("@INSTALL@", f"pip install {'. ' if project else requirements}proctor")
        .replace("@SUITE@", shlex.quote(shown))
    )
    wanted = [
        (suite, "the suite", _template("suite.yaml")),
        (directory / "example_agent.py", "an agent to try", _template("example_agent.py")),
        (
            directory / ".proctor" / "suite.schema.json",
            "completion in editors",
            json.dumps(schema_of("suite"), indent=1) + "\n",
        ),
        (root / ".github" / "workflows" / "proctor.yml", "CI on GitHub", workflow),
    ]
    return [ScaffoldFile(path, what, _write(path, text)) for path, what, text in wanted]


def _write(path: Path, text: str) -> bool:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Mode `x` fails if the file exists: two commands at once overwrite nothing either.
        with path.open("x", encoding="utf-8", newline="\n") as file:
            file.write(text)
    # The user's own file stays as it is.
    except FileExistsError:
        return False
    except OSError as error:
        raise ProctorError(f"cannot write: {error.strerror or error}", where=str(path)) from None
    return True


def _template(name: str) -> str:
    return (files("proctor") / "data" / "templates" / name).read_text(encoding="utf-8")


def _project(root: Path) -> dict[str, Any]:
    """Return the `[project]` table, empty when missing or unreadable."""
    try:
        data = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8-sig"))
    except (OSError, ValueError):
        return {}
    project = data.get("project")
    return cast("dict[str, Any]", project) if isinstance(project, dict) else {}
