"""Workspaces: fresh files for each trial, checks of what the agent left, and what is stored."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from commands import proctor

import proctor as package
from proctor import Case, Suite
from proctor.checks import CommandPasses, DiffWithin, FileMatches
from proctor.errors import ProctorError
from proctor.runs.trial import TrialStatus
from proctor.sandbox.options import Workspace
from proctor.sandbox.workspace import NotReadable, Snapshot, copy_tree, overlay, read_inside

SUITE = """
agent: {kind: command, command: python3 fix.py, protocol: text}
workspace:
  folder: project
  exclude: [junk]
  keep: ["*.log", data.bin]
  setup_case: "echo once >> built.txt"
  setup: ["echo trial >> built.txt", "test -f app.py"]
  teardown: 'cp built.txt "$HERE/torn-down-$(basename $(dirname $PWD)).txt"'
  teardown_case: 'echo gone > "$HERE/case-is-over.txt"'
cases:
  - id: good
    input: fix
    trials: 3
    workspace: {files: {notes/todo.md: "add\\n"}}
    correctness:
      command:
        - {run: "python3 -m unittest -q test_app", id: tests}
        - {run: [python3, check.py], contains: "all good", matches: "^all", add: hidden}
      files:
        - app.py
        - {path: app.py, contains: "a + b", matches: 'return\\s', id: content}
        - {path: result.json, json_schema: {required: [sum], properties: {sum: {type: number}}}}
        - {path: "test_*.py", unchanged: true}
        - {path: junk, exists: false}
      diff: {only: [app.py, result.json, "*.log", data.bin, "*/__pycache__"], max_lines: 20}
  - id: bad
    input: break
    trials: 1
    correctness:
      command: {run: "python3 -m unittest -q test_app; exit 7", exit_code: 7, timeout: 60}
      files: [{path: "test_*.py", unchanged: true}]
      diff: {forbidden: "test_*"}
"""

AGENT = """
import json, pathlib, sys
task = sys.stdin.read()
if task == "break":
    pathlib.Path("test_app.py").write_text("")
    print("done"); sys.exit()
assert pathlib.Path("built.txt").read_text() == "once\\ntrial\\n", "the workspace is not fresh"
assert pathlib.Path("notes/todo.md").read_text() == "add\\n"
assert not pathlib.Path("junk").exists() and not pathlib.Path("check.py").exists()
assert pathlib.Path(".git").is_dir() is False
pathlib.Path("app.py").write_text("def add(a, b):\\n    return a + b\\n")
pathlib.Path("result.json").write_text(json.dumps({"sum": 3}))
pathlib.Path("run.log").write_text("ran")
pathlib.Path("data.bin").write_bytes(b"\\xff\\x00")
print("done")
"""


def make_project(folder: Path) -> None:
    project = folder / "project"
    project.mkdir()
    (project / "app.py").write_text("def add(a, b):\n    return a - b\n")
    (project / "test_app.py").write_text(
        "import unittest, app\nclass T(unittest.TestCase):\n"
        "    def test(self): self.assertEqual(app.add(1, 2), 3)\n"
    )
    (project / "junk").mkdir()
    (project / "junk" / "big").write_text("x")
    (folder / "hidden").mkdir()
    (folder / "hidden" / "check.py").write_text(
        "import app\nassert app.add(2, 2) == 4\nprint('all good')\n"
    )
    (folder / "fix.py").write_text(AGENT)
    (folder / "suite.yaml").write_text(SUITE)


def test_trials_have_their_own_files_and_their_changes_are_checked_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R-N3: workspaces are fresh per trial; command, files and diff judge them; the diff stays."""
    make_project(tmp_path)
    monkeypatch.setenv("HERE", str(tmp_path))
    done = proctor("run", "suite.yaml", "--json", cwd=tmp_path)
    assert "error:" not in done.stderr, done.stderr
    run = package.api.open_run(next((tmp_path / "results").glob("suite/*")))
    trials = {(trial.case, trial.index): trial for trial in run.trials}
    for index in range(3):
        trial = trials["good", index]
        assert trial.status is TrialStatus.PASSED, (trial.error, trial.checks, done.stderr)
        names = [result.id for result in trial.checks]
        assert names == [
            "files.app.py", "files.content", "files.result.json", "files.test_*.py", "files.junk",
            "diff", "command.tests", "command.2",
        ]  # fmt: skip
        trace = run.trace(trial)
        assert trace is not None
        kept = trace.metadata["workspace"]
        assert kept["files"] == {"data.bin": {"base64": "/wA="}, "run.log": "ran"}
        assert kept["paths"]["app.py"] == "changed"
        assert kept["paths"]["result.json"] == "added"
        assert (
            "--- a/app.py\n+++ b/app.py\n@@ -1,2 +1,2 @@\n def add(a, b):\n"
            "-    return a - b\n+    return a + b\n" in kept["diff"]
        )
        assert "built.txt" not in kept["paths"], "what the setup did is not the agent's"
        assert trial.workdir is None
    bad = trials["bad", 0]
    assert bad.status is TrialStatus.HARD_FAIL
    assert {result.id: result.status for result in bad.checks} == {
        "files": "fail", "diff": "fail", "command": "pass",
    }  # fmt: skip
    assert "changed what must not change: test_app.py" in str([r.reason for r in bad.checks])
    # Teardown of each trial and of each case; the suite's own files are as they were.
    assert len(list(tmp_path.glob("torn-down-*.txt"))) == 4
    assert (tmp_path / "case-is-over.txt").read_text() == "gone\n"
    assert sorted(path.name for path in (tmp_path / "project").iterdir()) == [
        "app.py", "junk", "test_app.py",
    ]  # fmt: skip


