"""What running trials leave on disk, stored beside the journal: agent states and model calls.

Guarantees: a state is replaced as a whole or not at all, and is fsynced when `save` returns. It is
removed once its trial is in the journal as finished (a cancelled one is not), never before: a crash
between the two leaves a state, which the next session removes. The folder is hidden: states belong
to the agent, may hold its secrets, and are neither synced nor shared. Model calls are appended as
they end, so that what a killed trial did and paid for is known.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

import msgspec

from proctor.agents.checkpoint import CheckpointError
from proctor.errors import ProctorError
from proctor.files import write_atomic
from proctor.runs.trial import UNJUDGED, Trial, TrialStatus

FOLDER = ".checkpoints"
PRIVATE = 0o600
"""Readable by the owner only: a state may hold secrets."""

_SUFFIX = ".state"


class Checkpoints:
    """The states of one run.

    <run>/.checkpoints/<hash of the trial>.state     one byte for the kind, then the state

    The state of a cancelled trial stays for `--resume`; with `after_errors` also that of a trial
    that could not be judged.
    """

    def __init__(self, run: Path, *, after_errors: bool = False) -> None:
        self._folder = run / FOLDER
        self._keep_after = {TrialStatus.CANCELLED}
        if after_errors:
            self._keep_after.update(UNJUDGED)
        # Listed once, so that a trial without a state costs no access to the disk.
        self.stored: set[str] = set()
        """Names of the files with a state."""
        with contextlib.suppress(OSError):
            for path in self._folder.iterdir():
                if path.suffix == _SUFFIX:
                    self.stored.add(path.name)
                else:  # temporary file of a killed process
                    path.unlink(missing_ok=True)

    # -- for agents -------------------------------------------------------------------------------

    def load(self, key: str) -> bytes | None:
        """Return the state of a trial; None without one."""
        name = _name(key)
        if name not in self.stored:
            return None
        try:
            return (self._folder / name).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise CheckpointError(
                f"cannot read the state: {error.strerror}", where=str(self._folder / name)
            ) from None

    def save(self, key: str, content: bytes) -> None:
        """Store a state, replacing the previous one."""
        name = _name(key)
        try:
            # Private, like the states in it.
            self._folder.mkdir(mode=0o700, exist_ok=True)
            write_atomic(self._folder / name, content, mode=PRIVATE)
        except OSError as error:
            raise CheckpointError(
                f"cannot keep the state: {error.strerror}", where=str(self._folder)
            ) from None
        except ProctorError as error:
            raise CheckpointError(error.message, where=error.where) from None
        self.stored.add(name)

    def forget(self, key: str) -> None:
        """Remove the state of a trial."""
        self._remove(_name(key))

    # -- for the writer of the run ----------------------------------------------------------------

    def written(self, trials: Iterable[Trial]) -> None:
        """Delete the states of trials that are finished in the journal."""
        for trial in trials:
            if trial.status not in self._keep_after:
                self._remove(_name(trial.key))

    def _remove(self, name: str) -> None:
        if name in self.stored:
            self.stored.discard(name)
            with contextlib.suppress(OSError):
                (self._folder / name).unlink(missing_ok=True)
                if not self.stored:
                    self._folder.rmdir()


def _name(key: str, suffix: str = _SUFFIX) -> str:
    """Return a file name for a trial, whose key holds user text of any length."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()[:40] + suffix


# -- model calls ---------------------------------------------------------------------------------

CALLS = ".calls"


# A union with None cannot be decoded.
_OPEN = msgspec.Raw(b"null")


class CallLine(msgspec.Struct, omit_defaults=True):
    """One line of a trial's calls: a call that was admitted, or one that has ended."""

    trial: str
    number: int = 0
    """Of its reservation; 0 without one."""
    tokens: int = 0
    cost_usd: float = 0.0
    """What it used, or may use at most where that is not known."""
    known: bool = False
    """Whether its usage is known."""
    span: msgspec.Raw = _OPEN
    """The call as JSON, once it has ended."""

    @property
    def ended(self) -> bool:
        """Whether the call has ended."""
        return bytes(self.span) != b"null"


class CallRecords(msgspec.Struct):
    """The model calls of trials that have not ended; in memory without a run folder.

    <run>/.calls/<hash of the trial>.jsonl     one `CallLine` per admitted and per ended call

    The file is removed when its trial is in the journal. What a call may have used whose usage is
    unknown stays, because it counts for the limits of a resumed run.
    """

    folder: Path | None = None
    trials: dict[str, str] = {}
    """Trials with calls on record, and their files."""
    _lines: dict[str, list[CallLine]] = {}
    """Trials of a run without a folder."""

    def load(self) -> None:
        """Find the trials whose calls earlier invocations have left."""
        if self.folder is not None:
            for path in sorted(self.folder.glob("*.jsonl")):
                for line in _read_lines(path)[:1]:
                    self.trials[line.trial] = path.name

    def of(self, trial: str) -> list[CallLine]:
        """Return the lines of a trial."""
        if self.folder is None:
            return self._lines.get(trial, [])
        name = self.trials.get(trial)
        return [] if name is None else _read_lines(self.folder / name)

    def add(self, line: CallLine) -> None:
        """Append a line."""
        if self.folder is None:
            self.trials[line.trial] = ""
            self._lines.setdefault(line.trial, []).append(line)
            return
        if line.trial not in self.trials:
            self.folder.mkdir(mode=0o700, exist_ok=True)
            self.trials[line.trial] = _name(line.trial, ".jsonl")
        path = self.folder / self.trials[line.trial]
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        with os.fdopen(os.open(path, flags, PRIVATE), "ab", buffering=0) as file:
            file.write(msgspec.json.encode(line) + b"\n")

    def written(self, trial: str) -> None:
        """Remove the calls of a trial that is in the journal; unknown usage stays."""
        if trial not in self.trials:
            return
        if self.folder is None:
            del self.trials[trial], self._lines[trial]
            return
        unknown = [
            msgspec.structs.replace(line, number=0, span=_OPEN)
            for line in last_lines(self.of(trial))
            if not line.known
        ]
        path = self.folder / self.trials[trial]
        with contextlib.suppress(OSError):
            if unknown:
                content = b"".join(msgspec.json.encode(line) + b"\n" for line in unknown)
                write_atomic(path, content, mode=PRIVATE)
            else:
                del self.trials[trial]
                path.unlink(missing_ok=True)
                if not self.trials:
                    self.folder.rmdir()


def _read_lines(path: Path) -> list[CallLine]:
    lines: list[CallLine] = []
    with contextlib.suppress(OSError):
        for each in path.read_bytes().splitlines():
            with contextlib.suppress(msgspec.MsgspecError):  # cut off by a kill
                lines.append(msgspec.json.decode(each, type=CallLine))
    return lines


def last_lines(lines: Iterable[CallLine]) -> list[CallLine]:
    """Return one line per call: its end, or else what was reserved for it."""
    ended = {line.number for line in lines if line.number and line.ended}
    return [line for line in lines if line.ended or line.number not in ended]
