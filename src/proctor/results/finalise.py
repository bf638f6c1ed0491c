"""Make a run ready to be read: the one place that knows all its derived files and their order.

Promise: the journal and the spec are only read, so it can be done again at any time.
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
    """Write the derived files of a run and give it back for reading.

    What the caller knows already need not be read: see `Run` and `write_parquet`.
    """
    run = Run(folder.path, spec=spec, finished=finished)
    about = {key: run.spec.get(key) for key in ("run_id", "name", "created", "stopped")}
    with parquet_meanwhile(folder, in_order=in_order):
        write_summaries(folder, run.cells, about)
    write_facts(run)
    return run