def answer_in(workspace: Path, input: str) -> str:  # noqa: A002
    """An agent in Python that gets the path by name."""
    (workspace / "new.txt").write_text(input)
    return str(workspace)


def test_checks_are_objects_in_python(tmp_path: Path) -> None:
    """R-N3: the same checks as objects, with a workspace from Python and one from git."""
    repository = tmp_path / "repo"
    repository.mkdir()

    def git(*arguments: str) -> None:
        settings = ("-c", "user.name=t", "-c", "user.email=t@example.com")
        subprocess.run(
            ["git", "-C", repository, *settings, *arguments], check=True, capture_output=True
        )

    git("init", "-q")
    (repository / "a.txt").write_text("old")
    git("add", ".")
    git("commit", "-qm", "first")
    git("tag", "v1")
    (repository / "a.txt").write_text("the solution")
    git("commit", "-qam", "second")
    history = "test $(git log --all --oneline | wc -l) = 1 && git diff --quiet HEAD -- a.txt"
    checks: list[Any] = [
        CommandPasses(history),
        CommandPasses("sleep 60", timeout=0.2, required=False, id="slow"),
        FileMatches("new.txt", contains="task"),
        FileMatches("a.txt", unchanged=True, contains="old"),
        FileMatches("missing", required=False, id="missing"),
        DiffWithin(max_files=1, max_lines=1),
        lambda ctx: ctx.workspace.path.name == "workspace",
    ]
    suite = Suite(
        cases=[
            Case(
                input="task", trials=1, checks=checks,
                workspace=Workspace(folder=str(repository), git="v1", files={"run": "#!/bin/sh\n"}),
            )
        ]
    )  # fmt: skip
    (trial,) = package.run(suite, agent=answer_in, results=tmp_path / "results").trials
    found = {result.id: (str(result.status), result.reason) for result in trial.checks}
    assert found["slow"] == ("warn", "`sleep 60` took longer than 0.2 s")
    assert found["missing"] == ("warn", "there is no missing")
    assert {s for key, (s, _) in found.items() if key not in ("slow", "missing")} == {"pass"}, found
    assert not Path(str(trial.answer)).exists()


def test_workspace_checks_are_assertions_too(tmp_path: Path) -> None:
    """R-N3, R-C10: the flat spelling of `command`, `files` and `diff`, with ids and weights."""
    assertions: list[Any] = [
        {"type": "command", "run": "test -f new.txt", "weight": 3},
        {"type": "command", "run": ["test", "-f", "missing"]},
        {"type": "files", "path": "new.txt", "contains": "task"},
        {"type": "files", "path": "a", "unchanged": True, "id": "kept"},
        {"type": "diff", "only": "new.*", "required": True},
        {"type": "diff", "max_files": 0, "id": "nothing"},
    ]
    case = Case(
        input="task",
        trials=1,
        workspace=Workspace(files={"a": "b"}),
        assertions=assertions,  # pyright: ignore[reportArgumentType]
    )
    run = package.run(Suite(cases=[case]), agent=answer_in, results=tmp_path / "results")
    (trial,) = run.trials
    assert {c.id: (str(c.status), c.weight) for c in trial.checks} == {
        "command:test -f new.txt": ("pass", 3.0),
        "command:test -f missing": ("warn", 1.0),
        "files:new.txt": ("pass", 1.0),
        "kept": ("pass", 1.0),
        "diff": ("pass", 1.0),
        "nothing": ("warn", 1.0),
    }


