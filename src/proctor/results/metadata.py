"""Cache the facts of a run in `facts.json`, so that a query need not parse its YAML.

    results/<experiment>/<date>_<seq>/facts.json      written when the run ends

Guarantees: it is used only while the spec, the journal and the Parquet file are the ones it was
written from (by size and time, else by content); otherwise a query reads those files. So it can be
deleted, copied or left behind at any time: an answer becomes slower, never wrong. Trade-off: a
journal is identified by its length and its end, not read as a whole, so harm that changes neither
its length nor its time is found only by commands that read it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import msgspec

from proctor.errors import ProctorError

if TYPE_CHECKING:
    from proctor.runs.folder import RunFolder
    from proctor.runs.run import Run
    from proctor.runs.trial import CellKey, Trial


# Accessors for documents of unknown origin (a spec, a log). They never raise; a value of the wrong
# type counts as absent.


def as_mapping(value: Any) -> Mapping[str, Any]:
    """Return the value if it is a mapping, else an empty one."""
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def as_list(value: Any) -> list[Any]:
    """Return the value if it is a list, else an empty one."""
    return cast("list[Any]", value) if isinstance(value, list) else []


def as_text(value: Any) -> str | None:
    """Return the value as text; None stays None."""
    return None if value is None else str(value)


NAME = "facts.json"
VERSION = 2
"""Version of facts.json; other versions are ignored and the spec is read."""

CLUSTER = "cluster"
"""Case property that names its cluster (a shared fixture, a document)."""

# Bytes hashed at the end of a journal to distinguish journals of equal length.
_TAIL = 4096


class Stamp(msgspec.Struct, frozen=True):
    """Identity of a file's content: by size and time, else by hash."""

    size: int
    mtime_ns: int
    sha256: str


class AgentFacts(msgspec.Struct, frozen=True, omit_defaults=True):
    """Facts of an agent."""

    kind: str | None = None
    model: str | None = None


class CaseMetadata(msgspec.Struct, frozen=True, omit_defaults=True):
    """Facts of a case, to select and group by."""

    id: str
    tags: tuple[str, ...] = ()
    difficulty: str | None = None
    type: str | None = None
    properties: dict[str, Any] = {}
    threshold: float | None = None
    asked: int | None = None


class StoppedRows(NamedTuple):
    """Rows of results.parquet of a cell that stopped early: [first, end).

    No figure counts those from `counted_end` on: they ended after the stop.
    """

    first: int
    counted_end: int
    end: int
    reason: str


