"""Files of a workspace: copy them for a trial, and say afterwards what changed.

Promises: a copy shares no writable file with its source (copy-on-write where the file system has
it, real copies elsewhere). Nothing that an agent leaves behind is followed out of the workspace:
symbolic links are compared, never opened, and pipes and devices are skipped. Sizes are bounded, so
a workspace full of files costs a bounded report.

Trade-off: a file counts as unchanged if its inode and its change time are those recorded before
the agent ran; any other file is compared by content. So a large repository is not read twice.
"""

from __future__ import annotations

import base64
import contextlib
import difflib
import errno
import hashlib
import io
import os
import re
import shutil
import stat
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from proctor.errors import ProctorError
from proctor.files import remove_tree
from proctor.formatting import last_line
from proctor.sandbox.options import Workspace

MAX_FILE = 16 << 20
"""Bytes of a file that a check or a report reads."""

MAX_DIFFED_LINES = 5_000
"""Lines of a file up to which its changes are shown line by line."""

MAX_DIFF = 1_000_000
"""Characters of a trial's diff that are stored."""

MAX_CHANGES = 10_000
"""Changed files that are compared and stored; of more, each counts as one changed line."""

MAX_KEPT = 10 << 20
"""Bytes of the files of one trial that are stored with it."""

GIT_SECONDS = 600.0
"""Time to check out a repository."""


class WorkspaceError(ProctorError):
    """Raised when a workspace cannot be prepared: infrastructure, never the agent's fault."""


# -- copies --------------------------------------------------------------------------------------


def build(workspace: Workspace, base: Path, target: Path) -> None:
    """Write the files of a workspace to a new folder; `base` is the suite's folder."""
    source = base if workspace.folder is None else base / Path(workspace.folder).expanduser()
    if workspace.folder is not None and not source.is_dir():
        raise WorkspaceError(f"there is no folder {source}", hint="`folder` of a workspace")
    if workspace.git is not None:
        _check_out(source, workspace.git, target)
    elif workspace.folder is not None:
        patterns = tuple(workspace.exclude)

        def excluded(folder: str, names: list[str]) -> list[str]:
            place = os.path.relpath(folder, source)
            paths = names if place == "." else [f"{place}/{name}" for name in names]
            pairs = zip(names, paths, strict=True)
            return [name for name, path in pairs if any_match(patterns, path)]

        copy_tree(source, target, excluded if patterns else None)
    else:
        target.mkdir()
    for path, text in workspace.files.items():
        file = target / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8", newline="")
        if text.startswith("#!"):
            file.chmod(0o755)


def copy_tree(
    source: Path, target: Path, ignore: Callable[[str, list[str]], list[str]] | None = None
) -> None:
    """Copy a folder to a new one, or to an empty one."""
    try:
        shutil.copytree(
            source,
            target,
            symlinks=True,
            ignore=ignore,
            copy_function=_clone,
            dirs_exist_ok=True,
        )
    except (OSError, shutil.Error) as error:
        first: Any = error.args[0][0] if isinstance(error, shutil.Error) and error.args else error
        reason: Any = first if isinstance(first, OSError) else first[2]
        raise WorkspaceError(f"cannot copy {source}: {reason}") from None


def packed(folder: Path) -> bytes:
    """Return the files of a folder as a tar archive."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        archive.add(folder, arcname=".")
    return stream.getvalue()


def fingerprint(folder: Path) -> str:
    """Return a hash of the paths, permissions and contents of a folder's files."""
    whole = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        content = b""
        if stat.S_ISLNK(status.st_mode):
            content = os.fsencode(path.readlink())
        elif stat.S_ISREG(status.st_mode):
            with path.open("rb") as file:
                content = hashlib.file_digest(file, "sha256").digest()
        name = os.fsencode(path.relative_to(folder))
        for part in (name, oct(status.st_mode).encode(), content):
            whole.update(b"%d:%b" % (len(part), part))
    return whole.hexdigest()[:32]


