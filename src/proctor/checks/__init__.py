"""Checks: was what the agent did, and answered, right?

The names below are imported when first used; each must be listed twice.
"""

from proctor._lazy import imported_when_used

TYPE_CHECKING = False  # type checkers treat it as typing's; importing typing costs start-up time
if TYPE_CHECKING:
    from proctor.checks.answer import Contains, ContainsAny, Equals, Excludes, Matches
    from proctor.checks.base import (
        Check,
        CheckContext,
        CheckResult,
        CheckResults,
        CheckStatus,
        Layer,
        Metric,
    )
    from proctor.checks.cost import MaxCost, MaxCostRatio, MaxLatency, MaxLLMCalls, MaxTokens
    from proctor.checks.custom import FunctionCheck
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
    from proctor.checks.structured import JMESPath, JSONSchema

__all__ = [
    "ArgumentContains",
    "ArgumentEquals",
    "Check",
    "CheckContext",
    "CheckResult",
    "CheckResults",
    "CheckStatus",
    "Contains",
    "ContainsAny",
    "CountHandoffs",
    "CountToolCalls",
    "Equals",
    "Excludes",
    "ExpectHandoffs",
    "ExpectTools",
    "ExpectedCall",
    "ForbidTools",
    "FunctionCheck",
    "Grounded",
    "HandoffsAvailable",
    "HasMatchingSpan",
    "JMESPath",
    "JSONSchema",
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
    "QualityBounds",
    "Safety",
    "SameArguments",
]

_HOME_OF = {
    "ArgumentContains": "proctor.checks.path",
    "ArgumentEquals": "proctor.checks.path",
    "Check": "proctor.checks.base",
    "CheckContext": "proctor.checks.base",
    "CheckResult": "proctor.checks.base",
    "CheckResults": "proctor.checks.base",
    "CheckStatus": "proctor.checks.base",
    "Contains": "proctor.checks.answer",
    "ContainsAny": "proctor.checks.answer",
    "CountHandoffs": "proctor.checks.path",
    "CountToolCalls": "proctor.checks.path",
    "Equals": "proctor.checks.answer",
    "Excludes": "proctor.checks.answer",
    "ExpectHandoffs": "proctor.checks.path",
    "ExpectTools": "proctor.checks.path",
    "ExpectedCall": "proctor.checks.path",
    "ForbidTools": "proctor.checks.path",
    "FunctionCheck": "proctor.checks.custom",
    "Grounded": "proctor.checks.judge_checks",
    "HandoffsAvailable": "proctor.checks.path",
    "HasMatchingSpan": "proctor.checks.path",
    "JMESPath": "proctor.checks.structured",
    "JSONSchema": "proctor.checks.structured",
    "LLMJudge": "proctor.checks.judge_checks",
    "Layer": "proctor.checks.base",
    "Matches": "proctor.checks.answer",
    "MaxCost": "proctor.checks.cost",
    "MaxCostRatio": "proctor.checks.cost",
    "MaxLLMCalls": "proctor.checks.cost",
    "MaxLatency": "proctor.checks.cost",
    "MaxLoops": "proctor.checks.path",
    "MaxTokens": "proctor.checks.cost",
    "Metric": "proctor.checks.base",
    "MinEditSimilarity": "proctor.checks.path",
    "MinSequenceSimilarity": "proctor.checks.path",
    "MinToolPrecision": "proctor.checks.path",
    "MinToolRecall": "proctor.checks.path",
    "QualityBounds": "proctor.checks.path",
    "Safety": "proctor.checks.judge_checks",
    "SameArguments": "proctor.checks.path",
}
"""Public name → the module that defines it."""

if not TYPE_CHECKING:  # else a type checker would believe that any name exists
    __getattr__, __dir__ = imported_when_used(__name__, _HOME_OF, globals())
