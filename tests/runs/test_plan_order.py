"""Trials in plan order with bounded memory: the same as the index of a journal in memory."""

from pathlib import Path
from random import Random

import pytest

from proctor.runs import plan_order
from proctor.runs.journal import Journal, JournalIndex, Sync
from proctor.runs.plan_order import OrderedJournal, row_order
from proctor.runs.trial import CellKey, Spending, Trial, TrialStatus


@pytest.mark.parametrize("in_memory", [10_000, 7])
def test_the_order_of_the_plan_with_repeated_trials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_memory: int
) -> None:
    """R-N8: whatever order trials finish in, and however many fit into memory, each counts once."""
    monkeypatch.setattr(plan_order, "IN_MEMORY", in_memory)
    random = Random(3)
    statuses = [TrialStatus.PASSED, TrialStatus.FAILED, TrialStatus.INFRA_ERROR]
    trials = [
        Trial(
            case=f"c{random.randrange(9)}",
            agent=random.choice("ab"),
            index=random.randrange(3),
            seed=1,
            axis_seed=random.choice([None, 4]),
            params=random.choice([{}, {"t": 1}]),
            status=random.choice(statuses),
            cost_usd=random.choice([None, 0.5]),
            llm_calls=1,
        )
        for _ in range(300)
    ]
    path = tmp_path / "trials.jsonl"
    journal = Journal(path, sync=Sync.NEVER)
    journal.extend(trials)
    journal.close()
    index, ordered = JournalIndex(path), OrderedJournal(path)
    assert len(index.lines) < len(trials)
    assert list(ordered.trials()) == sorted(index.trials(), key=row_order)
    assert ordered.lines == {key: line for key, line in index.lines.items() if line.attempts > 1}
    spent: dict[CellKey, Spending] = {}
    for trial in ordered.trials():
        spent.setdefault(trial.cell, Spending()).add(trial)
    for cell, more in ordered.more_spent.items():
        spent[cell].add(more)
    assert spent == index.spent
    with path.open("rb") as file:
        lines = sorted(index.lines.values(), key=row_order)
        assert list(ordered.texts()) == [line.copied(file) for line in lines]
