"""The audit log of a folder of runs: who did what, when, with which commit, on which machine.

Promise: append-only, safe with many writers, and free of secrets. One line a command that made,
changed or judged results, in `audit.jsonl` beside the runs. A log that cannot be written does not
undo the work it tells of: `record` gives the problem back for whoever called to say.
"""

from __future__ import annotations

import contextlib
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from proctor.errors import ProctorError
from proctor.files import append_line, read_lines
from proctor.runs.provenance import git_state, host, proctor_version, who
from proctor.trace.redact import Redactor, default_redactor

FILE = "audit.jsonl"

_ADDRESSES = "--notify"
"""The option whose values are addresses: they hold secrets in no known form."""

_ADDRESS = re.compile(r"((?:--notify=)?(?:[\w+.-]+://)?).*", re.DOTALL)


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that was done. `commit` is that of the code it was done with, if known."""

    at: str
    who: str
    host: str
    command: str
    line: str
    run: str | None = None
    run_id: str | None = None
    outcome: str | None = None
    exit_code: int | None = None
    commit: str | None = None
    dirty: bool | None = None
    proctor: str = ""


def record(
    command: str,
    root: Path | str,
    *,
    run: Path | str | None = None,
    run_id: str | None = None,
    outcome: str | None = None,
    exit_code: int | None = None,
    git: Mapping[str, Any] | None = None,
    argv: Sequence[str] | None = None,
) -> str | None:
    """Add a line to the log of a folder of runs; the problem, where that was not possible.

    `git` is the state of the code where it is known already; else that of the working folder.
    """
    state = git_state(Path.cwd()) if git is None else git
    redactor = default_redactor()
    entry = AuditEntry(
        at=datetime.now(UTC).isoformat(timespec="milliseconds"),
        who=who(),
        host=host(),
        command=command,
        line=command_line(sys.argv if argv is None else argv, redactor),
        run=None if run is None else redactor.text(str(run)),
        run_id=run_id,
        outcome=None if outcome is None else redactor.text(outcome),
        exit_code=exit_code,
        commit=str(state["commit"]) if state else None,
        dirty=bool(state["dirty"]) if state else None,
        proctor=proctor_version(),
    )
    try:
        append_line(Path(root) / FILE, entry)
    except ProctorError as error:
        return f"the audit log was not written: {error}"
    return None


def begin(root: Path) -> None:
    """Make the log where there is none, so that whoever works below finds it."""
    with contextlib.suppress(OSError):
        root.mkdir(parents=True, exist_ok=True)
        (root / FILE).touch()


def root_of(run: Path) -> Path:
    """The folder of runs that a run belongs to: the nearest above it that has a log."""
    above = run.resolve().parents
    for folder in above:
        if (folder / FILE).is_file():
            return folder
    return above[1] if len(above) > 1 else above[0]


def command_line(argv: Sequence[str], redactor: Redactor) -> str:
    """A command line as it could be typed again, without the secrets in it."""
    program = Path(argv[0]) if argv else Path()
    # `python -m proctor` is the command by another name.
    name = program.parent.name if program.name == "__main__.py" else program.name
    words = [name, *argv[1:]]
    clean: list[str] = []
    for before, word in zip(["", *words], words, strict=False):
        if before == _ADDRESSES or word.startswith(f"{_ADDRESSES}="):
            clean.append(_ADDRESS.sub(r"\1…", word, count=1))
            continue
        # `--token VALUE`: what is secret there is said by the word before.
        flag = before.lstrip("-") if before.startswith("--") and "=" not in before else ""
        held = redactor.value({flag: word})[flag] if flag else redactor.text(word)
        clean.append(str(held))
    return redactor.text(shlex.join(clean))


def entries(root: Path | str, problems: list[str] | None = None) -> Iterator[AuditEntry]:
    """The log of a folder of runs, the oldest first."""
    return read_lines(Path(root) / FILE, AuditEntry, problems)
