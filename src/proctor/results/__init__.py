"""Results of any number of runs: queried, counted, exchanged.

    import proctor.results
    found = proctor.results.query(agent="careful", since="7d")
    found.pass_rate(), found.group_by("difficulty").rows, found.to_pandas()

Names are imported when first used: nothing heavy is loaded before a question is asked.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from proctor.results.query import query
    from proctor.results.result_set import Groups, ResultSet
    from proctor.results.verbs import compare, gate, plan, rank

__all__ = ["Groups", "ResultSet", "compare", "gate", "plan", "query", "rank"]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Import a public name from its home (PEP 562)."""
        homes = {"query": "query", "ResultSet": "result_set", "Groups": "result_set"}
        homes |= dict.fromkeys(("compare", "gate", "plan", "rank"), "verbs")
        if name not in homes:
            raise AttributeError(f"module 'proctor.results' has no attribute {name!r}")
        import importlib

        value = getattr(importlib.import_module(f"proctor.results.{homes[name]}"), name)
        globals()[name] = value
        return value
