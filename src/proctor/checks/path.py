"""Layer 2, path: did the agent go about it well? A failure warns, except a forbidden tool.

Every check is a field of `PathChecks` and a function of the same name. What has no reference to
be held against (no baseline, no expected tools) is skipped with the reason, never passed.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, NamedTuple

from pydantic import BeforeValidator, Field, field_validator

from proctor.checks.fields import Bound, Count, Name, Names, Share, refused
from proctor.checks.metrics.arguments import ArgumentMode
from proctor.checks.metrics.matching import MatchMode
from proctor.checks.quality_model import DIMENSIONS
from proctor.errors import did_you_mean
from proctor.schema import Strict
from proctor.trace import SpanQuery, TraceQuery, parse_query


class ExpectedCall(Strict):
    """A call the agent should make."""

    tool: Name
    """The tool."""
    arguments: dict[str, Any] | None = None
    """Its arguments; any will do when absent."""


def _call(value: Any) -> Any:
    return {"tool": value} if isinstance(value, str) else value


Expected = Annotated[
    ExpectedCall, BeforeValidator(_call, json_schema_input_type=str | ExpectedCall)
]


class SpanCheck(NamedTuple):
    """A query over all spans of a trace, under the name its result goes by."""

    id: str | None
    query: TraceQuery


def read_span_check(entry: Mapping[str, Any]) -> SpanCheck:
    """A trace query, or a span query that some span must match; `id` names the result."""
    rest = dict(entry)
    name = rest.pop("id", None)
    query = parse_query(rest)
    if isinstance(query, SpanQuery):
        query = TraceQuery.parse({"any": query})
    return SpanCheck(None if name is None else str(name), query)


class PathChecks(Strict):
    """Did the agent go about it well? A failure warns, except for `forbidden_tools`."""

    expected_tools: tuple[Expected, ...] | None = None
    """Tools the agent should call, by name or as {tool, arguments}, matched by `match_mode`."""
    match_mode: MatchMode = "superset"
    """How calls are matched: strict, unordered, superset, subset or in_order."""
    arguments: (
        ArgumentMode | dict[Name, ArgumentMode | Annotated[tuple[Name, ...], Field(min_length=1)]]
    ) | None = None
    """How arguments are compared, for all tools or per tool (`*` for the others): exact, ignore,
    subset, superset, or the dotted paths to compare."""
    forbidden_tools: Names | None = None
    """Tools that must not be called; `*` stands for any characters. A failure always blocks."""
    max_tool_calls: Count | None = None
    """The most tool calls."""
    max_loops: Count | None = None
    """The most calls of a tool directly after itself."""
    min_tool_recall: Share | None = None
    """The least share of expected tools that must be used."""
    min_tool_precision: Share | None = None
    """The least share of used tools that must be expected."""
    min_sequence_similarity: Share | None = None
    """The least 2·|LCS|/(|A|+|B|) with the baseline's tool sequence, else with expected_tools."""
    min_edit_similarity: Share | None = None
    """The least 1 − edit distance / longer length with the baseline's tool sequence, else with
    expected_tools."""
    expected_handoff: Names | None = None
    """Agents that must be handed over to."""
    expected_handoffs_available: Names | None = None
    """Agents the models must have been offered as targets of a handoff."""
    max_handoff_count: Count | None = None
    """The most handoffs."""
    spans: Annotated[tuple[dict[str, Any], ...], Field(min_length=1)] | None = None
    """Queries over the spans of the trace: any, all, none, count, before, after."""
    quality: dict[str, Bound] | None = None
    """Bounds on quality dimensions, such as `efficiency: '>= 0.8'`; also `overall`."""
    blocking: bool = False
    """Whether a failure makes the trial a hard failure."""

    @field_validator("spans")
    @classmethod
    def _queries(cls, spans: tuple[dict[str, Any], ...] | None) -> Any:
        with refused():
            for entry in spans or ():
                read_span_check(entry)
        return spans

    @field_validator("quality")
    @classmethod
    def _dimensions(cls, quality: dict[str, str] | None) -> dict[str, str] | None:
        known = (*DIMENSIONS, "overall")
        for name in quality or ():
            if name not in known:
                hint = did_you_mean(name, known) or f"one of {', '.join(known)}"
                raise ValueError(f"unknown quality dimension {name!r} ({hint})")
        return quality

    @cached_property
    def span_checks(self) -> tuple[SpanCheck, ...]:
        """`spans`, read."""
        return tuple(read_span_check(entry) for entry in self.spans or ())
