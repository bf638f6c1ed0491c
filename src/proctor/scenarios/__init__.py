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

_HOME_OF = {
    "Built": "proctor.scenarios.scenario",
    "Catalog": "proctor.scenarios.catalog",
    "Template": "proctor.scenarios.template",
    "UnknownTemplateError": "proctor.scenarios.catalog",
    "build": "proctor.scenarios.builder",
    "build_template": "proctor.scenarios.builder",
    "catalog_for": "proctor.scenarios.catalog",
    "fetch": "proctor.scenarios.scenario",
    "find_template": "proctor.scenarios.builder",
    "store": "proctor.scenarios.scenario",
}
"""Public name → the module that defines it."""

if not TYPE_CHECKING:  # else a type checker would believe that any name exists
    __getattr__, __dir__ = imported_when_used(__name__, _HOME_OF, globals())
