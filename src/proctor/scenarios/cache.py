"""Built scenarios kept by what they were built from, so that each is built once.

Promise: a look-up gives exactly what a build would, or nothing: each file is held against its
digest, and an entry that is torn, changed or unreadable is built anew. A cache that cannot be
written costs time, never correctness.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

from proctor import __version__
from proctor.places import user_folder
from proctor.scenarios.folder import FILES, FORMAT, digest, replace_folder, write_aside

FOLDER = "folder"
DIGESTS = "digests.json"


class BuildCache:
    """A folder of built scenarios.

    <root>/
      3f/
        3f9a…64 hex digits…/
          folder/          the built scenario: what `Built.path` is
          digests.json     SHA-256 of each file in it
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def get(self, key: str) -> tuple[Path, dict[str, bytes]] | None:
        """The folder of a build and what is in it; None when it is absent or not as it was."""
        entry = self._entry(key)
        try:
            told: Any = json.loads((entry / DIGESTS).read_bytes())
            files = {name: (entry / FOLDER / name).read_bytes() for name in FILES}
        except (OSError, ValueError):
            return None
        if not isinstance(told, dict):
            return None
        wanted = cast("dict[str, Any]", told)
        if any(wanted.get(name) != digest(content) for name, content in files.items()):
            return None
        return entry / FOLDER, files

    def has(self, key: str) -> bool:
        """Whether a build is there, without looking whether it is whole."""
        return (self._entry(key) / DIGESTS).is_file()

    def put(self, key: str, files: Mapping[str, bytes]) -> Path | None:
        """Keep a build; the folder it stands in, or None when it cannot be kept."""
        entry = self._entry(key)
        digests = {name: digest(content) for name, content in files.items()}
        content = {f"{FOLDER}/{name}": data for name, data in files.items()}
        content[DIGESTS] = json.dumps(digests, indent=1).encode()
        try:
            entry.parent.mkdir(parents=True, exist_ok=True)
            # Not forced out: what a crash tears no longer has its digest.
            aside = write_aside(entry.parent, content, sync=False)
        except OSError:
            return None
        try:
            if entry.exists() and self.get(key) is None:
                replace_folder(aside, entry)
            else:
                with contextlib.suppress(OSError):  # another process was first: the same bytes
                    aside.rename(entry)
        except OSError:
            return None
        finally:
            shutil.rmtree(aside, ignore_errors=True)
        return entry / FOLDER if self.get(key) is not None else None

    def _entry(self, key: str) -> Path:
        return self.root / key[:2] / key


def build_key(name: str, content: str, seed: int, params: Mapping[str, Any]) -> str:
    """SHA-256 over everything a build depends on."""
    asked = [FORMAT, _code(), name, content, seed, sorted(params.items())]
    encoded = json.dumps(asked, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(encoded.encode()).hexdigest()


@lru_cache(maxsize=1)
def _code() -> str:
    """What builds is part of what a build depends on: this package, by its content."""
    sources = sorted(Path(__file__).parent.glob("*.py"))
    mark = hashlib.sha256(__version__.encode())
    for source in sources:
        mark.update(source.read_bytes())
    return mark.hexdigest()


def default_cache_folder(environ: Mapping[str, str] | None = None) -> Path:
    """Where builds are kept: the user's cache folder."""
    return user_folder("cache", "scenarios", environ=environ)
