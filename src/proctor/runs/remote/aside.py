"""A file that is written aside and put in place when it is known to be right.

Promise: until `put_in_place` returns, whatever stood there stands; what is not put in place is
gone when the block ends. Folders on the way are made.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from proctor.runs.folder import RunFolderError

_BLOCK = 1 << 20


class Aside:
    """Counts and hashes what is written to it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._part = path.with_name(f".{path.name}.{os.getpid()}.part")
        self._digest = hashlib.sha256()
        self.size = 0

    @property
    def sha256(self) -> str:
        """The checksum of what was written so far."""
        return self._digest.hexdigest()

    def __enter__(self) -> Aside:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._part.open("wb")
        except OSError as error:
            raise self._failed(error) from None
        return self

    def write(self, block: bytes) -> None:
        """Add to the file."""
        try:
            self._file.write(block)
        except OSError as error:
            raise self._failed(error) from None
        self._digest.update(block)
        self.size += len(block)

    def refuse_to_shorten(self) -> None:
        """Refuse to replace a file that is not the beginning of this one: it would lose lines."""
        self._file.flush()
        if not self._path.is_file():
            return
        with self._path.open("rb") as old, self._part.open("rb") as new:
            while block := old.read(_BLOCK):
                if new.read(len(block)) != block:
                    raise RunFolderError(
                        "the file here has lines that the one to be brought has not",
                        where=str(self._path),
                        hint="sync the other way, or bring the run to another folder",
                    )

    def put_in_place(self) -> None:
        """Force the file out and let it take its name."""
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            self._part.replace(self._path)
        except OSError as error:
            raise self._failed(error) from None

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self._part.unlink(missing_ok=True)

    def _failed(self, error: OSError) -> RunFolderError:
        return RunFolderError(f"cannot write: {error.strerror}", where=str(self._path))
