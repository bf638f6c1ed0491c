"""Code and data made small for a page, and the hashes that admit code to it.

Vega is bundled by vl-convert, which takes seconds; the result is kept in the user's cache under
the version that made it. Losing that file costs those seconds again, nothing else.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import zlib
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple, cast

from proctor.errors import ProctorError
from proctor.llm.kept import cache_folder
from proctor.runs.folder import write_atomic


def packed(content: bytes) -> str:
    """Deflated, in base64: letters only, so that nothing in it is markup."""
    return base64.b64encode(zlib.compress(content, 9)).decode()


def digest(code: str) -> str:
    """What a page's policy calls a script or a style by."""
    return f"sha256-{base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()}"


def alone(code: str) -> str:
    """A script whose names are its own: a bundle has thousands of short ones."""
    return f"(() => {{\n{code}\n}})();"


class Vega(NamedTuple):
    """Vega, Vega-Lite and Vega-Embed as one script, packed, and its hash."""

    packed: str
    digest: str


@cache
def vega() -> Vega:
    """Vega as vl-convert brings it."""
    import vl_convert

    kept = cache_folder("vega") / f"{metadata.version('vl-convert-python')}.js.z"
    code = _read(kept)
    if code is None:
        # Without a snippet (which its types ask for) all of Vega is put on the window.
        code = alone(cast("Any", vl_convert).javascript_bundle())
        with contextlib.suppress(OSError, ProctorError):
            kept.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(kept, zlib.compress(code.encode(), 9))
    return Vega(packed(code.encode()), digest(code))


def _read(path: Path) -> str | None:
    with contextlib.suppress(OSError, zlib.error, UnicodeDecodeError):
        return zlib.decompress(path.read_bytes()).decode()
    return None
