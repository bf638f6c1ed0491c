"""Agent states of running trials, stored beside the journal.

Guarantees: a state is replaced as a whole or not at all, and is fsynced when `save` returns. It is
removed once its trial is in the journal as finished (a cancelled one is not), never before: a crash
between the two leaves a state, which the next session removes. The folder is hidden: states belong
to the agent, may hold its secrets, and are neither synced nor shared.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterable
from pathlib import Path

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
        self._stored: set[str] = set()
        with contextlib.suppress(OSError):
            for path in self._folder.iterdir():
                if path.suffix == _SUFFIX:
                    self._stored.add(path.name)
                else:  # temporary file of a killed process
                    path.unlink(missing_ok=True)

    # -- for agents -------------------------------------------------------------------------------

    def load(self, key: str) -> bytes | None:
        """Return the state of a trial; None without one."""
        name = _name(key)
        if name not in self._stored:
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
        self._stored.add(name)

    def forget(self, key: str) -> None:
        """Remove the state of a trial."""
        self._remove(_name(key))

    # -- for the writer of the run ----------------------------------------------------------------

    def written(self, trials: Iterable[Trial]) -> None:
        """Delete the states of trials that are finished in the journal."""
        if not self._stored:  # as in most runs: saves the hash of every trial
            return
        for trial in trials:
            if trial.status not in self._keep_after:
                self._remove(_name(trial.key))

    def close(self) -> None:
        """Remove the folder if it is empty."""
        with contextlib.suppress(OSError):
            self._folder.rmdir()

    def _remove(self, name: str) -> None:
        if name in self._stored:
            self._stored.discard(name)
            with contextlib.suppress(OSError):
                (self._folder / name).unlink(missing_ok=True)


def _name(key: str) -> str:
    """Return a file name for a trial, whose key holds user text of any length."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()[:40] + _SUFFIX