class RunFacts(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Facts of a run; `stopped_early` are its cells with an early stop."""

    version: int = VERSION
    format: int
    run_id: str
    name: str
    created: str | None = None
    stopped: str | None = None
    host: str | None = None
    user: str | None = None
    commit: str | None = None
    agents: dict[str, AgentFacts] = {}
    spec: Stamp | None = None
    journal: Stamp | None = None
    parquet: Stamp | None = None
    columns: tuple[str, ...] = ()
    stopped_early: tuple[StoppedRows, ...] = ()
    damaged: int = 0
    """Unreadable lines of the journal, whose trials results.parquet lacks."""
    cases: msgspec.Raw = msgspec.Raw(b"[]")
    """`CaseMetadata`, decoded on first use."""

    def case_list(self) -> list[CaseMetadata]:
        """Decode the cases: a query that reads no case property need not."""
        return _CASES.decode(self.cases)


_CASES = msgspec.json.Decoder(list[CaseMetadata])
_FACTS = msgspec.json.Decoder(RunFacts)


class StoredMetadata(NamedTuple):
    """Facts read from a run folder, and whether results.parquet contains all of its journal.

    A Parquet file that changed though the journal did not is `damaged`: Proctor did not write it.
    So is a journal that became shorter (`shortened`): Proctor only appends.
    """

    facts: RunFacts
    parquet_is_current: bool
    damaged: bool = False
    shortened: bool = False


def read_facts(run: Path) -> StoredMetadata | None:
    """Read the facts of a run; None when there are no valid ones."""
    base = str(run)
    try:
        with open(f"{base}/{NAME}", "rb") as file:  # noqa: PTH123 (once per run: pathlib is slower)
            facts = _FACTS.decode(file.read())
    except (OSError, msgspec.MsgspecError):
        return None
    if facts.version != VERSION or not _file_state(f"{base}/_spec_.yaml", facts.spec).same:
        return None
    journal = _file_state(f"{base}/trials.jsonl", facts.journal, tail=True)
    parquet = _file_state(f"{base}/results.parquet", facts.parquet, tail=True)
    # If only the journal has another time, it was changed in place, perhaps before the end that
    # identifies it. In a copied folder the Parquet file has another time as well.
    same = journal.same and (journal.same_time or not parquet.same_time)
    if not parquet.same:
        # Resuming a run writes to its journal first, so an outdated Parquet file is expected then.
        return StoredMetadata(facts, False, same and parquet.exists, journal.shorter)
    # Without a journal (deleted to free space) the Parquet file is all there is.
    return StoredMetadata(facts, same or not journal.exists, shortened=journal.shorter)


class _FileState(NamedTuple):
    """A file compared with its stamp."""

    exists: bool
    same: bool = False
    same_time: bool = False
    shorter: bool = False


def _file_state(path: str, stamp: Stamp | None, *, tail: bool = False) -> _FileState:
    """Compare a file with its stamp."""
    try:
        now = os.stat(path)  # noqa: PTH116 (once per file of every run: pathlib is slower)
    except OSError:
        return _FileState(exists=False)
    if stamp is None or now.st_size != stamp.size:
        return _FileState(exists=True, shorter=stamp is not None and now.st_size < stamp.size)
    if now.st_mtime_ns == stamp.mtime_ns:
        return _FileState(exists=True, same=True, same_time=True)
    # A copied folder has other times, so the content decides.
    return _FileState(exists=True, same=_digest(Path(path), tail) == stamp.sha256)


def _digest(path: Path, tail: bool) -> str | None:
    try:
        with path.open("rb") as file:
            # A journal may have gigabytes, but it only grows: its length and its end identify it.
            if tail:
                file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL))
            return hashlib.sha256(file.read()).hexdigest()
    except OSError:
        return None


def stamp_of(path: Path, *, tail: bool = False) -> Stamp | None:
    """Return the current stamp of a file; None when it does not exist."""
    digest = _digest(path, tail)
    if digest is None:
        return None
    now = path.stat()
    return Stamp(now.st_size, now.st_mtime_ns, digest)


def facts_of_spec(spec: Mapping[str, Any]) -> RunFacts:
    """Read the facts from the spec."""
    suite = as_mapping(spec.get("suite"))
    written = {
        str(case.get("id")): case
        for case in map(as_mapping, cast("list[Any]", suite.get("cases") or ()))
    }
    cases: dict[str, CaseMetadata] = {}
    for cell in map(as_mapping, cast("list[Any]", spec.get("cells") or ())):
        name = str(cell.get("case"))
        about = written.get(name, {})
        # A case has one cell for each agent and set of parameters; the first is as good as any.
        if name not in cases:
            cases[name] = CaseMetadata(
                id=name,
                tags=tuple(str(tag) for tag in about.get("tags") or ()),
                difficulty=as_text(about.get("difficulty")),
                type=as_text(about.get("type")),
                properties=dict(as_mapping(about.get("properties"))),
                threshold=cell.get("threshold"),
                asked=cell.get("trials"),
            )
    provenance = as_mapping(spec.get("provenance"))
    git = as_mapping(provenance.get("git"))
    agents = as_mapping(spec.get("agents"))
    return RunFacts(
        format=int(spec["format"]),
        run_id=str(spec.get("run_id") or ""),
        name=str(spec.get("name") or ""),
        created=as_text(spec.get("created")),
        stopped=as_text(spec.get("stopped")),
        host=as_text(provenance.get("host")),
        user=as_text(provenance.get("user")),
        commit=as_text(git.get("commit")),
        agents={
            str(name): AgentFacts(
                as_text(as_mapping(config).get("kind")),
                model if isinstance(model := as_mapping(config).get("model"), str) else None,
            )
            for name, config in agents.items()
        },
        # `str` for values of YAML that JSON does not have, such as dates.
        cases=msgspec.Raw(msgspec.json.encode([*cases.values()], enc_hook=str)),
    )


# -- writing -------------------------------------------------------------------------------------


def write_facts(run: Run) -> None:
    """Write the facts of a run whose results.parquet was just written; needs the lock."""
    from proctor.files import write_atomic
    from proctor.runs.parquet import COLUMNS

    folder = run.folder
    stopped = {c.cell: (c.trials, c.early_stop) for c in run.cells if c.early_stop is not None}
    facts = msgspec.structs.replace(
        facts_of_spec(run.spec),
        spec=stamp_of(folder.spec_path),
        journal=stamp_of(folder.journal_path, tail=True),
        parquet=stamp_of(folder.parquet_path, tail=True),
        columns=tuple(COLUMNS),
        stopped_early=_stopped_rows(run, stopped) if stopped else (),
        damaged=run.damaged,
    )
    write_atomic(folder.path / NAME, msgspec.json.encode(facts) + b"\n")


def _stopped_rows(run: Run, stopped: Mapping[CellKey, tuple[int, str]]) -> tuple[StoppedRows, ...]:
    """Return the rows of results.parquet of each cell that stopped early, after how many trials.

    Rows of a cell are contiguous, in plan order, so each cell has one range.
    """
    import duckdb

    from proctor.runs.trial import CellKey, params_key

    query = """
        SELECT "case", agent, params::VARCHAR, min(file_row_number), count(*),
               max(file_row_number) - min(file_row_number) + 1
        FROM read_parquet(?, file_row_number = true) GROUP BY ALL
    """
    with duckdb.connect() as connection:
        rows = connection.execute(query, [as_glob(run.folder.parquet_path)]).fetchall()
    ranges: list[StoppedRows] = []
    for case, agent, params, first, count, span in rows:
        decoded = cast("dict[str, Any]", msgspec.json.decode(params)) if params else {}
        used, reason = stopped.get(CellKey(case, agent, params_key(decoded)), (0, None))
        if reason is None:
            continue
        if span != count:
            raise ProctorError(
                "the rows of a cell are not contiguous", where=str(run.folder.parquet_path)
            )
        start = int(first)
        ranges.append(StoppedRows(start, start + min(used, count), start + int(count), reason))
    return tuple(sorted(ranges))


def as_glob(path: Path | str) -> str:
    """Escape a path for DuckDB, which reads paths as patterns."""
    return "".join(f"[{c}]" if c in "[*?" else c for c in str(path))


def finalise(
    folder: RunFolder,
    spec: dict[str, Any] | None = None,
    finished: Sequence[Trial] | None = None,
    *,
    in_order: bool = False,
) -> Run:
    """Write the derived files of a run, in their order, and return it for reading.

    Journal and spec are only read, so it can be repeated at any time. What the caller knows
    already need not be read: see `Run` and `write_parquet`.
    """
    from proctor.runs.parquet import parquet_in_background, write_summaries
    from proctor.runs.run import Run

    run = Run(folder.path, spec=spec, finished=finished)
    about = {key: run.spec.get(key) for key in ("run_id", "name", "created", "stopped")}
    # The Parquet file takes longest, so the summaries are written at the same time.
    with parquet_in_background(folder, in_order=in_order):
        write_summaries(folder, run.cells, about)
    # Last: its stamps are of the files written before.
    write_facts(run)
    return run
