"""The folder of a built scenario: write, copy and verify it.

    <folder>/
      scenario.yaml          what the agent may see, in opaque names
      _ground_truth_.yaml    the truth, in the same names
      _visibility_.yaml      which files are visible; the true name of each opaque one
      _spec_.yaml            the case, world and solution, every value evaluated
      _manifest_.yaml        seed, parameters, source, the operations of the build; digests of
                             the other files

Guarantees: a folder is complete or absent, since it is written under another name and renamed.
Nothing in it depends on the clock, the machine or the location of the catalog.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import yaml

from proctor.errors import ProctorError
from proctor.spec.located import SpecError, plain
from proctor.spec.yaml_reader import MAX_BYTES, FileDialect, read

MANIFEST = "_manifest_.yaml"
SCENARIO = "scenario.yaml"
TRUTH = "_ground_truth_.yaml"
VISIBILITY = "_visibility_.yaml"
SPEC = "_spec_.yaml"

FILES = (MANIFEST, SCENARIO, TRUTH, VISIBILITY, SPEC)
VISIBLE = (SCENARIO,)
HIDDEN = tuple(name for name in FILES if name not in VISIBLE)

FORMAT = 1
"""Version of the layout above; a reader refuses a newer one."""


def verified_files(path: Path) -> dict[str, bytes]:
    """Return the files of a folder; raise `ProctorError` when one is missing or was changed."""
    for name in FILES:
        if not (path / name).is_file():
            raise ProctorError(
                f"not a built scenario: it has no {name}",
                where=str(path),
                hint="`proctor scenario build NAME -o DIR` makes one",
            )
    document = read(path / MANIFEST, environ={}, dialect=FileDialect(portable=True))
    if document.problems or document.tree is None:
        raise SpecError(document.problems)
    manifest: Any = plain(document.tree)
    if not isinstance(manifest, dict):
        raise ProctorError("expected a mapping", where=str(path / MANIFEST))
    fields = cast("dict[str, Any]", manifest)
    found, digests = fields.get("format"), fields.get("files")
    if not isinstance(found, int) or found > FORMAT:
        raise ProctorError(
            f"the folder has format {found!r}, this version reads up to {FORMAT}",
            where=str(path / MANIFEST),
            hint="upgrade proctor",
        )
    files = {name: _limited(path / name) for name in FILES}
    for name, content in files.items():
        expected = cast("Any", digests).get(name) if isinstance(digests, dict) else None
        # The manifest cannot hold its own digest.
        if name != MANIFEST and expected != digest(content):
            raise ProctorError(
                f"{name} is not as it was built",
                where=str(path / name),
                hint="build it again; a changed scenario is another template",
            )
    return files


def rendered(parts: Mapping[str, Any], manifest: Mapping[str, Any]) -> dict[str, bytes]:
    """Return the five files from their values; the manifest gets the digests of the others."""
    files = {name: dump(parts[name]).encode() for name in FILES if name != MANIFEST}
    digests = {name: digest(files[name]) for name in sorted(files)}
    complete = {"format": FORMAT, **manifest, "files": digests}
    return {MANIFEST: dump(complete).encode(), **files}


def digest(content: bytes) -> str:
    """Return the SHA-256 of a file."""
    return hashlib.sha256(content).hexdigest()


def write_folder(
    path: Path, files: Mapping[str, bytes], *, sync: bool = True, replace: bool = False
) -> None:
    """Write a folder completely or not at all; without `replace` it must be absent or empty."""
    if not replace:
        refuse_taken(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = write_aside(path.parent, files, sync=sync)
        try:
            if replace:
                replace_folder(aside, path)
            else:
                if path.exists():
                    path.rmdir()
                aside.rename(path)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    except OSError as error:
        raise ProctorError(
            f"cannot write the folder: {error.strerror or error}", where=str(path)
        ) from None


def refuse_taken(path: Path) -> None:
    """Raise when a folder cannot be written because something is at its path."""
    try:
        taken = path.is_symlink() or (path.exists() and (not path.is_dir() or any(path.iterdir())))
    except OSError as error:
        raise ProctorError(f"cannot be read: {error.strerror}", where=str(path)) from None
    if taken:
        raise ProctorError(
            "there is something already", where=str(path), hint="name a folder that is not there"
        )


def write_aside(parent: Path, files: Mapping[str, bytes], *, sync: bool) -> Path:
    """Write files to a new hidden folder below `parent` and return it, to be renamed."""
    aside = Path(tempfile.mkdtemp(prefix=".new-", dir=parent))
    try:
        aside.chmod(0o755)  # mkdtemp allows the owner only
        for name, content in files.items():
            target = aside / name
            target.parent.mkdir(exist_ok=True)
            with target.open("xb") as file:
                file.write(content)
                if sync:
                    file.flush()
                    os.fsync(file.fileno())
    except OSError:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    return aside


def replace_folder(aside: Path, path: Path) -> None:
    """Replace a folder by another."""
    # A folder cannot be renamed onto one with content: the old one is moved away first.
    old = Path(tempfile.mkdtemp(prefix=".old-", dir=path.parent))
    with contextlib.suppress(FileNotFoundError):
        path.rename(old / "folder")
    try:
        aside.rename(path)
    finally:
        shutil.rmtree(old, ignore_errors=True)


def _limited(path: Path) -> bytes:
    """Return a file's content up to the size a reader accepts."""
    # Not through a link: a folder from elsewhere could point at any file of this machine.
    if path.is_symlink():
        raise ProctorError("a link has no place in a built scenario", where=str(path))
    try:
        with path.open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ProctorError(f"cannot be read: {error.strerror}", where=str(path)) from None


