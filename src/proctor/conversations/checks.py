"""Checks of conversations: of one turn, of the tools' final data, of approvals, of the user.

All of them read the trace alone, so a recorded conversation is judged as a live one.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from proctor.agents.session import (
    APPROVAL_TOOL,
    APPROVED,
    DATABASES,
    ApprovalRule,
    GoldCall,
    StateConfig,
    quoted,
    writes,
)
from proctor.checks import JMESPath
from proctor.checks.base import (
    Check,
    CheckContext,
    CheckResult,
    Layer,
    Metric,
    Names,
    Results,
    compile_expression,
    failed,
    not_judged,
    passed,
    refused,
    unobserved,
)
from proctor.conversations.play import STATE, fidelity
from proctor.formatting import and_more
from proctor.strict import Strict
from proctor.trace import SpanKind, Trace
from proctor.trace.model import CONVERSATION, TURN

SHOWN = 3
"""Differences of a state that a reason names; `actual` has them all."""


# -- turns ---------------------------------------------------------------------------------------


def turn_of(trace: Trace, number: int) -> Trace | None:
    """Return the part of a trace that is one turn, from 1; None if there was none."""
    found = trace.first(lambda node: node.attributes.get(TURN) == number)
    if found is None:
        return None
    spans = [found.span, *(node.span for node in found.descendants)]
    response = str(found.span.output or "")
    part = Trace(trace_id=trace.trace_id, spans=spans, query=found.span.input, response=response)
    part.observe(*trace.observes)
    return part


class TurnCheck(Check):
    """A check of one turn: its answer, its tool calls, its cost.

    Example: `TurnCheck(turn=2, inner=Contains("W-1001"))`.
    """

    turn: int = Field(ge=1)
    inner: Check

    @property
    def layer(self) -> Layer:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The layer of the check."""
        return self.inner.layer

    @property
    def judged(self) -> bool:
        """Whether it calls a model."""
        return self.inner.judged

    def evaluate(self, ctx: CheckContext[Any], /) -> Any:
        """Judge the turn as if it were a trial."""
        part = turn_of(ctx.trace, self.turn)
        if part is None:
            about: Mapping[str, Any] = ctx.trace.metadata.get(CONVERSATION) or {}
            why = about.get("ended") or "there is no such turn in the trace"
            return failed(f"the conversation ended before turn {self.turn}: {why}")
        case = ctx.case.model_copy(update={"input": part.query})
        here = CheckContext[Any](case, part, str(part.response or ""), None, ctx.judges)
        return unobserved(part, *self.inner.needs) or self.inner.evaluate(here)


def turn_check(turn: int, check: Check) -> TurnCheck:
    """Return a check that judges only one turn; it keeps its weight and whether it blocks."""
    return TurnCheck(
        turn=turn,
        inner=check,
        id=f"turn{turn}.{check.id or check.check}",
        kind=check.check,
        weight=check.counted,
        required=check.blocking,
    )


class UserFidelity(Check):
    """Record how many messages of the simulated user had no fault."""

    name: ClassVar[str] = "user_fidelity"

    def evaluate(self, ctx: CheckContext[Any], /) -> CheckResult:
        """Return the share as a metric."""
        about: Mapping[str, Any] = ctx.trace.metadata.get(CONVERSATION) or {}
        share = fidelity(about)
        if share is None:
            return not_judged("unobserved", "the trace has no simulated user")
        total, bad = about["user_messages"], about["rejected_messages"]
        return Metric(
            share, f"{total - bad} of {total} messages of the user without a fault"
        ).result()


# -- the final data of the tools ------------------------------------------------------------------


class StateQuery(Strict):
    """A query over the final database, and the rows it must give."""

    query: str = Field(min_length=1)
    rows: list[list[Any]]


class StateCheck(Check):
    """What the tools' data must be at the end.

    Example: `StateCheck(writes={"orders.W-1001.status": "cancelled"})`.
    """

    name: ClassVar[str] = "state"

    equals: Any = None
    """The whole final state."""
    writes: dict[str, Any] | None = None
    """Every change by dotted path, and no other; null is a removal."""
    jmespath: dict[str, Any] = Field(default_factory=dict[str, Any])
    """JMESPath over the final state → the value it must have."""
    sql: tuple[StateQuery, ...] = ()
    """Queries over a final database."""
    gold: tuple[GoldCall, ...] | None = None
    """Calls that solve the task: the final state must be the one they lead to."""

    @model_validator(mode="after")
    def _has_condition(self) -> StateCheck:
        if not self.model_fields_set & {"equals", "writes", "jmespath", "sql", "gold"}:
            raise ValueError("write one of equals, writes, jmespath, sql, gold")
        with refused():
            for path in self.jmespath:
                compile_expression(path)
        return self

    def evaluate(self, ctx: CheckContext[Any], /) -> Results:
        """Judge the final state by each condition."""
        found = ctx.trace.metadata.get(STATE)
        if found is None:
            return not_judged("unobserved", "the trace does not hold the state of the tools")
        final, made = found["final"], found["writes"]
        results: dict[str, CheckResult] = {}
        if "equals" in self.model_fields_set:
            results["equals"] = _compared(self.equals, final)
        if self.writes is not None:
            results["writes"] = _same_writes(self.writes, made)
        if self.gold is not None:
            config: StateConfig = ctx.case.state
            reached = config.play(self.gold, ctx.case.folder)
            results["gold"] = _compared(reached, final)
        for path, value in self.jmespath.items():
            results[path] = JMESPath(path, eq=value).judge(final)
        for number, condition in enumerate(self.sql, 1):
            results[f"sql{number}"] = _queried(condition, found)
        return results


