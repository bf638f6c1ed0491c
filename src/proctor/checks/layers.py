"""The layers of a case as users write them: `correctness:`, `path:` and `cost:`.

Each key is one check; `checks()` builds the check objects, in the order they are judged. The
flat spelling of the same checks is `assertions.py`.
"""

from __future__ import annotations

from typing import Annotated, Any, cast

from pydantic import BaseModel, BeforeValidator, Field, field_validator

from proctor.checks._answer import Contains, ContainsAny, Equals, Excludes, Matches, check_pattern
from proctor.checks._cost import MaxCost, MaxCostRatio, MaxLatency, MaxLLMCalls, MaxTokens
from proctor.checks._structured import JMESPath, JSONSchema, Operators, validator_of
from proctor.checks.base import (
    Bound,
    Check,
    Count,
    Limit,
    Name,
    Names,
    Number,
    Share,
    Text,
    Texts,
    grouped,
    refused,
)
from proctor.checks.judge_checks import (
    Grounded,
    HallucinationOptions,
    JudgeRule,
    LLMJudge,
    Safety,
    SafetyOptions,
    spelled_rules,
)
from proctor.checks.metrics.arguments import ArgumentMode
from proctor.checks.metrics.matching import MatchMode
from proctor.checks.path import (
    CountHandoffs,
    CountToolCalls,
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
    check_dimensions,
    parse_trace_query,
)
from proctor.strict import Strict


class JmespathCheck(Operators):
    """An expression over what the agent did, and what must hold of its value."""

    id: str | None = None
    """A name for the result; the expression when absent."""


def _listed(value: Any) -> Any:
    if isinstance(value, list | tuple) and not value:
        raise ValueError("should have at least one entry; leave the key out to check nothing")
    return cast("list[Any]", value) if isinstance(value, list | tuple) else [value]


def _switch(value: Any) -> Any:
    if value is False:
        return None
    return {} if value is True else value


def written(options: BaseModel) -> dict[str, Any]:
    """Return the fields that were written: null differs from absent in some of them."""
    return {name: getattr(options, name) for name in options.model_fields_set}


Jmespaths = Annotated[
    tuple[JmespathCheck, ...],
    BeforeValidator(_listed, json_schema_input_type=JmespathCheck | list[JmespathCheck]),
]
JudgeRules = Annotated[
    tuple[JudgeRule, ...],
    BeforeValidator(
        lambda value: spelled_rules(_listed(value)),
        json_schema_input_type=str | JudgeRule | list[str | JudgeRule],
    ),
]