# -- YAML ------------------------------------------------------------------------------------------
#
# A built scenario is compared by its bytes, so the form is fixed here and not left to the defaults
# of a library: block style, keys in the given order, a text in quotes whenever YAML 1.1 or 1.2
# could read it as something else.

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*(?: [A-Za-z0-9_./-]+)*")
# Words that some version of YAML reads as a truth value, a number or nothing.
_WORDS = frozenset("y n yes no on off true false null inf nan".split())
# Characters that a reader may refuse, or take for the end of a line.
_ESCAPED = re.compile(
    "[^\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]"
)
_NAMED = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}


def dump(value: Any) -> str:
    """Return a plain value as a YAML document."""
    text: str = yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=2**31)
    # PyYAML puts an end mark after a document that is one bare value.
    return text if isinstance(value, dict | list) else text.removesuffix("...\n")


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True  # equal values are written out: whether they are one object is chance

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)  # a list is indented under its key

    def check_simple_key(self) -> bool:
        return True  # never `? key`, however long it is

    def write_double_quoted(self, text: str, split: bool = True) -> None:
        # PyYAML would write emoji as numbers.
        quoted = text.replace("\\", "\\\\").replace('"', '\\"')
        self.write_indicator(f'"{_ESCAPED.sub(self._escape, quoted)}"', True)

    @staticmethod
    def _escape(match: re.Match[str]) -> str:
        code = ord(match.group())
        return _NAMED.get(match.group()) or (f"\\u{code:04X}" if code > 0xFF else f"\\x{code:02X}")


def _text(_: _Dumper, value: str) -> yaml.ScalarNode:
    lines = value.removesuffix("\n").split("\n")
    style = '"'
    if _PLAIN.fullmatch(value) and value.casefold() not in _WORDS and len(value) <= 200:
        style = ""
    elif (
        "\n" in value
        and not value[0].isspace()
        and lines[-1]
        and all(line == line.rstrip() and not _ESCAPED.search(line) for line in lines)
    ):
        style = "|"  # unchanged when it is read back, and readable
    return yaml.ScalarNode("tag:yaml.org,2002:str", value, style=style)


def _float(_: _Dumper, value: float) -> yaml.ScalarNode:
    # The shortest digits that give the number back; with a point, which YAML 1.1 insists on.
    mantissa, sign, exponent = repr(value).partition("e")
    if sign and "." not in mantissa:
        mantissa += ".0"
    if sign and exponent[0] not in "+-":
        exponent = f"+{exponent}"
    return yaml.ScalarNode("tag:yaml.org,2002:float", f"{mantissa}{sign}{exponent}")


_Dumper.add_representer(str, _text)
_Dumper.add_representer(float, _float)
