"""`proctor.results.query`: trials of any number of runs, finished or running.

    import proctor.results
    print(proctor.results.query(agent="careful", since="7d").pass_rate())

There is no index that could go stale: folders are looked at when the question is asked.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Unpack

from proctor.results.discover import discover
from proctor.results.result_set import ResultSet
from proctor.results.selection import Filters, conditions
from proctor.results.view import View
from proctor.runs.remote.address import is_address


def query(
    *runs: str | Path,
    run: str | Path | Sequence[str | Path] | None = None,
    root: str | Path | None = None,
    **filters: Unpack[Filters],
) -> ResultSet:
    """Select trials below `root` (`$PROCTOR_RESULTS`, else `results` in the current folder).

    `root` may be an address such as `s3://bucket/prefix`.

    `runs` (or `run=`) are globs over the names, experiments, ids or tags of runs, or paths of run
    folders; without any, all runs are meant. See `Filters` for the rest: what is given must all
    hold. Folders that cannot be read are named in `ResultSet.problems` and left out.
    """
    selected = conditions(filters)
    asked = [run] if isinstance(run, str | Path) else list(run or ())
    patterns = [str(one) for one in (*runs, *asked)]
    return ResultSet(View(discover(_folder(root), patterns)), selected)


def _folder(root: str | Path | None) -> Path:
    """The folder of runs that is meant; of an address, a copy of what queries read there."""
    meant = root if root is not None else os.environ.get("PROCTOR_RESULTS") or "results"
    if not is_address(str(meant)):
        return Path(meant)
    from proctor.runs.remote.mirror import mirrored

    here, problems = mirrored(str(meant))
    for problem in problems:
        warnings.warn(problem, stacklevel=3)
    return here
