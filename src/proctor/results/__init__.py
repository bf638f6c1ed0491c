"""Results of any number of runs: queried, counted, exchanged.

    import proctor.results
    found = proctor.results.query(agent="careful", since="7d")
    found.pass_rate(), found.group_by("difficulty").rows, found.to_pandas()

Names are imported when first used: nothing heavy is loaded before a question is asked.
"""

from typing import TYPE_CHECKING

from proctor.names import imported_when_used

if TYPE_CHECKING:
    from proctor.results.querying import query
    from proctor.results.result_set import Groups, ResultSet
    from proctor.results.verbs import compare, gate, plan, rank

__all__ = ["Groups", "ResultSet", "compare", "gate", "plan", "query", "rank"]

if not TYPE_CHECKING:  # else a type checker would believe that any name exists
    _ROOM = "proctor.results"
    __getattr__, __dir__ = imported_when_used(
        _ROOM,
        {
            "query": f"{_ROOM}.querying",
            **dict.fromkeys(("Groups", "ResultSet"), f"{_ROOM}.result_set"),
            **dict.fromkeys(("compare", "gate", "plan", "rank"), f"{_ROOM}.verbs"),
        },
        globals(),
    )
