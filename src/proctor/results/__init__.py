"""Query the results of any number of runs as objects.

    import proctor
    found = proctor.results.query(agent="careful", since="7d")
    found.pass_rate(), found.group_by("difficulty").rows, found.to_pandas()

`query` is defined in `proctor.api`, which finds the results folder. Names are imported on first
use, so that importing this package is cheap.
"""

from typing import TYPE_CHECKING

from proctor._lazy import imported_when_used

if TYPE_CHECKING:
    from proctor.api import query
    from proctor.results.compare import Comparison
    from proctor.results.gate import GateResult
    from proctor.results.leaderboard import Leaderboard
    from proctor.results.power import Planning
    from proctor.results.result_set import Groups, ResultSet

__all__ = [
    "Comparison",
    "GateResult",
    "Groups",
    "Leaderboard",
    "Planning",
    "ResultSet",
    "query",
]

# Public name → the module that defines it.
_HOME_OF = {
    "Comparison": "proctor.results.compare",
    "GateResult": "proctor.results.gate",
    "Groups": "proctor.results.result_set",
    "Leaderboard": "proctor.results.leaderboard",
    "Planning": "proctor.results.power",
    "ResultSet": "proctor.results.result_set",
    "query": "proctor.api",
}

if not TYPE_CHECKING:  # without this guard a type checker would accept any name
    __getattr__, __dir__ = imported_when_used(__name__, _HOME_OF, globals())