class Correctness(Strict):
    """Is the answer right? A failure here blocks."""

    expected_in_answer: Texts | None = None
    """Texts that must all stand in the answer."""
    any_expected_in_answer: Texts | None = None
    """Texts of which at least one must stand in the answer."""
    not_in_answer: Texts | None = None
    """Texts that must not stand in the answer."""
    exact_match: Text | None = None
    """The whole answer, up to surrounding white space."""
    regex_match: Texts | None = None
    """Regular expressions that must each be found somewhere in the answer."""
    json_schema: dict[str, Any] | None = None
    """A JSON Schema the answer must be valid JSON for. References are never fetched."""
    jmespath: Jmespaths | None = None
    """Expressions over what the agent did and answered."""
    llm_judge: JudgeRules | None = None
    """Rules an LLM judge scores the answer by."""
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
    """Whether texts and patterns tell upper from lower case."""
    blocking: bool = True
    """Whether a failure makes the trial a hard failure."""

    @field_validator("regex_match")
    @classmethod
    def _patterns(cls, patterns: tuple[str, ...] | None) -> tuple[str, ...] | None:
        with refused():
            for pattern in patterns or ():
                check_pattern(pattern)
        return patterns

    @field_validator("json_schema")
    @classmethod
    def _offline(cls, schema: dict[str, Any] | None) -> dict[str, Any] | None:
        if schema is not None:
            with refused():
                validator_of(schema)
        return schema

    def checks(self) -> list[Check]:
        """Build the checks; what calls a model comes last."""
        found: list[Check] = []
        cased = self.case_sensitive
        if self.expected_in_answer is not None:
            found.append(Contains(self.expected_in_answer, case_sensitive=cased))
        if self.any_expected_in_answer is not None:
            found.append(ContainsAny(self.any_expected_in_answer, case_sensitive=cased))
        if self.not_in_answer is not None:
            found.append(Excludes(self.not_in_answer, case_sensitive=cased))
        if self.exact_match is not None:
            found.append(Equals(self.exact_match, case_sensitive=cased))
        if self.regex_match is not None:
            found.append(Matches(self.regex_match, case_sensitive=cased))
        if self.json_schema is not None:
            found.append(JSONSchema(self.json_schema))
        if self.jmespath is not None:
            expressions = [JMESPath(**written(entry)) for entry in self.jmespath]
            paths = [entry.path for entry in self.jmespath]
            found.append(grouped(expressions, paths).with_(kind="jmespath", id=None))
        if self.llm_judge is not None:
            rules = [LLMJudge(**written(rule)) for rule in self.llm_judge]
            places = [str(place) for place in range(1, len(rules) + 1)]
            found.append(grouped(rules, places).with_(kind="llm_judge", id=None))
        if self.safety_check is not None:
            found.append(Safety(**written(self.safety_check)))
        if self.hallucination_check is not None:
            found.append(Grounded(**written(self.hallucination_check)))
        return [check.with_(required=self.blocking) for check in found]


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
                parse_trace_query(entry)
        return spans

    @field_validator("quality")
    @classmethod
    def _dimensions(cls, quality: dict[str, str] | None) -> dict[str, str] | None:
        return None if quality is None else check_dimensions(quality)

    def checks(self) -> list[Check]:
        """Build the checks."""
        found: list[Check] = []
        tools = None if self.expected_tools is None else [call.tool for call in self.expected_tools]
        mode = self.match_mode
        if self.expected_tools is not None:
            found.append(ExpectTools(self.expected_tools, match=mode, arguments=self.arguments))
        if self.arguments is not None:
            calls = self.expected_tools or ()
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
            queries = [
                HasMatchingSpan(
                    {key: value for key, value in entry.items() if key != "id"},
                    id=None if entry.get("id") is None else str(entry["id"]),
                )
                for entry in self.spans
            ]
            places = [str(place) for place in range(1, len(queries) + 1)]
            found.append(grouped(queries, places).with_(kind="spans", id=None))
        if self.quality is not None:
            found.append(QualityBounds(self.quality, tools=tools))
        return [check.with_(required=check.always_blocks or self.blocking) for check in found]


class CostChecks(Strict):
    """What may it take? A failure warns."""

    max_cost_usd: Limit | None = None
    """The most money, in US dollars."""
    max_total_tokens: Count | None = None
    """The most tokens, read and written."""
    max_llm_calls: Count | None = None
    """The most model calls."""
    max_latency_ms: Limit | None = None
    """The longest time from the first start to the last end, in milliseconds."""
    max_cost_multiplier: Annotated[float, Number, Field(gt=0, allow_inf_nan=False)] | None = None
    """The most money as a multiple of the baseline's."""
    blocking: bool = False
    """Whether a failure makes the trial a hard failure."""

    def checks(self) -> list[Check]:
        """Build the checks."""
        found: list[Check] = []
        if self.max_cost_usd is not None:
            found.append(MaxCost(self.max_cost_usd))
        if self.max_total_tokens is not None:
            found.append(MaxTokens(self.max_total_tokens))
        if self.max_llm_calls is not None:
            found.append(MaxLLMCalls(self.max_llm_calls))
        if self.max_latency_ms is not None:
            found.append(MaxLatency(self.max_latency_ms))
        if self.max_cost_multiplier is not None:
            found.append(MaxCostRatio(self.max_cost_multiplier))
        return [check.with_(required=self.blocking) for check in found]
