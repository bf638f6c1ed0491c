"""Trials of a run that is still being written, read from its journal.

Promise: the same trials `Run.trials()` gives, each once, its last attempt, torn and foreign lines
dropped and named. The file is only read, up to where it ends at that moment: a run in progress
is neither blocked nor waited for.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from proctor.errors import ProctorError
from proctor.results.columns import COLUMNS, KEPT, literal
from proctor.results.discover import JOURNAL, FoundRun
from proctor.results.facts import as_glob
from proctor.results.outcomes import observe
from proctor.runs.folder import RunFolder
from proctor.runs.model import CellKey, Trial, TrialStatus, params_key

if TYPE_CHECKING:
    import duckdb

TABLE = "live"

MIN_OBJECT = 1 << 20
"""Bytes DuckDB must be ready to find in one line, at least; its own minimum is smaller."""

_NEVER_NULL = {"attempt": 1, "llm_calls": 0, "unpriced_calls": 0, "tool_calls": 0, "retries": 0}
"""Counts that a journal leaves out when they have their default, and results.parquet does not."""


class Line(msgspec.Struct, gc=False):
    """What of a journal's line says which trial it is, whether it counts, and where it stands."""

    case: str
    agent: str
    index: int
    axis_seed: int | None
    status: TrialStatus
    score: float | None
    params: str
    offset: int
    length: int

    @property
    def cell(self) -> CellKey:
        """The cell the trial belongs to."""
        return CellKey(self.case, self.agent, self.params)


def create_table(connection: duckdb.DuckDBPyConnection) -> None:
    """The table the trials of live runs are put into."""
    kept = ", ".join(f'"{name}" {COLUMNS[name].kind}' for name in KEPT)
    connection.execute(f"CREATE TABLE {TABLE} (run_no BIGINT, counted BOOLEAN, {kept})")


def load(
    connection: duckdb.DuckDBPyConnection, run: FoundRun, number: int, problems: list[str]
) -> None:
    """Put the trials of one live run into the table."""
    journal = run.path / JOURNAL
    spec = RunFolder(run.path).read_spec()
    kinds = ", ".join(f"'{name}': '{COLUMNS[name].kind}'" for name in KEPT)
    picked = ", ".join(
        f'coalesce("{n}", {_NEVER_NULL[n]})' if n in _NEVER_NULL else f'"{n}"' for n in KEPT
    )
    with tempfile.TemporaryDirectory(prefix="proctor-") as place:
        lines = Path(place) / "lines.jsonl"
        longest = _write_counted(journal, lines, spec, problems)
        if not longest:
            return
        connection.execute(
            f"""
            INSERT INTO {TABLE} SELECT {number}, coalesce(counted, TRUE), {picked}
            FROM read_json({literal(as_glob(lines))}, format = 'newline_delimited',
                 columns = {{{kinds}, 'counted': 'BOOLEAN'}},
                 maximum_object_size = {max(MIN_OBJECT, longest + 32)})
            """  # noqa: S608 (names are constants, the path is ours and quoted)
        )


def _write_counted(
    journal: Path, target: Path, spec: Mapping[str, Any], problems: list[str]
) -> int:
    """The line that counts of each trial, marked when no figure needs it; the longest's length."""
    longest = 0
    try:
        file = journal.open("rb")
    except FileNotFoundError:  # begun, and nothing finished yet
        return 0
    except OSError as error:
        raise ProctorError(
            f"cannot read the journal: {error.strerror}", where=str(journal)
        ) from None
    with file, target.open("wb") as out:
        last: dict[tuple[Any, ...], Line] = {}
        for line in _lines(file, journal, problems):
            last[line.cell, line.axis_seed, line.index] = line
        for seen in observe(last.values(), spec):
            file.seek(seen.trial.offset)
            text = file.read(seen.trial.length)
            out.write(text if seen.counted else b'{"counted":false,' + text.lstrip()[1:])
            longest = max(longest, len(text))
    return longest


def _lines(file: Any, journal: Path, problems: list[str]) -> Iterator[Line]:
    decoder = msgspec.json.Decoder(Trial)
    offset = 0
    for number, line in enumerate(file, 1):
        try:
            if not line.endswith(b"\n"):
                raise msgspec.DecodeError("the line is torn")
            trial = decoder.decode(line)
        except msgspec.MsgspecError as error:
            problems.append(f"{journal}:{number}: dropped a line: {error}")
        else:
            yield Line(
                trial.case,
                trial.agent,
                trial.index,
                trial.axis_seed,
                trial.status,
                trial.score,
                params_key(trial.params),
                offset,
                len(line),
            )
        offset += len(line)


@contextlib.contextmanager
def named_problems(run: FoundRun, problems: list[str]) -> Generator[None]:
    """Turn what is wrong with one run into a line about it."""
    import duckdb

    try:
        yield
    except ProctorError as error:
        problems.append(f"{run.path}: skipped: {error.message}")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        why = f"its spec is not one of a run: {type(error).__name__}: {error}"
        problems.append(f"{run.path}: skipped: {why}")
    except duckdb.Error as error:
        problems.append(f"{run.path}: skipped: {str(error).splitlines()[0]}")
