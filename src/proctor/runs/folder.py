"""A run on disk: a self-contained folder."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Generator, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from proctor.errors import ProctorError
from proctor.files import lock_file, write_atomic
from proctor.runs import segments
from proctor.runs.journal import Journal, JournalIndex, Sync, read_journal
from proctor.runs.trial import Trial
from proctor.trace import Trace

# Create a run folder by a pattern such as `{experiment}/{date}_{seq}`. Two processes that create
# one at once get two folders, since mkdir decides; nothing is created outside the root, links
# included; a failure leaves nothing behind.


OUTPUT = "{experiment}/{date}_{seq}"
"""Path of a run below the results folder."""

MAX_NAME = 80
"""Maximum length of a path component made from user text: stays under Windows' 260 characters."""

_UNSAFE = re.compile(r"[^\w.\-]+")
# Windows opens a device for these names, with any extension.
_RESERVED = re.compile(r"(?i)(con|prn|aux|nul|com\d|lpt\d)(\..*)?")
_SEQ = "{seq}"


class RunFolderError(ProctorError):
    """A run folder cannot be used as requested."""


def allocate(root: Path, pattern: str, names: Mapping[str, str]) -> Path:
    """Create a unique directory below `root`; `names` are the values of the other tokens."""
    parts = [_filled(part, names) for part in pattern.split("/")]
    # The component that must be new: the numbered one, else the last.
    numbered = next((i for i, part in enumerate(parts) if _SEQ in part), len(parts) - 1)
    parent = root.joinpath(*parts[:numbered])
    new, *inside = parts[numbered:]
    before, seq, after = new.partition(_SEQ)
    earlier = re.compile(rf"{re.escape(before)}(\d+){re.escape(after)}")
    if ".." in parts or not parent.resolve().is_relative_to(root.resolve()):
        raise RunFolderError(
            f"the output path {pattern!r} leads outside the results folder", where=str(root)
        )
    try:
        parent.mkdir(parents=True, exist_ok=True)
        taken = [int(found[1]) for p in parent.iterdir() if (found := earlier.fullmatch(p.name))]
        number = max(taken, default=0)
        while True:
            number += 1
            # Padded, so that names sort by number; from 1000 on they get longer.
            shown = f"{number:03d}"
            path = parent / new.replace(_SEQ, shown)
            try:
                path.mkdir()
                break
            except FileExistsError:
                # Another process may have taken the number since the folder was listed.
                if not seq:
                    raise RunFolderError(
                        "there is a run here already",
                        where=str(path),
                        hint=f"add {_SEQ} to the output path {pattern!r} to number runs",
                    ) from None
        # Components after the number belong to this run alone.
        inner = path.joinpath(*(part.replace(_SEQ, shown) for part in inside))
        inner.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunFolderError(
            f"cannot create a run folder: {error.strerror}",
            where=str(error.filename or parent),
            hint="choose another place with --results",
        ) from None
    return inner


def earlier_folders(root: Path, pattern: str, experiment: str) -> list[Path]:
    """Return folders that earlier runs of the pattern may have, runs or not."""
    names = {"experiment": safe_name(experiment), "date": "*"}
    glob = "/".join(_filled(part, names).replace(_SEQ, "*") for part in pattern.split("/"))
    return sorted(root.glob(glob), reverse=True) if root.is_dir() else []


def _filled(part: str, names: Mapping[str, str]) -> str:
    for name, value in names.items():
        part = part.replace(f"{{{name}}}", value)
    return part


def safe_name(text: str) -> str:
    """Return a file name for user text that every file system accepts, Windows included."""
    name = _UNSAFE.sub("-", text).strip("-. ")[:MAX_NAME].rstrip(". ") or "run"
    return f"_{name}" if _RESERVED.fullmatch(name) else name


LOCK_TRIES, LOCK_WAIT = 10, 0.05
"""How often and how many seconds apart the writer lock is tried."""

FORMAT = 1
"""Version of the layout below; a reader refuses a newer one."""

# The C versions are several times faster, but PyYAML can be installed without them.
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_DUMPER: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


