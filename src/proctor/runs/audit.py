"""The audit log of a results folder: who did what, when, with which commit, on which machine.

Guarantees: append-only, safe with many writers, and free of secrets. One line in `audit.jsonl` per
command that created, changed or judged results. A log that cannot be written does not undo the
work: `record` returns the problem for the caller to report.
"""

from __future__ import annotations

import re
import shlex
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from proctor import __version__
from proctor.errors import ProctorError
from proctor.files import append_line, read_lines
from proctor.runs.provenance import git_state, who
from proctor.trace.redact import Redactor, default_redactor

FILE = "audit.jsonl"

_ADDRESSES = "--notify"
"""Option whose values are addresses: they hold secrets in no known form."""

# The scheme stays: it says which service was notified.
_ADDRESS = re.compile(r"((?:--notify=)?(?:[\w+.-]+://)?).*", re.DOTALL)


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One action. `commit` is that of the code it was done with, if known."""

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
    """Append a line to the log of a results folder; return the problem if that failed.

    `git` is the state of the code if already known; otherwise that of the working folder.
    """
    state = git_state(Path.cwd()) if git is None else git
    redactor = default_redactor()
    entry = AuditEntry(
        at=datetime.now(UTC).isoformat(timespec="milliseconds"),
        who=who(),
        host=socket.gethostname(),
        command=command,
        line=command_line(sys.argv if argv is None else argv, redactor),
        run=None if run is None else redactor.text(str(run)),
        run_id=run_id,
        outcome=None if outcome is None else redactor.text(outcome),
        exit_code=exit_code,
        commit=str(state["commit"]) if state else None,
        dirty=bool(state["dirty"]) if state else None,
        proctor=__version__,
    )
    try:
        append_line(Path(root) / FILE, entry)
    except ProctorError as error:
        return f"the audit log was not written: {error}"
    return None


def root_of(run: Path) -> Path:
    """Return the results folder of a run: the nearest parent that has a log."""
    above = run.resolve().parents
    for folder in above:
        if (folder / FILE).is_file():
            return folder
    # Without a log: two levels up, as in <results>/<experiment>/<run>.
    return above[1] if len(above) > 1 else above[0]


def command_line(argv: Sequence[str], redactor: Redactor) -> str:
    """Return a command line that can be typed again, without secrets."""
    program = Path(argv[0]) if argv else Path()
    # `python -m proctor` is the command by another name.
    name = program.parent.name if program.name == "__main__.py" else program.name
    arguments = [name, *argv[1:]]
    clean: list[str] = []
    for before, text in pairwise(["", *arguments]):
        if before == _ADDRESSES or text.startswith(f"{_ADDRESSES}="):
            clean.append(_ADDRESS.sub(r"\1…", text, count=1))
        elif before.startswith("--") and "=" not in before:
            # `--token VALUE`: the option name marks the value as secret.
            flag = before.lstrip("-")
            clean.append(str(redactor.value({flag: text})[flag]))
        else:
            clean.append(redactor.text(text))
    return redactor.text(shlex.join(clean))


def entries(root: Path | str, problems: list[str] | None = None) -> Iterator[AuditEntry]:
    """Return the log of a results folder, oldest first."""
    return read_lines(Path(root) / FILE, AuditEntry, problems)
