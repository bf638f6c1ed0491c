"""A run on disk: a folder that is complete in itself, its checksums, and how it is found.

Guarantees: the spec, every line of the journal, every trace and every derived file has a CRC-32
that is stored outside of what a single change can reach. What does not match is reported with a
remedy and never counted as a result. Runs of format 1 have no checksums: they are not verified.
Trade-off: a file whose size and time are as recorded is not read again, unless the command needs
its content; `proctor runs verify` reads everything. `find_run` returns one run or raises an error
that lists the candidates; it never guesses between two matches.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
import zlib
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple, cast

import msgspec
import yaml

from proctor.errors import ProctorError, did_you_mean
from proctor.files import (
    FOLDER_MODE,
    MAX_YAML_BYTES,
    add_checksum,
    as_private,
    checksum_ok,
    fsync_folder,
    load_yaml,
    lock_file,
    read_bounded,
    unblocked,
    write_atomic,
)
from proctor.runs import heartbeat, segments
from proctor.runs.case_rows import NAME as ROWS_FILE
from proctor.runs.case_rows import expanded
from proctor.runs.journal import (
    RESTORE,
    Damage,
    Journal,
    JournalIndex,
    Sync,
    has_checksums,
    last_sequence,
    read_journal,
)
from proctor.runs.trial import Trial
from proctor.sanitize import without_surrogates
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
    filled = pattern
    for name, value in names.items():
        filled = filled.replace(f"{{{name}}}", value)
    parts = filled.split("/")
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
                path.mkdir(mode=FOLDER_MODE)
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
        # Each may be new, and the name of a folder is in the one above it.
        for above in inner.parents:
            fsync_folder(above)
            if above == root.parent:
                break
    except OSError as error:
        raise RunFolderError(
            f"cannot create a run folder: {error.strerror}",
            where=str(error.filename or parent),
            hint="choose another place with --results",
        ) from None
    return inner


def earlier_folders(root: Path, pattern: str, experiment: str) -> list[Path]:
    """Return folders that earlier runs of the pattern may have, runs or not."""
    glob = pattern.replace("{experiment}", safe_name(experiment))
    glob = glob.replace("{date}", "*").replace(_SEQ, "*")
    return sorted(root.glob(glob), reverse=True) if root.is_dir() else []


def safe_name(text: str) -> str:
    """Return a file name for user text that every file system accepts, Windows included."""
    name = _UNSAFE.sub("-", text).strip("-. ")[:MAX_NAME].rstrip(". ") or "run"
    return f"_{name}" if _RESERVED.fullmatch(name) else name


LOCK_TRIES, LOCK_WAIT = 10, 0.05
"""How often and how many seconds apart the writer lock is tried."""

FORMAT = 2
"""Version of the layout below; a reader refuses a newer one. Since 2, everything has checksums. A
resumed run keeps its format."""

# The C version is several times faster, but PyYAML can be installed without it.
_DUMPER: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)

_SPEC_END = b"# crc32: %08x\n"
"""The last line of a spec: the checksum of everything before it."""


class _Case(msgspec.Struct):
    id: str


class _Suite(msgspec.Struct):
    cases: list[_Case] | dict[str, Any] = []


class _Cell(msgspec.Struct):
    case: str
    agent: str
    trials: int
    threshold: float = 1.0
    params: str = ""


class _Spec(msgspec.Struct):
    """What the readers of a spec need; a checksum does not say that it is there."""

    suite: _Suite
    cells: list[_Cell] | dict[str, Any]
    name: str = ""
    run_id: str = ""
    agents: dict[str, Any] = {}
    options: dict[str, Any] = {}
    provenance: dict[str, Any] = {}


class RunFolder:
    """The folder of one run.

    results/<experiment>/<date>_<seq>/
      _spec_.yaml               the resolved spec: exactly what ran (no secrets)
      trials.jsonl              journal: one line per finished trial; the truth while running
      cases.jsonl               the rows of a large data set: see `case_rows`
      results.parquet           the same, columnar, written when the run ends (and on resume)
      results.json              summary of every cell
      summary.csv               the same as a table
      facts.json                what queries need of the spec, while it holds
      checksums.json            size, time and checksum of the files above: see `check_files`
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
        folder.checked_spec(whole=False)
        return folder

    # -- the spec -------------------------------------------------------------------------------

    def checked_spec(self, *, whole: bool = True) -> dict[str, Any]:
        """Read the resolved spec of a run folder in a supported format; see `read_spec`."""
        if not self.spec_path.is_file():
            raise RunFolderError(
                "not a run folder: it has no _spec_.yaml",
                where=str(self.path),
                hint="name a folder such as results/<experiment>/<date>_<seq>",
            )
        spec = self.read_spec(whole=whole)
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
        encoded = text.encode()
        write_atomic(self.spec_path, encoded + _SPEC_END % zlib.crc32(encoded))
        self._written = content

    def known_spec(self) -> dict[str, Any]:
        """Return the resolved spec as written or read through this object."""
        if self._written is None:
            self._written = self.read_spec(whole=False)
        return self._written

    def read_spec(self, *, whole: bool = True) -> dict[str, Any]:
        """Return the resolved spec; unless `whole`, without the cases of a large data set."""
        try:
            content = read_bounded(self.spec_path, MAX_YAML_BYTES)
            spec = load_yaml(content)
        except (OSError, yaml.YAMLError, ProctorError) as error:
            reason = error.message if isinstance(error, ProctorError) else str(error)
            raise self._unreadable_spec(" ".join(reason.split())) from None
        if not isinstance(spec, dict):
            raise self._unreadable_spec("it is not a mapping")
        found = cast("dict[str, Any]", spec)
        number = found.get("format")
        end = len(content) - len(_SPEC_END % 0)
        # Format 1 has no checksum, and a later one may have another.
        version = number if isinstance(number, int) else 1
        due = version == FORMAT or (version < FORMAT and content.startswith(_SPEC_END[:9], end))
        if due and content[end:] != _SPEC_END % zlib.crc32(content[:end]):
            raise self._unreadable_spec("it is not as it was written")
        try:
            if version <= FORMAT:  # a newer one may have other parts
                msgspec.convert(found, _Spec)
        except msgspec.ValidationError as error:
            raise self._unreadable_spec(str(error)) from None
        if whole and isinstance(found.get("cells"), dict):
            return expanded(found, self.path)
        return found

    def _unreadable_spec(self, reason: str) -> RunFolderError:
        return RunFolderError(
            f"cannot read the spec: {reason}", where=str(self.spec_path), hint=RESTORE
        )

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
        for part in self.path.glob(".*.part"):
            part.unlink(missing_ok=True)
        problems: list[str] = []
        refs = [t.trace for t in read_journal(self.journal_path, problems) if t.trace is not None]
        # An unreadable line may refer to a trace too, and the journal may be restored.
        return problems or segments.trim(self.traces_path, iter(refs))

    @contextlib.contextmanager
    def lock(self) -> Generator[None]:
        """Acquire the writer lock, or raise if another process holds it.

        It is released at the end of the block or of the process.
        """
        # The file is never deleted: a new one would be another lock.
        try:
            file = open(self.path / ".lock", "a+b", opener=as_private)  # noqa: SIM115
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


