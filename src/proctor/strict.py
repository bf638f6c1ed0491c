"""The base of everything users write: strict models that refuse unknown keys.

Rooms define their own options on it; `proctor.spec` puts them together, adds file and line to
every error, and publishes the JSON Schema. Every command that reads a file loads some sixty such
models, so nothing is done for them before it is needed: a model is built when it is first used,
and the words below its fields are read from the source only for the published schema.
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
        """What pydantic makes of the model, with the words below each field."""
        schema = handler(core_schema)
        properties = handler.resolve_ref_schema(schema).get("properties", {})
        for name, said in _words_of(cls).items():
            properties[cls.model_fields[name].alias or name]["description"] = said
        return schema


def _words_of(model: type[Strict]) -> dict[str, str]:
    """Field → the words below it, in this model or the one it comes from."""
    found: dict[str, str] = {}
    for base in reversed(model.__mro__):
        if issubclass(base, Strict):
            found |= _below_fields(base.__module__).get(base.__qualname__, {})
    return {name: said for name, said in found.items() if name in model.model_fields}


@cache
def _below_fields(module: str) -> dict[str, dict[str, str]]:
    """Class of a module → field → the words in the string below it."""
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    return {
        node.name: {
            field.target.id: inspect.cleandoc(said)
            for field, below in pairwise(node.body)
            if isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(below, ast.Expr)
            and isinstance(below.value, ast.Constant)
            and isinstance(said := below.value.value, str)
        }
        for node in tree.body
        if isinstance(node, ast.ClassDef)
    }
