"""Checks: was what the agent did, and answered, right?

The names below are imported when first used; each must be listed twice.
"""

from proctor._lazy import imported_when_used

TYPE_CHECKING = False  # type checkers treat it as typing's; importing typing costs start-up time
if TYPE_CHECKING:
    from proctor.checks._answer import Contains, ContainsAny, Equals, Excludes, Matches
    from proctor.checks._cost import MaxCost, MaxCostRatio, MaxLatency, MaxLLMCalls, MaxTokens
    from proctor.checks._structured import JMESPath, JSONSchema
    from proctor.checks.base import (
        Check,
        CheckContext,
        CheckResult,
        CheckResults,
        CheckStatus,
        Layer,
        Metric,
    )
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
    "Contains": "proctor.checks._answer",
    "ContainsAny": "proctor.checks._answer",
    "CountHandoffs": "proctor.checks.path",
    "CountToolCalls": "proctor.checks.path",
    "Equals": "proctor.checks._answer",
    "Excludes": "proctor.checks._answer",
    "ExpectHandoffs": "proctor.checks.path",
    "ExpectTools": "proctor.checks.path",
    "ExpectedCall": "proctor.checks.path",
    "ForbidTools": "proctor.checks.path",
    "FunctionCheck": "proctor.checks.custom",
    "Grounded": "proctor.checks.judge_checks",
    "HandoffsAvailable": "proctor.checks.path",
    "HasMatchingSpan": "proctor.checks.path",
    "JMESPath": "proctor.checks._structured",
    "JSONSchema": "proctor.checks._structured",
    "LLMJudge": "proctor.checks.judge_checks",
    "Layer": "proctor.checks.base",
    "Matches": "proctor.checks._answer",
    "MaxCost": "proctor.checks._cost",
    "MaxCostRatio": "proctor.checks._cost",
    "MaxLLMCalls": "proctor.checks._cost",
    "MaxLatency": "proctor.checks._cost",
    "MaxLoops": "proctor.checks.path",
    "MaxTokens": "proctor.checks._cost",
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