# -- checksums of files ---------------------------------------------------------------------------

CHECKSUMS = "checksums.json"

MAX_CHECKSUMS = 64 << 20
"""Maximum size of the file: half a million files."""

ALWAYS_READ = 1 << 20
"""Bytes up to which a file that a query needs is compared by content even if its time is as
recorded: some 10,000 trials, in a millisecond."""

DERIVED = ("results.parquet", "results.json", "summary.csv", "facts.json", "research.json")
"""Files that are written when a run ends, and never changed in place."""

_TRACES = "restore the file from a copy of the run; results do not depend on it"
_REMEDIES = {"trials.jsonl": RESTORE, "traces": _TRACES}
_REWRITE = "`proctor run --resume RUN` writes it again from the journal"


class Stamp(msgspec.Struct, frozen=True, array_like=True):
    """A file as it was written; a growing file has no checksum of its own, but its parts have."""

    size: int
    mtime_ns: int
    crc: int | None = None

    @classmethod
    def of(cls, path: Path | str, *, crc: bool = True) -> Stamp | None:
        """Return the stamp of a file; None when it does not exist."""
        try:
            now = os.stat(path)  # noqa: PTH116 (once per file of every run: pathlib is slower)
            total = 0
            if crc:
                with open(path, "rb", opener=unblocked) as file:
                    while block := file.read(1 << 20):
                        total = zlib.crc32(block, total)
            return cls(now.st_size, now.st_mtime_ns, total if crc else None)
        except OSError:
            return None


class Checksums(msgspec.Struct, frozen=True):
    """The content of checksums.json: the lines of the journal and the files at the run's end."""

    lines: int
    files: dict[str, Stamp]


class FolderState(NamedTuple):
    """The files of a run compared with its checksums.

    `current` says that the derived files hold everything the journal does. `suspects` are traces
    with another time, of which only the journal knows the checksums.
    """

    checksums: Checksums | None
    current: bool
    damage: list[Damage]
    suspects: list[str]


