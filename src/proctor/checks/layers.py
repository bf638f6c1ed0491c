"""The checks of a case as users write them: `correctness:`, `path:`, `cost:` and `assertions:`.

In a layer each key is one check; `checks()` builds the check objects, in the order they are judged.
`assertions:` is the flat spelling of the same checks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, ClassVar, Literal, cast

from pydantic import BaseModel, BeforeValidator, Field

from proctor.checks._answer import (
    Contains,
    ContainsAny,
    Equals,
    Excludes,
    ExpectedOutput,
    JMESPath,
    JSONSchema,
    Matches,
    Operators,
    Patterns,
    Schema,
    Tolerance,
)
from proctor.checks._cost import MaxCost, MaxCostRatio, MaxLatency, MaxLLMCalls, MaxTokens
from proctor.checks._workspace import (
    CommandPasses,
    CommandRule,
    DiffRule,
    DiffWithin,
    FileMatches,
    FileRule,
)
from proctor.checks.base import (
    Check,
    Count,
    Limit,
    Name,
    Names,
    PositiveNumber,
    Share,
    Text,
    Texts,
    Weight,
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
from proctor.checks.metrics.alignment import ArgumentMode
from proctor.checks.metrics.matching import MatchMode
from proctor.checks.path import (
    ArgumentContains,
    ArgumentEquals,
    ArgumentsRule,
    CountBounds,
    CountHandoffs,
    CountToolCalls,
    DimensionBounds,
    Expected,
    ExpectedCall,
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
from proctor.checks.retrieval import ExpectRetrieval, RetrievalOptions
from proctor.sandbox.options import command_text
from proctor.strict import Strict


class JmespathCheck(Operators):
    """A JMESPath expression over the trial, and conditions on its value."""

    id: str | None = None
    """A name for the result; the expression when absent."""


_Options = list[tuple[Any, Callable[[Any], Check]]]
"""The value of each option, None if it was not written, and what builds its check."""


def _several(build: type[Check], name_by: str = "") -> Callable[[Sequence[BaseModel]], Check]:
    """Return what builds one check of several entries, whose results are named by their ids.

    `name_by` is the field that names an entry without an id; its position when empty.
    """

    def build_all(entries: Sequence[BaseModel]) -> Check:
        checks = [build(**written(entry)) for entry in entries]
        fallbacks = [getattr(entry, name_by) for entry in entries] if name_by else ()
        # The parts keep their ids; the group is named by its key.
        return grouped(checks, fallbacks).with_(kind=build.name, id=None)

    return build_all


_jmespaths, _judges = _several(JMESPath, "path"), _several(LLMJudge)
_files, _commands = _several(FileMatches, "path"), _several(CommandPasses)


def _span_queries(entries: Sequence[dict[str, Any]]) -> Check:
    # The id names the result; the query itself leaves it out.
    ids = [None if entry.get("id") is None else str(entry["id"]) for entry in entries]
    queries = [HasMatchingSpan(entry, id=name) for entry, name in zip(entries, ids, strict=True)]
    return grouped(queries).with_(kind="spans", id=None)


def _switch(value: Any) -> Any:
    # `false` is the same as leaving the key out, `true` means the defaults.
    if value is False:
        return None
    return {} if value is True else value


def _text_as(field: str) -> Callable[[Any], Any]:
    """Read a text as options with this one field."""
    return lambda value: {field: value} if isinstance(value, str) else value


class NamedCommandRule(CommandRule):
    """A command that is run in the workspace, and how it must end."""

    id: str | None = None
    """A name for the result, among several commands."""


class NamedFileRule(FileRule):
    """What must be true of a file in the workspace."""

    id: str | None = None
    """A name for the result; the path when absent."""


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
        listed(_text_as("rule")), json_schema_input_type=str | JudgeRule | list[str | JudgeRule]
    ),
]

CommandRules = Annotated[
    tuple[NamedCommandRule, ...],
    BeforeValidator(
        listed(_text_as("run")),
        json_schema_input_type=str | NamedCommandRule | list[str | NamedCommandRule],
    ),
]
FileRules = Annotated[
    tuple[NamedFileRule, ...],
    BeforeValidator(
        listed(_text_as("path")),
        json_schema_input_type=str | NamedFileRule | list[str | NamedFileRule],
    ),
]
DiffRules = Annotated[
    DiffRule,
    BeforeValidator(
        lambda value: {"only": cast("Any", value)} if isinstance(value, str | list) else value,
        json_schema_input_type=str | list[str] | DiffRule,
    ),
]


class OutputOptions(Strict):
    """The expected value of a structured answer, and how it is compared."""

    value: Any
    """The expected value."""
    tolerance: Tolerance | dict[str, Tolerance] = 0
    """How far numbers may be off: a number, a share such as `1%`, or one of them by path."""
    ignore: Names = ()
    """Paths that are not compared; `*` is any one step."""
    unordered: Names = ()
    """Paths of lists whose order does not matter."""
    exact: bool = False
    """Whether fields that are not expected fail."""
    case_sensitive: bool = False


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
    expected_output: OutputOptions | None = None
    """The value that a structured answer must have, compared field by field."""
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
    files: FileRules | None = None
    """Files that must be in the workspace, by path or with conditions on their content."""
    diff: DiffRules | None = None
    """What the agent may change in the workspace: patterns of paths, or limits."""
    command: CommandRules | None = None
    """Commands that must succeed in the workspace, such as its tests."""
    case_sensitive: bool = False
    """Whether texts and patterns distinguish upper and lower case."""
    blocking: bool = True
    """Whether a failure makes the trial a hard failure."""

    def checks(self) -> list[Check]:
        """Build the checks; what calls a model comes last."""
        case = self.case_sensitive
        # In the documented order, which is the order of the results.
        options: _Options = [
            (self.expected_in_answer, lambda texts: Contains(texts, case_sensitive=case)),
            (self.any_expected_in_answer, lambda texts: ContainsAny(texts, case_sensitive=case)),
            (self.not_in_answer, lambda texts: Excludes(texts, case_sensitive=case)),
            (self.exact_match, lambda text: Equals(text, case_sensitive=case)),
            (self.regex_match, lambda patterns: Matches(patterns, case_sensitive=case)),
            (self.json_schema, JSONSchema),
            (self.expected_output, lambda options: ExpectedOutput(**written(options))),
            (self.jmespath, _jmespaths),
            (self.llm_judge, _judges),
            (self.safety_check, lambda options: Safety(**written(options))),
            (self.hallucination_check, lambda options: Grounded(**written(options))),
            (self.files, _files),
            (self.diff, lambda rule: DiffWithin(**written(rule))),
            (self.command, _commands),
        ]
        return [build(v).with_(required=self.blocking) for v, build in options if v is not None]


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
    retrieval: RetrievalOptions | None = None
    """What must be retrieved: sources, k, precision, recall, mrr, ndcg, empty."""
    quality: DimensionBounds | None = None
    """Bounds on quality dimensions, such as `efficiency: '>= 0.8'`; also `overall`."""
    blocking: bool = False
    """Whether a failure makes the trial a hard failure."""

    def checks(self) -> list[Check]:
        """Build the checks."""
        calls, mode = self.expected_tools or (), self.match_mode
        tools = None if self.expected_tools is None else [call.tool for call in calls]
        # Arguments written in expected_tools are judged there, not against the baseline.
        judged = tuple(call.tool for call in calls if call.arguments is not None)
        options: _Options = [
            (
                self.expected_tools,
                lambda calls: ExpectTools(calls, match=mode, arguments=self.arguments),
            ),
            (self.arguments, lambda rule: SameArguments(rule, match=mode, except_=judged)),
            (self.forbidden_tools, ForbidTools),
            (self.max_tool_calls, lambda most: CountToolCalls(max=most, kind="max_tool_calls")),
            (self.max_loops, MaxLoops),
            (self.min_tool_recall, lambda least: MinToolRecall(least, tools=tools or ())),
            (self.min_tool_precision, lambda least: MinToolPrecision(least, tools=tools or ())),
            (self.min_sequence_similarity, lambda s: MinSequenceSimilarity(s, tools=tools)),
            (self.min_edit_similarity, lambda least: MinEditSimilarity(least, tools=tools)),
            (self.expected_handoff, ExpectHandoffs),
            (self.expected_handoffs_available, HandoffsAvailable),
            (self.max_handoff_count, lambda n: CountHandoffs(max=n, kind="max_handoff_count")),
            (self.spans, _span_queries),
            (self.retrieval, lambda options: ExpectRetrieval(**written(options))),
            # The expected tools decide the dimension tool_selection.
            (self.quality, lambda bounds: QualityBounds(bounds, tools=tools)),
        ]
        found = [build(value) for value, build in options if value is not None]
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
        options: _Options = [
            (self.max_cost_usd, MaxCost),
            (self.max_total_tokens, MaxTokens),
            (self.max_llm_calls, MaxLLMCalls),
            (self.max_latency_ms, MaxLatency),
            (self.max_cost_multiplier, MaxCostRatio),
        ]
        return [build(v).with_(required=self.blocking) for v, build in options if v is not None]


# -- the flat spelling ---------------------------------------------------------------------------
# One model for each type, which builds a check object. Nothing is judged here: `{type:
# output_contains, value: Paris}` and `correctness: {expected_in_answer: Paris}` both build
# `Contains("Paris")`. Every type has `weight`, `required` and `id`.


class AssertionBase(Strict):
    """What every assertion has."""

    _builds: ClassVar[type[Check]]
    _renamed: ClassVar[dict[str, str]] = {}
    _id_by: ClassVar[tuple[str, ...]] = ()

    weight: Weight = 1.0
    """How much it counts in the score."""
    required: bool = False
    """Whether a failure makes the trial a hard failure."""
    id: str | None = Field(default=None, min_length=1)
    """Its name in results; its type and argument when absent."""

    def __init_subclass__(
        cls,
        builds: type[Check] | None = None,
        renamed: dict[str, str] | None = None,
        id_by: tuple[str, ...] = (),
        **config: Any,
    ) -> None:
        """Declare the check that a type builds (from its fields, unless `check` is overridden).

        `renamed` are the fields that have another name in the check; those of `id_by` go into the
        id after the type.
        """
        super().__init_subclass__(**config)
        cls._builds, cls._renamed, cls._id_by = (
            builds or getattr(cls, "_builds", Check),
            renamed or cls._renamed,
            id_by or cls._id_by,
        )

    def check(self) -> Check:
        """Build the check."""
        return self._builds(**self.own())

    def own(self) -> dict[str, Any]:
        """Return the fields of the type that were set."""
        # Only fields that were set: for some operators null differs from absent.
        own = self.model_fields_set - (AssertionBase.model_fields.keys() | {"type"})
        return {self._renamed.get(name, name): getattr(self, name) for name in own}

    @property
    def argument(self) -> str:
        """What distinguishes it from others of its type, for the id."""
        values = [getattr(self, name) for name in self._id_by]
        shown = [
            # A list in an id reads as one word: `handoff_target:billing+sales`.
            "+".join(cast("tuple[str, ...]", value)) if isinstance(value, tuple) else str(value)
            for value in values
            if value
        ]
        return ".".join(shown)[:80]


def assertion_check(assertion: Any) -> Check:
    """Return the check of an assertion, with its id, weight and whether it blocks."""
    kind = str(assertion.type)
    derived = f"{kind}:{assertion.argument}" if assertion.argument else kind
    return assertion.check().with_(
        kind=kind, id=assertion.id or derived, weight=assertion.weight, required=assertion.required
    )


class ToolCalled(AssertionBase, id_by=("tool",)):
    """A tool was called, with these arguments if any are given."""

    type: Literal["tool_called"]
    tool: Name
    """The tool."""
    arguments: dict[str, Any] | None = None
    """Arguments of the call; when absent, any arguments match."""
    match: ArgumentMode = "superset"
    """How they are compared; `superset` lets the call have more than those written."""

    def check(self) -> Check:
        """Build the check."""
        call = ExpectedCall(tool=self.tool, arguments=self.arguments)
        return ExpectTools([call], arguments=self.match)


class ToolNotCalled(AssertionBase, builds=ForbidTools, id_by=("tool",), renamed={"tool": "tools"}):
    """A tool was not called."""

    type: Literal["tool_not_called"]
    tool: Name
    """The tool; `*` matches any characters."""


class ToolCallCount(CountBounds, AssertionBase, builds=CountToolCalls, id_by=("tool",)):
    """The number of calls of a tool, or of all tools, is within bounds."""

    type: Literal["tool_call_count"]
    tool: Name | None = None
    """The tool; calls of all tools when absent."""


class ToolSequence(AssertionBase):
    """Tools were called in this sequence."""

    type: Literal["tool_sequence"]
    tools: tuple[Expected, ...] = Field(min_length=1)
    """The tools, by name or as {tool, arguments}."""
    mode: Literal["exact", "in_order", "any_order"] = "in_order"
    """exact: these calls and no others, in this order; in_order: these in this order, others
    between them allowed; any_order: these, in any order, others allowed."""

    @property
    def argument(self) -> str:
        """The tools, for the id."""
        return ">".join(call.tool for call in self.tools)[:80]

    def check(self) -> Check:
        """Build the check."""
        return ExpectTools(self.tools, match=_SEQUENCE_MODES[self.mode])


_SEQUENCE_MODES: dict[str, MatchMode] = {
    "exact": "strict",
    "in_order": "in_order",
    "any_order": "superset",
}


class _ArgumentAssertion(AssertionBase, id_by=("tool", "arg")):
    tool: Name
    """The tool."""
    arg: Name
    """The argument, as a dotted path (`filter.city`)."""


class ArgEquals(_ArgumentAssertion, builds=ArgumentEquals):
    """Some call of a tool had an argument equal to a value."""

    type: Literal["arg_equals"]
    value: Any
    """The value it must equal."""


class ArgContains(_ArgumentAssertion, builds=ArgumentContains):
    """Some call of a tool had an argument that contains a value."""

    type: Literal["arg_contains"]
    value: Any
    """A part of the text, an item of the list, or a key of the mapping."""
    case_sensitive: bool = False
    """Whether upper and lower case differ."""


class _OutputAssertion(AssertionBase, id_by=("value",), renamed={"value": "texts"}):
    value: Texts
    """The text, or several."""
    case_sensitive: bool = False
    """Whether upper and lower case differ."""


class OutputContains(_OutputAssertion, builds=Contains):
    """The answer contains all of the texts."""

    type: Literal["output_contains"]


class OutputNotContains(_OutputAssertion, builds=Excludes):
    """The answer contains none of the texts."""

    type: Literal["output_not_contains"]


class JmespathAssertion(Operators, AssertionBase, builds=JMESPath, id_by=("path",)):
    """A JMESPath expression over the trial, and conditions on its value."""

    type: Literal["jmespath"]


class CostUnder(AssertionBase, builds=MaxCost):
    """The trial cost no more than this."""

    type: Literal["cost_under"]
    usd: Limit
    """The highest cost, in US dollars."""


class LatencyUnder(AssertionBase, builds=MaxLatency):
    """The trial took no longer than this."""

    type: Literal["latency_under"]
    ms: Limit
    """The longest time, in milliseconds."""


class StepsUnder(AssertionBase, builds=CountToolCalls, renamed={"steps": "max"}):
    """The trial took no more steps (tool calls) than this."""

    type: Literal["steps_under"]
    steps: Count
    """The most tool calls."""


class HandoffTarget(
    AssertionBase, builds=ExpectHandoffs, id_by=("agent",), renamed={"agent": "agents"}
):
    """An agent received a handoff."""

    type: Literal["handoff_target"]
    agent: Names
    """The agent, or several that must all receive one."""


class HandoffTargetsAvailable(AssertionBase, builds=HandoffsAvailable, id_by=("agents",)):
    """Agents were available as handoff targets."""

    type: Literal["handoff_targets_available"]
    agents: Names
    """The agents."""


class HandoffCount(CountBounds, AssertionBase, builds=CountHandoffs):
    """The number of handoffs is within bounds."""

    type: Literal["handoff_count"]


class JudgeAssertion(JudgeRule, AssertionBase, id_by=("rubric",)):
    """A judge scores the answer: by a rule, or by weighted criteria, the median of k votes each."""

    type: Literal["judge"]
    id: str | None = Field(default=None, min_length=1)
    """Its name in results; its type and argument when absent."""

    def check(self) -> Check:
        """Build the check; the judge is shown the id as the name of the rule."""
        return LLMJudge(**self.own(), id=self.id)


class SpanAssertion(AssertionBase, builds=HasMatchingSpan):
    """A query over the spans of the trace holds."""

    type: Literal["span"]
    query: SpanCondition
    """Conditions that some span must meet, or any, all, none, count, before, after."""


class CommandAssertion(CommandRule, AssertionBase, builds=CommandPasses):
    """A command succeeds in the workspace, such as its tests."""

    type: Literal["command"]

    @property
    def argument(self) -> str:
        """The command as people write it."""
        return command_text(self.run)[:80]


class FileAssertion(FileRule, AssertionBase, builds=FileMatches, id_by=("path",)):
    """A file of the workspace exists, with the right content, or unchanged."""

    type: Literal["files"]


class DiffAssertion(DiffRule, AssertionBase, builds=DiffWithin):
    """The agent changed only what it may change in the workspace."""

    type: Literal["diff"]


Assertion = Annotated[
    ToolCalled
    | ToolNotCalled
    | ToolCallCount
    | ToolSequence
    | ArgEquals
    | ArgContains
    | OutputContains
    | OutputNotContains
    | JmespathAssertion
    | CostUnder
    | LatencyUnder
    | StepsUnder
    | HandoffTarget
    | HandoffTargetsAvailable
    | HandoffCount
    | JudgeAssertion
    | SpanAssertion
    | CommandAssertion
    | FileAssertion
    | DiffAssertion,
    Field(discriminator="type"),
]
"""One assertion; `type` says which."""
