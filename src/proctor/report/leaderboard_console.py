"""A leaderboard for a terminal: places, intervals, cost, latency, and what tells agents apart."""

from __future__ import annotations

from collections.abc import Iterator

import click

from proctor.report.figures import METRIC_WORDS, change, ends, figure, named
from proctor.report.run_words import places
from proctor.report.text import line, seconds
from proctor.results.leaderboard import Leaderboard, Row
from proctor.words import DASH, level_of, money, p_text, percent, plural, table

MOST_PAIRS = 10
"""Paired tests told to people: those of five agents."""


def render(board: Leaderboard) -> str:
    """The whole leaderboard."""
    return "\n".join(_lines(board))


def _lines(board: Leaderboard) -> Iterator[str]:
    level = level_of(board.level)
    metric = METRIC_WORDS[board.metric]
    yield click.style(f"Agents by {metric}", bold=True)
    head = ("place", "agent", metric, level, "passed", "score", "cost", "p50", "p95")
    yield from table(head, [_row(row, board.metric) for row in board.rows])
    yield ""
    first = board.rows[0] if board.rows else None
    if first is not None:
        yield f"  {first.value.estimand}: {first.value.method}"
    shared = plural(board.shared_cases, "case")
    if board.reason:
        yield f"  no places: {line(board.reason)}"
    elif first is not None:
        yield f"  places: {board.method}, alpha {board.alpha:g}, on {shared} all ranked agents have"
    tested = [pair for pair in board.pairs if pair.adjusted is not None]
    for pair in tested[:MOST_PAIRS]:
        told = "apart" if (pair.adjusted or 0.0) <= board.alpha else "not told apart"
        yield (
            f"  {line(pair.second, 60)} − {line(pair.first, 60)}:"
            f" {change(board.metric, pair.test.difference)},"
            f" p Holm {p_text(pair.adjusted)}, {told}"
        )
    if len(tested) > MOST_PAIRS:
        yield f"  and {len(tested) - MOST_PAIRS} more pairs (--json has all)"
    if board.left_out:
        yield f"Not ranked on: {plural(len(board.left_out), 'case')}"
        yield from named(board.left_out)
    yield from _remarks(board)


def _row(row: Row, metric: str) -> tuple[str, ...]:
    return (
        places(row.best, row.worst),
        line(row.name, 60),
        figure(metric, row.value.value),
        ends(metric, row.value),
        f"{row.passes}/{row.trials}" if metric == "pass_rate" else percent(row.pass_rate.value),
        figure("score", row.score.value),
        money(row.cost_usd, row.unpriced_calls) or DASH,
        seconds(row.latency_p50_ms) or DASH,
        seconds(row.latency_p95_ms) or DASH,
    )


def _remarks(board: Leaderboard) -> Iterator[str]:
    for row in board.rows:
        if row.value.reason:
            yield f"{line(row.name, 60)}: no interval: {line(row.value.reason)}"
        if row.not_counted:
            yield f"Not counted of {line(row.name, 60)}: {line('; '.join(row.not_counted))}"
    for note in board.notes:
        yield f"note: {line(note)}"