def overlay(source: Path, root: Path) -> None:
    """Copy the files of a folder over a workspace; links that an agent left there are replaced."""
    for path, _ in _walk(source):
        target = root / path
        for folder in reversed(target.relative_to(root).parents[:-1]):
            place = root / folder
            if place.is_symlink() or (place.exists() and not place.is_dir()):
                place.unlink()
            place.mkdir(exist_ok=True)
        if target.is_dir() and not target.is_symlink():
            remove_tree(target)
        target.unlink(missing_ok=True)
        _clone(str(source / path), str(target))


_FICLONE = 0x40049409
"""Linux: let one file share the blocks of another until either is written to."""

_NO_CLONES = {errno.EOPNOTSUPP, errno.EXDEV, errno.EINVAL, errno.ENOTTY, errno.ENOSYS}


def _clone(source: str, target: str) -> None:
    mode = os.lstat(source).st_mode
    if stat.S_ISLNK(mode):
        os.symlink(os.readlink(source), target)  # noqa: PTH115, PTH211 (of strings, in a loop)
    elif stat.S_ISREG(mode):  # a pipe or socket is no part of a workspace
        if not _cloned(source, target):
            shutil.copyfile(source, target)
        shutil.copystat(source, target)


def _cloned(source: str, target: str) -> bool:
    """Copy a file on write; return False where the file system cannot."""
    devices = os.stat(source).st_dev, _device(os.path.dirname(target))  # noqa: PTH116, PTH120
    if sys.platform != "linux" or devices in _refusing:
        return False
    import fcntl

    with Path(source).open("rb") as old, Path(target).open("wb") as new:
        try:
            fcntl.ioctl(new.fileno(), _FICLONE, old.fileno())
        except OSError as error:
            if error.errno not in _NO_CLONES:
                raise
            _refusing.add(devices)
            return False
    return True


_refusing: set[tuple[int, int]] = set()
"""Pairs of devices between which nothing can be cloned: asked once, not for every file."""


@lru_cache(maxsize=1024)
def _device(folder: str) -> int:
    return os.stat(folder).st_dev  # noqa: PTH116


def _check_out(repository: Path, ref: str, target: Path) -> None:
    """Check out one commit, without any other: an agent could find the solution there."""
    if ref.startswith("-"):
        raise WorkspaceError(f"{ref!r} is not a git reference")
    # Variables of a surrounding git command (a hook) would redirect ours.
    env = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}

    def git(*arguments: str) -> str:
        try:
            done = subprocess.run(  # noqa: S603 (arguments are separate, and none starts with a dash)
                ["git", *arguments],  # noqa: S607 (the git that the user calls)
                capture_output=True,
                text=True,
                timeout=GIT_SECONDS,
                env=env,
                check=True,
            )
        except FileNotFoundError:
            raise WorkspaceError("git is not installed", hint="apt-get install git") from None
        except subprocess.TimeoutExpired:
            raise WorkspaceError(f"git took longer than {GIT_SECONDS:.0f} s") from None
        except subprocess.CalledProcessError as error:
            last = last_line(str(error.stderr)) or f"exit code {error.returncode}"
            raise WorkspaceError(f"cannot check out {ref!r} of {repository}: {last}") from None
        return done.stdout.strip()

    commit = git(
        "-C", str(repository), "rev-parse", "--verify", "--end-of-options", f"{ref}^{{commit}}"
    )
    root = Path(git("-C", str(repository), "rev-parse", "--show-toplevel"))
    git("init", "-q", str(target))
    within = ("-C", str(target))
    git(*within, "fetch", "-q", "--depth=1", root.as_uri(), commit)
    git(*within, "-c", "advice.detachedHead=false", "checkout", "-q", "--detach", "FETCH_HEAD")


# -- reading what an agent left -------------------------------------------------------------------


class NotReadable(Exception):
    """Raised for a path of a workspace that has no content to read; says why."""


