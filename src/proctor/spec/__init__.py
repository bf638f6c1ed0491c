"""Load and validate the files users write: suites, experiments and settings.

Start at `load_suite`, `Suite` and `Case`; names are imported when first used.
"""

from typing import TYPE_CHECKING

from proctor._lazy import imported_when_used

if TYPE_CHECKING:
    from proctor.spec._json_schema import schema_of
    from proctor.spec.case_checks import checks_of
    from proctor.spec.config import Configuration, Settings, load_configuration
    from proctor.spec.load import load_suite, restore_suite
    from proctor.spec.located import SourceLocation, SpecError, SpecProblem
    from proctor.spec.select import Filter, parse_filter, select_cases
    from proctor.spec.suite import AgentRef, Case, CustomCheck, JudgeConfig, Suite, Turn

__all__ = [
    "AgentRef",
    "Case",
    "Configuration",
    "CustomCheck",
    "Filter",
    "JudgeConfig",
    "Settings",
    "SourceLocation",
    "SpecError",
    "SpecProblem",
    "Suite",
    "Turn",
    "checks_of",
    "load_configuration",
    "load_suite",
    "parse_filter",
    "restore_suite",
    "schema_of",
    "select_cases",
]

_HOME_OF = {
    **dict.fromkeys(__all__, "proctor.spec.suite"),  # all that are not in a module below
    **dict.fromkeys(("Configuration", "Settings", "load_configuration"), "proctor.spec.config"),
    **dict.fromkeys(("Filter", "parse_filter", "select_cases"), "proctor.spec.select"),
    **dict.fromkeys(("SourceLocation", "SpecError", "SpecProblem"), "proctor.spec.located"),
    **dict.fromkeys(("load_suite", "restore_suite"), "proctor.spec.load"),
    "checks_of": "proctor.spec.case_checks",
    "schema_of": "proctor.spec._json_schema",
}
"""Public name → the module that defines it."""

if not TYPE_CHECKING:  # otherwise a type checker would accept any name
    __getattr__, __dir__ = imported_when_used(__name__, _HOME_OF, globals())
