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
    from proctor.spec.suite import AgentRef, Case, CustomCheck, JudgeConfig, Suite

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
    "checks_of",
    "load_configuration",
    "load_suite",
    "parse_filter",
    "restore_suite",
    "schema_of",
    "select_cases",
]

_HOME_OF = {
    "AgentRef": "proctor.spec.suite",
    "Case": "proctor.spec.suite",
    "Configuration": "proctor.spec.config",
    "CustomCheck": "proctor.spec.suite",
    "Filter": "proctor.spec.select",
    "JudgeConfig": "proctor.spec.suite",
    "SourceLocation": "proctor.spec.located",
    "SpecProblem": "proctor.spec.located",
    "Settings": "proctor.spec.config",
    "SpecError": "proctor.spec.located",
    "Suite": "proctor.spec.suite",
    "load_configuration": "proctor.spec.config",
    "load_suite": "proctor.spec.load",
    "parse_filter": "proctor.spec.select",
    "checks_of": "proctor.spec.case_checks",
    "restore_suite": "proctor.spec.load",
    "schema_of": "proctor.spec._json_schema",
    "select_cases": "proctor.spec.select",
}
"""Public name → the module that defines it."""

if not TYPE_CHECKING:  # otherwise a type checker would accept any name
    __getattr__, __dir__ = imported_when_used(__name__, _HOME_OF, globals())
