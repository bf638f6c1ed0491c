"""Files that are replaced wholly or not at all.

Promise: whoever opens the path finds the old content or the new, never a part; a block that fails
leaves what was there. What is written beside it is hidden, ends in `.part` and is gone when the
block ends; a process that is killed leaves it behind, and nobody reads it.
"""

import os
import secrets
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

SHOWN_NAME = 50
"""Characters of the name that the file aside keeps: at four bytes each it is still short enough."""


@contextmanager
def replacing(path: Path, *, mode: int | None = None, sync: bool = True) -> Generator[Path]:
    """A path to write to that takes the place of `path` when the block ends well.

    `mode` is who may read and write it, before the user's own mask; without one it stays as the
    file before had it. Without `sync`, a machine that loses power may lose the file: for what can
    be made again. Errors of the file system are `OSError`, as elsewhere.
    """
    aside = path.with_name(f".{path.name[:SHOWN_NAME]}.{secrets.token_hex(6)}.part")
    try:
        if mode is not None:
            os.close(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode))
        yield aside
        if sync:
            _force_out(aside)
        if mode is None:
            with suppress(FileNotFoundError):
                aside.chmod(path.stat().st_mode & 0o777)
        aside.replace(path)
    finally:
        with suppress(OSError):
            aside.unlink(missing_ok=True)


def _force_out(path: Path) -> None:
    with path.open("r+b") as file:
        os.fsync(file.fileno())
