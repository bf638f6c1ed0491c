"""Scenario templates: find them by name, build them from seed and parameters, store the builds.

Public names are imported when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from proctor._lazy import imported_when_used

if TYPE_CHECKING:
    from proctor.scenarios.builder import build, build_template, find_template
    from proctor.scenarios.catalog import Catalog, UnknownTemplateError, catalog_for
    from proctor.scenarios.scenario import Built, fetch, store
    from proctor.scenarios.template import Template

__all__ = [
    "Built",
    "Catalog",
    "Template",
    "UnknownTemplateError",
    "build",
    "build_template",
    "catalog_for",
    "fetch",
    "find_template",
    "store",
]

_CATALOG = ("Catalog", "UnknownTemplateError", "catalog_for")
_HOME_OF = {
    **dict.fromkeys(("Built", "fetch", "store"), "proctor.scenarios.scenario"),
    **dict.fromkeys(("build", "build_template", "find_template"), "proctor.scenarios.builder"),
    **dict.fromkeys(_CATALOG, "proctor.scenarios.catalog"),
    "Template": "proctor.scenarios.template",
}
"""Public name → the module that defines it."""

if not TYPE_CHECKING:  # else a type checker would believe that any name exists
    __getattr__, __dir__ = imported_when_used(__name__, _HOME_OF, globals())