def read_inside(root: Path, path: str, limit: int = MAX_FILE) -> bytes:
    """Return the content of a file in a workspace; no symbolic link is followed on the way."""
    *folders, name = Path(path).parts
    no_follow = os.O_NOFOLLOW | os.O_CLOEXEC if hasattr(os, "O_NOFOLLOW") else 0
    try:
        # The folder itself, too: an agent in a sandbox can replace it by a link.
        at = os.open(root, os.O_RDONLY | os.O_DIRECTORY | no_follow) if no_follow else -1
    except OSError as error:
        raise NotReadable(f"{path} cannot be read: {error.strerror}") from None
    try:
        if at < 0:  # Windows: no directory descriptors, and no links without a privilege
            content = (root / path).read_bytes()[: limit + 1]
        else:
            for folder in folders:
                inner = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | no_follow, dir_fd=at)
                os.close(at)
                at = inner
            # Not blocking: opening a pipe would wait for a writer.
            file = os.open(name, os.O_RDONLY | os.O_NONBLOCK | no_follow, dir_fd=at)
            with os.fdopen(file, "rb") as stream:
                if not stat.S_ISREG(os.fstat(file).st_mode):
                    raise NotReadable(f"{path} is not a regular file")
                content = stream.read(limit + 1)
    except FileNotFoundError:
        raise NotReadable(f"there is no {path}") from None
    except OSError as error:
        link = error.errno in (errno.ELOOP, errno.ENOTDIR)
        reason = "is or is below a symbolic link" if link else f"cannot be read: {error.strerror}"
        raise NotReadable(f"{path} {reason}") from None
    finally:
        if at >= 0:
            os.close(at)
    if len(content) > limit:
        raise NotReadable(f"{path} has more than {limit:,} bytes")
    return content


@lru_cache(maxsize=512)
def _pattern(text: str) -> Any:
    """Compile a glob: `*` within a name, `**` across folders; a name alone matches anywhere."""
    glob = text.removeprefix("./").rstrip("/")
    parts = [
        {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}.get(part) or re.escape(part)
        for part in re.split(r"(\*\*/|\*\*|\*|\?)", glob)
        if part
    ]
    anywhere = "" if "/" in glob else "(?:.*/)?"
    # What is below a matching folder matches as well.
    return re.compile(f"{anywhere}{''.join(parts)}(?:/.*)?", flags=re.DOTALL)


def any_match(patterns: Sequence[str], path: str) -> bool:
    """Return whether some pattern matches a relative path."""
    return any(_pattern(each).fullmatch(path) is not None for each in patterns)


# -- what changed --------------------------------------------------------------------------------


class FileState(NamedTuple):
    """What identifies a version of a file without reading it."""

    inode: int
    changed_ns: int
    mode: int
    size: int


_NOT_LISTED = os.stat_result((stat.S_IFDIR, *(0,) * 9))


