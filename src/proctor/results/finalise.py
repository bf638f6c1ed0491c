"""Write the derived files of a run: the one place that defines which and in what order.

Guarantees: the journal and the spec are only read, so this can be repeated at any time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from proctor.results.metadata import write_facts
from proctor.runs.folder import RunFolder
from proctor.runs.parquet import parquet_meanwhile, write_summaries
from proctor.runs.run import Run
from proctor.runs.trial import Trial


def finalise(
    folder: RunFolder,
    spec: dict[str, Any] | None = None,
    finished: Sequence[Trial] | None = None,
    *,
    in_order: bool = False,
) -> Run:
    """Write the derived files of a run and return it for reading.

    Arguments the caller already has are not read again: see `Run` and `write_parquet`.
    """
    run = Run(folder.path, spec=spec, finished=finished)
    about = {key: run.spec.get(key) for key in ("run_id", "name", "created", "stopped")}
    with parquet_meanwhile(folder, in_order=in_order):
        write_summaries(folder, run.cells, about)
    write_facts(run)
    return run
