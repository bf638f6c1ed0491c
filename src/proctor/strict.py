"""Base model of what users write: unknown keys are errors.

Packages define their options with it; `proctor.spec` combines them, adds file and line to every
error, and publishes the JSON Schema. Every command that reads a file loads some sixty such models,
so work is deferred: a model is built when it is first used, and the docstrings below its fields
are read from the source only for the published schema.
"""

from __future__ import annotations

import ast
import inspect
import sys
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict

if TYPE_CHECKING:
    from pydantic import GetJsonSchemaHandler


class Strict(BaseModel):
    """A model that refuses unknown keys and does not change after it is read."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: Any, handler: GetJsonSchemaHandler, /
    ) -> dict[str, Any]:
        """Return pydantic's schema of the model, with the docstring of each field."""
        schema = handler(core_schema)
        properties = handler.resolve_ref_schema(schema).get("properties", {})
        # Base classes first, so that a model can describe an inherited field in its own words.
        for base in reversed(cls.__mro__):
            if not issubclass(base, Strict):
                continue
            docs = _field_docstrings(base.__module__).get(base.__qualname__, {})
            for name in docs.keys() & cls.model_fields.keys():
                properties[cls.model_fields[name].alias or name]["description"] = docs[name]
        return schema


@cache
def _field_docstrings(module: str) -> dict[str, dict[str, str]]:
    """Return the docstring below each field, by class and field."""
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    return {
        node.name: {
            field.target.id: inspect.cleandoc(docstring)
            for field, below in pairwise(node.body)
            if isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(below, ast.Expr)
            and isinstance(below.value, ast.Constant)
            and isinstance(docstring := below.value.value, str)
        }
        for node in tree.body
        if isinstance(node, ast.ClassDef)
    }
