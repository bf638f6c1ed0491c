"""Where a suite keeps its baselines, and which baseline a case is held against."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from proctor.runs.baselines import BaselineStore, spec_hash
from proctor.spec import Configuration, Suite, load_configuration
from proctor.trace import Trace

HASHED = (
    *("input", "threshold", "correctness", "path", "cost"),
    *("checks", "assertions", "weights", "required"),
)
"""What makes a case the case it is: what is asked, and what is checked. Not its tags or trials."""


def store_of(suite: Suite, configuration: Configuration | None = None) -> BaselineStore:
    """The baselines of a suite: where it says, else where the settings say, else beside it."""
    if "baselines" not in suite.model_fields_set:
        configured = (configuration or load_configuration(suite.folder)).baselines
        if configured is not None:
            return BaselineStore(configured)
    return BaselineStore(suite.folder / Path(suite.baselines).expanduser())


def baseline_for(suite: Suite, case_id: str, agent_name: str) -> Trace | None:
    """What the agent did for a case when it was last saved; None when it never was."""
    return _newest(store_of(suite), case_id, agent_name)


def baselines_in(
    folder: Path, cases: Iterable[str], agents: Iterable[str]
) -> dict[str, dict[str, Trace]]:
    """Case id → agent → what that agent did for the case when it was last saved."""
    store, names = BaselineStore(folder), list(agents)
    if not store.root.is_dir():
        return {}
    saved: dict[str, dict[str, Trace]] = {}
    for case in cases:
        for agent in names:
            if (trace := _newest(store, case, agent)) is not None:
                saved.setdefault(case, {})[agent] = trace
    return saved


def _newest(store: BaselineStore, case_id: str, agent_name: str) -> Trace | None:
    problems: list[str] = []
    found = store.load(agent_name, case_id, problems=problems)
    for problem in problems:
        logging.getLogger("proctor").warning("%s; skipped", problem)
    return None if found is None else found.trace


def hashes_of(suite: Suite) -> dict[str, str]:
    """Case id → SHA-256 of the case as resolved; secrets in it are the references they were."""
    written: list[dict[str, Any]] = suite.resolved()["cases"]
    return {
        case.id: spec_hash({key: raw[key] for key in HASHED if key in raw})
        for case, raw in zip(suite.cases, written, strict=True)
    }
