"""The layers of a case as users write them: `correctness:`, `path:` and `cost:`.

Each key is one check; `checks()` builds the check objects, in the order they are judged. The
flat spelling of the same checks is `assertions.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, Field

from proctor.checks._answer import Contains, ContainsAny, Equals, Excludes, Matches, Patterns
from proctor.checks._cost import MaxCost, MaxCostRatio, MaxLatency, MaxLLMCalls, MaxTokens
from proctor.checks._structured import JMESPath, JSONSchema, Operators, Schema
from proctor.checks.base import (
    Check,
    Count,
    Limit,
    Names,
    PositiveNumber,
    Share,
    Text,
    Texts,
    grouped,
    listed,
)
from proctor.checks.judge_checks import (
    Grounded,
    HallucinationOptions,
    JudgeRule,
    LLMJudge,
    Safety,
    SafetyOptions,
)
from proctor.checks.metrics.matching import MatchMode
from proctor.checks.path import (
    ArgumentsRule,
    CountHandoffs,
    CountToolCalls,
    DimensionBounds,
    Expected,
    ExpectHandoffs,
    ExpectTools,
    ForbidTools,
    HandoffsAvailable,
    HasMatchingSpan,
    MaxLoops,
    MinEditSimilarity,
    MinSequenceSimilarity,
    MinToolPrecision,
    MinToolRecall,
    QualityBounds,
    SameArguments,
    SpanCondition,
)
from proctor.strict import Strict


class JmespathCheck(Operators):
    """A JMESPath expression over the trial, and conditions on its value."""

    id: str | None = None
    """A name for the result; the expression when absent."""


def _switch(value: Any) -> Any:
    # `false` is the same as leaving the key out, `true` means the defaults.
    if value is False:
        return None
    return {} if value is True else value


def _read_rule(value: Any) -> Any:
    return {"rule": value} if isinstance(value, str) else value


def written(options: BaseModel) -> dict[str, Any]:
    """Return the fields that were set: in some of them null differs from absent."""
    return {name: getattr(options, name) for name in options.model_fields_set}


Jmespaths = Annotated[
    tuple[JmespathCheck, ...],
    BeforeValidator(listed(), json_schema_input_type=JmespathCheck | list[JmespathCheck]),
]
JudgeRules = Annotated[
    tuple[JudgeRule, ...],
    BeforeValidator(
        listed(_read_rule),
        json_schema_input_type=str | JudgeRule | list[str | JudgeRule],
    ),
]


class Correctness(Strict):
    """Is the answer right? A failure here blocks."""

    expected_in_answer: Texts | None = None
    """Texts that must all be in the answer."""
    any_expected_in_answer: Texts | None = None
    """Texts of which at least one must be in the answer."""
    not_in_answer: Texts | None = None
    """Texts that must not be in the answer."""
    exact_match: Text | None = None
    """The whole answer, up to surrounding white space."""
    regex_match: Patterns | None = None
    """Regular expressions that must each be found somewhere in the answer."""
    json_schema: Schema | None = None
    """A JSON Schema the answer must be valid JSON for. References are never fetched."""
    jmespath: Jmespaths | None = None
    """JMESPath expressions over the trial, with conditions on their values."""
    llm_judge: JudgeRules | None = None
    """Rules by which an LLM judge scores the answer."""
    safety_check: Annotated[
        SafetyOptions | None,
        BeforeValidator(_switch, json_schema_input_type=bool | SafetyOptions | None),
    ] = None
    """Whether an LLM judge finds the answer safe: `true`, or options."""
    hallucination_check: Annotated[
        HallucinationOptions | None,
        BeforeValidator(_switch, json_schema_input_type=bool | HallucinationOptions | None),
    ] = None
    """Whether the answer is supported by what the agent read: `true`, or options."""
    case_sensitive: bool = False
    """Whether texts and patterns distinguish upper and lower case."""
    blocking: bool = True
    """Whether a failure makes the trial a hard failure."""

    def checks(self) -> list[Check]:
        """Build the checks; what calls a model comes last."""
        # In the documented order, which is the order of the results.
        texts: list[tuple[Callable[..., Check], Any]] = [
            (Contains, self.expected_in_answer),
            (ContainsAny, self.any_expected_in_answer),
            (Excludes, self.not_in_answer),
            (Equals, self.exact_match),
            (Matches, self.regex_match),
        ]
        found = [
            check(value, case_sensitive=self.case_sensitive)
            for check, value in texts
            if value is not None
        ]
        if self.json_schema is not None:
            found.append(JSONSchema(self.json_schema))
        if self.jmespath is not None:
            expressions = [JMESPath(**written(entry)) for entry in self.jmespath]
            paths = [entry.path for entry in self.jmespath]
            # The parts keep their ids; the group is named by its key.
            found.append(grouped(expressions, paths).with_(kind="jmespath", id=None))
        if self.llm_judge is not None:
            rules = [LLMJudge(**written(rule)) for rule in self.llm_judge]
            found.append(grouped(rules).with_(kind="llm_judge", id=None))
        if self.safety_check is not None:
            found.append(Safety(**written(self.safety_check)))
        if self.hallucination_check is not None:
            found.append(Grounded(**written(self.hallucination_check)))
        return [check.with_(required=self.blocking) for check in found]


class PathChecks(Strict):
    """Did the agent work well? A failure warns, except for `forbidden_tools`."""

    expected_tools: tuple[Expected, ...] | None = None
    """Tools the agent should call, by name or as {tool, arguments}, matched by `match_mode`."""
    match_mode: MatchMode = "superset"
    """How calls are matched: strict, unordered, superset, subset or in_order."""
    arguments: ArgumentsRule | None = None
    """How arguments are compared, for all tools or per tool (`*` for the others): exact, ignore,
    subset, superset, or the dotted paths to compare."""
    forbidden_tools: Names | None = None
    """Tools that must not be called; `*` matches any characters. A failure always blocks."""
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
    """Agents that must receive a handoff."""
    expected_handoffs_available: Names | None = None
    """Agents that must be available to the models as handoff targets."""
    max_handoff_count: Count | None = None
    """The most handoffs."""
    spans: Annotated[tuple[SpanCondition, ...], Field(min_length=1)] | None = None
    """Queries over the spans of the trace: any, all, none, count, before, after."""
    quality: DimensionBounds | None = None
    """Bounds on quality dimensions, such as `efficiency: '>= 0.8'`; also `overall`."""
    blocking: bool = False
    """Whether a failure makes the trial a hard failure."""

    def checks(self) -> list[Check]:
        """Build the checks."""
        found: list[Check] = []
        tools = None if self.expected_tools is None else [call.tool for call in self.expected_tools]
        mode = self.match_mode
        if self.expected_tools is not None:
            found.append(ExpectTools(self.expected_tools, match=mode, arguments=self.arguments))
        if self.arguments is not None:
            calls = self.expected_tools or ()
            # Arguments written in expected_tools are judged there, not against the baseline.
            judged = tuple(call.tool for call in calls if call.arguments is not None)
            found.append(SameArguments(self.arguments, match=mode, except_=judged))
        if self.forbidden_tools is not None:
            found.append(ForbidTools(self.forbidden_tools))
        if self.max_tool_calls is not None:
            found.append(CountToolCalls(max=self.max_tool_calls, kind="max_tool_calls"))
        if self.max_loops is not None:
            found.append(MaxLoops(self.max_loops))
        if self.min_tool_recall is not None:
            found.append(MinToolRecall(self.min_tool_recall, tools=tools or ()))
        if self.min_tool_precision is not None:
            found.append(MinToolPrecision(self.min_tool_precision, tools=tools or ()))
        if self.min_sequence_similarity is not None:
            found.append(MinSequenceSimilarity(self.min_sequence_similarity, tools=tools))
        if self.min_edit_similarity is not None:
            found.append(MinEditSimilarity(self.min_edit_similarity, tools=tools))
        if self.expected_handoff is not None:
            found.append(ExpectHandoffs(self.expected_handoff))
        if self.expected_handoffs_available is not None:
            found.append(HandoffsAvailable(self.expected_handoffs_available))
        if self.max_handoff_count is not None:
            found.append(CountHandoffs(max=self.max_handoff_count, kind="max_handoff_count"))
        if self.spans is not None:
            # The id names the result and is not part of the query.
            queries = [
                HasMatchingSpan(
                    {key: value for key, value in entry.items() if key != "id"},
                    id=None if entry.get("id") is None else str(entry["id"]),
                )
                for entry in self.spans
            ]
            found.append(grouped(queries).with_(kind="spans", id=None))
        if self.quality is not None:
            # The expected tools decide the dimension tool_selection.
            found.append(QualityBounds(self.quality, tools=tools))
        # forbidden_tools blocks even though the layer only warns.
        return [check.with_(required=check.always_blocks or self.blocking) for check in found]


class CostChecks(Strict):
    """Limits on cost, tokens, model calls and time. A failure warns."""

    max_cost_usd: Limit | None = None
    """The highest cost, in US dollars."""
    max_total_tokens: Count | None = None
    """The most tokens, input and output together."""
    max_llm_calls: Count | None = None
    """The most model calls."""
    max_latency_ms: Limit | None = None
    """The longest time from the first start to the last end, in milliseconds."""
    max_cost_multiplier: PositiveNumber | None = None
    """The highest cost as a multiple of the baseline's."""
    blocking: bool = False
    """Whether a failure makes the trial a hard failure."""

    def checks(self) -> list[Check]:
        """Build the checks."""
        limits: list[tuple[Callable[[Any], Check], Any]] = [
            (MaxCost, self.max_cost_usd),
            (MaxTokens, self.max_total_tokens),
            (MaxLLMCalls, self.max_llm_calls),
            (MaxLatency, self.max_latency_ms),
            (MaxCostRatio, self.max_cost_multiplier),
        ]
        found = [check(limit) for check, limit in limits if limit is not None]
        return [check.with_(required=self.blocking) for check in found]