@pytest.mark.parametrize(
    ("workspace", "status", "says"),
    [
        ({"folder": "none"}, "infra_error", "there is no folder"),
        ({"git": "nowhere"}, "infra_error", "cannot check out 'nowhere'"),
        ({"files": {"a": ""}, "setup": "echo broken >&2; exit 3"}, "infra_error",
         "setup `echo broken >&2; exit 3` exited with 3: broken"),
        ({"files": {"a": ""}, "setup_case": "exit 4"}, "infra_error", "setup_case `exit 4`"),
        ({"files": {"a": ""}, "setup": "sleep 60", "timeout": 0.1}, "infra_error", "than 0.1 s"),
    ],
)  # fmt: skip
def test_what_cannot_be_prepared_is_infrastructure(
    tmp_path: Path, workspace: dict[str, Any], status: str, says: str
) -> None:
    """R-N3: a workspace that cannot be made is an infrastructure error with its reason."""
    case = Case(input="x", trials=1, workspace=workspace, checks=[lambda _: True])  # pyright: ignore[reportArgumentType]
    run = package.run(Suite(cases=[case]), agent=answer_in, results=tmp_path / "r")
    (trial,) = run.trials
    assert trial.status == status
    assert trial.error is not None
    assert says in trial.error.message


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("correctness: {command: pytest}", "`command` needs a workspace"),
        ("assertions: [{type: diff, only: a}]", "`diff` needs a workspace"),
        ("workspace: .\n    assertions: [{type: diff}]", "write at least one of"),
        ("workspace: {files: {../x: y}}", "must be a path inside the workspace"),
        ("workspace: {}", "needs a `folder`, a `git` reference, `files` or an image"),
        ("workspace: .\n    correctness: {diff: {}}", "write at least one of"),
        ("workspace: .\n    correctness: {command: ''}", "must not be empty"),
    ],
)
def test_mistakes_are_found_before_the_run(tmp_path: Path, text: str, says: str) -> None:
    """R-N3: a suite with an impossible workspace is refused with its place."""
    file = tmp_path / "suite.yaml"
    file.write_text(f"agent: a:b\ncases:\n  - input: x\n    {text}\n")
    with pytest.raises(ProctorError) as raised:
        package.load_suite(file)
    assert says in str(raised.value)


def test_an_agent_cannot_lead_out_of_its_workspace(tmp_path: Path) -> None:
    """R-N3: links, pipes and folders without permission are neither followed nor waited for."""
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "key").write_text("hidden")
    root, before, tests = tmp_path / "work", tmp_path / "before", tmp_path / "tests"
    before.mkdir()
    (before / "same.txt").write_text("same")
    (before / "swapped").mkdir()
    (before / "swapped" / "f").write_text("one")
    (before / "other").mkdir()
    (before / "other" / "f").write_text("two")
    copy_tree(before, root)
    snapshot = Snapshot(root, before)
    assert not snapshot.changes().paths
    (root / "link").symlink_to(secret / "key")
    (root / "folder").symlink_to(secret)
    os.mkfifo(root / "pipe")
    # Same size, and the time put back: only the content differs.
    times = (root / "same.txt").stat()
    (root / "same.txt").write_text("SAME")
    os.utime(root / "same.txt", ns=(times.st_atime_ns, times.st_mtime_ns))
    (root / "swapped").rename(root / "x")
    (root / "other").rename(root / "swapped")
    (root / "x").rename(root / "other")
    changes = snapshot.changes()
    assert changes.paths == {
        "folder": "added", "link": "added", "pipe": "added", "same.txt": "changed",
        "swapped/f": "changed", "other/f": "changed",
    }  # fmt: skip
    assert "hidden" not in changes.diff
    for path in ("link", "folder/key", "pipe", "absent"):
        with pytest.raises(NotReadable):
            read_inside(root, path)
    # Hidden tests are copied over links, not through them.
    (tests / "folder").mkdir(parents=True)
    (tests / "folder" / "key").write_text("test")
    (tests / "link").write_text("test")
    overlay(tests, root)
    assert (secret / "key").read_text() == "hidden"
    assert (root / "folder" / "key").read_text() == "test"