def write_checksums(folder: RunFolder) -> None:
    """Record the files of a run that has ended, after all of them; requires the lock."""
    files = {folder.spec_path.name: Stamp.of(folder.spec_path)}
    files[ROWS_FILE] = Stamp.of(folder.path / ROWS_FILE)
    files |= {name: Stamp.of(folder.path / name) for name in DERIVED}
    growing = [folder.journal_path, *(path for _, path in segments.segments(folder.traces_path))]
    for path in growing:
        files[path.relative_to(folder.path).as_posix()] = Stamp.of(path, crc=False)
    found = {name: stamp for name, stamp in files.items() if stamp is not None}
    stored = Checksums(last_sequence(folder.journal_path), found)
    write_atomic(folder.path / CHECKSUMS, add_checksum(msgspec.json.encode(stored)) + b"\n")


def check_files(run: Path, reads: Collection[str] = (), *, thorough: bool = False) -> FolderState:
    """Compare the files of a run with its checksums.

    A file with the recorded size and time is not read, unless `thorough`. In a copied folder all
    times differ: there only the files that the caller `reads` are checked. A run that was resumed
    or extended since has newer files, which its next end records.
    """
    state = FolderState(None, False, [], [])

    def damaged(name: str, what: str) -> None:
        known = name.split("/", maxsplit=1)[0]
        state.damage.append(Damage(str(run / name), what, _REMEDIES.get(known, _REWRITE)))

    try:
        content = read_bounded(run / CHECKSUMS, MAX_CHECKSUMS)
        if not checksum_ok(content.removesuffix(b"\n")):
            raise ProctorError("it is not as it was written")
        stored = msgspec.json.decode(content, type=Checksums)
    except FileNotFoundError:
        # A run that was never finished has none, or one that was interrupted while it finished.
        ended = (run / "results.parquet").exists() and heartbeat.look_at(run).life in heartbeat.OVER
        if ended and has_checksums(run) and address_of(run) is None:
            damaged(CHECKSUMS, "it is missing")
        return state
    except (OSError, ProctorError, msgspec.MsgspecError) as error:
        damaged(CHECKSUMS, f"damaged: {getattr(error, 'message', error)}")
        return state
    state = state._replace(checksums=stored, current=True)
    spec, before = Stamp.of(run / "_spec_.yaml", crc=False), stored.files["_spec_.yaml"]
    if spec is None:
        return FolderState(None, False, [], [])
    copied = spec.mtime_ns != before.mtime_ns
    # A damaged spec is found by its own checksum; this one was written by Proctor, since.
    if copied:
        spec = Stamp.of(run / "_spec_.yaml")
    if spec is None or spec.size != before.size or (copied and spec.crc != before.crc):
        return FolderState(None, False, [], [])
    partial = address_of(run) is not None  # of a run in a store, only what is needed is fetched
    for name, stamp in stored.files.items():
        now = Stamp.of(f"{run}/{name}", crc=False)
        grows = stamp.crc is None
        if now is None:
            if not partial:
                damaged(name, "it is missing")
        elif grows and now.size > stamp.size:
            if name == "trials.jsonl":  # resumed: what is derived from it is older
                return FolderState(stored, False, [], [])
            state.suspects.append(name)
        elif now.size != stamp.size:
            changed = "shorter" if now.size < stamp.size else "longer"
            damaged(name, f"damaged: it is {changed} than when the run ended")
        else:
            changed = now.mtime_ns != stamp.mtime_ns
            needed = name in reads and (changed or now.size <= ALWAYS_READ)
            if not (thorough or needed or (changed and not copied)):
                continue
            if name == "trials.jsonl":
                state = state._replace(current=False)  # its lines have checksums
            elif grows:
                state.suspects.append(name)
            elif (read := Stamp.of(run / name)) is None or read.crc != stamp.crc:
                damaged(name, "damaged: it is not as it was written")
    return state


def check_traces(
    folder: RunFolder, trials: Iterable[Trial], only: Collection[str] | None = None
) -> Iterator[Damage]:
    """Yield the traces of trials that cannot be read, of some files or of all."""
    for trial in trials:
        if trial.trace is None:
            continue
        path = segments.segment_path(folder.traces_path, trial.trace.segment)
        if only is None or f"traces/{path.name}" in only:
            try:
                segments.read_frame(folder.traces_path, trial.trace)
            except segments.SegmentError as error:
                yield Damage(str(path), f"{trial.name}: {error.message}", _TRACES)


def run_name(path: Path) -> str:
    """Return the display name of a run: `<experiment>/<date>_<seq>`."""
    return "/".join(path.parts[-2:])


