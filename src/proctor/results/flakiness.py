"""How unsettled each case is: the agent, the judge and the infrastructure, each by itself.

Promise: three rates with their own denominators, never one label. A judge is only known to be
unsettled where it was asked more than once about one transcript (`votes`); else that is None.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import msgspec

from proctor.results.outcomes import AgentOutcomes, CaseOutcome
from proctor.runs.model import CellKey, Trial
from proctor.stats.flaky import (
    Flakiness,
    agent_flakiness,
    infrastructure_flakiness,
    judge_flakiness,
)

if TYPE_CHECKING:
    from proctor.runs.run import Run

Votes = Mapping[CellKey, Sequence[Sequence[bool]]]
"""By cell, for each question put to a judge: what each of its votes said."""


class CaseFlakiness(msgspec.Struct, frozen=True, kw_only=True):
    """One case put to one agent."""

    case: str
    agent: str
    params: str
    by_agent: Flakiness
    by_judge: Flakiness
    by_infrastructure: Flakiness

    @property
    def flaky(self) -> bool:
        """Whether anything about it is known to be unsettled."""
        return any(part.flaky for part in (self.by_agent, self.by_judge, self.by_infrastructure))

    @property
    def sources(self) -> tuple[str, ...]:
        """What is unsettled about it."""
        parts = (self.by_agent, self.by_judge, self.by_infrastructure)
        return tuple(part.source for part in parts if part.flaky)


def flakiness_of(arm: AgentOutcomes, votes: Votes | None = None) -> tuple[CaseFlakiness, ...]:
    """Every case of one agent; `flaky` says which of them to look at."""
    return tuple(_of_case(arm, case, votes or {}) for case in arm.cases)


def _of_case(arm: AgentOutcomes, case: CaseOutcome, votes: Votes) -> CaseFlakiness:
    said = votes.get(CellKey(case.case, arm.agent, arm.params), ())
    return CaseFlakiness(
        case=case.case,
        agent=arm.agent,
        params=arm.params,
        by_agent=agent_flakiness(case.passes, case.trials, case.infra),
        by_judge=judge_flakiness(said),
        by_infrastructure=infrastructure_flakiness(case.trials, case.infra),
    )


def judge_votes(run: Run) -> Votes:
    """What the votes of judges said in a run; empty, and cheap, where none was asked twice."""
    return votes_of(run.trials()) if _asks_judges(run.spec) else {}


def votes_of(trials: Iterable[Trial]) -> Votes:
    """The votes kept with the results of judged checks, by cell."""
    found: dict[CellKey, list[Sequence[bool]]] = defaultdict(list)
    for trial in trials:
        found[trial.cell].extend(_votes(trial))
    return {cell: votes for cell, votes in found.items() if votes}


def _votes(trial: Trial) -> Iterator[Sequence[bool]]:
    for result in trial.checks:
        actual: Any = result.actual
        held = cast("dict[str, Any]", actual) if isinstance(actual, dict) else {}
        votes = held.get("votes_passed")
        if isinstance(votes, list):
            yield [vote is True for vote in cast("list[Any]", votes)]


def _asks_judges(spec: Mapping[str, Any]) -> bool:
    suite = cast("dict[str, Any]", spec.get("suite") or {})
    settings = cast("dict[str, Any]", spec.get("settings") or {})
    return bool(suite.get("judge") or suite.get("judges") or settings.get("judge"))
