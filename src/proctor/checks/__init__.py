"""Checks: is the answer right, and did the agent work well?

The names below are imported when first used, so each is listed for type checkers, in `__all__` and
with its module.
"""

from proctor._lazy import imported_when_used

TYPE_CHECKING = False  # type checkers treat it as typing's; importing typing costs start-up time
if TYPE_CHECKING:
    from proctor.checks._answer import (
        Contains,
        ContainsAny,
        Equals,
        Excludes,
        ExpectedOutput,
        JMESPath,
        JSONSchema,
        Matches,
    )
    from proctor.checks._cost import MaxCost, MaxCostRatio, MaxLatency, MaxLLMCalls, MaxTokens
    from proctor.checks._workspace import CommandPasses, DiffWithin, FileMatches
    from proctor.checks.base import (
        Check,
        CheckContext,
        CheckResult,
        CheckResults,
        CheckStatus,
        Layer,
        Metric,
    )
    from proctor.checks.custom import FunctionCheck, JavaScriptAssertion, PythonAssertion
    from proctor.checks.judge_checks import Grounded, LLMJudge, Safety
    from proctor.checks.path import (
        ArgumentContains,
        ArgumentEquals,
        CountHandoffs,
        CountToolCalls,
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
    )
    from proctor.checks.retrieval import ExpectRetrieval

__all__ = [
    "ArgumentContains",
    "ArgumentEquals",
    "Check",
    "CheckContext",
    "CheckResult",
    "CheckResults",
    "CheckStatus",
    "CommandPasses",
    "Contains",
    "ContainsAny",
    "CountHandoffs",
    "CountToolCalls",
    "DiffWithin",
    "Equals",
    "Excludes",
    "ExpectHandoffs",
    "ExpectRetrieval",
    "ExpectTools",
    "ExpectedCall",
    "ExpectedOutput",
    "FileMatches",
    "ForbidTools",
    "FunctionCheck",
    "Grounded",
    "HandoffsAvailable",
    "HasMatchingSpan",
    "JMESPath",
    "JSONSchema",
    "JavaScriptAssertion",
    "LLMJudge",
    "Layer",
    "Matches",
    "MaxCost",
    "MaxCostRatio",
    "MaxLLMCalls",
    "MaxLatency",
    "MaxLoops",
    "MaxTokens",
    "Metric",
    "MinEditSimilarity",
    "MinSequenceSimilarity",
    "MinToolPrecision",
    "MinToolRecall",
    "PythonAssertion",
    "QualityBounds",
    "Safety",
    "SameArguments",
]

_BASE = ("Check", "CheckContext", "CheckResult", "CheckResults", "CheckStatus", "Layer", "Metric")
_ANSWER = ("Contains", "ContainsAny", "Equals", "Excludes", "Matches")
_COST = ("MaxCost", "MaxCostRatio", "MaxLLMCalls", "MaxLatency", "MaxTokens")
_HOME_OF = {
    **dict.fromkeys(__all__, "proctor.checks.path"),  # all that are not in a module below
    **dict.fromkeys(_BASE, "proctor.checks.base"),
    **dict.fromkeys(_ANSWER, "proctor.checks._answer"),
    **dict.fromkeys(_COST, "proctor.checks._cost"),
    **dict.fromkeys(("ExpectedOutput", "JMESPath", "JSONSchema"), "proctor.checks._answer"),
    **dict.fromkeys(("Grounded", "LLMJudge", "Safety"), "proctor.checks.judge_checks"),
    "ExpectRetrieval": "proctor.checks.retrieval",
    **dict.fromkeys(("CommandPasses", "DiffWithin", "FileMatches"), "proctor.checks._workspace"),
    **dict.fromkeys(
        ("FunctionCheck", "JavaScriptAssertion", "PythonAssertion"), "proctor.checks.custom"
    ),
}
"""Public name → the module that defines it."""

if not TYPE_CHECKING:  # else a type checker would believe that any name exists
    __getattr__, __dir__ = imported_when_used(__name__, _HOME_OF, globals())
