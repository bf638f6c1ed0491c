"""States of trials under way, beside the journal.

Promise: a state is replaced wholly or not at all, and is on the platter when `save` returns. It
goes once its trial is in the journal as finished (a cancelled one is not), never before: a crash
between the two leaves a state, which the next sitting takes away. The folder is hidden: states
are an agent's own, may hold its secrets, and are neither synced nor shared.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterable
from pathlib import Path

from proctor.agents.checkpoint import CheckpointError
from proctor.errors import ProctorError
from proctor.files import write_atomic
from proctor.runs.trial import Trial, TrialStatus

FOLDER = ".checkpoints"
PRIVATE = 0o600
"""Nobody but the owner reads what an agent remembers."""

_SUFFIX = ".state"


class Checkpoints:
    """The states of one run.

    <run>/.checkpoints/<hash of the trial>.state     one byte for the kind, then the state

    The state of a cancelled trial stays for whoever resumes it; with `after_errors` also that of
    a trial that could not be judged.
    """

    def __init__(self, run: Path, *, after_errors: bool = False) -> None:
        self._folder = run / FOLDER
        self._kept = frozenset(
            {TrialStatus.CANCELLED, TrialStatus.INFRA_ERROR}
            if after_errors
            else {TrialStatus.CANCELLED}
        )
        self._held: set[str] = set()
        with contextlib.suppress(OSError):
            for path in self._folder.iterdir():
                if path.suffix == _SUFFIX:
                    self._held.add(path.name)
                else:  # written aside by a process that was killed
                    path.unlink(missing_ok=True)

    # -- for agents -------------------------------------------------------------------------------

    def load(self, key: str) -> bytes | None:
        """The state of a trial; None when it has none."""
        name = _name(key)
        if name not in self._held:
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
        """Keep a state in place of the one before."""
        name = _name(key)
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            write_atomic(self._folder / name, content, mode=PRIVATE)
        except OSError as error:
            raise CheckpointError(
                f"cannot keep the state: {error.strerror}", where=str(self._folder)
            ) from None
        except ProctorError as error:
            raise CheckpointError(error.message, where=error.where) from None
        self._held.add(name)

    def forget(self, key: str) -> None:
        """Remove the state of a trial."""
        self._remove(_name(key))

    # -- for the writer of the run ----------------------------------------------------------------

    def written(self, trials: Iterable[Trial]) -> None:
        """These trials are in the journal: of those that are finished nothing is kept."""
        if not self._held:
            return
        for trial in trials:
            if trial.status not in self._kept:
                self._remove(_name(trial.key))

    def close(self) -> None:
        """Leave no empty folder behind."""
        with contextlib.suppress(OSError):
            self._folder.rmdir()

    def _remove(self, name: str) -> None:
        if name in self._held:
            self._held.discard(name)
            with contextlib.suppress(OSError):
                (self._folder / name).unlink(missing_ok=True)


def _name(key: str) -> str:
    """A file name for a trial: its key holds users' words, of any length."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()[:40] + _SUFFIX