def _compared(expected: Any, final: Any) -> CheckResult:
    differences = writes(expected, final)
    if not differences:
        return passed("the final state is as expected")
    shown = and_more(list(differences.items()), SHOWN, lambda pair: f"{pair[0]} is {pair[1]!r}")
    # Only what differs: a whole database would hide it.
    wanted = writes(final, expected)
    return failed(f"the final state differs: {shown}", expected=wanted, actual=differences)


def _same_writes(expected: dict[str, Any], made: dict[str, Any]) -> CheckResult:
    missing = [path for path in expected if path not in made]
    extra = [path for path in made if path not in expected]
    wrong = [path for path in expected if path in made and made[path] != expected[path]]
    if not (missing or extra or wrong):
        return passed(f"the {len(made)} expected writes and no other", actual=made)
    parts = (("missing", missing), ("extra", extra), ("wrong", wrong))
    found = "; ".join(f"{what}: {and_more(paths, SHOWN, str)}" for what, paths in parts if paths)
    return failed(found, expected=expected, actual=made)


def _queried(condition: StateQuery, recorded: Mapping[str, Any]) -> CheckResult:
    """Run a query over the tables of a recorded state."""
    database = sqlite3.connect(":memory:")
    try:
        for statement in recorded.get("schema", ()):
            database.execute(statement)
        for table, rows in recorded["final"].items():
            # Without the generated columns, which cannot be inserted.
            about = database.execute(f"pragma table_info({quoted(table)})").fetchall()
            names = [column[1] for column in about]
            listed, marks = ", ".join(map(quoted, names)), ", ".join("?" * len(names))
            database.executemany(
                f"insert into {quoted(table)} ({listed}) values ({marks})",  # noqa: S608 (quoted)
                [[row[name] for name in names] for row in rows.values()],
            )
        rows = [list(row) for row in database.execute(condition.query).fetchall()]
    except sqlite3.Error as error:
        return not_judged("unobserved", f"the query cannot be run: {error}")
    finally:
        database.close()
    right = rows == condition.rows
    reason = f"{len(rows)} rows" + (
        " as expected" if right else f": {rows!r}, not {condition.rows!r}"
    )
    return CheckResult(passed=right, reason=reason, expected=condition.rows, actual=rows)


# -- approvals -----------------------------------------------------------------------------------


class ApprovalsCheck(Check):
    """Which tools asked for approval, and what the answers were.

    Example: `ApprovalsCheck(requested=["cancel_order"], denied=["cancel_order"])`.
    """

    name: ClassVar[str] = "approvals"

    requested: Names | None = None
    """Exactly these tools asked for approval, in any order."""
    approved: Names | None = None
    denied: Names | None = None

    def evaluate(self, ctx: CheckContext[Any], /) -> CheckResult:
        """Judge the requests."""
        spans = [
            span
            for span in ctx.trace.spans
            if span.kind is SpanKind.GUARDRAIL and APPROVAL_TOOL in span.attributes
        ]
        found = {
            "requested": {span.attributes[APPROVAL_TOOL] for span in spans},
            "approved": {s.attributes[APPROVAL_TOOL] for s in spans if s.attributes.get(APPROVED)},
            "denied": {
                s.attributes[APPROVAL_TOOL] for s in spans if s.attributes.get(APPROVED) is False
            },
        }
        ids = tuple(span.span_id for span in spans)
        for kind, actual in found.items():
            wanted = getattr(self, kind)
            if wanted is not None and set(wanted) != actual:
                shown = ", ".join(sorted(actual)) or "none"
                return failed(
                    f"{kind}: {shown}, not {', '.join(wanted) or 'none'}",
                    expected=list(wanted),
                    actual=sorted(actual),
                    span_ids=ids,
                )
        return passed(f"{len(spans)} requests for approval, as expected", span_ids=ids)


class StateOptions(StateConfig):
    """The data that tools share, and what it must be at the end."""

    expect: StateCheck | None = None

    @model_validator(mode="after")
    def _can_be_checked(self) -> StateOptions:
        if self.expect is not None and self.expect.gold and self.tools is None:
            raise ValueError("`gold` needs the functions of the tools: add `tools: MODULE`")
        database = self.sql or (self.file or "").endswith(DATABASES)
        if self.expect is not None and self.expect.sql and not database:
            raise ValueError(
                "`sql` needs a database as the state: `sql`, or a .sql or .sqlite file"
            )
        return self


class ApprovalOptions(Strict):
    """Who approves tool calls, and which requests there must be."""

    rules: tuple[ApprovalRule, ...] = ()
    """The first rule that fits answers."""
    otherwise: Literal["no", "user"] = "no"
    """Who answers where no rule fits: the simulated user (a model), or nobody, which is no."""
    expect: ApprovalsCheck | None = None