def _walk(root: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Yield files and links below a folder, with paths relative to it; `.git` is left out.

    A folder that cannot be listed (too deep, or made unreadable by the agent) is yielded itself.
    """
    waiting = [""]
    while waiting:
        folder = waiting.pop()
        try:
            with os.scandir(root / folder) as entries:
                found = sorted(entries, key=lambda each: each.name)
        except FileNotFoundError:
            continue
        except OSError:
            if folder:
                yield folder.rstrip("/"), _NOT_LISTED
            continue
        for entry in found:
            path = f"{folder}{entry.name}"
            if entry.is_dir(follow_symlinks=False):
                if entry.name != ".git":
                    waiting.append(f"{path}/")
                continue
            with contextlib.suppress(OSError):
                yield path, entry.stat(follow_symlinks=False)


class Snapshot:
    """A workspace before the agent ran, and the folder that still holds those files."""

    def __init__(self, root: Path, original: Path) -> None:
        self.root = root
        self.original = original
        self.files = {
            path: FileState(found.st_ino, found.st_ctime_ns, found.st_mode, found.st_size)
            for path, found in _walk(root)
        }
        # Times have a granularity: a file changed in the same tick would keep its change time.
        mark = root / ".proctor-time"
        mark.touch()
        self._now = mark.stat().st_ctime_ns
        mark.unlink()

    def changes(self) -> Changes:
        """Compare the workspace with its state before."""
        now = dict(_walk(self.root))
        changed: dict[str, str] = {}
        parts: list[str] = []
        added = removed = size = 0
        for path in sorted({*self.files, *now}):
            before, after = self.files.get(path), now.get(path)
            if before is not None and after is not None and not self._differs(path, before, after):
                continue
            kind = "added" if before is None else "removed" if after is None else "changed"
            changed[path] = kind
            if len(changed) > MAX_CHANGES:  # counted, not read
                added += 1
                continue
            old = _Content.of(self.original, path) if before is not None else _Content()
            new = _Content.of(self.root, path) if after is not None else _Content()
            text, more, less = _file_diff(path, old, new)
            added, removed = added + more, removed + less
            if size < MAX_DIFF:
                parts.append(text)
                size += len(text)
        diff = "".join(parts)
        if len(diff) > MAX_DIFF:
            diff = f"{diff[:MAX_DIFF]}\n… [cut after {MAX_DIFF:,} characters]\n"
        return Changes(changed, added, removed, diff, tuple(now))

    def _differs(self, path: str, before: FileState, after: os.stat_result) -> bool:
        if (
            before.inode == after.st_ino
            and before.changed_ns == after.st_ctime_ns
            and before.changed_ns < self._now
        ):
            return False
        if before.mode != after.st_mode or before.size != after.st_size:
            return True
        return not _same_content(self.original, self.root, path)


def _same_content(one: Path, other: Path, path: str) -> bool:
    if (one / path).is_symlink():
        return _Content.of(one, path) == _Content.of(other, path)
    try:
        size = (one / path).stat().st_size
        return read_inside(one, path, size) == read_inside(other, path, size)
    except (NotReadable, OSError):
        return False


class _Content(NamedTuple):
    """A file as text or as the reason why it is none; both empty where there is no file."""

    text: str | None = None
    why: str = ""

    @classmethod
    def of(cls, root: Path, path: str) -> _Content:
        file = root / path
        try:
            if file.is_symlink():
                return cls(f"symbolic link to {os.readlink(file)}\n")  # noqa: PTH115
            content = read_inside(root, path)
            if b"\0" in content[:8192]:
                return cls(None, "binary")
            return cls(content.decode())
        except UnicodeDecodeError:
            return cls(None, "binary")
        except (NotReadable, OSError) as error:
            return cls(None, str(error))


def _file_diff(path: str, old: _Content, new: _Content) -> tuple[str, int, int]:
    """Return the diff of one file, and how many lines were added and removed."""
    left = "/dev/null" if old == _Content() else f"a/{path}"
    right = "/dev/null" if new == _Content() else f"b/{path}"
    head = f"--- {left}\n+++ {right}\n"
    if old.why or new.why:
        return f"{head}({old.why or new.why}; not shown)\n", 0, 0
    before, after = (
        each.text.splitlines(keepends=True) if each.text else [] for each in (old, new)
    )
    if max(len(before), len(after)) > MAX_DIFFED_LINES and before and after:
        counts = f"({len(before):,} lines before, {len(after):,} after; too long to show)\n"
        return head + counts, len(after), len(before)
    lines = list(difflib.unified_diff(before, after))[2:]
    if not lines:
        lines = ["(mode changed)\n"] if before == after and left != "/dev/null" else ["(empty)\n"]
    added = sum(line.startswith("+") for line in lines)
    removed = sum(line.startswith("-") for line in lines)
    ended = (
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines
    )
    return head + "".join(ended), added, removed


class Changes(msgspec.Struct, frozen=True):
    """What an agent changed in its workspace.

    `paths` holds added, removed or changed for each path; `added` and `removed` count lines.
    """

    paths: dict[str, str]
    added: int
    removed: int
    diff: str
    files: tuple[str, ...]
    """All files, changed or not."""

    def record(self) -> dict[str, Any]:
        """Return what is stored with the trial."""
        paths = dict(list(self.paths.items())[:MAX_CHANGES])
        counts = {"changed": len(self.paths), "added": self.added, "removed": self.removed}
        return {"paths": paths, **counts, "diff": self.diff}


def kept_files(root: Path, patterns: Sequence[str]) -> dict[str, Any]:
    """Return the files that match, as text, as {base64: …}, or as {error: why it is missing}."""
    found: dict[str, Any] = {}
    left = MAX_KEPT
    for path, _ in _walk(root):
        if not any_match(patterns, path):
            continue
        try:
            content = read_inside(root, path, left)
        except NotReadable as error:
            found[path] = {"error": str(error)}
            continue
        left -= len(content)
        try:
            found[path] = content.decode()
        except UnicodeDecodeError:
            found[path] = {"base64": base64.b64encode(content).decode()}
    return found