COPY_OF = ".copy-of"
"""File in a copy of a run, or of a results folder, that holds the address of the original."""


MAX_ADDRESS = 10_000
"""Maximum bytes of such an address."""


def address_of(path: Path) -> str | None:
    """Return the address that a folder is a copy of; None for an original."""
    try:
        return read_bounded(path / COPY_OF, MAX_ADDRESS).decode().strip()
    except (OSError, ProctorError, UnicodeError):
        return None


def place_of(path: Path) -> str:
    """Return the display location of runs: the folder, or the address it is a copy of."""
    return address_of(path) or str(path)


def spec_hash(part: Any) -> str:
    """Return the SHA-256 of a part of a spec, such as a case; the order of keys does not matter."""
    plain = without_surrogates(msgspec.to_builtins(part, enc_hook=str, str_keys=True))
    return sha256(msgspec.json.encode(plain, order="sorted")).hexdigest()


# -- finding runs --------------------------------------------------------------------------------

LATEST = "latest"

_RUN_ID = re.compile(rb"^run_id: *['\"]?([0-9a-f-]{36})", re.MULTILINE)
_TOP = 512
"""Bytes at the start of a spec that contain its format and the run id."""

FORK_OF = "fork_of"
"""Key of a run's spec: the parent run, trial and step that the run continues."""

MADE_BY = "made_by"
"""Key of a run's spec: the command whose experiment the run is part of (`ab`, `profile`)."""


def find_run(text: str | Path, root: Path | str) -> Path:
    """Return a run folder by its path, by `<experiment>/<date>_<seq>`, by a tag, or `latest`.

    When several runs have a tag, the most recently tagged one is returned.
    """
    from proctor.runs.annotations import tagged  # it opens run folders

    path, root = Path(text), Path(root)
    # A path counts from here first, as in every command, then from the results folder.
    for place in (path, root / path):
        if (place / "_spec_.yaml").is_file():
            return place
    problems: list[str] = []
    tags = tagged(root, problems)
    named = [each.run for each in tags if each.name == str(text)]
    if problems and str(text) != LATEST:
        # A lost tag would select another run without a word.
        raise ProctorError(
            f"cannot tell which run is tagged {str(text)!r}: {problems[0]}",
            hint="name the run by its path, or restore the file",
        )
    # Before the check of folders: a folder that is not a run may have the same name.
    if named:
        return named[-1]
    if path.is_dir():
        RunFolder.open(path)  # raises: it is no run folder
    if str(text) == LATEST:
        return latest_run(root)
    runs = [str(run.relative_to(root)) for run in all_runs(root)]
    names = [*dict.fromkeys(each.name for each in tags), *runs]
    known = did_you_mean(str(text), [LATEST, *names] if names else names) or (
        f"{place_of(root)} has {', '.join(names[:5])}{', …' if len(names) > 5 else ''}"
        if names
        else f"there are no runs in {place_of(root)}; --results names another folder"
    )
    raise ProctorError(f"no run and no tag is called {str(text)!r}", hint=known)


def all_runs(root: Path | str) -> list[Path]:
    """Return every run folder below a results folder, in the order they started."""
    return sorted((spec.parent for spec in Path(root).glob("**/_spec_.yaml")), key=_start_order)


def latest_run(root: Path | str) -> Path:
    """Return the run that started last; one of an experiment only if there is no other run.

    `fork`, `why`, `ab` and `profile` change the agent, the inputs or the step: after them, `latest`
    is still the run of the suite itself.
    """
    if not (runs := all_runs(root)):
        raise ProctorError(
            f"there are no runs in {place_of(Path(root))}",
            hint="`proctor run suite.yaml` makes one",
        )
    return next((run for run in reversed(runs) if not is_experiment(run)), runs[-1])


def is_experiment(run: Path) -> bool:
    """Return whether a run belongs to an experiment on a suite or a trial."""
    # Searched, not parsed: a spec may be large. Keys of the top level alone begin a line.
    with contextlib.suppress(OSError, ProctorError):
        spec = read_bounded(run / "_spec_.yaml", MAX_YAML_BYTES)
        return any(f"\n{key}:".encode() in spec for key in (FORK_OF, MADE_BY))
    return False


def _start_order(run: Path) -> tuple[str, str]:
    # Run ids sort by time. They are at the top of a spec, so the rest need not be parsed.
    with contextlib.suppress(OSError), open(run / "_spec_.yaml", "rb", opener=unblocked) as file:
        if found := _RUN_ID.search(file.read(_TOP)):
            return (found[1].decode(), str(run))
    return ("", str(run))