class RunFolder:
    """The folder of one run.

    results/<experiment>/<date>_<seq>/
      _spec_.yaml               the resolved spec: exactly what ran (no secrets)
      trials.jsonl              journal: one line per finished trial; the truth while running
      results.parquet           the same, columnar, written when the run ends (and on resume)
      results.json              summary of every cell
      summary.csv               the same as a table
      facts.json                what queries need of the spec, while it holds
      traces/000001.jsonl.zst   one zstd frame per trace
      heartbeat.json            the progress of the run, for observers: see `heartbeat`
      .checkpoints/             states of agents whose trials are under way: see `checkpoints`
      .lock                     held by the one process that writes

    What is left to do is the plan minus the journal: derived, never stored.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.spec_path = path / "_spec_.yaml"
        self.journal_path = path / "trials.jsonl"
        self.parquet_path = path / "results.parquet"
        self.results_path = path / "results.json"
        self.summary_path = path / "summary.csv"
        self.traces_path = path / "traces"
        self._written: dict[str, Any] | None = None

    # -- making and opening -------------------------------------------------------------------

    @classmethod
    def create(
        cls, root: Path, name: str, *, output: str = OUTPUT, now: datetime | None = None
    ) -> RunFolder:
        """Create an empty run folder; two that start at once get two folders.

        `output` is the path pattern below `root`: `{experiment}`, `{date}` and `{seq}` are filled
        in.
        """
        day = f"{now or datetime.now(UTC):%Y-%m-%d}"
        return cls(allocate(root, output, {"experiment": safe_name(name), "date": day}))

    @classmethod
    def open(cls, path: Path | str) -> RunFolder:
        """Open an existing run folder and check its format."""
        folder = cls(Path(path))
        folder.checked_spec()
        return folder

    # -- the spec -------------------------------------------------------------------------------

    def checked_spec(self) -> dict[str, Any]:
        """Read the resolved spec of a run folder in a supported format."""
        if not self.spec_path.is_file():
            raise RunFolderError(
                "not a run folder: it has no _spec_.yaml",
                where=str(self.path),
                hint="name a folder such as results/<experiment>/<date>_<seq>",
            )
        spec = self.read_spec()
        found = spec.get("format")
        if not isinstance(found, int) or found > FORMAT:
            raise RunFolderError(
                f"the folder has format {found!r}, this version reads up to {FORMAT}",
                where=str(self.spec_path),
                hint="upgrade proctor",
            )
        return spec

    def write_spec(self, spec: dict[str, Any]) -> None:
        """Write the resolved spec; it must be free of secrets already."""
        content = {"format": FORMAT, **spec}
        # In the given order: `find` looks for the run id at the start of the file only.
        text: str = yaml.dump(content, Dumper=_DUMPER, sort_keys=False, allow_unicode=True)
        write_atomic(self.spec_path, text.encode())
        self._written = content

    def known_spec(self) -> dict[str, Any]:
        """Return the resolved spec as written or read through this object."""
        if self._written is None:
            self._written = self.read_spec()
        return self._written

    def read_spec(self) -> dict[str, Any]:
        """Return the resolved spec."""
        try:
            spec = yaml.load(self.spec_path.read_bytes(), Loader=_LOADER)  # noqa: S506 (a safe loader)
        except (OSError, yaml.YAMLError) as error:
            raise RunFolderError(
                f"cannot read the spec: {' '.join(str(error).split())}", where=str(self.spec_path)
            ) from None
        if not isinstance(spec, dict):
            raise RunFolderError("the spec is not a mapping", where=str(self.spec_path))
        return spec  # pyright: ignore[reportUnknownVariableType]

    # -- trials ---------------------------------------------------------------------------------

    def trials(self) -> Iterator[Trial]:
        """Return finished trials, each once with the attempt that counts."""
        return JournalIndex(self.journal_path).trials()

    def trace_of(self, trial: Trial) -> Trace | None:
        """Return the trace of a trial; None without one."""
        return None if trial.trace is None else segments.read_trace(self.traces_path, trial.trace)

    def journal(self, sync: Sync = Sync.INTERVAL) -> Journal:
        """Open the journal for appending; requires the lock."""
        return Journal(self.journal_path, sync=sync)

    def repair(self) -> list[str]:
        """Truncate what a crash left behind; requires the lock. Return a description."""
        problems: list[str] = []
        refs = (t.trace for t in read_journal(self.journal_path, problems) if t.trace is not None)
        for part in self.path.glob(".*.part"):
            part.unlink(missing_ok=True)
        # `trim` first: `problems` is filled while it reads the references.
        return [*segments.trim(self.traces_path, refs), *problems]

    @contextlib.contextmanager
    def lock(self) -> Generator[None]:
        """Acquire the writer lock, or raise if another process holds it.

        It is released at the end of the block or of the process.
        """
        # The file is never deleted: a new one would be another lock.
        try:
            file = (self.path / ".lock").open("a+b")
        except OSError as error:
            raise RunFolderError(
                f"cannot write here: {error.strerror}", where=str(self.path)
            ) from None
        with file:
            # A process that was killed may need a moment to end and release it.
            tries = LOCK_TRIES
            while not (locked := lock_file(file, wait=False)) and (tries := tries - 1):
                time.sleep(LOCK_WAIT)
            if not locked:
                raise RunFolderError(
                    "another process is writing this run",
                    where=str(self.path),
                    hint="wait for it to end, or stop it, then try again",
                )
            yield


def run_name(path: Path) -> str:
    """Return the display name of a run: `<experiment>/<date>_<seq>`."""
    return "/".join(path.parts[-2:])


COPY_OF = ".copy-of"
"""File in a copy of a run, or of a results folder, that holds the address of the original."""


def address_of(path: Path) -> str | None:
    """Return the address that a folder is a copy of; None for an original."""
    try:
        return (path / COPY_OF).read_text("utf-8").strip()
    except OSError:
        return None


def place_of(path: Path) -> str:
    """Return the display location of runs: the folder, or the address it is a copy of."""
    return address_of(path) or str(path)
