"""A run on disk: a folder that holds everything about it and needs nothing outside it."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

import yaml

from proctor.files import replacing
from proctor.runs import segments
from proctor.runs.claim import OUTPUT, RunFolderError, claim, safe_name
from proctor.runs.journal import Journal, Sync, read_journal, read_latest
from proctor.runs.model import Trial
from proctor.trace import Trace

FORMAT = 1
"""Version of the layout below; a reader refuses a newer one."""


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
      heartbeat.json            how it is doing, for whoever watches: see `heartbeat`
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
        """A new, empty run folder; two that start at once get two folders.

        `output` is where below `root`: `{experiment}`, `{date}` and `{seq}` are filled in.
        """
        day = f"{now or datetime.now(UTC):%Y-%m-%d}"
        return cls(claim(root, output, {"experiment": safe_name(name), "date": day}))

    @classmethod
    def open(cls, path: Path | str) -> RunFolder:
        """An existing run folder, checked for its format."""
        folder = cls(Path(path))
        folder.checked_spec()
        return folder

    # -- the spec -------------------------------------------------------------------------------

    def checked_spec(self) -> dict[str, Any]:
        """The resolved spec of what must be a run folder in a format we read."""
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
        """Keep the resolved spec; secrets must be out of it already."""
        dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
        content = {"format": FORMAT, **spec}
        text: str = yaml.dump(content, Dumper=dumper, sort_keys=False, allow_unicode=True)
        write_atomic(self.spec_path, text.encode())
        self._written = content

    def known_spec(self) -> dict[str, Any]:
        """The resolved spec as it was written or read through this object: for its one writer."""
        if self._written is None:
            self._written = self.read_spec()
        return self._written

    def read_spec(self) -> dict[str, Any]:
        """The resolved spec."""
        try:
            spec = yaml.load(self.spec_path.read_bytes(), Loader=_loader())  # noqa: S506 (a safe loader)
        except (OSError, yaml.YAMLError) as error:
            raise RunFolderError(
                f"cannot read the spec: {' '.join(str(error).split())}", where=str(self.spec_path)
            ) from None
        if not isinstance(spec, dict):
            raise RunFolderError("the spec is not a mapping", where=str(self.spec_path))
        return spec  # pyright: ignore[reportUnknownVariableType]

    # -- trials ---------------------------------------------------------------------------------

    def trials(self, problems: list[str] | None = None) -> Iterator[Trial]:
        """Finished trials, each once, its last attempt."""
        return read_latest(self.journal_path, problems)

    def trace_of(self, trial: Trial) -> Trace | None:
        """The trace of a trial; None when it has none."""
        return None if trial.trace is None else segments.read_trace(self.traces_path, trial.trace)

    def journal(self, sync: Sync = Sync.INTERVAL) -> Journal:
        """The journal, to append to; hold the lock."""
        return Journal(self.journal_path, sync=sync)

    def repair(self) -> list[str]:
        """Cut what a crash left behind; hold the lock. Says what was done."""
        problems: list[str] = []
        refs = (t.trace for t in read_journal(self.journal_path, problems) if t.trace is not None)
        for part in self.path.glob(".*.part"):
            part.unlink(missing_ok=True)
        return [*segments.trim(self.traces_path, refs), *problems]

    @contextlib.contextmanager
    def lock(self) -> Generator[None]:
        """Be the one writer, or say that another process is. Ends with the process, however."""
        try:
            file = (self.path / ".lock").open("a+b")
        except OSError as error:
            raise RunFolderError(
                f"cannot write here: {error.strerror}", where=str(self.path)
            ) from None
        with file:
            if not _try_lock(file):
                raise RunFolderError(
                    "another process is writing this run",
                    where=str(self.path),
                    hint="wait for it to end, or stop it, then try again",
                )
            yield


def run_name(path: Path) -> str:
    """A run as people call it: `<experiment>/<date>_<seq>`, wherever its folder is."""
    return "/".join(path.parts[-2:])


COPY_OF = ".copy-of"
"""The file in a copy of a run, or of a folder of runs, that says at which address they are."""


def address_of(path: Path) -> str | None:
    """The address that a folder is a copy of; None when it is at home here."""
    try:
        return (path / COPY_OF).read_text("utf-8").strip()
    except OSError:
        return None


def place_of(path: Path) -> str:
    """Where runs are, as people are told: the folder, or the address that it is a copy of."""
    return address_of(path) or str(path)


def write_atomic(path: Path, content: bytes, *, mode: int | None = None) -> None:
    """Replace a file wholly or not at all; `mode` is as in `replacing`."""
    try:
        with replacing(path, mode=mode) as aside:
            aside.write_bytes(content)
    except OSError as error:
        raise RunFolderError(f"cannot write: {error.strerror}", where=str(path)) from None


def _try_lock(file: IO[bytes]) -> bool:
    try:
        import fcntl
    except ImportError:  # Windows
        import msvcrt

        try:
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
        except OSError:
            return False
        return True
    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _loader() -> Any:
    return getattr(yaml, "CSafeLoader", yaml.SafeLoader)
