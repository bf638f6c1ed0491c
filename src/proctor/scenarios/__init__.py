"""Scenario templates: found by name, built from a seed and parameters, kept and brought back.

Public names are imported when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from proctor.names import imported_when_used

if TYPE_CHECKING:
    from proctor.scenarios.building import build, build_template, find_template
    from proctor.scenarios.built import Built
    from proctor.scenarios.catalog import Catalog, UnknownTemplateError, catalog_for
    from proctor.scenarios.storage import fetch, store
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
    "Built": "proctor.scenarios.built",
    "Catalog": "proctor.scenarios.catalog",
    "Template": "proctor.scenarios.template",
    "UnknownTemplateError": "proctor.scenarios.catalog",
    "build": "proctor.scenarios.building",
    "build_template": "proctor.scenarios.building",
    "catalog_for": "proctor.scenarios.catalog",
    "fetch": "proctor.scenarios.storage",
    "find_template": "proctor.scenarios.building",
    "store": "proctor.scenarios.storage",
}
"""Public name → the module that defines it."""

if not TYPE_CHECKING:  # else a type checker would believe that any name exists
    __getattr__, __dir__ = imported_when_used(__name__, _HOME_OF, globals())
