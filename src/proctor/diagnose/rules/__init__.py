"""The rules that need no training, in the order of the taxonomy's groups."""

from .base import Hit, Rule, apply_rules
from .behaviour import (
    AnswerWithoutWork,
    RepeatedCall,
    ReportOverruled,
    ToolPassedOver,
    UnsupportedAnswer,
)
from .failures import BrokenCode, EmptySearch, MalformedCall, MissingResource, SystemFault
from .instructions import LimitExceeded, MissingTag

RULES: tuple[Rule, ...] = (
    UnsupportedAnswer(),
    ReportOverruled(),
    EmptySearch(),
    ToolPassedOver(),
    MalformedCall(),
    BrokenCode(),
    MissingTag(),
    LimitExceeded(),
    MissingResource(),
    SystemFault(),
    RepeatedCall(),
    AnswerWithoutWork(),
)

__all__ = ["RULES", "Hit", "Rule", "apply_rules"]
